"""What the rooms share of meeting an engine: the work in which a room gets to know one that is ready."""

from __future__ import annotations

import asyncio

from kvchat.errors import KvchatError


def tell_bug(meeting: asyncio.Task[None]) -> None:
    """When it is over: a KvchatError is for whoever asks for the engine; anything else is a bug, not to go unseen."""
    error = None if meeting.cancelled() else meeting.exception()
    if error is not None and not isinstance(error, KvchatError):
        meeting.get_loop().call_exception_handler({"message": "Meeting the engine broke", "exception": error})
