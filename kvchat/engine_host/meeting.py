"""What the rooms share of meeting an engine: the work in which a room gets to know one that is ready."""

from __future__ import annotations

import asyncio

from kvchat.engine.speaking.board import EngineBoard
from kvchat.engine.speaking.status import EngineState
from kvchat.errors import KvchatError

LOSS_NOTICED_S = 3.0  # how long it may take to be seen that a process died


async def loss_noticed(board: EngineBoard, changed: asyncio.Event) -> bool:
    """After EngineGone: whether the board says before long that its engine is not ready. `changed`: it may."""
    try:
        async with asyncio.timeout(LOSS_NOTICED_S):
            while board.status.state is EngineState.READY:
                changed.clear()
                await changed.wait()
    except TimeoutError:
        return False
    return True


def tell_bug(meeting: asyncio.Task[None]) -> None:
    """When it is over: a KvchatError is for whoever asks for the engine; anything else is a bug, not to go unseen."""
    error = None if meeting.cancelled() else meeting.exception()
    if error is not None and not isinstance(error, KvchatError):
        meeting.get_loop().call_exception_handler({"message": "Meeting the engine broke", "exception": error})
