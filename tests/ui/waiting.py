"""Waiting for a condition while Qt and asyncio continue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LONG_MS = 60_000  # what pytest-qt waits at most; a condition that comes true is not waited for any longer


async def until(condition: Callable[[], object], what: str = "", seconds: float = 60.0) -> None:
    """Return once `condition` holds; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what or condition}"
        await asyncio.sleep(0.005)
