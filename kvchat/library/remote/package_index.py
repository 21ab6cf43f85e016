"""What a Python package index says: which one the user has set, and which wheels a project's page lists. No network."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import parse_qs, unquote, urldefrag, urljoin, urlsplit

DEFAULT_INDEX = "https://pypi.org/simple"
SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"  # PEP 691
ACCEPTED = f"{SIMPLE_JSON}, text/html;q=0.1"  # mirrors often know PEP 503 alone


@dataclass(frozen=True)
class IndexFile:
    """One file as the index lists it. `sha256` in hex; `size` in bytes, None where the index does not tell."""

    url: str
    filename: str
    sha256: str
    size: int | None = None


def newest_wheel(page_url: str, content_type: str, page: str) -> IndexFile | None:
    """The wheel with the highest version on a project's page that has a SHA-256 and is not yanked; None without one.

    Raises ValueError for a page that is neither PEP 691 JSON nor PEP 503 HTML.
    """
    if "json" in content_type:
        listed = _json_files(page_url, page)
    elif "html" in content_type:
        listed = _html_files(page_url, page)
    else:
        raise ValueError(f"the page is of type {content_type or 'unknown'}")
    wheels = [file for file in listed if file.filename.endswith(".whl") and file.sha256]
    return max(wheels, key=lambda file: _version(file.filename), default=None)


def _json_files(page_url: str, page: str) -> Iterable[IndexFile]:
    """The files of a PEP 691 page that are not yanked."""
    try:
        return [
            IndexFile(
                urljoin(page_url, file["url"]),
                _plain_name(file["filename"]),
                file.get("hashes", {}).get("sha256", ""),
                file.get("size"),
            )
            for file in json.loads(page)["files"]
            if not file.get("yanked")
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the page lacks {error}") from error


def _html_files(page_url: str, page: str) -> Iterable[IndexFile]:
    """The files of a PEP 503 page that are not yanked."""
    anchors = _Anchors()
    anchors.feed(page)
    for link in anchors.links:
        url, fragment = urldefrag(urljoin(page_url, link))
        sha256 = parse_qs(fragment).get("sha256", [""])[0]
        yield IndexFile(url, _plain_name(unquote(urlsplit(url).path)), sha256)


class _Anchors(HTMLParser):
    """Collects the links of a page, but those marked as yanked (PEP 592)."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an anchor's link."""
        attributes = dict(attrs)
        link = attributes.get("href")
        if tag == "a" and link and "data-yanked" not in attributes:
            self.links.append(link)


def _plain_name(path: str) -> str:
    """The last part of a path, so that no index can name a file outside the folder it is meant for."""
    return re.split(r"[/\\]", path)[-1]


def _version(filename: str) -> tuple[int, ...]:
    """The numbers of a wheel's version: enough to order a project's plain releases."""
    return tuple(int(number) for number in re.findall(r"\d+", filename.split("-")[1]))


def index_url(environment: Mapping[str, str]) -> str:
    """The package index the user has set for pip, in the environment or a pip.conf; pypi.org otherwise."""
    if url := environment.get("PIP_INDEX_URL"):
        return url.rstrip("/")
    for path in _pip_configs(environment):
        parser = configparser.ConfigParser(interpolation=None)
        with contextlib.suppress(OSError, UnicodeDecodeError, configparser.Error):
            parser.read(path, "utf-8")
        if url := parser.get("global", "index-url", fallback=""):
            return url.rstrip("/")
    return DEFAULT_INDEX


def _pip_configs(environment: Mapping[str, str]) -> list[Path]:
    """Where pip looks for its configuration, the strongest first (pip's user guide, "Configuration")."""
    home = Path(environment.get("HOME") or environment.get("USERPROFILE") or Path.home())
    named = environment.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    paths = [Path(named)] if named else []
    paths.append(Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf")
    paths += [home / ".pip" / "pip.conf", home / "pip" / "pip.ini"]
    if roaming := environment.get("APPDATA"):
        paths.append(Path(roaming) / "pip" / "pip.ini")
    return [*paths, Path("/etc/pip.conf")]
