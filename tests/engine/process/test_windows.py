"""Windows-only code against a fake Windows that records the calls."""

import ctypes
import signal
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kvchat.system import parent_guard


class Function:
    """A function of a Windows library that records its calls."""

    def __init__(self, calls: list[tuple[Any, ...]], name: str, result: int) -> None:
        self.restype: object = None
        self._calls, self._name, self._result = calls, name, result

    def __call__(self, *arguments: Any) -> int:
        self._calls.append((self._name, *arguments))
        return self._result


Windows = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Windows:
    """Pretend to run on Windows; the function gets the results of kernel functions and returns their calls."""

    def fake(**results: int) -> list[tuple[Any, ...]]:
        calls: list[tuple[Any, ...]] = []
        kernel = SimpleNamespace(**{name: Function(calls, name, result) for name, result in results.items()})
        monkeypatch.setattr(ctypes, "WinDLL", lambda name: {"kernel32": kernel}[name], raising=False)
        monkeypatch.setattr(sys, "platform", "win32")
        return calls

    return fake


def test_job_ends_with_the_guard(windows: Windows, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = windows(
        CreateJobObjectW=7,
        GetCurrentProcess=2**64 - 1,
        SetInformationJobObject=1,
        AssignProcessToJobObject=1,
        GetConsoleWindow=0,
    )
    started: list[dict[str, Any]] = []

    def popen(command: list[str], **options: Any) -> None:
        started.append({"calls": [name for name, *_ in calls], **options})
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert parent_guard.main(["pipe", "1", "llama-server.exe"]) == parent_guard.EXIT_NOT_FOUND
    assert "AssignProcessToJobObject" in started[0]["calls"]  # before the engine starts, which then inherits the job
    assert started[0]["creationflags"] == 0x08000000
    _, job, kind, limits, size = next(call for call in calls if call[0] == "SetInformationJobObject")
    assert (job.value, kind, size) == (7, 9, 144)
    assert bytes(limits._obj)[16:20] == (0x2000).to_bytes(4, "little")
    _, job, process = next(call for call in calls if call[0] == "AssignProcessToJobObject")
    assert (job.value, process.value) == (7, 2**64 - 1)


def test_console_is_shared(windows: Windows) -> None:
    windows(GetConsoleWindow=1)
    assert parent_guard.no_window_flags() == 0
