"""GitHub releases: llama.cpp builds for a GPU, and new versions of kvchat.

API: https://docs.github.com/en/rest/releases/releases#list-releases

The names of the builds are set in https://github.com/ggml-org/llama.cpp/blob/master/.github/workflows/release.yml. In
b11457 they are `llama-b11457-bin-ubuntu-cuda-12.8-x64.tar.gz`, `…-ubuntu-vulkan-x64.tar.gz`, `…-win-cuda-12.4-x64.zip`,
`…-win-rocm-10.0-x64.zip` (earlier `…-win-hip-radeon-x64.zip`), `…-win-sycl-x64.zip`, `…-macos-arm64.tar.gz`. The CUDA
libraries are in a separate file, `cudart-llama-b11457-bin-ubuntu-cuda-12.8-x64.tar.gz`; on Windows, its name lacks the
build. Every build is a prerelease on GitHub. Full releases such as v0.7.0 have no builds.

xllamacpp's CUDA wheels (https://xorbitsai.github.io/xllamacpp/whl/cu128) are not used, because they lack the CUDA
libraries on Linux. The builds above need only NVIDIA's driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from kvchat import __version__
from kvchat.engine.discovery.graphics import Backend, Graphics, suitable_backends
from kvchat.errors import KvchatError
from kvchat.library.remote.downloader import DownloadOrder
from kvchat.library.remote.hub import (
    MAX_RESPONSE_BYTES,
    HubError,
    HubFile,
    HubPart,
    Unreachable,
    open_response,
    unexpected_status,
    unreachable,
)
from kvchat.system.files import parse_json, read_limited
from kvchat.text.formatting import format_size
from kvchat.text.language import _

if TYPE_CHECKING:
    import httpx2

MAX_RELEASES = 10
_SHA256 = "sha256:"


@dataclass(frozen=True)
class Release:
    """A release. Its files are only those for which GitHub publishes a SHA-256."""

    tag: str
    files: tuple[HubPart, ...]
    is_prerelease: bool = False


class GitHub:
    """Client for GitHub, or the hosts in GITHUB_API_URL and GITHUB_SERVER_URL. Usable on any event loop."""

    name = "GitHub"

    async def releases(self, repository: str) -> tuple[Release, ...]:
        """Return the newest releases of "owner/name", newest first, including prereleases. Raises HubError."""
        base = (os.environ.get("GITHUB_API_URL") or "https://api.github.com").rstrip("/")
        accept = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
        async with self._open(f"{base}/repos/{repository}/releases?per_page={MAX_RELEASES}", accept) as response:
            try:
                entries = parse_json(await read_limited(response.aiter_bytes(), MAX_RESPONSE_BYTES))
                return tuple(_parse_release(entry) for entry in entries if not entry["draft"])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise HubError(
                    _("The response is invalid"),
                    f"{base}: {error!r}.",
                    _("The response may not come from GitHub. Check your network and proxy."),
                ) from error

    def page(self, repository: str) -> str:
        return f"{_server()}/{repository}/releases"

    def download(
        self, repository: str, revision: str, path: str, start: int
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        url = f"{_server()}/{repository}/releases/download/{quote(revision)}/{quote(path)}"
        return self._open(url, {"Range": f"bytes={start}-"} if start else {})

    def _open(self, url: str, headers: Mapping[str, str]) -> AbstractAsyncContextManager[httpx2.Response]:
        host = urlsplit(url).netloc

        def status_error(response: httpx2.Response) -> HubError:
            status = response.status_code
            if status == 404:
                advice = _("Try again. There may be a newer release.")
                return HubError(_("File not found on GitHub"), _("{url} no longer exists.", url=url), advice)
            if status in (403, 429):  # without an account: 60 requests an hour
                why = _("{host} received too many requests from your network.", host=host)
                return HubError(_("GitHub rate limit reached"), why, _("Try again later."))
            return unexpected_status(_("GitHub is having problems"), host, status)

        def connection_error(error: Exception) -> Unreachable:
            return unreachable(_("GitHub cannot be reached"), host, error)

        return open_response(url, headers, status_error, connection_error)


def _server() -> str:
    return (os.environ.get("GITHUB_SERVER_URL") or "https://github.com").rstrip("/")


def _parse_release(entry: dict[str, Any]) -> Release:
    files = [
        HubPart(str(asset["name"]), int(asset["size"]), str(asset["digest"]).removeprefix(_SHA256))
        for asset in entry["assets"]
        if str(asset.get("digest") or "").startswith(_SHA256) and asset.get("state", "uploaded") == "uploaded"
    ]
    return Release(str(entry["tag_name"]), tuple(files), bool(entry["prerelease"]))


LLAMA_CPP_REPOSITORY = "ggml-org/llama.cpp"
_BUILD_NAME = re.compile(r"llama-(b\d+)-bin-(ubuntu|win|macos)-(?:(.+)-)?(x64|arm64)\.(?:zip|tar\.gz)")
_SYSTEMS = {"linux": "ubuntu", "win32": "win", "darwin": "macos"}
_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_BACKENDS = {
    "cuda": Backend.CUDA,
    "rocm": Backend.ROCM,
    "hip": Backend.ROCM,
    "vulkan": Backend.VULKAN,
    "sycl": Backend.SYCL,
    "metal": Backend.METAL,  # macOS builds do not name it
}
# Approximate size of build and libraries in bytes (b11457), shown before any request is sent.
_APPROXIMATE_BYTES = {
    ("linux", Backend.CUDA): 770_000_000,
    ("linux", Backend.ROCM): 245_000_000,
    ("linux", Backend.VULKAN): 32_000_000,
    ("linux", Backend.SYCL): 52_000_000,
    ("win32", Backend.CUDA): 640_000_000,
    ("win32", Backend.ROCM): 320_000_000,
    ("win32", Backend.VULKAN): 34_000_000,
    ("win32", Backend.SYCL): 120_000_000,
    ("darwin", Backend.METAL): 11_000_000,
}


def approximate_size(backend: Backend, system: str = sys.platform) -> str:
    """Return the approximate download size, such as "about 770 MB", or "" if it is unknown."""
    count = _APPROXIMATE_BYTES.get((system, backend))
    return _("about {count}", count=format_size(count)) if count else ""


def builds_for(
    graphics: Graphics, releases: Sequence[Release], machine: str = platform.machine()
) -> tuple[DownloadOrder, ...]:
    """Return the newest build of each backend for these GPUs, best first. Expects the newest release first."""
    newest = (
        next((build for release in releases for build in _builds(release, backend, graphics.system, machine)), None)
        for backend in suitable_backends(graphics)
    )
    return tuple(filter(None, newest))


def backend_of(name: str) -> Backend | None:
    """Return the backend in the name of an engine build or its folder, or None."""
    return _BACKENDS.get("".join(name.split("-")[2:3]))


def _builds(release: Release, backend: Backend, system: str, machine: str) -> list[DownloadOrder]:
    """List the builds in a release, those for the oldest backend version first, because they work with most drivers."""
    platform_names, builds = (_SYSTEMS.get(system), _MACHINES.get(machine.lower())), []
    for file in release.files:
        match = _BUILD_NAME.fullmatch(file.path)
        if match is None or (match[2], match[4]) != platform_names:
            continue
        flavour = match[3] or ("metal" if system == "darwin" else "")
        if _BACKENDS.get(flavour.partition("-")[0]) is backend:
            names = {f"cudart-{file.path}", f"cudart-{file.path.replace(f'{match[1]}-', '', 1)}"}
            libraries = [file for file in release.files if file.path in names][:1]
            parts = HubFile(f"llama.cpp-{match[1]}-{flavour}", "", (file, *libraries))
            version = tuple(map(int, re.findall(r"\d+", flavour)))
            builds.append((version, flavour, DownloadOrder(LLAMA_CPP_REPOSITORY, release.tag, parts)))
    return [build for *_, build in sorted(builds, key=itemgetter(0, 1))]


_KVCHAT_REPOSITORY = "kvchat/kvchat"
UPDATE_INTERVAL_S = 86_400.0
_CHECK_INTERVAL_S = 600.0
_CHECK_MARKER = "asked-for-updates"  # file in the state folder; its mtime is the time of the last check


async def watch_updates(state: Path, is_enabled: Callable[[], bool], notify: Callable[[str, str], None]) -> None:
    """Check for new versions once a day, forever. Call `notify` with the version and its web page."""
    checked = state / _CHECK_MARKER

    def is_due() -> bool:
        if checked.exists() and 0 <= time.time() - checked.stat().st_mtime < UPDATE_INTERVAL_S:
            return False
        checked.touch()
        return True

    while True:
        with contextlib.suppress(OSError, KvchatError):  # a failed check is repeated tomorrow
            if is_enabled() and await asyncio.to_thread(is_due) and (tag := await newer_tag()):
                notify(tag.removeprefix("v"), f"{GitHub().page(_KVCHAT_REPOSITORY)}/tag/{tag}")
        await asyncio.sleep(_CHECK_INTERVAL_S)


async def newer_tag() -> str:
    """Return the tag of the newest release if it is newer than this kvchat, otherwise "". Raises KvchatError."""
    tags = [release.tag for release in await GitHub().releases(_KVCHAT_REPOSITORY) if not release.is_prerelease]
    newest = max(tags, key=_version_order, default="")
    return newest if _version_order(newest) > _version_order(__version__) else ""


def _version_order(tag: str) -> tuple[int, ...]:
    return tuple(map(int, match[1].split("."))) if (match := re.fullmatch(r"v?(\d+(?:\.\d+)*)", tag)) else ()
