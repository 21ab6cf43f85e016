"""What was cancelled is not kept until it would have rung."""

from __future__ import annotations

import asyncio
import gc

import pytest

from kvchat.application import CancelledTimers
from tests.ui.waiting import until


def handles() -> int:
    gc.collect()
    return sum(type(one) is asyncio.Handle and one.cancelled() for one in gc.get_objects())


@pytest.mark.slow  # looks at every object there is
async def test_cancelled_timers_go_and_the_others_ring() -> None:
    rung: list[str] = []
    loop = asyncio.get_running_loop()
    spent = CancelledTimers(loop)
    before = handles()
    for _ in range(500):
        loop.call_later(600, rung.append, "cancelled").cancel()
        loop.call_later(300, rung.append, "cancelled too").cancel()
    assert handles() >= before + 1000
    loop.call_later(0.05, rung.append, "kept")
    assert spent.release_cancelled() >= 1000
    assert handles() <= before
    await until(lambda: rung)
    assert rung == ["kept"]
    assert spent.release_cancelled() < 100
    spent.deleteLater()
