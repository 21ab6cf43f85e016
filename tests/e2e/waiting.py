"""Tests wait for conditions, never for time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_PAUSE = 0.05  # seconds between two looks


def wait_until(
    condition: Callable[[], T | None], *, seconds: float = 120.0, pause: float = _PAUSE, what: str = "a condition"
) -> T:
    """The first true value of `condition`. Raises TimeoutError, naming `what`, when there is none in time."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not come about in {seconds:g} s (last: {value!r})")
        time.sleep(pause)
