"""Downloads from a server that cuts connections, sends wrong bytes or needs a token, and kills on the way."""

import asyncio
import contextlib
import errno
import hashlib
import logging
import random
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from kvchat.library.remote import downloader
from kvchat.library.remote import hub as hub_module
from kvchat.library.remote.downloader import (
    DownloadFailed,
    DownloadOrder,
    discard_download,
    fetch_model,
    unfinished_orders,
)
from kvchat.library.remote.hub import AccessNeeded, Hub, HubError, HubFile, HubPart, Unreachable
from tests.library.fake_hub import REVISION, TOKEN, FakeHub

REPOSITORY = "org/Thing-7B-GGUF"
FILE = "Thing-7B-Q8_0.gguf"
CONTENT = random.Random(0).randbytes(3_000_000)


@pytest.fixture
def hub(served: FakeHub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    served.repositories[REPOSITORY] = {FILE: CONTENT}
    monkeypatch.setattr(downloader, "RETRY_DELAYS_S", (0.0, 0.0))
    return Hub(lambda: None)


def order(*paths: str, repository: str = REPOSITORY, content: bytes = CONTENT) -> DownloadOrder:
    digest = hashlib.sha256(content).hexdigest()
    parts = tuple(HubPart(path, len(content), digest) for path in paths or (FILE,))
    return DownloadOrder(repository, REVISION, HubFile("Thing-7B-Q8_0", "Q8_0", parts))


async def fetch(hub: Hub, models: Path, which: DownloadOrder | None = None) -> Path:
    return await fetch_model(which or order(), models, hub, lambda done, checking: None)


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


async def fetch_half(hub: Hub, served: FakeHub, models: Path) -> None:
    """Fetch and cancel half-way."""
    served.hold_at = 1_000_000
    is_half = asyncio.Event()
    progress = lambda done, checking: is_half.set() if done > 500_000 else None  # noqa: E731
    task = asyncio.create_task(fetch_model(order(), models, hub, progress))
    await asyncio.wait_for(is_half.wait(), 240)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    served.hold_at = None
    served.go_on.set()


async def test_download_reports_progress_and_runs_once(hub: Hub, served: FakeHub, tmp_path: Path) -> None:
    progress: list[int] = []
    path = await fetch_model(order(), tmp_path, hub, lambda done, checking: progress.append(done))
    assert path == tmp_path / "org" / "Thing-7B-GGUF" / FILE
    assert path.read_bytes() == CONTENT
    assert files_in(tmp_path) == [f"{REPOSITORY}/{FILE}"]
    assert progress == sorted(progress)
    assert (len(progress) > 10, progress[-1]) == (True, len(CONTENT))
    count = len(served.requests)
    assert await fetch(hub, tmp_path) == path
    assert len(served.requests) == count


async def test_split_model_is_complete_or_absent(hub: Hub, served: FakeHub, tmp_path: Path) -> None:
    names = [f"Q8_0/Thing-Q8_0-{number:05}-of-00002.gguf" for number in (1, 2)]
    served.repositories[REPOSITORY] = dict.fromkeys(names, CONTENT)
    served.cut_after = [len(CONTENT), 100, 0, 0]
    progress: list[int] = []
    split = order(*names)
    with pytest.raises(Unreachable):
        await fetch(hub, tmp_path, split)
    assert not [name for name in files_in(tmp_path) if name.endswith(".gguf")]
    path = await fetch_model(split, tmp_path, hub, lambda done, checking: progress.append(done))
    assert path.name == "Thing-Q8_0-00001-of-00002.gguf"
    assert files_in(tmp_path) == [f"{REPOSITORY}/{name}" for name in names]
    assert progress == sorted(progress)
    assert progress[-1] == 2 * len(CONTENT)


@pytest.mark.parametrize("ignores_ranges", [False, True])
async def test_cancelled_download_resumes(hub: Hub, served: FakeHub, tmp_path: Path, ignores_ranges: bool) -> None:
    served.ignores_ranges = ignores_ranges
    await fetch_half(hub, served, tmp_path)
    (left,) = unfinished_orders(tmp_path)
    assert left == order()
    done = left.bytes_done(tmp_path)
    assert 0 < done < len(CONTENT)
    progress: list[tuple[int, bool]] = []
    path = await fetch_model(left, tmp_path, hub, lambda done, checking: progress.append((done, checking)))
    assert progress[0] == (done, True), "existing bytes are verified"
    assert path.read_bytes() == CONTENT
    assert served.downloads[-1].headers["range"] == f"bytes={done}-"
    assert not list(unfinished_orders(tmp_path))


KILLED = """
import asyncio, sys
from pathlib import Path
from kvchat.library.remote.hub import Hub
from kvchat.library.remote.downloader import fetch_model
from tests.library.remote.test_downloader import order
asyncio.run(fetch_model(order(), Path(sys.argv[1]), Hub(lambda: None), lambda done, checking: None))
"""


@pytest.mark.slow
def test_killed_download_resumes(hub: Hub, served: FakeHub, tmp_path: Path) -> None:
    served.hold_at = 2_000_000
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], cwd=Path(__file__).parents[3])
    try:
        assert served.held.wait(240)
        (left,) = unfinished_orders(tmp_path)
        for _ in range(3000):
            if left.bytes_done(tmp_path) >= 1_000_000:
                break
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    served.hold_at = None
    served.go_on.set()
    done = left.bytes_done(tmp_path)
    assert 1_000_000 <= done < len(CONTENT)
    assert asyncio.run(fetch(hub, tmp_path, left)).read_bytes() == CONTENT
    assert served.downloads[-1].headers["range"] == f"bytes={done}-"
    assert [name for name in files_in(tmp_path) if ".gguf" in name] == [f"{REPOSITORY}/{FILE}"]


async def test_cut_connections_are_retried(hub: Hub, served: FakeHub, tmp_path: Path) -> None:
    served.cut_after = [700_000, 0, 0]
    with pytest.raises(Unreachable):
        await fetch(hub, tmp_path)
    assert order().bytes_done(tmp_path) == 700_000
    discard_download(order(), tmp_path)
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240
    served.requests.clear()
    served.cut_after = [700_000, 0, 900_000, 1]
    assert (await fetch(hub, tmp_path)).read_bytes() == CONTENT
    starts = (700_000, 700_000, 1_600_000, 1_600_001)
    ranges = [request.headers.get("range") for request in served.downloads]
    assert ranges == [None, *(f"bytes={start}-" for start in starts)]


async def test_stalled_connection_is_replaced_and_no_second_download_starts(
    hub: Hub, served: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "TIMEOUT_S", 0.5)
    served.hold_at = 1_000_000
    fetching = asyncio.create_task(fetch(hub, tmp_path))
    await asyncio.to_thread(served.held.wait, 240)
    with pytest.raises(DownloadFailed, match="already in progress"):
        await fetch(hub, tmp_path)
    served.hold_at = None  # the next connection flows; this one hangs until the end
    assert (await fetching).read_bytes() == CONTENT
    assert "range" in served.downloads[-1].headers


async def test_damage_on_disk_or_another_version_starts_over(hub: Hub, served: FakeHub, tmp_path: Path) -> None:
    await fetch_half(hub, served, tmp_path)
    partial = order().partial_path(tmp_path, order().file.parts[0])
    content = bytearray(partial.read_bytes())
    content[1000] ^= 1
    partial.write_bytes(content)
    with pytest.raises(DownloadFailed, match="is damaged"):
        await fetch(hub, tmp_path)
    assert order().bytes_done(tmp_path) == 0
    await fetch_half(hub, served, tmp_path)
    newer = CONTENT[::-1]
    served.repositories[REPOSITORY][FILE] = newer
    path = await fetch(hub, tmp_path, order(content=newer))
    assert path.read_bytes() == newer
    assert "range" not in served.downloads[-1].headers
    path.unlink()
    partial.write_bytes(newer + b"more")
    assert (await fetch(hub, tmp_path, order(content=newer))).read_bytes() == newer, "a file that is too long"


@pytest.mark.parametrize("sent", [CONTENT[:-1] + b"!", CONTENT + b"more"])
async def test_wrong_hash_or_size_is_refused(
    hub: Hub, served: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    unlink = Path.unlink

    def unlink_closed(path: Path, **options: bool) -> None:
        open_files = {file.path for file in psutil.Process().open_files()}
        assert str(path) not in open_files, "Windows cannot delete an open file"
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", unlink_closed)
    served.repositories[REPOSITORY][FILE] = sent
    with pytest.raises(DownloadFailed, match="is damaged"):
        await fetch(hub, tmp_path)
    assert not [name for name in files_in(tmp_path) if name.endswith((".gguf", ".part"))]


async def test_gated_model_needs_token_and_accepted_terms(
    hub: Hub, served: FakeHub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    served.gated.add(REPOSITORY)
    with pytest.raises(AccessNeeded, match="requires an access token") as caught:
        await fetch(hub, tmp_path)
    assert caught.value.page == f"{served.url}/{REPOSITORY}"
    with_token = Hub(lambda: TOKEN)
    served.accepted = False
    with pytest.raises(AccessNeeded, match="Your account has no access") as caught:
        await fetch(with_token, tmp_path)
    assert TOKEN not in str(caught.value)
    served.accepted = True
    assert (await fetch(with_token, tmp_path)).read_bytes() == CONTENT
    assert TOKEN not in caplog.text
    assert not any("authorization" in request.headers for request in served.downloads), (
        "the token is not sent to the CDN"
    )


async def test_disk_space_is_checked_before_the_download(
    hub: Hub, served: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, downloader.RESERVED_DISK_BYTES + 2_000_000))
    with pytest.raises(DownloadFailed, match="Not enough disk space"):
        await fetch(hub, tmp_path)
    assert served.requests == []
    partial = order().partial_path(tmp_path, order().file.parts[0])
    partial.write_bytes(CONTENT[:1_500_000])
    assert (await fetch(hub, tmp_path)).read_bytes() == CONTENT, "existing bytes need no space"
    error = downloader.disk_failure(tmp_path, OSError(errno.ENOSPC, "No space left on device"))
    assert error.title == "The disk is full"
    assert "resume the download" in error.advice


@pytest.mark.parametrize("path", ["../../x.gguf", "/etc/x.gguf", "a/../../../x.gguf", "C:\\x.gguf", "a\0.gguf"])
async def test_file_names_outside_the_folder_are_refused(hub: Hub, tmp_path: Path, path: str) -> None:
    with pytest.raises(HubError, match="invalid name"):
        await fetch(hub, tmp_path / "models", order(path))
    assert files_in(tmp_path) == []


async def test_kill_during_the_final_moves(hub: Hub, served: FakeHub, tmp_path: Path) -> None:
    names = [f"Thing-Q8_0-{number:05}-of-00002.gguf" for number in (1, 2)]
    served.repositories[REPOSITORY] = dict.fromkeys(names, CONTENT)
    split = order(*names)
    split.order_path(tmp_path).parent.mkdir(parents=True)
    split.save(tmp_path)
    first, second = split.file.parts
    split.target_path(tmp_path, first).write_bytes(CONTENT)
    split.partial_path(tmp_path, second).write_bytes(CONTENT)
    (left,) = unfinished_orders(tmp_path)
    assert left.bytes_done(tmp_path) == left.file.size
    await fetch(hub, tmp_path, left)
    assert files_in(tmp_path) == [f"{REPOSITORY}/{name}" for name in names]
    assert served.requests == [], "everything was there"
    split.save(tmp_path)  # and once more, right before the end
    assert list(unfinished_orders(tmp_path)) == []
    await fetch(hub, tmp_path, split)
    assert files_in(tmp_path) == [f"{REPOSITORY}/{name}" for name in names]


def test_invalid_orders_are_skipped(tmp_path: Path) -> None:
    for name, text in (("a", ""), ("b", "{"), ("c", '{"repository": "x/y", "revision": "z", "file": {"parts": [1]}}')):
        (tmp_path / f"{name}.gguf.download").write_text(text)
    assert list(unfinished_orders(tmp_path)) == []
    assert list(unfinished_orders(tmp_path / "nowhere")) == []
