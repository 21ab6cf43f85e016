"""The models that are being fetched: one after the other, each can be paused, and a later start finds it again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from kvchat.errors import KvchatError
from kvchat.library.remote.hub_download import Order, Origin, discard, fetch_model, unfinished_orders
from kvchat.words.language import N_, _, sentences

TELL_EVERY_S = 0.2
RATE_OVER_S = 5.0  # the rate shown is the mean over about so long


class DownloadState(Enum):
    """What a download is doing; the value is the word on the screen."""

    WAITING = N_("waiting")
    CHECKING = N_("checking what is there")
    FETCHING = N_("downloading")
    PAUSED = N_("paused")
    DONE = N_("done")
    FAILED = N_("failed")


RUNS = frozenset((DownloadState.WAITING, DownloadState.CHECKING, DownloadState.FETCHING))


@dataclass(frozen=True)
class Download:
    """A download as it stands. Bytes; rate in bytes per second, 0 while it is not known."""

    order: Order
    path: Path  # where the model's first file will be; names the download
    state: DownloadState
    done: int = 0
    rate: float = 0.0
    error: KvchatError | None = None

    @property
    def total(self) -> int:
        """Bytes of the whole model."""
        return self.order.file.size

    @property
    def seconds_left(self) -> float | None:
        """How long it will still take, None while that is not known."""
        return (self.total - self.done) / self.rate if self.rate > 0 else None


class Downloads:
    """Belongs to one event loop; the bytes flow on a thread of their own. `tell` is called on that loop."""

    def __init__(self, models: Path, hub: Origin, tell: Callable[[Download], None]) -> None:
        self._models = models
        self._hub = hub
        self._tell = tell
        self._thread = LoopThread("downloads")
        self._turn = asyncio.Lock()  # of the thread's loop, as the next ones: one download at a time
        self._files: defaultdict[Path, asyncio.Lock] = defaultdict(asyncio.Lock)  # whose files are in use
        self._running: dict[Path, Future[Path]] = {}
        self._known: dict[Path, Download] = {}

    def all(self) -> tuple[Download, ...]:
        """All downloads known, in the order they were begun."""
        return tuple(self._known.values())

    async def find_unfinished(self) -> None:
        """Show what an earlier kvchat has left as paused. Fetches nothing."""

        def look() -> list[tuple[Order, int]]:
            return [(order, order.done(self._models)) for order in unfinished_orders(self._models)]

        for order, done in await asyncio.to_thread(look):
            path = order.target(self._models)
            if path not in self._known:
                self._set(Download(order, path, DownloadState.PAUSED, done))

    def begin(self, order: Order) -> Path:
        """Begin a download, or go on with it; returns its path. Raises HubError for an impossible file name."""
        path = order.target(self._models)
        known = self._known.get(path)
        if known is not None and known.state in RUNS:
            return path
        self._set(Download(order, path, DownloadState.WAITING, known.done if known else 0))
        loop = asyncio.get_running_loop()

        def report(done: int, rate: float, checking: bool) -> None:
            loop.call_soon_threadsafe(self._moved, path, done, rate, checking)

        future = self._running[path] = self._thread.start(self._fetch(order, path, Meter(report)))
        future.add_done_callback(lambda ended: loop.call_soon_threadsafe(self._ended, path, ended))
        return path

    def pause(self, path: Path) -> None:
        """Stop a download; what has arrived is kept."""
        if future := self._running.pop(path, None):
            future.cancel()
            self._set(dataclasses.replace(self._known[path], state=DownloadState.PAUSED, rate=0.0))

    async def remove(self, path: Path) -> None:
        """Forget a download and delete what has arrived of an unfinished one. Raises OSError."""
        known = self._known.pop(path, None)
        if future := self._running.pop(path, None):
            future.cancel()
        if known is not None and known.state is not DownloadState.DONE:
            await asyncio.wrap_future(self._thread.start(self._discard(known.order, path)))

    async def close(self) -> None:
        """Stop everything; what has arrived is kept."""
        self._running.clear()
        await asyncio.to_thread(self._thread.close)

    async def _fetch(self, order: Order, path: Path, meter: Meter) -> Path:
        async with self._files[path], self._turn:
            return await fetch_model(order, self._models, self._hub, meter)

    async def _discard(self, order: Order, path: Path) -> None:
        async with self._files[path]:  # the fetching has let go of them
            await asyncio.to_thread(discard, order, self._models)

    def _moved(self, path: Path, done: int, rate: float, checking: bool) -> None:
        if path in self._running:
            state = DownloadState.CHECKING if checking else DownloadState.FETCHING
            self._set(dataclasses.replace(self._known[path], state=state, done=done, rate=rate))

    def _ended(self, path: Path, future: Future[Path]) -> None:
        if self._running.get(path) is not future:
            return  # paused or removed meanwhile
        del self._running[path]
        known = self._known[path]
        error = None if future.cancelled() else future.exception()
        if error is None:
            self._set(dataclasses.replace(known, state=DownloadState.DONE, done=known.total, rate=0.0))
            return
        words = error if isinstance(error, KvchatError) else KvchatError(_("Something unexpected went wrong"))
        self._set(dataclasses.replace(known, state=DownloadState.FAILED, rate=0.0, error=words))
        if words is not error:
            raise error

    def _set(self, download: Download) -> None:
        self._known[download.path] = download
        self._tell(download)


class Meter:
    """Turns every chunk's bytes into a few reports a second: bytes, bytes per second, whether they are checked only."""

    def __init__(self, report: Callable[[int, float, bool], None]) -> None:
        self._report = report
        self._told_at = 0.0
        self._looks: list[tuple[float, int]] = []  # when, and bytes by then

    def __call__(self, done: int, checking: bool) -> None:
        """As `DoneBytes`."""
        now = time.monotonic()
        if now - self._told_at < TELL_EVERY_S:
            return
        self._told_at = now
        if checking:
            self._looks.clear()
        self._looks = [(at, by_then) for at, by_then in self._looks if now - at <= RATE_OVER_S]
        self._looks.append((now, done))
        began, first = self._looks[0]
        with contextlib.suppress(RuntimeError):  # the caller's loop is closed
            self._report(done, (done - first) / (now - began) if now > began else 0.0, checking)


T = TypeVar("T")


class LoopThread:
    """Runs coroutines beside the caller's loop. The thread begins with the first one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a coroutine; the future ends with it, and cancelling the future cancels it."""
        if self._loop is None:
            self._loop = asyncio.SelectorEventLoop()
            self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancel what runs, wait for it to end, and end the thread. Blocks until then."""
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()


def outcome_in_words(download: Download) -> tuple[str, str] | None:
    """How a download has ended, as a title and what it means; None of one that goes on or was told to stop."""
    name, error = download.order.file.name, download.error
    if download.state is DownloadState.DONE:
        return _("{name} is downloaded", name=name), _("It is among the models now.")
    if download.state is DownloadState.FAILED and error is not None:
        return _("{name} could not be downloaded", name=name), sentences(error.title, error.detail)
    return None
