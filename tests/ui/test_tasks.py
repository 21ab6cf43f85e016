from __future__ import annotations

import asyncio

from kvchat.ui.tasks import Wishes


def test_a_wish_may_start_while_the_loop_does_not_run() -> None:
    """Qt hands out timers and clicks also between two runs of the loop."""

    async def make() -> Wishes:
        return Wishes(lambda error: None, lambda bug: None)

    async def wish() -> None:
        granted.append(True)

    granted: list[bool] = []
    with asyncio.Runner() as runner:
        wishes = runner.run(make())
        wishes.start(wish())
        runner.run(asyncio.sleep(0))
    assert granted == [True]
