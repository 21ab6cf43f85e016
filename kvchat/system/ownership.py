"""One engine for one user: which process has it, and how others reach that one. A lock that dies with its process.

A model of 20 GB is not to be loaded a second time by surprise.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from kvchat.system.files import read_json, whole_file
from kvchat.words.language import N_

_MOST_NOTE = 10_000  # bytes


@dataclass(frozen=True)
class Owner:
    """The process that has the engine, as it tells of itself."""

    name: str  # as "kvchat serve" or "the kvchat window"
    pid: int
    lasts: bool = False  # it goes on until it is told to end; else it is soon done
    door: str = ""  # the address of its door, if that is open
    key: str = field(default="", repr=False)  # that opens the door for kvchat's own commands


class Ownership:
    """Of the engine of one kvchat folder. Where locks cannot be had, nobody is kept from anything.

    The engine may be claimed and its door opened at once, each in a thread of its own.
    """

    def __init__(self, folder: Path, name: str, *, lasts: bool) -> None:
        """`folder` need not exist; `name` is what this process is called."""
        self._lock = FileLock(folder / "engine.lock", timeout=0, mode=0o600, thread_local=False)
        self._note = folder / "engine.json"
        self._me = Owner(name, os.getpid(), lasts)
        self._telling = threading.Lock()  # what is told last is what is to be read

    def claim(self) -> Owner | None:
        """Have it from now on; who else has it, if somebody does. Again does nothing."""
        if self._lock.is_locked:
            return None
        try:
            Path(self._lock.lock_file).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout:
            return self._told() or Owner(N_("another kvchat"), 0)
        except OSError:
            return None
        self._tell()
        return None

    def other(self) -> Owner | None:
        """Which other process has it now. It is not claimed: who has it must not wait for one that waits for it."""
        mine = self._lock.is_locked
        other = self.claim()
        if not mine:
            self.release()
        return other

    def tell_door(self, url: str, key: str) -> None:
        """Where the door is, while it is open; for nobody but this user."""
        self._me = Owner(self._me.name, self._me.pid, self._me.lasts, url, key)
        if self._lock.is_locked:
            self._tell()

    def release(self) -> None:
        """Let another process have it."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):
                self._note.unlink(missing_ok=True)
            self._lock.release()

    def _tell(self) -> None:
        with self._telling, contextlib.suppress(OSError), whole_file(self._note, private=True) as new:
            new.write_text(json.dumps(asdict(self._me)), "utf-8")

    def _told(self) -> Owner | None:
        try:
            told = read_json(self._note, _MOST_NOTE)
            return Owner(**told) if isinstance(told, dict) else None
        except (OSError, ValueError, TypeError):
            return None
