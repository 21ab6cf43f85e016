"""What a process owes whoever started it: to end when it is told to, and an exit code that is true."""

from __future__ import annotations

import ctypes
import errno
import io
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from kvchat.words.language import _

FAILED = 1  # what argparse ends with is 2
INTERRUPTED, TERMINATED, NO_READER = 130, 143, 141  # 128 + the signal, as a shell has it
_M_ARENA_MAX = -8
DEAF_S = 1.5  # how long a signal may go unheard


class Ended(KeyboardInterrupt):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number


def run(work: Callable[[], int]) -> NoReturn:
    """Do the work as a process does, and end it with the code it returns.

    A thread that hangs is not waited for. Until the work listens, a signal ends the process at once.
    """
    told = _streams()
    make_at_home()
    keep_less()
    try:
        code = work()
    except SystemExit as ended:  # argparse
        code = ended.code if isinstance(ended.code, int) else FAILED
    except KeyboardInterrupt as ended:
        code = getattr(ended, "code", INTERRUPTED)
    except BaseException:
        traceback.print_exc()
        code = FAILED
    with suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()
        if told and told.fault and not code:
            code = _not_told(told.fault)
        sys.stderr.flush()
    os._exit(code)


def make_at_home() -> None:
    """Where a user has no home folder, as in some containers, the folder for kvchat alone is it: much asks for one."""
    try:
        Path.home()
    except RuntimeError:
        if ours := os.environ.get("KVCHAT_HOME"):
            os.environ["HOME"] = ours


def keep_less() -> None:
    """Have threads share what glibc takes of memory: of what each has for itself, pieces between are never given back.

    Three minutes of eight programs' requests left 19 MB so, and 6 where threads shared two parts (mallopt(3)).
    """
    with suppress(OSError, AttributeError, TypeError):  # glibc's alone has it
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def listen() -> None:
    """From now on Ctrl+C and SIGTERM raise Ended, so that what is half done is cleaned up; the second time they end it.

    They end it all the same where the main thread cannot hear them, in a folder that is gone.
    """
    heard = threading.Event()

    def hear(number: int, frame: FrameType | None) -> None:
        heard.set()
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_DFL)
        raise Ended(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, hear)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_end_the_deaf, args=(ours, theirs, heard), name="signals", daemon=True).start()


def hear_each_interrupt() -> None:
    """From now on each Ctrl+C raises KeyboardInterrupt and ends nothing, in lines that are typed as well."""
    signal.set_wakeup_fd(-1)  # that nobody comes to an end for it is no fault
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(ImportError):  # Windows has its own
        import readline  # noqa: F401  # input() edits lines with it


def _end_the_deaf(ours: socket.socket, theirs: socket.socket, heard: threading.Event) -> None:
    """`theirs` is only kept open."""
    while number := ours.recv(1)[0]:
        if number in (signal.SIGINT, signal.SIGTERM) and not heard.wait(DEAF_S):
            os._exit(128 + number)


def _streams() -> _Told | None:
    """Standard output and error as streams that take everything, in whatever the terminal can show of it; an input."""
    for number in range(3):  # a closed one would be given to the next file that is opened
        with suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDONLY)  # the lowest free number
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    elif isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    told = None
    for name in ("stderr", "stdout"):
        stream = getattr(sys, name)
        if stream is None and os.name == "nt":  # a program without a console
            continue
        if stream is None:
            told = _Told(io.FileIO(1 if name == "stdout" else 2, "w", closefd=False))
        else:
            told = _Told(getattr(stream.buffer, "raw", stream.buffer))  # unbuffered it is the raw one
        at_once = name == "stderr" or told.isatty() or bool(stream and stream.write_through)
        encoding = stream.encoding if stream else "utf-8"
        setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(told), encoding, "replace", line_buffering=at_once))
    return told


class _Told(io.RawIOBase):
    """A stream that takes everything. What cannot be written is lost, and why is remembered."""

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


def _not_told(fault: OSError) -> int:
    """The exit code where the work is done and nobody has heard of it."""
    if isinstance(fault, BrokenPipeError):  # who read it wanted no more
        return NO_READER
    why = _("It is closed") if fault.errno == errno.EBADF else fault.strerror
    print(_("kvchat: The output could not be written\n  {why}.", why=why), file=sys.stderr)
    return FAILED
