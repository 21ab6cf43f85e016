"""Cancelled timers are not kept until they would have fired."""

import asyncio
import gc

import pytest

from kvchat.application import release_cancelled_timers
from tests.ui.waiting import until


def handles() -> int:
    gc.collect()
    return sum(type(found) is asyncio.Handle and found.cancelled() for found in gc.get_objects())


@pytest.mark.slow  # looks at every object
async def test_cancelled_timers_are_released_and_others_fire() -> None:
    fired: list[str] = []
    loop = asyncio.get_running_loop()
    before = handles()
    for _ in range(500):
        loop.call_later(600, fired.append, "cancelled").cancel()
        loop.call_later(300, fired.append, "cancelled too").cancel()
    assert handles() >= before + 1000
    loop.call_later(0.05, fired.append, "kept")
    assert release_cancelled_timers(loop) >= 1000
    assert handles() <= before
    await until(lambda: fired)
    assert fired == ["kept"]
    assert release_cancelled_timers(loop) < 100
