"""Waiting for a condition while Qt and asyncio continue."""

import asyncio
import time
from collections.abc import Callable

LONG_MS = 60_000  # maximum wait of pytest-qt; waits end as soon as the condition holds


async def until(condition: Callable[[], object], what: str = "", seconds: float = 60.0) -> None:
    """Return once `condition` holds; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what or condition}"
        await asyncio.sleep(0.005)
