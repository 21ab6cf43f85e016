"""`kvchat ask` without a question, on a terminal: one question after the other, warm in between, until Ctrl+D.

The event loop has a thread of its own: the main one reads lines, with readline where there is one, and hears Ctrl+C.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from kvchat.cli.options import AskOptions
from kvchat.cli.process import INTERRUPTED, Ended
from kvchat.cli.talk.ask import Talk, open_talk, remark
from kvchat.errors import KvchatError
from kvchat.system.concurrency import Threads
from kvchat.words.language import N_, _
from kvchat.words.safe_text import calm
from kvchat.words.wording import one_line

R = TypeVar("R")
PROMPT = "> "
_ENDS = N_("Ctrl+C stops a reply, Ctrl+D ends.")


def run(options: AskOptions) -> int:
    """Talk until the user ends it. Returns the exit code. Raises KvchatError when it cannot begin."""
    signal.set_wakeup_fd(-1)  # Ctrl+C ends nothing here: that nobody comes to an end for it is no fault
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(ImportError):  # Windows has its own
        import readline  # noqa: F401  # input() edits lines with it
    loop = _Loop()
    try:
        talk = loop.wait(open_talk(options, lasts=True))
    except KeyboardInterrupt as ended:
        return ended.code if isinstance(ended, Ended) else INTERRUPTED
    talk.printer.tells_saves = False
    try:
        title = one_line(calm(loop.wait(talk.title())))
        remark(f"{f'“{title}”. ' if title else ''}{_(_ENDS)}")
        while (question := _line()) is not None:
            if question.strip():
                _answer(loop, talk, question)
    finally:
        _close(loop, talk)
    return 0


class _Loop:
    """An event loop in a thread that lives as long as the process: an engine dies with the thread that started it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(Threads())
        threading.Thread(target=self._loop.run_forever, name="conversation", daemon=True).start()

    def wait(self, work: Coroutine[Any, Any, R]) -> R:
        """What it comes to. Interrupted, it is cancelled."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def wait_stopping(self, work: Coroutine[Any, Any, R], stop: Any) -> R:
        """What it comes to; Ctrl+C calls `stop`, on the loop's thread, and it is waited for all the same."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            try:
                return future.result()
            except Ended:
                raise
            except KeyboardInterrupt:
                self._loop.call_soon_threadsafe(stop)


def _line() -> str | None:
    """The next question; empty when Ctrl+C dropped the line, None at the end of input."""
    try:
        return input(PROMPT)
    except Ended:  # SIGTERM
        raise
    except KeyboardInterrupt:
        print(f"\n{_(_ENDS)}", file=sys.stderr)
        return ""
    except EOFError:
        print()
        return None


def _answer(loop: _Loop, talk: Talk, question: str) -> None:
    """Have it answered. What fails is said, and the next question may be asked."""
    try:
        loop.wait_stopping(talk.ask(question), talk.stop)
    except KvchatError as error:
        remark("\n  ".join(filter(None, (error.title, error.detail, error.advice))))


def _close(loop: _Loop, talk: Talk) -> None:
    """Save and stop the engine; Ctrl+C gives up what is not saved yet."""
    if unfinished := talk.runtime.unfinished:
        remark(_("saving the memory of this chat ({words}); Ctrl+C ends kvchat without it", words=unfinished.words))
    loop.wait_stopping(talk.close(), talk.runtime.give_up_saving)
