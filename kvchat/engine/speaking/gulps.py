"""Reading a streamed reply in gulps: waking up for every token costs more than all that is done with it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import httpx2

if TYPE_CHECKING:
    from httpcore2 import AsyncNetworkStream

REST_S = 0.03  # far less than between two updates of the page


def read_in_gulps(answer: httpx2.Response, hurry: asyncio.Event) -> None:
    """Rest before each further read of `answer`, until `hurry` is set; what comes meanwhile is read at once.

    It waits in the operating system's buffer, from where it can be had even if the engine is gone by then.
    """
    stream: AsyncNetworkStream | None = answer.extensions.get("network_stream")
    if stream is None:  # no network below
        return
    read = stream.read

    async def read_after_a_rest(max_bytes: int, timeout: float | None = None) -> bytes:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REST_S):
                await hurry.wait()
        return await read(max_bytes, timeout)

    stream.read = read_after_a_rest  # type: ignore[method-assign]
