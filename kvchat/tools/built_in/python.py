"""Python in pydantic-monty: a separate interpreter without files, network or environment, in a worker process."""

import asyncio
import contextlib
import reprlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from kvchat.tools.built_in.definition import MAX_PART_CHARS, BuiltInTool, define
from kvchat.tools.tool import ToolFailed, ToolResult

TIME_LIMIT_S = 10.0
MAX_MEMORY_BYTES = 256_000_000
MAX_OUTPUT_BYTES = 100_000
_MAX_CODE = 50_000  # characters
_MAX_ERROR = 2000  # characters, from the end of a traceback


async def _run_python(arguments: Mapping[str, Any]) -> ToolResult:
    workers: list[int] = []
    try:
        return await asyncio.to_thread(_run, arguments["code"], workers)
    except asyncio.CancelledError:
        for worker in workers:
            with contextlib.suppress(psutil.Error):
                psutil.Process(worker).kill()
        raise


def _run(code: str, workers: list[int]) -> ToolResult:
    """Run a program and add the id of its process to `workers`. Blocking.

    AsyncMonty is not used: with it, Python sometimes aborts at exit (pydantic-monty 1.4.0).
    """
    try:
        from pydantic_monty import CollectString, Monty, MontyCrashedError, MontyError
    except ImportError as error:  # no wheel for this system
        raise ToolFailed("Python cannot run on this computer", "pydantic-monty is not installed.") from error
    program = Path(sys.prefix, "monty.exe" if sys.platform == "win32" else "monty")
    limits: Any = {
        "max_feed_duration_secs": TIME_LIMIT_S,
        "max_total_sleep_secs": TIME_LIMIT_S,
        "max_memory": MAX_MEMORY_BYTES,
    }
    printed = CollectString(MAX_OUTPUT_BYTES)
    value = error_text = None
    try:
        is_bundle = getattr(sys, "frozen", False)
        with (
            Monty(binary_path=program if is_bundle else None, min_processes=1, max_processes=1) as pool,
            pool.checkout(limits=limits) as session,
        ):
            workers += filter(None, [session.worker_pid])
            value = session.feed_run(code, print_callback=printed)
    except MontyCrashedError as error:
        late = f"It did not end within {TIME_LIMIT_S:.0f} seconds." if error.timed_out else "Its process ended."
        error_text = f"The program was stopped. {late}"
    except MontyError as error:
        display = getattr(error, "display", None)
        error_text = (str(display()) if display else str(error))[-_MAX_ERROR:]
    except (OSError, RuntimeError) as error:
        raise ToolFailed("The Python sandbox could not start", str(error)) from error
    parts = [printed.output[:MAX_PART_CHARS].rstrip("\n"), error_text or _shown(value)]
    text = "\n".join(filter(None, parts)) or "The program ended without output."
    return ToolResult(text, is_error=error_text is not None)


class _ShortRepr(reprlib.Repr):
    """`repr` with limits on width, depth and the total number of parts, which would otherwise reach billions."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 200
        self.maxstring = self.maxother = self.maxlong = 5000
        self._parts_left = 5000

    def repr1(self, x: Any, level: int) -> str:
        self._parts_left -= 1
        return super().repr1(x, level) if self._parts_left > 0 else "..."


def _shown(value: object) -> str:
    """Return the short `repr` of the last expression's value; empty for None."""
    if value is None:
        return ""
    try:
        return _ShortRepr().repr(value)[:MAX_PART_CHARS]
    except (ValueError, RecursionError):  # ValueError: an integer of more than 4300 digits
        return f"[The value, of type {type(value).__name__}, is too large to show. Print a part of it.]"


RUN_PYTHON = BuiltInTool(
    define(
        "run_python",
        "Run a Python program and return what it prints and the value of its last expression. It has no files, no "
        f"network and no packages, only a part of the standard library (math, re, json, datetime), and "
        f"{TIME_LIMIT_S:.0f} seconds. Nothing is kept between calls.",
        {"code": {"type": "string", "maxLength": _MAX_CODE, "description": "Python source code"}},
    ),
    _run_python,
)
