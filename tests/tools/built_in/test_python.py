"""Python programs of a model: results, and attempts to hang, flood, exhaust or leave the sandbox."""

import asyncio
import contextlib
import re

import psutil
import pytest

from kvchat.tools.built_in import python
from kvchat.tools.built_in.definition import MAX_PART_CHARS
from kvchat.tools.built_in.python import RUN_PYTHON
from kvchat.tools.tool import ToolResult

pytest.importorskip("pydantic_monty", reason="no wheel for this system")


async def run(code: str) -> ToolResult:
    return await RUN_PYTHON.run({"code": code})


def workers() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(OSError):  # under Wine, while the process starts
            if child.name().startswith("monty"):
                found.append(child)
    return found


async def test_output_and_value_are_returned() -> None:
    assert (await run("print('hi')\n[1, {'a': 2}]")).text == "hi\n[1, {'a': 2}]"
    assert (await run("import math\nprint(math.sqrt(2))")).text == "1.4142135623730951"
    assert (await run("x = 1")).text == "The program ended without output."
    assert not workers()


async def test_an_error_is_returned_with_what_was_printed() -> None:
    result = await run("print('before')\ndef f(x):\n    return 1 / x\nf(0)")
    assert result.is_error
    assert result.text.startswith("before\nTraceback")
    assert result.text.endswith("ZeroDivisionError: division by zero")
    assert "Expected an identifier" in (await run("def")).text


ATTACKS = {
    "files": ("open('/etc/passwd').read()", "PermissionError"),
    "paths": ("from pathlib import Path\nPath('/etc/passwd').read_text()", "PermissionError"),
    "folders": ("import os\nos.listdir('/')", "PermissionError"),
    "environment": ("import os\nos.environ['HOME']", "not supported"),
    "processes": ("import subprocess", "ModuleNotFoundError"),
    "network": ("import socket", "ModuleNotFoundError"),
    "native code": ("import ctypes", "ModuleNotFoundError"),
    "classes": ("().__class__.__bases__[0].__subclasses__()", "AttributeError"),
    "endless": ("while True: pass", "time limit exceeded"),
    "one long operation": (
        "x = 10 ** 100000\nfor i in range(30): x = x * x\nstr(x)",
        r"did not end|time limit|MemoryError",
    ),
    "sleep": ("import time\nwhile True: time.sleep(9)", "sleep limit exceeded"),
    "memory": ("a = []\nwhile True: a.append('x' * 1000000)", "MemoryError"),
    "one large value": ("'a' * 10 ** 10", "MemoryError"),
    "large number": ("10 ** 10 ** 9", "MemoryError"),
    "recursion": ("def f(n): return f(n + 1)\nf(0)", "RecursionError"),
    "nested source": ("(" * 20_000 + ")" * 20_000, "too deeply nested"),
    "output": ("while True: print('x' * 10000)", r"MemoryError|time limit"),
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_attacks_end_with_one_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "TIME_LIMIT_S", 2.0)
    code, reason = ATTACKS[name]
    result = await run(code)
    assert result.is_error
    assert re.search(reason, result.text), result.text[-300:]
    assert len(result.text) <= MAX_PART_CHARS + 2100
    assert not workers()
    assert (await run("1 + 1")).text == "2", "the next program runs"


@pytest.mark.parametrize(
    "code",
    [
        "a = []\nfor i in range(100000): a = [a]\na",
        "a = []\na.append(a)\na",
        "'x' * 50_000_000",
        "list(range(1_000_000))",
        "2 ** 100_000",
        "{i: 'x' * 100_000 for i in range(100)}",
        "a = [0] * 200\nfor i in range(6): a = [a] * 200\na",
        "'\\ud800'",
    ],
)
async def test_values_of_any_size_and_depth_are_shown_in_part(code: str) -> None:
    text = (await run(code)).text
    assert 0 < len(text) <= MAX_PART_CHARS
    text.encode()


async def test_stopping_ends_the_worker() -> None:
    call = asyncio.ensure_future(run("while True: pass"))
    while not workers():
        assert not call.done()
        await asyncio.sleep(0.01)
    (worker,) = workers()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    worker.wait(30)


async def test_the_event_loop_stays_free() -> None:
    call, ticks = asyncio.ensure_future(run("sum(range(10 ** 7))")), 0
    while not call.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert ticks > 1
