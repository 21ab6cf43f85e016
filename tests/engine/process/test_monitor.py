import asyncio
import contextlib
import os
import signal
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import pytest

from kvchat.engine.api import transport
from kvchat.engine.api.client import LlamaServerClient
from kvchat.engine.api.connection import EngineState, EngineStatus
from kvchat.engine.api.errors import EngineError, EngineSilent, FailureKind
from kvchat.engine.api.wire import ENGINE_DEFAULTS, ChatMessage
from kvchat.engine.process.log import EngineLog
from kvchat.engine.process.supervisor import EngineMonitor, EngineSupervisor, MonitorPolicy, RestartPolicy
from tests.engine.waiting import until
from tests.engine_fixtures import FakeEngine, supervised
from tests.systems import not_on_windows

# A response may take long on a busy machine; a stopped process never responds.
CLOSE = MonitorPolicy(check_interval_s=0.05, response_timeout_s=20.0, max_misses=2)


def monitored(fake: FakeEngine, policy: MonitorPolicy = CLOSE) -> AbstractAsyncContextManager[EngineSupervisor]:
    options = {"policy": RestartPolicy(first_delay_s=0.01), "monitor_policy": policy}
    return supervised(fake.location, fake.plan, **options)


async def ask(engine: LlamaServerClient) -> None:
    async with contextlib.aclosing(engine.chat([ChatMessage("user", "one two three")], ENGINE_DEFAULTS)) as chunks:
        async for _ in chunks:
            pass


def failures(statuses: list[EngineStatus]) -> list[FailureKind]:
    """Return the kinds of the failures before restarts, each once."""
    kinds = [status.failure.kind for status in statuses if status.failure and status.state is EngineState.STARTING]
    return list(dict.fromkeys(kinds))


@not_on_windows("stops the process by a signal")
async def test_engine_frozen_in_mid_reply_is_checked_at_once(
    fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "SILENCE_CHECK_S", 0.2)
    patient = MonitorPolicy(check_interval_s=3600.0, max_misses=2, alert_interval_s=0.05, alert_timeout_s=1.0)
    fake_engine.set(FAKE_REPLY="one two three four", FAKE_HOLD_DURING="stream")
    async with monitored(fake_engine, patient) as supervisor:
        frozen, statuses = supervisor.pid, list[EngineStatus]()
        supervisor.subscribe(statuses.append)
        reply = asyncio.create_task(ask(await supervisor.ready()))
        await until(lambda: any("chat" in request["path"] for request in fake_engine.requests()))
        await asyncio.sleep(0.5)  # silence alone is no failure: the engine still responds
        assert not statuses
        os.kill(frozen, signal.SIGSTOP)
        await until(lambda: failures(statuses))
        assert failures(statuses) == [FailureKind.HANGS]
        with pytest.raises(EngineError):
            await reply
        fake_engine.set(FAKE_HOLD_DURING=None)
        await ask(await supervisor.ready())
        assert supervisor.pid != frozen


async def test_engine_with_stuck_loop_is_replaced(fake_engine: FakeEngine) -> None:
    """Another thread answers /health: it reports ok even while an endless grammar keeps the loop busy."""
    async with monitored(fake_engine, replace(CLOSE, stuck_timeout_s=1.0)) as supervisor:
        lifetime = (await supervisor.ready()).lifetime
        await until(lambda: lifetime.responded_at is not None)
        fake_engine.set(FAKE_HOLD_DURING="loop")
        await until(lambda: lifetime.failure is not None)
        assert lifetime.crashed
        assert lifetime.failure.kind is FailureKind.HANGS
        fake_engine.set(FAKE_HOLD_DURING=None)
        await ask(await supervisor.ready())


async def test_silent_reply_is_a_hang(fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_HANG_DURING="stream")
    async with monitored(fake_engine, replace(CLOSE, silence_s=2.0)) as supervisor:
        with pytest.raises(EngineSilent):
            await ask(await supervisor.ready())
        await until(lambda: supervisor.status.failure is not None)
        fake_engine.set(FAKE_HANG_DURING=None)
        await ask(await supervisor.ready())
        assert supervisor.generation == 2


@pytest.mark.parametrize(
    ("message", "kind"),
    [("Compute error.", FailureKind.CRASHED), ("vk::Queue::submit: ErrorDeviceLost", FailureKind.GPU_LOST)],
)
async def test_broken_engine_is_replaced(fake_engine: FakeEngine, message: str, kind: FailureKind) -> None:
    fake_engine.set(FAKE_BREAK_STREAM=message)
    async with monitored(fake_engine) as supervisor:
        statuses: list[EngineStatus] = []
        supervisor.subscribe(statuses.append)
        with pytest.raises(EngineError, match=message):
            await ask(await supervisor.ready())
        fake_engine.set(FAKE_BREAK_STREAM=None)
        await until(lambda: supervisor.generation == 2)
        await ask(await supervisor.ready())
        assert failures(statuses) == [kind]


async def test_refusal_does_not_restart(fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_BREAK_STREAM="Context size has been exceeded.")
    async with monitored(fake_engine) as supervisor:
        for _ in range(2):
            with pytest.raises(EngineError, match="Context size"):
                await ask(await supervisor.ready())
        assert supervisor.generation == 1
        assert supervisor.status == EngineStatus(EngineState.READY)


async def test_sleep_resets_misses(fake_engine: FakeEngine) -> None:
    class Clock:
        now = 0.0

        def wall(self) -> float:
            self.now += 1000.0
            return self.now

    async with monitored(fake_engine) as supervisor:
        log = EngineLog()
        engine = await supervisor.ready()
        watching = asyncio.create_task(EngineMonitor(CLOSE, log, Clock().wall).wait_for_failure(engine))  # type: ignore[arg-type]
        await until(lambda: len(log.lines) >= 3)
        assert set(log.lines) == {"kvchat: the computer woke from sleep; checking whether the engine still responds"}
        assert not watching.done()
        watching.cancel()
        await asyncio.wait({watching})
