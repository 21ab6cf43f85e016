"""Supervisor that starts, monitors, restarts and stops one engine process at a time."""

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from kvchat.engine.api.client import LlamaServerClient
from kvchat.engine.api.connection import EngineConnection, EngineState, EngineStatus
from kvchat.engine.api.errors import (
    LOG_ADVICE,
    PORT_TAKEN,
    EngineBroken,
    EngineError,
    EngineFailure,
    EngineGone,
    EngineSilent,
    FailureKind,
    ForeignServer,
    lost_workers,
    with_last_output,
)
from kvchat.engine.discovery.engines import EngineLocation, unreachable_workers
from kvchat.engine.process.child import EngineProcess
from kvchat.engine.process.log import EngineLog
from kvchat.engine.process.plan import Invocation, LaunchPlan, make_invocation
from kvchat.text.language import N_, _, format_number, join_sentences


@dataclass(frozen=True)
class MonitorPolicy:
    """Intervals and limits for monitoring, in seconds. The limits are long enough for a busy computer."""

    check_interval_s: float = 10.0
    response_timeout_s: float = 20.0  # timeout for /health
    max_misses: int = 4  # consecutive timeouts of /health that count as a hang
    sleep_gap_s: float = 30.0  # the computer slept if the wall clock jumped ahead by more than this
    stuck_timeout_s: float = 300.0  # timeout for the compute loop, which some grammars never leave; two count as a hang
    silence_s: float = 600.0  # longest silence in a stream; a prefill reports each batch
    alert_interval_s: float = 2.0  # interval after a reply went silent, so that a hang is detected within a minute
    alert_timeout_s: float = 12.0


class EngineMonitor:
    def __init__(self, policy: MonitorPolicy, log: EngineLog, wall_clock: Callable[[], float] = time.time) -> None:
        """`wall_clock` must keep running while the computer sleeps."""
        self._policy, self._log, self._wall_clock = policy, log, wall_clock
        self._reported: EngineFailure | None = None
        self._alerted = False
        self._wake = asyncio.Event()

    def report(self, error: EngineError) -> None:
        """Report a failed request. An error of a hanging or broken engine makes `wait_for_failure` return."""
        if self._reported is None and isinstance(error, EngineSilent | EngineBroken):
            self._reported = error.failure if isinstance(error, EngineBroken) else _hang_failure()
            self._wake.set()

    def check_now(self) -> None:
        """Check the engine now, because a reply has stalled, and more often than usual until it responds."""
        if not self._alerted:
            self._alerted = True
            self._wake.set()

    async def wait_for_failure(self, client: LlamaServerClient) -> EngineFailure:
        """Wait until the engine hangs or cannot compute, and return the failure."""
        stuck, misses = asyncio.create_task(self._wait_until_stuck(client), name="engine-loop-watch"), 0
        stuck.add_done_callback(lambda _: self._wake.set())
        try:
            while misses < self._policy.max_misses:
                before, policy = self._wall_clock(), self._policy
                pause = policy.alert_interval_s if self._alerted else policy.check_interval_s
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                self._wake.clear()
                if self._reported is not None:
                    return self._reported
                if stuck.done():
                    break
                if self._wall_clock() - before - pause > self._policy.sleep_gap_s:
                    woke = _("kvchat: the computer woke from sleep; checking whether the engine still responds")
                    self._log.note(woke)
                    misses = 0  # sleep may have caused the earlier ones
                try:
                    await client.is_loaded(policy.alert_timeout_s if self._alerted else policy.response_timeout_s)
                    misses = 0
                except EngineError as error:  # errors other than EngineGone are responses
                    misses = misses + 1 if isinstance(error, EngineGone) else 0
                self._alerted = self._alerted and misses > 0
            return _hang_failure()
        finally:
            stuck.cancel()
            await asyncio.wait({stuck})

    async def _wait_until_stuck(self, client: LlamaServerClient) -> None:
        """Wait until the engine's compute loop has not responded for longer than any batch takes."""
        misses = 0
        while misses < 2:  # one miss may be the computer falling asleep
            sent_at = time.monotonic()
            try:
                await client.get("/metrics", self._policy.stuck_timeout_s)
                misses, client.lifetime.responded_at = 0, sent_at
            except EngineSilent:
                misses += 1
                continue
            except EngineError:  # it responds; if it is gone, the other checks notice
                misses, client.lifetime.responded_at = 0, None
            await asyncio.sleep(self._policy.check_interval_s)


def _hang_failure() -> EngineFailure:
    return EngineFailure(
        FailureKind.HANGS,
        _("The engine stopped responding"),
        _("It did not respond for too long and was stopped."),
        _(LOG_ADVICE),
    )


# Each interval is 5% longer than the one before, so the wait adds 5% at most to the time that the engine takes.
_FIRST_POLL_S, _MAX_POLL_S = 0.01, 0.1

# Restarting would fail the same way.
_PERMANENT_FAILURES = {
    FailureKind.BAD_MODEL,
    FailureKind.MODEL_MISSING,
    FailureKind.MISSING_LIBRARY,
    FailureKind.NOT_FOUND,
    FailureKind.INCOMPATIBLE,
    FailureKind.UNSUPPORTED_CPU,
}
# A GPU driver may crash while a model loads, for example because its memory ran out (Mesa's lavapipe).
_DRIVER_FAILURES = {FailureKind.CRASHED, FailureKind.GPU_LOST}


def _with_next_plan(failure: EngineFailure, plan: LaunchPlan) -> EngineFailure:
    tokens = format_number(plan.context_size)
    advice = _("kvchat is restarting it with a context length of {tokens} tokens.", tokens=tokens)
    if plan.without_gpu:
        text = N_("kvchat is restarting it with a context length of {tokens} tokens and {layers} layers on the GPU.")
        advice = _(text, tokens=tokens, layers=0)
    return dataclasses.replace(failure, advice=advice)


@dataclass(frozen=True)
class RestartPolicy:
    """Limits and delays for restarting a dead engine. Times in seconds."""

    max_deaths: int = 5  # within `window_s`, or in a row without becoming ready
    window_s: float = 300.0
    first_delay_s: float = 1.0
    max_delay_s: float = 30.0
    port_attempts: int = 5
    silence_s: float = 300.0  # longest time without output while loading


class EngineSupervisor(EngineConnection):
    """Runs one engine process at a time. Use it on the main thread, which the engine's guard watches on Linux."""

    def __init__(
        self,
        *,
        log: EngineLog | None = None,
        policy: RestartPolicy | None = None,
        monitor_policy: MonitorPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        generations: Iterator[int] | None = None,
    ) -> None:
        """Create a supervisor without an engine. `clock` and `sleep` are for tests."""
        super().__init__(generations or itertools.count(1))
        self.log = log or EngineLog()
        self._policy, self._monitor_policy = policy or RestartPolicy(), monitor_policy or MonitorPolicy()
        self._clock, self._sleep = clock, sleep
        self._serial = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._is_ending = False  # the task was cancelled
        self._process: EngineProcess | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.running else None

    async def start(self, location: EngineLocation, plans: Iterator[LaunchPlan]) -> None:
        """Stop a running engine and start one with the first plan, without waiting until it is ready.

        Each time that loading runs out of memory, the next plan is tried.
        """
        async with self._serial:
            await self._end(EngineState.STOPPING)
            plan = next(plans)
            self.publish(EngineStatus(EngineState.STARTING))
            self._is_ending = False
            self._task = asyncio.create_task(self._run(location, plan, plans), name="engine supervisor")
            self._task.add_done_callback(self._report_internal_error)

    async def stop(self, final: EngineState = EngineState.STOPPED) -> None:
        """Stop the engine. `final`: the status afterwards, STOPPED or UNLOADED."""
        async with self._serial:
            await self._end(final if final is EngineState.UNLOADED else EngineState.STOPPING)
            self.publish(EngineStatus(final))

    async def close(self) -> None:
        await self.stop()
        self.log.close()

    async def _end(self, state: EngineState) -> None:
        """Publish `state` and stop the engine, if one runs. Cancelling this call does not prevent the stop."""
        if self._task is not None:
            if not self._is_ending:  # a second cancel would kill the process at once
                self._is_ending = True
                self.publish(EngineStatus(state))
                self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    def _report_internal_error(self, task: asyncio.Task[None]) -> None:
        """Publish a failure if kvchat itself failed, so that nobody waits for the engine forever."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            task.get_loop().call_exception_handler({"message": "the engine supervisor failed", "exception": error})
            reason = EngineFailure(
                FailureKind.EXITED,
                _("kvchat can no longer control the engine"),
                _("This is a bug in kvchat: {error}", error=repr(error)),
                _("Start the engine again, and please report this bug."),
            )
            self.publish(EngineStatus(EngineState.FAILED, reason))

    async def _run(self, location: EngineLocation, plan: LaunchPlan, plans: Iterator[LaunchPlan]) -> None:
        deaths, never_ready = deque[float](), 0
        status = EngineStatus(EngineState.STARTING)
        while True:
            for _attempt in range(self._policy.port_attempts):
                failure, was_ready = await self._run_process(make_invocation(location, plan), status)
                if failure.kind is not FailureKind.PORT_TAKEN:
                    break
                plan = dataclasses.replace(plan, port=0)  # another program took the port before the engine
            too_large = failure.kind is FailureKind.OUT_OF_MEMORY and not was_ready
            if too_large and (smaller := next(plans, None)) is not None:
                plan = smaller
                status = EngineStatus(EngineState.STARTING, _with_next_plan(failure, plan))
                self.publish(status)
                continue
            now = self._clock()
            deaths.append(now)
            while deaths[0] < now - self._policy.window_s:
                deaths.popleft()
            never_ready = 0 if was_ready else never_ready + 1
            count = max(len(deaths), never_ready)
            if too_large or failure.kind in _PERMANENT_FAILURES or count >= self._policy.max_deaths:
                if count > 1:
                    given_up = _("It stopped {deaths} times, so kvchat does not restart it again.", deaths=count)
                    failure = dataclasses.replace(failure, detail=join_sentences(failure.detail, given_up))
                self.publish(EngineStatus(EngineState.FAILED, failure, count - 1))
                return
            if never_ready > 1 and failure.kind in _DRIVER_FAILURES and plan.fit_target is not None:
                plan = dataclasses.replace(plan, fit_target=None, without_gpu=True)
                failure = _with_next_plan(failure, plan)
            status = EngineStatus(EngineState.STARTING, failure, restart_attempt=count)
            self.publish(status)
            await self._sleep(min(self._policy.first_delay_s * 2.0 ** (count - 1), self._policy.max_delay_s))

    async def _run_process(self, invocation: Invocation, status: EngineStatus) -> tuple[EngineFailure, bool]:
        """Run one process until it ends, or stop it if this task is cancelled.

        Return the failure, and True if the engine had been ready.
        """
        try:
            process = await EngineProcess.spawn(
                invocation.command, invocation.environment, self.log, working_folder=invocation.working_folder
            )
        except OSError as error:
            title, advice = _("The engine could not be started"), _("Close some programs and try again.")
            return EngineFailure(FailureKind.EXITED, title, str(error), advice), False
        self.generation = next(self._generations)
        self._process = process
        monitor = EngineMonitor(self._monitor_policy, self.log)
        client = LlamaServerClient(
            invocation.base_url,
            invocation.key,
            silence_timeout_s=self._monitor_policy.silence_s,
            on_fault=monitor.report,
            on_silence=monitor.check_now,
        )
        try:
            reason = await self._wait_until_ready(process, client, invocation.plan.port, status)
            model = invocation.plan.model
            if reason and reason.kind is FailureKind.BAD_MODEL and not await asyncio.to_thread(model.exists):
                title = _("The model file is missing")
                advice = _("The file may have been moved. Choose the model again.")
                reason = EngineFailure(FailureKind.MODEL_MISSING, title, str(model), advice)
            if reason is not None:
                return reason, False
            self._set_ready(client, EngineStatus(EngineState.READY, restart_attempt=status.restart_attempt))
            failure = await self._wait_for_failure(process, client, monitor)
            if failure.kind is FailureKind.WORKER_LOST:  # the engine does not log which one
                unreachable = await asyncio.to_thread(unreachable_workers, invocation.plan.rpc_workers)
                failure = lost_workers(unreachable) if unreachable else failure
            return failure, True
        finally:
            self._client = None
            try:
                await process.stop()
            finally:
                await client.aclose()

    async def _wait_for_failure(
        self, process: EngineProcess, client: LlamaServerClient, monitor: EngineMonitor
    ) -> EngineFailure:
        ending = asyncio.create_task(process.wait(), name="engine ending")
        failing = asyncio.create_task(monitor.wait_for_failure(client), name="engine monitor")
        try:
            await asyncio.wait({ending, failing}, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                return ending.result().explain(was_ready=True)
            self._client = None
            self.publish(EngineStatus(EngineState.STARTING, failing.result()))  # now, because stopping it may be slow
            return failing.result()
        finally:
            for task in (ending, failing):
                task.cancel()
            await asyncio.wait({ending, failing})

    async def _wait_until_ready(
        self, process: EngineProcess, client: LlamaServerClient, port: int, status: EngineStatus
    ) -> EngineFailure | None:
        delay, bytes_seen, progress_at = _FIRST_POLL_S, -1, self._clock()
        while process.running:
            try:
                if await client.is_loaded():
                    await client.verify()
                    return None
                self.publish(dataclasses.replace(status, state=EngineState.LOADING))
            except ForeignServer:
                return PORT_TAKEN.failure(_("Another program is using port {port}.", port=port))
            except EngineGone:
                pass  # it does not listen yet
            if self.log.bytes_seen != bytes_seen:
                bytes_seen, progress_at = self.log.bytes_seen, self._clock()
            elif self._clock() - progress_at > self._policy.silence_s:
                seconds = f"{self._policy.silence_s:.0f}"
                detail = _("It showed no progress for {seconds} seconds and was stopped.", seconds=seconds)
                return EngineFailure(
                    FailureKind.TIMED_OUT,
                    _("The engine did not start"),
                    with_last_output(detail, self.log.lines),
                    _("The model may be on a slow or sleeping disk. Try again, or try a smaller model."),
                )
            await process.exits_within(delay)
            delay = min(delay * 1.05, _MAX_POLL_S)
        return (await process.wait()).explain()
