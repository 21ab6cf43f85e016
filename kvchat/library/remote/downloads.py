"""Queue of model downloads. They run one at a time and can be paused and resumed, also after a restart."""

import asyncio
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kvchat.errors import KvchatError
from kvchat.library.remote.downloader import (
    DownloadOrder,
    DownloadSource,
    discard_download,
    fetch_on_own_loop,
    unfinished_orders,
)
from kvchat.text.language import N_, _, join_sentences


class DownloadState(Enum):
    WAITING = N_("waiting")
    CHECKING = N_("checking existing files")
    FETCHING = N_("downloading")
    PAUSED = N_("paused")
    DONE = N_("done")
    FAILED = N_("failed")


ACTIVE_STATES = frozenset((DownloadState.WAITING, DownloadState.CHECKING, DownloadState.FETCHING))


@dataclass(frozen=True)
class Download:
    """Progress of a download. Sizes are in bytes, `rate` in bytes per second (0 if unknown)."""

    order: DownloadOrder
    path: Path  # where the first file will be; identifies the download
    state: DownloadState
    downloaded_bytes: int = 0
    rate: float = 0.0
    error: KvchatError | None = None

    @property
    def total(self) -> int:
        return self.order.file.size

    @property
    def seconds_left(self) -> float | None:
        return (self.total - self.downloaded_bytes) / self.rate if self.rate > 0 else None


class Downloads:
    """Runs downloads one after the other. Use it on one event loop."""

    def __init__(self, models: Path, source: DownloadSource) -> None:
        self._models, self._source = models, source
        self._listeners: list[Callable[[Download], object]] = []
        self._one_at_a_time = asyncio.Lock()
        self._running: dict[Path, asyncio.Task[None]] = {}
        self._stopping: dict[Path, asyncio.Task[None]] = {}  # may still have files open or delete them
        self._downloads: dict[Path, Download] = {}

    def subscribe(self, listener: Callable[[Download], object]) -> Callable[[], None]:
        """Call `listener` on the event loop after each change. Return a function that unsubscribes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def all(self) -> tuple[Download, ...]:
        return tuple(self._downloads.values())

    async def find_unfinished(self) -> None:
        def read() -> list[tuple[DownloadOrder, int]]:
            return [(order, order.bytes_done(self._models)) for order in unfinished_orders(self._models)]

        for order, done in await asyncio.to_thread(read):
            path = order.target_path(self._models)
            if path not in self._downloads:
                self._update(Download(order, path, DownloadState.PAUSED, done))

    def start(self, order: DownloadOrder) -> Path:
        """Start or resume a download and return its path. Raises HubError for an invalid file name."""
        path = order.target_path(self._models)
        download = self._downloads.get(path)
        if download is not None and download.state in ACTIVE_STATES:
            return path
        self._update(Download(order, path, DownloadState.WAITING, download.downloaded_bytes if download else 0))
        self._running[path] = asyncio.create_task(self._fetch(order, path), name="download")
        return path

    def pause(self, path: Path) -> None:
        if self._stop(path):
            self._update(dataclasses.replace(self._downloads[path], state=DownloadState.PAUSED, rate=0.0))

    async def remove(self, path: Path) -> None:
        """Remove a download from the list, and delete its files unless it is done. Raises OSError."""
        download = self._downloads.pop(path, None)
        self._stop(path)
        ending = self._stopping.get(path)

        async def discard() -> None:
            if ending:
                await asyncio.wait([ending])
            if download is not None and download.state is not DownloadState.DONE:
                await asyncio.to_thread(discard_download, download.order, self._models)

        discarding = asyncio.create_task(discard(), name="removing a download")
        self._delay_next(path, discarding)
        await asyncio.shield(discarding)

    async def close(self) -> None:
        for path in tuple(self._running):
            self._stop(path)
        if self._stopping:
            await asyncio.wait(self._stopping.values())

    def _stop(self, path: Path) -> bool:
        if (task := self._running.pop(path, None)) is None:
            return False
        task.cancel()
        self._delay_next(path, task)
        return True

    def _delay_next(self, path: Path, task: asyncio.Task[None]) -> None:
        """Let the next download to `path` begin when `task` has ended."""
        self._stopping[path] = task
        task.add_done_callback(lambda ended: self._stopping.pop(path) if self._stopping.get(path) is ended else None)

    async def _fetch(self, order: DownloadOrder, path: Path) -> None:
        if ending := self._stopping.get(path):
            await asyncio.wait([ending])
        task = asyncio.current_task()

        def report(done: int, rate: float, is_verifying: bool) -> None:
            if self._running.get(path) is task:
                state = DownloadState.CHECKING if is_verifying else DownloadState.FETCHING
                self._update(dataclasses.replace(self._downloads[path], state=state, downloaded_bytes=done, rate=rate))

        error: Exception | None = None
        try:
            async with self._one_at_a_time:
                await fetch_on_own_loop(order, self._models, self._source, report)
        except Exception as failure:
            error = failure
        if self._running.get(path) is task:  # not paused or removed meanwhile
            del self._running[path]
            download = dataclasses.replace(self._downloads[path], rate=0.0)
            if error is None:
                self._update(dataclasses.replace(download, state=DownloadState.DONE, downloaded_bytes=download.total))
                return
            shown_error = error if isinstance(error, KvchatError) else KvchatError(_("An unexpected error occurred"))
            self._update(dataclasses.replace(download, state=DownloadState.FAILED, error=shown_error))
        if error is not None and not isinstance(error, KvchatError):
            raise error

    def _update(self, download: Download) -> None:
        self._downloads[download.path] = download
        for listener in tuple(self._listeners):
            listener(download)


def describe_outcome(download: Download) -> tuple[str, str] | None:
    """Return a title and a sentence for a finished or failed download, otherwise None."""
    name, error = download.order.file.name, download.error
    if download.state is DownloadState.DONE:
        return _("{name} downloaded", name=name), _("You can now choose it in Models.")
    if download.state is DownloadState.FAILED and error is not None:
        return _("{name} could not be downloaded", name=name), join_sentences(error.title, error.detail)
    return None
