"""Timers that were cancelled leave the loop: qasync keeps each, with its callback's context, until it would have rung.

A reply has a time limit for each piece that is read, and each would be kept for the minutes of that limit.
"""

from __future__ import annotations

import asyncio

from PySide6.QtCore import QObject, QTimer

_EVERY_MS = 10_000


class SpentTimers(QObject):
    """Lets them go every now and then, while it lives."""

    def __init__(self, loop: asyncio.AbstractEventLoop, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._loop = loop
        self._timer = QTimer(self)
        self._timer.timeout.connect(self.let_go)
        self._timer.start(_EVERY_MS)

    def let_go(self) -> int:
        """Let those go that are there now; returns how many. A qasync that is made otherwise is left alone."""
        timers = getattr(self._loop, "_timer", None)
        handles = getattr(timers, "_SimpleTimer__callbacks", None)
        if timers is None or handles is None:
            return 0
        spent = [number for number, handle in handles.items() if handle.cancelled()]
        for number in spent:
            timers.killTimer(number)
            del handles[number]
        return len(spent)
