"""How an engine process ended: a value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class StopRung(Enum):
    """Which rung of the ladder ended a process that was told to stop."""

    ASKED = "asked"
    TERMINATED = "terminated"
    KILLED = "killed"


@dataclass(frozen=True)
class Outcome:
    """How a process ended."""

    code: int  # the exit code; -n: died of signal n
    last_lines: tuple[str, ...] = ()  # what it printed last, newest last
    rung: StopRung | None = None  # None: nobody told it to stop
    memory_ran_out: bool = False  # the system killed a process for want of memory while this one lived

    @property
    def signal(self) -> int | None:
        """The signal it died of, None after an exit."""
        return -self.code if self.code < 0 else None
