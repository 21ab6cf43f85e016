import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from kvchat.engine.api.connection import EngineState, EngineStatus
from kvchat.engine.api.errors import EngineError, EngineFailed, EngineGone, FailureKind
from kvchat.engine.api.wire import ChatMessage, Sampling
from kvchat.engine.process.supervisor import EngineSupervisor, RestartPolicy
from tests.engine.waiting import is_alive, until
from tests.engine_fixtures import FakeEngine
from tests.systems import needs_signals

STARTING, LOADING, READY = EngineState.STARTING, EngineState.LOADING, EngineState.READY
STOPPING, STOPPED, FAILED = EngineState.STOPPING, EngineState.STOPPED, EngineState.FAILED


class RecordedSupervisor(EngineSupervisor):
    """Supervisor that records its published statuses; its back-off takes no time."""

    def __init__(self, fake: FakeEngine, policy: RestartPolicy | None = None) -> None:
        self.fake, self.delays, self.now, self.statuses = fake, list[float](), 0.0, list[EngineStatus]()
        super().__init__(policy=policy, clock=lambda: self.now, sleep=self._skip_pause)
        self.subscribe(self.statuses.append)

    @property
    def states(self) -> list[EngineState]:
        return [status.state for status in self.statuses]

    async def start_fake(self) -> None:
        await self.start(self.fake.location, iter([self.fake.plan]))
        await self.ready()

    async def fail(self) -> EngineFailed:
        await self.start(self.fake.location, iter([self.fake.plan]))
        with pytest.raises(EngineFailed) as failed:
            await self.ready()
        return failed.value

    async def _skip_pause(self, seconds: float) -> None:
        self.delays.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


@pytest.fixture
async def supervisor(fake_engine: FakeEngine) -> AsyncIterator[RecordedSupervisor]:
    supervisor = RecordedSupervisor(fake_engine)
    yield supervisor
    await supervisor.close()
    assert supervisor.pid is None
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("engine")]


async def test_start_and_stop(supervisor: RecordedSupervisor, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_HOLD_DURING="load")
    await supervisor.start(fake_engine.location, iter([fake_engine.plan]))
    assert supervisor.status.state is STARTING
    await until(lambda: supervisor.status.state is LOADING)
    fake_engine.set(FAKE_HOLD_DURING=None)
    engine = await supervisor.ready()
    assert (await engine.facts()).context_size == 4096
    pid = supervisor.pid
    assert pid is not None
    await supervisor.stop()
    assert supervisor.states == [STARTING, LOADING, READY, STOPPING, STOPPED]
    assert not is_alive(pid)
    fake_engine.set(FAKE_HANG_DURING="load")
    await supervisor.start(fake_engine.location, iter([fake_engine.plan]))
    waiting = asyncio.create_task(supervisor.ready())
    await until(lambda: supervisor.status.state is LOADING)
    await asyncio.gather(supervisor.stop(), supervisor.stop())
    with pytest.raises(EngineError, match="stopped"):
        await waiting
    assert supervisor.states[5:] == [STARTING, LOADING, STOPPING, STOPPED]


async def test_one_process_at_a_time(supervisor: RecordedSupervisor, fake_engine: FakeEngine) -> None:
    await asyncio.gather(*(supervisor.start(fake_engine.location, iter([fake_engine.plan])) for _ in range(4)))
    first, generation = await supervisor.ready(), supervisor.generation
    alive = [launch["pid"] for launch in fake_engine.launches() if is_alive(launch["pid"])]
    assert len(alive) == 1
    await supervisor.start_fake()
    assert supervisor.generation == generation + 1
    assert first.key != (await supervisor.ready()).key


async def test_cancelled_stop_kills(supervisor: RecordedSupervisor, fake_engine: FakeEngine) -> None:
    await supervisor.start_fake()
    pid = supervisor.pid
    assert pid is not None
    stopping = asyncio.create_task(supervisor.stop())
    await asyncio.sleep(0)
    assert supervisor.status.state is STOPPING
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await until(lambda: not is_alive(pid))
    await supervisor.stop()
    assert supervisor.status == EngineStatus(STOPPED)


@needs_signals
async def test_restart_after_death(supervisor: RecordedSupervisor) -> None:
    await supervisor.start_fake()
    os.kill(supervisor.pid, signal.SIGKILL)
    await until(lambda: supervisor.status.state is not READY)
    assert supervisor.status.failure.kind is FailureKind.KILLED
    assert supervisor.status.restart_attempt == 1
    await supervisor.ready()
    assert (supervisor.generation, supervisor.delays) == (2, [1.0])
    assert supervisor.status == EngineStatus(READY, restart_attempt=1)


@needs_signals
async def test_lost_rpc_server_is_named(supervisor: RecordedSupervisor, fake_engine: FakeEngine) -> None:
    """The engine does not log which one it lost."""
    fake_engine.set(FAKE_DIE_DURING="prefill", FAKE_DIE_HOW="rpc")
    with socket.create_server(("127.0.0.1", 0)) as here, socket.create_server(("127.0.0.1", 0)) as gone:
        workers = tuple(f"127.0.0.1:{server.getsockname()[1]}" for server in (here, gone))
        gone.close()
        await supervisor.start(fake_engine.location, iter([replace(fake_engine.plan, rpc_workers=workers)]))
        engine = await supervisor.ready()
        with pytest.raises(EngineGone) as loss:
            async for _chunk in engine.chat([ChatMessage("user", "Hello")], Sampling()):
                pass
        reason = await loss.value.explain()
    assert isinstance(reason, EngineFailed)
    assert reason.failure.kind is FailureKind.WORKER_LOST
    assert reason.detail == f"There is no response from the RPC server {workers[1]}."


async def test_crash_loop_ends(supervisor: RecordedSupervisor, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_EXIT_AT_START="-11:segmentation fault to come")
    failed = await supervisor.fail()
    assert failed.failure.kind is FailureKind.CRASHED
    assert "5 times" in failed.detail
    assert supervisor.delays == [1.0, 2.0, 4.0, 8.0]
    assert len(fake_engine.launches()) == 5
    assert supervisor.status.state is FAILED


@needs_signals
async def test_old_deaths_do_not_count(supervisor: RecordedSupervisor) -> None:
    await supervisor.start_fake()
    for _ in range(7):
        await supervisor.ready()
        supervisor.now += 301.0
        pid = supervisor.pid
        os.kill(pid, signal.SIGKILL)
        await until(lambda pid=pid: supervisor.pid not in (pid, None))  # type: ignore[misc]
    assert set(supervisor.delays) == {1.0}


async def test_permanent_failures_are_not_retried(
    supervisor: RecordedSupervisor, fake_engine: FakeEngine, tmp_path: Path
) -> None:
    failures = {
        FailureKind.BAD_MODEL: "1:E llama_model_load: error loading model: unknown model architecture: 'x'",
        FailureKind.MISSING_LIBRARY: "127:llama-server: error while loading shared libraries: libx.so",
        FailureKind.INCOMPATIBLE: "1:error: invalid argument: --kv-unified",
        FailureKind.OUT_OF_MEMORY: "1:E ggml_aligned_malloc: failed to allocate buffer for kv cache",
        FailureKind.MODEL_MISSING: "1:E srv load_model: failed to load model, 'gone.gguf'",
    }
    for kind, switch in failures.items():
        if kind is FailureKind.MODEL_MISSING:
            supervisor.fake = replace(fake_engine, plan=replace(fake_engine.plan, model=tmp_path / "gone.gguf"))
        fake_engine.set(FAKE_EXIT_AT_START=switch)
        failed = await supervisor.fail()
        assert failed.failure.kind is kind
        assert "times" not in failed.detail
    assert "gone.gguf" in failed.detail
    assert len(fake_engine.launches()) == len(failures)
    supervisor.fake = replace(fake_engine, path=tmp_path / "llama-server")
    assert (await supervisor.fail()).failure.kind is FailureKind.NOT_FOUND
    assert supervisor.delays == []
    fake_engine.set(FAKE_EXIT_AT_START=None)
    supervisor.fake = fake_engine
    await supervisor.start_fake()


async def test_taken_port_is_replaced(supervisor: RecordedSupervisor, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_PORT_TAKEN_TIMES=3, FAKE_STRANGER_TIMES=1)  # the fourth time, another program responds
    await supervisor.start_fake()
    ports = [launch["arguments"][launch["arguments"].index("--port") + 1] for launch in fake_engine.launches()]
    assert len(ports) == len(set(ports)) == 5
    assert supervisor.delays == []
    assert supervisor.status == EngineStatus(READY)


async def test_port_attempts_are_limited(fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_PORT_TAKEN_TIMES=1000)
    supervisor = RecordedSupervisor(fake_engine, RestartPolicy(max_deaths=2, port_attempts=3))
    assert (await supervisor.fail()).failure.kind is FailureKind.PORT_TAKEN
    assert len(fake_engine.launches()) == 6
    await supervisor.close()


async def test_only_a_hanging_load_times_out(fake_engine: FakeEngine) -> None:
    """The clock advances an hour per dot of the slow engine, and per check of the hanging one."""
    checks, hangs = 0, False

    def clock() -> float:
        nonlocal checks
        checks += hangs
        return 3600.0 * (timed.log.bytes_seen + checks)

    timed = RecordedSupervisor(fake_engine, RestartPolicy(max_deaths=1))
    timed._clock = clock
    fake_engine.set(FAKE_SLOW_LOAD=0.5)
    await timed.start_fake()
    hangs = True
    fake_engine.set(FAKE_HANG_DURING="load", FAKE_SLOW_LOAD=None)
    assert (await timed.fail()).failure.kind is FailureKind.TIMED_OUT
    assert timed.pid is None
    await timed.close()


async def test_broken_listener(supervisor: RecordedSupervisor, fake_engine: FakeEngine) -> None:
    def broken(status: EngineStatus) -> None:
        if status.state is READY:
            raise ZeroDivisionError

    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    supervisor.subscribe(broken)
    await supervisor.start(fake_engine.location, iter([fake_engine.plan]))
    await until(lambda: supervisor.status.state is FAILED)
    assert isinstance(reported[0], ZeroDivisionError)
    assert supervisor.pid is None


async def test_key_and_user_options_are_not_passed(
    supervisor: RecordedSupervisor, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LLAMA_ARG_ROPE_SCALING_TYPE", "LLAMA_ARG_SWA_FULL", "LLAMA_ARG_FLASH_ATTN"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("LLAMA_CACHE", "/models")
    await supervisor.start_fake()
    engine = await supervisor.ready()
    assert fake_engine.launches()[0]["environment"] == ["LLAMA_API_KEY", "LLAMA_CACHE"]
    assert len(engine.key) >= 32
    guard = psutil.Process(supervisor.pid)  # or the engine itself
    commands = [word for process in (guard, *guard.children(recursive=True)) for word in process.cmdline()]
    assert str(fake_engine.plan.model) in commands
    assert engine.key not in str(commands)
    assert engine.key not in "\n".join(supervisor.log.lines)
    await supervisor.stop()
    with pytest.raises(EngineGone):
        await engine.facts()
