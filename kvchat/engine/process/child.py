"""One running engine process, and its outcome: a value that says how it ended."""

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

from kvchat.engine import parent_guard
from kvchat.engine.process.log import EngineLog


@dataclass(frozen=True)
class ProcessExit:
    code: int  # exit code; -n: killed by signal n
    last_lines: tuple[str, ...] = ()  # last output, newest last
    out_of_memory: bool = False  # the system ran out of memory and killed a process meanwhile

    @property
    def signal(self) -> int | None:
        return -self.code if self.code < 0 else None


# Windows only; elsewhere `start_new_session` does the same.
_NEW_GROUP: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
_LAST_LINES = 200
_DRAIN_S = 1.0  # time to read a dead process's last output


@dataclass(frozen=True)
class StopTimeouts:
    """Seconds to end after the first and the second request, before being killed."""

    interrupt_s: float = 2.0  # right after a request, often only the next step works; all is saved by then
    terminate_s: float = 2.0


class EngineProcess:
    """A child process whose output goes to an EngineLog. Created by `spawn`; ends by itself or by `stop`.

    It has its own session, so that Ctrl+C in the terminal reaches only the app, and a guard, so that it
    cannot outlive the app.
    """

    def __init__(self, transport: asyncio.SubprocessTransport, events: _ProcessProtocol, log: EngineLog) -> None:
        """Take over a process just started; use `spawn`."""
        self._transport, self._events, self._log = transport, events, log
        self._oom_kills_before = _count_oom_kills()
        self._out_of_memory = False
        self._end_task = asyncio.create_task(self._run_to_end(), name=f"engine process {self.pid}")

    @classmethod
    async def spawn(
        cls, command: Sequence[str], environment: Mapping[str, str], log: EngineLog, *, use_pipe: bool | None = None
    ) -> EngineProcess:
        """Start `command`. Call it from the main thread's loop: on Linux the guard watches the spawning thread.

        `use_pipe` selects the other kind of guard (for tests). Raises OSError if not even the guard can be started;
        a missing command ends with code 127 instead.
        """
        held_by_pipe = parent_guard.needs_pipe() if use_pipe is None else use_pipe
        transport, events = await asyncio.get_running_loop().subprocess_exec(
            lambda: _ProcessProtocol(log),
            *parent_guard.command(command, use_pipe=held_by_pipe),
            stdin=asyncio.subprocess.PIPE if held_by_pipe else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
            creationflags=_NEW_GROUP | parent_guard.no_window_flags(),
        )
        return cls(transport, events, log)

    @property
    def pid(self) -> int:
        """The process id: on Linux the engine's own, elsewhere the guard's."""
        return self._transport.get_pid()

    @property
    def running(self) -> bool:
        return not self._end_task.done()

    async def wait(self) -> ProcessExit:
        """Wait until it ended and its output is read. Safe for several callers, and to cancel."""
        await asyncio.shield(self._end_task)
        said = self._log.lines_since(self._events.added_before)[-_LAST_LINES:]
        return ProcessExit(self._transport.get_returncode() or 0, said, self._out_of_memory)

    async def exits_within(self, seconds: float) -> bool:
        await asyncio.wait({self._end_task}, timeout=seconds)
        return not self.running

    async def stop(self, stop_timeouts: StopTimeouts | None = None) -> ProcessExit:
        """Ask, then terminate, then kill. If cancelled, kill it at once and wait for its end."""
        stop_timeouts = stop_timeouts or StopTimeouts()
        try:
            # llama-server exits immediately on the second SIGTERM.
            for again, patience in ((False, stop_timeouts.interrupt_s), (True, stop_timeouts.terminate_s)):
                if self.running:
                    self._signal(again=again)
                if await self.exits_within(patience):
                    break
        finally:
            if self.running:
                self._kill()
                await asyncio.wait({self._end_task})
        return await self.wait()

    def _signal(self, *, again: bool) -> None:
        if sys.platform != "win32":
            self._signal_group(signal.SIGTERM)
        elif again:
            self._release()
        else:
            try:
                self._transport.send_signal(signal.CTRL_BREAK_EVENT)
            except OSError:  # without a console, as in the window's kvchat, this fails
                self._release()

    def _release(self) -> None:
        """Release the guard, which then kills the engine; TerminateProcess would kill only the guard."""
        if (held := self._transport.get_pipe_transport(0)) is not None:
            held.close()

    def _kill(self) -> None:
        if sys.platform != "win32":
            self._signal_group(signal.SIGKILL)
        else:
            self._transport.kill()

    def _signal_group(self, number: int) -> None:
        """Signal the whole group: a pipe guard, the engine's parent, forwards no signals."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # PermissionError: a macOS zombie
            os.killpg(self.pid, number)

    async def _run_to_end(self) -> None:
        try:
            await self._events.exited.wait()
            with contextlib.suppress(TimeoutError):
                # A grandchild may keep the pipe open; do not wait for it.
                await asyncio.wait_for(self._events.output_ended.wait(), _DRAIN_S)
            self._out_of_memory = _count_oom_kills() > self._oom_kills_before
        finally:
            if not self._events.exited.is_set():  # cancelled: the loop is closing
                self._kill()
            self._transport.close()
            self._log.end_line()


class _ProcessProtocol(asyncio.SubprocessProtocol):
    """Records asyncio's process events. (Its own `Process.wait` waits for whoever holds the pipe.)"""

    def __init__(self, log: EngineLog) -> None:
        self.exited, self.output_ended = asyncio.Event(), asyncio.Event()
        self.added_before, self._log = log.line_count, log

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._log.feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self.output_ended.set()

    def process_exited(self) -> None:
        self.exited.set()


def _count_oom_kills() -> int:
    """Return Linux's count of out-of-memory kills so far; 0 if unavailable (proc(5), vmstat)."""
    try:
        counters = Path("/proc/vmstat").read_text("ascii")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in counters.splitlines() if line.startswith("oom_kill ")), 0)
