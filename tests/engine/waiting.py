"""Wait for conditions instead of fixed times."""

import asyncio
import contextlib
import time
from collections.abc import Callable

import psutil


async def until(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    """Return as soon as `condition` holds; fail after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Return True if the process runs; a zombie does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False
