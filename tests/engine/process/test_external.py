import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count
from pathlib import Path
from threading import Thread

import pytest

from kvchat.engine.api.connection import EngineState
from kvchat.engine.api.errors import EngineError, EngineFailed
from kvchat.engine.api.response import MAX_RESPONSE_BYTES
from kvchat.engine.process.external import (
    BadAddress,
    ExternalServer,
    PollPolicy,
    RunningServer,
    ServerAddress,
    find_server,
    parse_address,
    reachable_slot_folder,
)
from kvchat.engine.process.plan import free_port
from tests.engine.waiting import until
from tests.engine_fixtures import FakeEngine
from tests.users_server import UsersServer

pytestmark = pytest.mark.slow

IMPATIENT = PollPolicy(
    unreachable_after_s=0.3, poll_s=0.02, check_interval_s=0.05, response_timeout_s=5.0, max_misses=2
)
PATIENT = replace(IMPATIENT, unreachable_after_s=30.0)


@contextlib.asynccontextmanager
async def connected(address: ServerAddress, policy: PollPolicy = IMPATIENT) -> AsyncIterator[ExternalServer]:
    engine = ExternalServer(count(1), policy)
    await engine.connect(address)
    try:
        yield engine
    finally:
        await engine.stop()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("engine")]


@pytest.fixture
def server(fake_engine: FakeEngine) -> Iterator[UsersServer]:
    with contextlib.closing(UsersServer(fake_engine.path, fake_engine.plan)) as server:
        yield server


async def test_server_is_left_running_and_gets_a_new_generation(server: UsersServer) -> None:
    async with connected(server.address, PATIENT) as engine:
        assert (await (await engine.ready()).facts()).context_size == 4096
        assert engine.generation == 1
        server.close()
        await until(lambda: engine.status.failure is not None)
        assert engine.status.state is EngineState.STARTING
        server.start()
        await engine.ready()
        assert engine.generation == 2
    assert engine.status.state is EngineState.STOPPED
    assert server.process.poll() is None


async def test_no_response() -> None:
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    assert find_server(url) is find_server("http://192.0.2.1:8080") is None
    async with connected(ServerAddress(url)) as engine:
        await until(lambda: engine.status.failure is not None)
        assert engine.status.state is EngineState.STARTING, "reported at once, then tried again"
        with pytest.raises(EngineFailed, match="is not responding"):
            await engine.ready()
    async with connected(ServerAddress(url), PATIENT) as engine:
        waiting = asyncio.create_task(engine.ready())
        await asyncio.sleep(0)
        await engine.stop()
        with pytest.raises(EngineError, match="stopped"):
            await waiting
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and never answers
        async with connected(ServerAddress(f"http://127.0.0.1:{silent.getsockname()[1]}"), PollPolicy()) as engine:
            with pytest.raises(EngineFailed, match="is not responding"):
                await asyncio.wait_for(engine.ready(), 60)


async def test_slow_load(fake_engine: FakeEngine, server: UsersServer) -> None:
    fake_engine.set(FAKE_HOLD_DURING="load")
    server.close()
    server.start()
    async with connected(server.address, PATIENT) as engine:
        await until(lambda: engine.status.state is EngineState.LOADING)
        fake_engine.set(FAKE_HOLD_DURING=None)
        await engine.ready()


@pytest.mark.parametrize(
    "answer",
    [
        b"{}",
        b"[" * 100_000,
        b'{"default_generation_settings": {"n_ctx": NaN}}',
        b'{"default_generation_settings": {"n_ctx": 1e999}}',
        b'{"default_generation_settings": {"n_ctx": -5}}',
        b'{"n_ctx": 100000000000}',
        b" " * (MAX_RESPONSE_BYTES + 1),
    ],
    ids=lambda answer: answer[:60].decode().strip() or "large",
)
async def test_other_program(answer: bytes) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        async with connected(ServerAddress(f"http://127.0.0.1:{server.server_port}")) as engine:
            with pytest.raises(EngineFailed, match="not a llama-server"):
                await engine.ready()
        server.shutdown()


def test_addresses() -> None:
    assert parse_address(" http://127.0.0.1:8080/ ") == "http://127.0.0.1:8080"
    assert parse_address("https://den.example/llama/") == "https://den.example/llama"
    assert parse_address("http://[::1]:8080") == "http://[::1]:8080"
    http = ("http://", "http://me:pw@den:80", "http://den/?a=b", "http://den:port", "http://den:70000")
    for text in ("", "den:8080", "ftp://den", *http):
        with pytest.raises(BadAddress) as refused:
            parse_address(text)
        assert refused.value.detail.endswith("."), text


@pytest.mark.skipif(sys.platform != "linux", reason="reads another process's command line")
@pytest.mark.parametrize("saves", [True, False])
async def test_only_a_reachable_slot_folder_is_used(fake_engine: FakeEngine, tmp_path: Path, saves: bool) -> None:
    plan = fake_engine.plan
    with contextlib.closing(UsersServer(fake_engine.path, plan, saves=saves)) as server:
        async with connected(server.address, PATIENT) as engine:
            await engine.ready()
            process = await asyncio.to_thread(find_server, server.address.url)
            assert ("LLAMA_ARG_MLOCK", "1") in process.variables
            assert process.option_value("-ctk", "--cache-type-k") == "f16"
            assert reachable_slot_folder(process) == (plan.slot_path if saves else None)
            assert not [r for r in fake_engine.requests() if r["path"].startswith("/slots")], "others may be using them"
            in_a_container = tmp_path / "proc" / str(process.pid) / "root"
            (in_a_container / str(plan.slot_path).lstrip("/")).mkdir(parents=True)
            assert reachable_slot_folder(process, tmp_path / "proc") is None
    server = RunningServer(os.getpid(), plan.slot_path.parent, ("--slot_save_path", plan.slot_path.name))  # relative
    assert reachable_slot_folder(server) == plan.slot_path
