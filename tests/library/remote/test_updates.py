"""A newer kvchat is asked about where that is wanted, once a day at most, and a link is all that comes of it."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from kvchat.library.remote import github as updates
from tests.library.fake_hub import FakeHub


def released(github: FakeHub, *tags: str) -> None:
    github.releases = {tag: {"kvchat.deb": b"x"} for tag in tags}


@pytest.mark.parametrize(
    ("tags", "newest"),
    [
        (("v0.0.9",), ""),
        (("v0.1.0",), ""),
        (("v0.10.0", "v0.9.1", "v0.1.0"), "v0.10.0"),
        (("nightly", "v1.0"), "v1.0"),
        (("v2.0", "v1.0"), "v1.0"),
        (("nightly",), ""),
        ((), ""),
    ],
)
async def test_the_newest_release_counts_if_it_is_newer(github: FakeHub, tags: tuple[str, ...], newest: str) -> None:
    released(github, *tags)
    github.previews = r"v2\.0"
    assert await updates.newer_tag() == newest


async def test_it_is_told_where_it_is_and_nothing_is_asked_again_for_a_day(
    github: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released(github, "v9.0.0")
    monkeypatch.setattr(updates, "_LOOK_EVERY_S", 0.001)
    told: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    looks, wanted = asyncio.Semaphore(0), False

    def is_wanted() -> bool:
        looks.release()
        return wanted

    async def looked(times: int) -> None:
        for _ in range(times):
            await looks.acquire()

    watching = asyncio.create_task(updates.watch_updates(tmp_path, is_wanted, lambda *what: told.put_nowait(what)))
    await looked(3)
    assert not github.requests, "nobody wants to know"
    wanted = True
    assert await told.get() == ("9.0.0", f"{github.url}/kvchat/kvchat/releases/tag/v9.0.0")
    await looked(5)
    assert [request.path.partition("?")[0] for request in github.requests] == ["/repos/kvchat/kvchat/releases"]
    assert "cookie" not in github.requests[0].headers
    yesterday = time.time() - updates.ASK_EVERY_S
    os.utime(tmp_path / "asked-for-updates", (yesterday, yesterday))
    github.status = 503
    while len(github.requests) < 2:
        await looked(1)
    await looked(5)
    assert told.empty(), "what cannot be asked is not told"
    assert len(github.requests) == 2
    watching.cancel()
