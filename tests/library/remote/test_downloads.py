"""A queue of downloads that are paused, resumed and removed."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kvchat.library.remote import downloads
from kvchat.library.remote.downloader import discard_download
from kvchat.library.remote.downloads import Download, Downloads, DownloadState
from kvchat.library.remote.hub import Hub
from tests.library.fake_hub import FakeHub
from tests.library.remote.test_downloader import CONTENT, REPOSITORY, files_in, order


class Watched:
    def __init__(self, models: Path) -> None:
        self.models = models
        self._changed = asyncio.Event()
        self.downloads = Downloads(models, Hub(lambda: None))
        self.downloads.subscribe(lambda download: self._changed.set())

    def now(self, path: Path) -> Download:
        return next(download for download in self.downloads.all() if download.path == path)

    async def until(self, path: Path, holds: Callable[[Download], bool]) -> Download:
        async with asyncio.timeout(30):
            while not holds(self.now(path)):
                self._changed.clear()
                await self._changed.wait()
        return self.now(path)

    async def until_state(self, path: Path, state: DownloadState) -> Download:
        return await self.until(path, lambda download: download.state is state)


@pytest_asyncio.fixture
async def watched(served: FakeHub, tmp_path: Path) -> AsyncIterator[Watched]:
    served.repositories[REPOSITORY] = dict.fromkeys(("Thing-7B-Q8_0.gguf", "b.gguf"), CONTENT)
    watched = Watched(tmp_path / "models")
    yield watched
    served.go_on.set()
    await watched.downloads.close()


async def begin_and_hold(watched: Watched, served: FakeHub) -> Path:
    """Begin a download that stops half-way."""
    served.hold_at = 1_000_000
    path = watched.downloads.start(order())
    await watched.until(path, lambda download: download.downloaded_bytes > 0)
    return path


async def test_downloads_run_one_at_a_time_and_can_be_paused(watched: Watched, served: FakeHub) -> None:
    first = await begin_and_hold(watched, served)
    second = watched.downloads.start(order("b.gguf"))
    assert watched.downloads.start(order()) == first, "it runs already"
    assert watched.now(second).state is DownloadState.WAITING
    assert len(served.downloads) == 1
    watched.downloads.pause(first)
    assert watched.now(first).state is DownloadState.PAUSED
    await watched.downloads.close()
    requests, later = len(served.requests), Watched(watched.models)
    await later.downloads.find_unfinished()
    found = {download.path: download for download in later.downloads.all()}
    assert (found[first].state, found[first].total) == (DownloadState.PAUSED, len(CONTENT))
    assert found[first].downloaded_bytes > 0
    assert len(served.requests) == requests, "the next start fetches nothing"
    later.downloads.start(order())
    later.downloads.start(order("b.gguf"))
    served.go_on.set()
    assert (await later.until_state(first, DownloadState.DONE)).downloaded_bytes == len(CONTENT)
    await later.until_state(second, DownloadState.DONE)
    assert second.read_bytes() == first.read_bytes() == CONTENT
    assert any("range" in request.headers for request in served.downloads)
    await later.downloads.close()


async def test_remove_deletes_only_unfinished_downloads(watched: Watched, served: FakeHub) -> None:
    path = await begin_and_hold(watched, served)
    await watched.downloads.remove(path)
    assert watched.downloads.all() == ()
    assert files_in(watched.models) == []
    served.hold_at = None
    watched.downloads.start(order())
    await watched.until_state(path, DownloadState.DONE)
    await watched.downloads.remove(path)
    assert path.read_bytes() == CONTENT


async def test_new_download_waits_until_the_removed_files_are_deleted(
    watched: Watched, served: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await begin_and_hold(watched, served)
    is_deleting, may_delete = threading.Event(), threading.Event()

    def discard_slowly(*arguments: Any) -> None:
        is_deleting.set()
        may_delete.wait(60)
        discard_download(*arguments)

    monkeypatch.setattr(downloads, "discard_download", discard_slowly)
    removing = asyncio.create_task(watched.downloads.remove(path))
    await asyncio.to_thread(is_deleting.wait, 60)
    served.hold_at = None
    watched.downloads.start(order())
    done = asyncio.create_task(watched.until_state(path, DownloadState.DONE))
    await asyncio.wait([done], timeout=1)
    assert watched.now(path).state is DownloadState.WAITING
    may_delete.set()
    await removing
    await done
    assert path.read_bytes() == CONTENT


async def test_failed_download_can_be_retried(watched: Watched, served: FakeHub) -> None:
    served.gated.add(REPOSITORY)
    path = watched.downloads.start(order())
    failed = await watched.until_state(path, DownloadState.FAILED)
    assert failed.error is not None
    assert "requires an access token" in failed.error.title
    served.gated.clear()
    watched.downloads.start(order())
    assert (await watched.until_state(path, DownloadState.DONE)).error is None
