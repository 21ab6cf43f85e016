"""Terminal input and output of commands, and setup and exit of the process."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import json
import os
import queue
import signal
import socket
import sys
import threading
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from kvchat.errors import KvchatError
from kvchat.text.formatting import format_size
from kvchat.text.language import _

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

EXIT_FAILED = 1  # argparse exits with 2
EXIT_INTERRUPTED, EXIT_NO_READER = 130, 141  # 128 + SIGINT and SIGPIPE, as in shells
_M_ARENA_MAX = -8
SIGNAL_TIMEOUT_S = 1.5  # for the main thread to handle a signal


class Terminal:
    """A command's connection to its client's terminal. Each message is a tuple that starts with the message's kind."""

    def __init__(self, connection: Connection) -> None:
        self.working_folder = Path()  # of the client
        self.stop_reply: Callable[[], object] | None = None  # called on Ctrl+C instead of `end_command`
        self.end_command: Callable[[], object] = lambda: None
        self.end_code = EXIT_INTERRUPTED  # exit code after `end_command`
        self.is_interactive = self.stdout_is_tty = self.stderr_is_tty = False  # set by the client
        self._connection = connection
        import asyncio  # the first frame does not need it

        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._outbox: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        threading.Thread(target=self._send_all, name="terminal", daemon=True).start()

    def receive_command(self) -> tuple[str, object]:
        """Wait for the first message and return the name and options of the command. Raises EOFError and OSError."""
        name, options, folder, (stdin_is_tty, self.stdout_is_tty, self.stderr_is_tty) = self.receive()
        self.working_folder = Path(folder)
        self.is_interactive = stdin_is_tty and self.stderr_is_tty
        return name, options

    def receive(self) -> tuple[Any, ...]:
        """Wait for the next message of the client. Raises OSError or, when the client disconnects, EOFError."""
        message: tuple[Any, ...] = self._connection.recv()
        return message

    def handle_message(self, message: tuple[Any, ...]) -> None:
        match message:
            case ("line", line):
                self._lines.put_nowait(line)
            case ("stop",):
                (self.stop_reply or self.end_command)()
            case ("end", code):
                self.end_code = code
                self.end_command()

    async def read_line(self, prompt: str) -> str | None:
        self.send("read", prompt)
        return await self._lines.get()

    def send(self, *message: object) -> None:
        """Queue a message. Messages are sent in order."""
        self._outbox.put(message)

    def send_error(self, error: KvchatError) -> None:
        self.send("failed", error.title, error.detail, error.advice)

    def close(self) -> None:
        self._outbox.put(None)

    def _send_all(self) -> None:
        with contextlib.suppress(OSError):
            while (message := self._outbox.get()) is not None:
                self._connection.send(message)
        self._connection.close()


current_terminal: ContextVar[Terminal | None] = ContextVar("current_terminal", default=None)


def print_out(text: str = "", end: str = "\n") -> None:
    if (terminal := current_terminal.get()) is not None:
        terminal.send("out", text + end)
    else:
        print(text, end=end, flush=True)


def print_err(text: str, end: str = "\n") -> None:
    if (terminal := current_terminal.get()) is not None:
        terminal.send("err", text + end)
    else:
        print(text, end=end, file=sys.stderr, flush=True)


def stdout_is_tty() -> bool:
    terminal = current_terminal.get()
    return sys.stdout.isatty() if terminal is None else terminal.stdout_is_tty


def stderr_is_tty() -> bool:
    terminal = current_terminal.get()
    return sys.stderr.isatty() if terminal is None else terminal.stderr_is_tty


def working_folder() -> Path:
    """Return the folder in which the user started the command."""
    terminal = current_terminal.get()
    return Path.cwd() if terminal is None else terminal.working_folder


def print_result(wants_json: bool, fields: object, lines: Iterable[str]) -> int:
    print_out(to_json(fields) if wants_json else "\n".join(lines))
    return 0


def to_json(fields: object) -> str:
    """Return JSON: enums as their values, paths as text, times in ISO 8601. Raises TypeError for other objects."""

    def to_plain(value: object) -> object:
        match value:
            case Enum():
                return value.value
            case datetime():
                return value.isoformat()
            case Path():
                return str(value)
            case _:
                raise TypeError(f"{type(value).__name__} has no JSON form")

    return json.dumps(fields, default=to_plain, ensure_ascii=False, indent=2)


def pick_fields(value: object, names: str) -> dict[str, Any]:
    """Return a dict of the attributes in `names`, separated by spaces. The names are part of `--json` output."""
    return {name: getattr(value, name) for name in names.split()}


def format_columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(cell_width, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(pad_to_width, row, widths)).rstrip() for row in rows]


def cell_width(text: str) -> int:
    """Return the width of a text in terminal cells. Ideographs, kana and Hangul are two cells wide."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def pad_to_width(text: str, cells: int) -> str:
    return text + " " * (cells - cell_width(text))


def show_progress(label: str, done: int, total: int) -> None:
    """Update a line on standard error with the number of bytes done. Prints nothing if that is not a terminal."""
    if stderr_is_tty():
        amount = _("{done} of {total}", done=format_size(done), total=format_size(total)) if total else ""
        end = "\n" if total and done == total else ""
        print_err(f"\r{label} {pad_to_width(amount, 24)}", end)


# Setup and exit of the process.


class SignalReceived(KeyboardInterrupt):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number, self.code = number, 128 + number


def run_process(main: Callable[[], int]) -> NoReturn:
    """Run `main` and exit the process with the code it returns, without waiting for hung threads.

    Until `main` calls `install_signal_handlers`, a signal ends the process immediately.
    """
    recorder = _prepare_streams()
    try:
        Path.home()
    except RuntimeError:  # the user has no home folder, as in some containers
        if ours := os.environ.get("KVCHAT_HOME"):
            os.environ["HOME"] = ours
    # Limit glibc to two arenas (mallopt(3)), because it never returns fragments in the arenas of threads: after three
    # minutes of requests from eight apps, 19 MB remained, but only 6 MB with two arenas.
    with suppress(OSError, AttributeError, TypeError):  # glibc only
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
    try:
        code = main()
    except SystemExit as error:  # argparse
        code = error.code if isinstance(error.code, int) else EXIT_FAILED
    except BaseException as error:
        fault: BaseException | None = error
        while fault and not isinstance(fault, KeyboardInterrupt):  # within threading's locks, it became a RuntimeError
            fault = fault.__context__
        if fault is None:
            traceback.print_exc()
        code = getattr(fault, "code", EXIT_INTERRUPTED) if fault else EXIT_FAILED
    with suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()
        if recorder and recorder.fault and not code:
            if isinstance(recorder.fault, BrokenPipeError):  # the reader stopped early
                code = EXIT_NO_READER
            else:
                why = _("The output was closed") if recorder.fault.errno == errno.EBADF else recorder.fault.strerror
                print(_("kvchat: The output could not be written\n  {why}.", why=why), file=sys.stderr)
                code = EXIT_FAILED
        sys.stderr.flush()
    os._exit(code)


def install_signal_handlers() -> None:
    """Make Ctrl+C and SIGTERM raise SignalReceived, for a clean exit; a second signal ends the process.

    If the main thread hangs and does not handle a signal in time, the process also ends.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _handle_signal)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)

    def exit_if_unhandled(theirs: socket.socket = theirs) -> None:  # the default keeps `theirs` open
        while number := ours.recv(1)[0]:
            if number in (signal.SIGINT, signal.SIGTERM) and not _signal_received.wait(SIGNAL_TIMEOUT_S):
                os._exit(128 + number)

    threading.Thread(target=exit_if_unhandled, name="signals", daemon=True).start()


def _handle_signal(number: int, frame: FrameType | None) -> None:
    _signal_received.set()
    for handled in (signal.SIGINT, signal.SIGTERM):
        signal.signal(handled, signal.SIG_DFL)
    _signal_handler(number)


def _raise_signal(number: int) -> None:
    raise SignalReceived(number)


_signal_received = threading.Event()
_signal_handler: Callable[[int], object] = _raise_signal


def set_signal_handler(handler: Callable[[int], object]) -> None:
    """Make signals call `handler` in the main thread, at any point, instead of raising SignalReceived."""
    global _signal_handler
    _signal_handler = handler


def set_interrupt_handler(handler: Callable[[int], object]) -> None:
    """Make each Ctrl+C call `handler`, even while input() waits, instead of ending the process."""
    signal.set_wakeup_fd(-1)  # else `exit_if_unhandled` would end the process
    signal.signal(signal.SIGINT, lambda number, frame: handler(number))
    with suppress(ImportError):  # Windows needs none
        import readline  # noqa: F401  # input() edits lines with it


def _prepare_streams() -> _ErrorRecorder | None:
    """Open missing standard streams, and record errors of the output.

    Characters that an output's encoding lacks are replaced. On Windows, files and pipes are in UTF-8, as consoles are,
    because the system's encoding lacks most characters.
    """
    for number in range(3):  # else the next opened file would get the number of a closed stream
        with suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDONLY)  # the lowest free number
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(os.devnull)))  # on Windows, 0 may stay invalid
    elif isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8" if os.name == "nt" else None, errors="replace")
    recorder = None
    for name in ("stderr", "stdout"):
        stream = getattr(sys, name)
        if stream is None and os.name == "nt":  # no console
            continue
        if stream is None:
            recorder = _ErrorRecorder(io.FileIO(1 if name == "stdout" else 2, "w", closefd=False))
        else:
            recorder = _ErrorRecorder(getattr(stream.buffer, "raw", stream.buffer))  # python -u has no buffer
        at_once = name == "stderr" or recorder.isatty() or bool(stream and stream.write_through)
        encoding = stream.encoding if stream and os.name != "nt" else "utf-8"
        setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(recorder), encoding, "replace", line_buffering=at_once))
    return recorder


class _ErrorRecorder(io.RawIOBase):
    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw
        self.fault: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def isatty(self) -> bool:
        return self._raw.isatty()

    def write(self, data: bytes) -> int:  # type: ignore[override]  # any buffer
        if self.fault is None:
            try:
                return self._raw.write(data) or 0
            except OSError as error:
                self.fault = error
        return len(data)
