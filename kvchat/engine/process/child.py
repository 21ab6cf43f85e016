"""The engine's process, and the explanation of its exit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvchat.engine import embedded
from kvchat.engine.api.errors import (
    LOG_ADVICE,
    MEMORY_ADVICE,
    MISSING_LIBRARY,
    OUT_OF_MEMORY,
    EngineFailure,
    FailureKind,
    diagnose,
    find_line,
    last_error,
    with_last_output,
)
from kvchat.engine.process.log import EngineLog
from kvchat.system import parent_guard
from kvchat.text.language import _

_WINDOWS_DLL_NOT_FOUND = 0xC0000135
_WINDOWS_ILLEGAL_INSTRUCTION = 0xC000001D
_WINDOWS_CTRL_C = 0xC000013A
_WINDOWS_EXCEPTIONS = range(0xC0000000, 0xD0000000)  # such as 0xC0000005 (access violation); exit(-1) is 0xFFFFFFFF
_EXTERNAL_SIGNALS = {getattr(signal, name, None) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")} - {None}
_NOT_STARTED = (parent_guard.EXIT_NOT_FOUND, parent_guard.EXIT_NOT_EXECUTABLE, embedded.EXIT_NOT_INSTALLED)


@dataclass(frozen=True)
class ProcessExit:
    code: int  # exit code, or -n if signal n ended the process
    last_lines: tuple[str, ...] = ()  # of the output, newest last
    out_of_memory: bool = False  # Linux killed a process for lack of memory while this one ran

    @property
    def signal(self) -> int | None:
        return -self.code if self.code < 0 else None

    def explain(self, *, was_ready: bool = False) -> EngineFailure:
        """Explain why the process ended by itself. `was_ready`: it had finished loading the model."""
        library = find_line(MISSING_LIBRARY, self.last_lines)
        if library is not None or self.code == _WINDOWS_DLL_NOT_FOUND:
            return EngineFailure(
                FailureKind.MISSING_LIBRARY,
                _("The engine is missing a library"),
                library or _("A required library (DLL) is not installed."),
                _(
                    "Reinstall llama-server with the libraries it was built with, or set the engine path "
                    'in the settings to "embedded" to use the embedded engine.'
                ),
            )
        if self.code in _NOT_STARTED:
            reason = last_error(self.last_lines) or _("The program is missing or not executable.")
            title, advice = _("The engine could not be started"), _("Check the engine path in the settings.")
            return EngineFailure(FailureKind.NOT_FOUND, title, reason, advice)
        if self.signal == signal.SIGILL.value or self.code == _WINDOWS_ILLEGAL_INSTRUCTION:
            return EngineFailure(
                FailureKind.UNSUPPORTED_CPU,
                _("The engine does not support this CPU"),
                _("It used an instruction that this CPU does not support."),
                _("Install a llama-server built for this machine."),
            )
        if self.signal not in _EXTERNAL_SIGNALS:  # a killed engine logs no reason
            failure = diagnose(self.last_lines, was_ready=was_ready)
            if failure is not None:
                return failure
        if self.signal is not None:
            return self._explain_signal(self.signal)
        if self.code in _WINDOWS_EXCEPTIONS and self.code != _WINDOWS_CTRL_C:
            return self._crash(f"0x{self.code:X}")
        detail = with_last_output(_("It exited with code {code}.", code=self.code), self.last_lines)
        return EngineFailure(FailureKind.EXITED, _("The engine stopped unexpectedly"), detail, _(LOG_ADVICE))

    def _explain_signal(self, number: int) -> EngineFailure:
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = _("signal {number}", number=number)
        if name == "SIGKILL" and self.out_of_memory:
            return OUT_OF_MEMORY.failure(_("The system killed it because memory ran out."))
        advice = _(LOG_ADVICE)
        detail = _("It was terminated from outside kvchat ({name}).", name=name)
        if name == "SIGKILL":
            detail = _("It was killed from outside kvchat (SIGKILL). The system does this when memory runs out.")
            advice = _(MEMORY_ADVICE)
        elif name in ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGTRAP"):
            return self._crash(name)
        return EngineFailure(FailureKind.KILLED, _("The engine was killed"), detail, advice)

    def _crash(self, name: str) -> EngineFailure:
        detail = with_last_output(_("It was terminated by {name}.", name=name), self.last_lines)
        return EngineFailure(FailureKind.CRASHED, _("The engine crashed"), detail, _(LOG_ADVICE))


# On Windows, keeps Ctrl+C from reaching the engine; elsewhere `start_new_session` does that.
_NEW_GROUP: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
_LAST_LINES = 200
_DRAIN_S = 1.0  # longest wait for the last output of a dead process
_GUARD_TIMEOUT_S = 4.0  # longest wait for a guard to kill the engine


class EngineProcess(asyncio.SubprocessProtocol):
    """The engine's process. Its guard ends it with kvchat, and its own session keeps Ctrl+C from reaching it."""

    _transport: asyncio.SubprocessTransport
    _end_task: asyncio.Task[None]

    def __init__(self, log: EngineLog) -> None:
        self._log = log
        self._exited, self._output_ended = asyncio.Event(), asyncio.Event()
        self._oom_kills_before = _count_oom_kills()

    @classmethod
    async def spawn(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: EngineLog,
        *,
        working_folder: Path | None = None,
        use_pipe: bool = sys.platform != "linux",
    ) -> EngineProcess:
        """Start `command` on the main thread, which the guard watches on Linux. Raises OSError."""
        log.note_start(command)
        process = cls(log)
        process._transport, _protocol = await asyncio.get_running_loop().subprocess_exec(
            lambda: process,
            *parent_guard.command(command, use_pipe=use_pipe),
            stdin=asyncio.subprocess.PIPE if use_pipe else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(environment),
            cwd=working_folder,
            start_new_session=True,
            creationflags=_NEW_GROUP | parent_guard.no_window_flags(),
        )
        process._end_task = asyncio.create_task(process._run_to_end(), name=f"engine process {process.pid}")
        return process

    @property
    def pid(self) -> int:
        """The process id of the engine on Linux, of its guard elsewhere."""
        return self._transport.get_pid()

    @property
    def running(self) -> bool:
        return not self._end_task.done()

    async def wait(self) -> ProcessExit:
        await asyncio.shield(self._end_task)
        out_of_memory = _count_oom_kills() > self._oom_kills_before
        return ProcessExit(self._transport.get_returncode() or 0, self._log.since_start[-_LAST_LINES:], out_of_memory)

    async def exits_within(self, seconds: float) -> bool:
        await asyncio.wait({self._end_task}, timeout=seconds)
        return not self.running

    async def stop(self) -> ProcessExit:
        """Kill the engine, which has nothing to save. SIGTERM takes longer, and llama-server may ignore it."""
        try:
            if self.running and (pipe := self._transport.get_pipe_transport(0)) is not None:
                pipe.close()  # the guard kills the engine, and ends after it
                await self.exits_within(_GUARD_TIMEOUT_S)
        finally:
            if self.running:
                self._kill()
                await asyncio.wait({self._end_task})
        return await self.wait()

    def _kill(self) -> None:
        if sys.platform == "win32":
            self._transport.kill()
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS raises PermissionError for a zombie
            os.killpg(self.pid, signal.SIGKILL)

    async def _run_to_end(self) -> None:
        try:
            await self._exited.wait()
            with contextlib.suppress(TimeoutError):
                # With a limit, because a child of the engine may keep the pipe open.
                await asyncio.wait_for(self._output_ended.wait(), _DRAIN_S)
        finally:
            if not self._exited.is_set():  # cancelled: the loop is closing
                self._kill()
            self._transport.close()
            self._log.end_line()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._log.feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._output_ended.set()

    def process_exited(self) -> None:
        self._exited.set()


def _count_oom_kills() -> int:
    """Return how many processes Linux has killed for lack of memory (proc(5), vmstat); 0 on other systems."""
    try:
        counters = Path("/proc/vmstat").read_text("ascii")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in counters.splitlines() if line.startswith("oom_kill ")), 0)
