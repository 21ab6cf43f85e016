"""Waiting for conditions."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_PAUSE = 0.05  # seconds between two checks


def wait_until(
    condition: Callable[[], T | None], *, seconds: float = 120.0, pause: float = _PAUSE, what: str = "a condition"
) -> T:
    """Return the first true value of `condition`. Raises TimeoutError, naming `what`."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {seconds:g} s (last: {value!r})")
        time.sleep(pause)
