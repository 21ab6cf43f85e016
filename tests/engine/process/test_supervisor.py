from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.engine.api.connection import EngineState, EngineStatus
from kvchat.engine.api.errors import EngineError, EngineFailed, EngineGone, FailureKind
from kvchat.engine.discovery.engines import EngineLocation
from kvchat.engine.process.plan import LaunchPlan
from kvchat.engine.process.supervisor import EngineSupervisor, RestartPolicy
from tests.engine.waiting import is_alive, until
from tests.engine_fixtures import FakeEngine

STARTING, LOADING, READY = EngineState.STARTING, EngineState.LOADING, EngineState.READY
STOPPING, STOPPED, FAILED = EngineState.STOPPING, EngineState.STOPPED, EngineState.FAILED


QUICK = (0.5, 0.3)


class Watched:
    """A supervisor whose back-off takes no time, and everything it said."""

    def __init__(self, policy: RestartPolicy | None = None, stop_timeouts: tuple[float, float] = QUICK) -> None:
        self.said, self.delays, self.now = list[EngineStatus](), list[float](), 0.0
        self.supervisor = EngineSupervisor(
            policy=policy, stop_timeouts_s=stop_timeouts, clock=lambda: self.now, sleep=self._sleep
        )
        self.supervisor.subscribe(self.said.append)

    async def ready(self, fake: FakeEngine) -> EngineSupervisor:
        await self.supervisor.start(fake.location, fake.plan)
        await self.supervisor.ready()
        return self.supervisor

    @property
    def states(self) -> list[EngineState]:
        return [status.state for status in self.said]

    async def _sleep(self, seconds: float) -> None:
        self.delays.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


@pytest.fixture
def stop_timeouts() -> tuple[float, float]:
    """What ends when it is asked to does so sooner."""
    return (120.0, 120.0)


@pytest.fixture
async def watched(stop_timeouts: tuple[float, float]) -> AsyncIterator[Watched]:
    watched = Watched(stop_timeouts=stop_timeouts)
    yield watched
    await watched.supervisor.close()
    assert watched.supervisor.pid is None
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("engine")]


async def test_start_and_stop(watched: Watched, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_HOLD_DURING="load")
    supervisor = watched.supervisor
    await supervisor.start(fake_engine.location, fake_engine.plan)
    assert supervisor.status.state is STARTING
    await until(lambda: supervisor.status.state is LOADING)
    fake_engine.set(FAKE_HOLD_DURING=None)
    engine = await supervisor.ready()
    assert (await engine.facts()).context_size == 4096
    assert supervisor.plan.port != 0
    pid = supervisor.pid
    assert pid is not None
    await supervisor.stop()
    assert watched.states == [STARTING, LOADING, READY, STOPPING, STOPPED]
    assert not is_alive(pid)


async def test_stop_while_loading(watched: Watched, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_HANG_DURING="load")
    await watched.supervisor.start(fake_engine.location, fake_engine.plan)
    waiting = asyncio.create_task(watched.supervisor.ready())
    await until(lambda: LOADING in watched.states)
    await watched.supervisor.stop()
    with pytest.raises(EngineError, match="stopped"):
        await waiting


async def test_repeated_stop(watched: Watched, fake_engine: FakeEngine) -> None:
    await watched.supervisor.stop()
    assert watched.said == []
    await watched.supervisor.start(fake_engine.location, fake_engine.plan)
    await asyncio.gather(watched.supervisor.stop(), watched.supervisor.stop())
    await watched.supervisor.close()
    assert watched.states == [STARTING, STOPPING, STOPPED]


async def test_one_process_at_a_time(watched: Watched, fake_engine: FakeEngine) -> None:
    supervisor = watched.supervisor
    await asyncio.gather(*(supervisor.start(fake_engine.location, fake_engine.plan) for _ in range(4)))
    first, generation = await supervisor.ready(), supervisor.generation
    alive = [launch["pid"] for launch in fake_engine.launches() if is_alive(launch["pid"])]
    assert alive == [supervisor.pid]
    await supervisor.start(fake_engine.location, fake_engine.plan)
    second = await supervisor.ready()
    assert supervisor.generation == generation + 1
    assert first.key != second.key


@pytest.mark.parametrize("stop_timeouts", [QUICK])
async def test_cancelled_stop_kills(watched: Watched, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_IGNORE_SIGTERM=1)
    supervisor = await watched.ready(fake_engine)
    pid = supervisor.pid
    assert pid is not None
    stopping = asyncio.create_task(supervisor.stop())
    await until(lambda: supervisor.status.state is STOPPING)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await until(lambda: not is_alive(pid))  # it ignores the signal: it was killed
    await supervisor.stop()
    assert supervisor.status == EngineStatus(STOPPED)


async def test_restart_after_death(watched: Watched, fake_engine: FakeEngine) -> None:
    supervisor = await watched.ready(fake_engine)
    os.kill(supervisor.pid, signal.SIGKILL)
    await until(lambda: supervisor.status.state is not READY)
    told = supervisor.status.failure
    assert told.kind is FailureKind.KILLED
    assert supervisor.status.restart_attempt == 1
    await supervisor.ready()
    assert (supervisor.generation, watched.delays) == (2, [1.0])
    assert supervisor.status == EngineStatus(READY, restart_attempt=1)


async def failure_of(supervisor: EngineSupervisor, location: EngineLocation, plan: LaunchPlan) -> EngineFailed:
    await supervisor.start(location, plan)
    with pytest.raises(EngineFailed) as failed:
        await supervisor.ready()
    return failed.value


async def test_crash_loop_ends(watched: Watched, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_EXIT_AT_START="-11:segmentation fault to come")
    failed = await failure_of(watched.supervisor, fake_engine.location, fake_engine.plan)
    assert failed.failure.kind is FailureKind.CRASHED
    assert "5 times" in failed.detail
    assert watched.delays == [1.0, 2.0, 4.0, 8.0]
    assert len(fake_engine.launches()) == 5
    assert watched.supervisor.status.state is FAILED


async def test_old_deaths_do_not_count(watched: Watched, fake_engine: FakeEngine) -> None:
    supervisor = await watched.ready(fake_engine)
    for _ in range(7):
        await supervisor.ready()
        watched.now += 301.0
        pid = supervisor.pid
        os.kill(pid, signal.SIGKILL)
        await until(lambda pid=pid: supervisor.pid not in (pid, None))  # type: ignore[misc]
    assert set(watched.delays) == {1.0}


@pytest.mark.parametrize(
    ("switch", "kind"),
    [
        ("1:E llama_model_load: error loading model: unknown model architecture: 'x'", FailureKind.BAD_MODEL),
        ("127:llama-server: error while loading shared libraries: libx.so", FailureKind.MISSING_LIBRARY),
        ("1:error: invalid argument: --kv-unified", FailureKind.INCOMPATIBLE),
        ("1:E ggml_aligned_malloc: failed to allocate buffer for kv cache", FailureKind.OUT_OF_MEMORY),
    ],
)
async def test_permanent_failures_are_not_retried(
    watched: Watched, fake_engine: FakeEngine, switch: str, kind: FailureKind
) -> None:
    fake_engine.set(FAKE_EXIT_AT_START=switch)
    failed = await failure_of(watched.supervisor, fake_engine.location, fake_engine.plan)
    assert failed.failure.kind is kind
    assert "times" not in failed.detail
    assert watched.delays == []
    assert len(fake_engine.launches()) == 1
    fake_engine.set(FAKE_EXIT_AT_START=None)
    await watched.ready(fake_engine)


async def test_missing_engine_or_model(watched: Watched, fake_engine: FakeEngine, tmp_path: Path) -> None:
    """The file is missing, and not damaged."""
    fake_engine.set(FAKE_EXIT_AT_START="1:E srv load_model: failed to load model, 'gone.gguf'")
    nowhere = EngineLocation(tmp_path / "llama-server")
    gone = replace(fake_engine.plan, model=tmp_path / "gone.gguf")
    for location, plan, kind in (
        (fake_engine.location, gone, FailureKind.MODEL_MISSING),
        (nowhere, fake_engine.plan, FailureKind.NOT_FOUND),
    ):
        failed = await failure_of(watched.supervisor, location, plan)
        assert failed.failure.kind is kind
        assert "gone.gguf" in failed.detail or kind is FailureKind.NOT_FOUND
        assert watched.delays == []


async def test_taken_port_is_replaced(watched: Watched, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_PORT_TAKEN_TIMES=4)
    await watched.ready(fake_engine)
    ports = [launch["arguments"][launch["arguments"].index("--port") + 1] for launch in fake_engine.launches()]
    assert len(ports) == len(set(ports)) == 5
    assert watched.delays == []
    assert watched.supervisor.status == EngineStatus(READY)


async def test_foreign_server_is_recognized(watched: Watched, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_STRANGER_TIMES=1)
    await watched.ready(fake_engine)
    assert len(fake_engine.launches()) == 2


async def test_port_attempts_are_limited(fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_PORT_TAKEN_TIMES=1000)
    watched = Watched(RestartPolicy(max_deaths=2, port_attempts=3))
    failed = await failure_of(watched.supervisor, fake_engine.location, fake_engine.plan)
    assert failed.failure.kind is FailureKind.PORT_TAKEN
    assert len(fake_engine.launches()) == 6
    await watched.supervisor.close()


@pytest.mark.slow
async def test_held_port_is_detected(watched: Watched, fake_engine: FakeEngine) -> None:
    """A plan with a fixed port: a stranger's silent socket is there. The first process must not be waited for."""
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        plan = replace(fake_engine.plan, port=stranger.getsockname()[1])
        await watched.supervisor.start(fake_engine.location, plan)
        await watched.supervisor.ready()
    assert watched.supervisor.plan.port != plan.port


async def test_only_a_hanging_load_times_out(fake_engine: FakeEngine) -> None:
    """An hour passes with each dot that the slow one prints, and with each look at the one that hangs."""
    looks, hangs = 0, False

    def clock() -> float:
        nonlocal looks
        looks += hangs
        return 3600.0 * (supervisor.log.bytes_seen + looks)

    supervisor = EngineSupervisor(policy=RestartPolicy(max_deaths=1), stop_timeouts_s=QUICK, clock=clock)
    fake_engine.set(FAKE_SLOW_LOAD=0.5)
    await supervisor.start(fake_engine.location, fake_engine.plan)
    await supervisor.ready()
    hangs = True
    fake_engine.set(FAKE_HANG_DURING="load", FAKE_SLOW_LOAD=None)
    failed = await failure_of(supervisor, fake_engine.location, fake_engine.plan)
    assert failed.failure.kind is FailureKind.TIMED_OUT
    assert supervisor.pid is None
    await supervisor.close()


async def test_broken_listener(watched: Watched, fake_engine: FakeEngine) -> None:
    def broken(status: EngineStatus) -> None:
        if status.state is READY:
            raise ZeroDivisionError

    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    watched.supervisor.subscribe(broken)
    await watched.supervisor.start(fake_engine.location, fake_engine.plan)
    await until(lambda: watched.supervisor.status.state is FAILED)
    assert isinstance(reported[0], ZeroDivisionError)
    assert watched.supervisor.pid is None


def command_lines() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):  # another process may end at any moment
            yield path.read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_key_and_user_options_are_not_passed(
    watched: Watched, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LLAMA_ARG_ROPE_SCALING_TYPE", "LLAMA_ARG_SWA_FULL", "LLAMA_ARG_FLASH_ATTN"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("LLAMA_CACHE", "/models")
    await watched.supervisor.start(fake_engine.location, fake_engine.plan)
    engine = await watched.supervisor.ready()
    assert fake_engine.launches()[0]["environment"] == ["LLAMA_API_KEY", "LLAMA_CACHE"]
    assert len(engine.key) >= 32
    lines = b"".join(command_lines())
    assert str(fake_engine.plan.model).encode() in lines
    assert engine.key.encode() not in lines
    assert engine.key not in "\n".join(watched.supervisor.log.lines)
    await watched.supervisor.stop()
    with pytest.raises(EngineGone):  # for who still holds it
        await engine.facts()
