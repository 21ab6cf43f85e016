"""What the commands have in common on a terminal: rows as aligned lines, and how far something is."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import queue
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from datetime import datetime
from enum import Enum
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kvchat.cli.process import INTERRUPTED
from kvchat.errors import KvchatError
from kvchat.words.language import _
from kvchat.words.wording import size


class Terminal:
    """The terminal of who started a command, at the other end of a connection. Messages are tuples, kind first."""

    def __init__(self, connection: Connection) -> None:
        self.folder = Path()  # the one the command was started in
        self.stop: Callable[[], object] | None = None  # called for Ctrl+C, in place of `end`
        self.end: Callable[[], object] = lambda: None
        self.ended_by = INTERRUPTED  # the exit code of a command that was ended
        self._is_tty = (False, False, False)
        self._connection = connection
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._outbox: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        threading.Thread(target=self._send_all, name="terminal", daemon=True).start()

    def about(self, folder: str, is_tty: tuple[bool, bool, bool]) -> None:
        """Take what the client tells of itself: the folder it is in, and which standard streams are terminals."""
        self.folder, self._is_tty = Path(folder), is_tty

    @property
    def asks(self) -> bool:
        """True if somebody sits before it who can answer a question."""
        return self._is_tty[0] and self._is_tty[2]

    @property
    def shows_text(self) -> bool:
        return self._is_tty[1]

    @property
    def shows_progress(self) -> bool:
        return self._is_tty[2]

    def receive(self) -> tuple[Any, ...]:
        """The client's next message. Blocks. Raises OSError, EOFError when it has gone."""
        message: tuple[Any, ...] = self._connection.recv()
        return message

    def hear(self, message: tuple[Any, ...]) -> None:
        match message:
            case ("line", line):
                self._lines.put_nowait(line)
            case ("stop",):
                (self.stop or self.end)()
            case ("end", code):
                self.ended_by = code
                self.end()

    async def read_line(self, prompt: str) -> str | None:
        """The next line that is typed; None at the end of input."""
        self.send("read", prompt)
        return await self._lines.get()

    def send(self, *message: object) -> None:
        """Have it sent, in order, without waiting."""
        self._outbox.put(message)

    def done(self, code: int) -> None:
        self.send("done", code)

    def fail(self, error: KvchatError) -> None:
        self.send("failed", error.title, error.detail, error.advice)

    def close(self) -> None:
        self._outbox.put(None)

    def _send_all(self) -> None:
        with contextlib.suppress(OSError):
            while (message := self._outbox.get()) is not None:
                self._connection.send(message)
        self._connection.close()


current_terminal: ContextVar[Terminal | None] = ContextVar("current_terminal", default=None)


def say(text: str = "", end: str = "\n") -> None:
    """Print on standard output, at once."""
    if (terminal := current_terminal.get()) is not None:
        terminal.send("out", text + end)
    else:
        print(text, end=end, flush=True)


def remark(text: str, end: str = "\n") -> None:
    """Print on standard error what is not the result."""
    if (terminal := current_terminal.get()) is not None:
        terminal.send("err", text + end)
    else:
        print(text, end=end, file=sys.stderr, flush=True)


def shows_text() -> bool:
    terminal = current_terminal.get()
    return sys.stdout.isatty() if terminal is None else terminal.shows_text


def shows_progress() -> bool:
    terminal = current_terminal.get()
    return sys.stderr.isatty() if terminal is None else terminal.shows_progress


def show(wants_json: bool, fields: object, lines: Iterable[str]) -> None:
    """Print a result: its fields as JSON, or its lines."""
    say(as_json(fields) if wants_json else "\n".join(lines))


def as_json(fields: object) -> str:
    """The fields as JSON: enums as their values, paths as text, times in ISO 8601."""

    def plain(value: object) -> object:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        if isinstance(value, Enum):
            return value.value
        return value.isoformat() if isinstance(value, datetime) else str(value)

    return json.dumps(fields, default=plain, ensure_ascii=False, indent=2)


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The rows as lines, indented, each column as wide as its widest entry."""
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(padded, row, widths)).rstrip() for row in rows]


def width(text: str) -> int:
    """How many cells of a terminal it takes: ideographs, kana and Hangul take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def padded(text: str, cells: int) -> str:
    """As wide as so many cells, if it is not wider."""
    return text + " " * (cells - width(text))


def show_progress(what: str, done: int, total: int) -> None:
    """So many bytes of so many, in a line of standard error that the next one goes over; to nobody else's eyes."""
    if shows_progress():
        amount = _("{done} of {total}", done=size(done), total=size(total)) if total else ""
        end = "\n" if total and done == total else ""
        remark(f"\r{what} {padded(amount, 24)}", end)
