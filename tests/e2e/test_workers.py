"""Real RPC workers (`--rpc`), also killed.

KVCHAT_TEST_RPC_BUILD names a folder with `llama-server` and `ggml-rpc-server` (llama.cpp built with GGML_RPC=ON).
"""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvchat.chat.events import Event, TurnFailed
from kvchat.engine.api.errors import FailureKind
from kvchat.engine.process.plan import free_port
from kvchat.session.proof import Source
from tests.running import ask, running

HOST = "127.0.0.1"
STARTS_WITHIN_S = 30.0
SYSTEM = " ".join(f"Item {number} weighs {number * 37 % 91} grams." for number in range(60))

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.engine,
    pytest.mark.skipif("KVCHAT_TEST_RPC_BUILD" not in os.environ, reason="KVCHAT_TEST_RPC_BUILD names no build"),
]


class Worker:
    """An rpc-server, on the same port at every start."""

    def __init__(self, program: Path) -> None:
        self._command = [str(program), "-H", HOST, "-p", str(free_port(HOST)), "-t", "1"]
        self.address = f"{HOST}:{self._command[4]}"
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + STARTS_WITHIN_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((HOST, int(self._command[4]))):
                return
        raise TimeoutError(self.address)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def build() -> Path:
    return Path(os.environ["KVCHAT_TEST_RPC_BUILD"])


@pytest.fixture
def workers(build: Path) -> Iterator[tuple[Worker, Worker]]:
    both = Worker(build / "ggml-rpc-server"), Worker(build / "ggml-rpc-server")
    yield both
    for worker in both:
        worker.kill()


async def test_two_workers_share_a_model_and_its_save_points(tmp_path, fake_engine, smollm2, build, workers):
    """A lost worker is named; when it is back, the message is answered."""
    runner = {
        "model_path": str(smollm2),
        "engine_path": str(build / "llama-server"),
        "rpc_workers": ", ".join(worker.address for worker in workers),
        "max_tokens": 8,
    }
    async with running(tmp_path, fake_engine, **runner) as runtime:
        chat = (await runtime.chat.new_conversation(SYSTEM)).id
        await ask(runtime, chat, "Hello")
        *shares, _ = runtime.engine.memory_bars
        assert [bar.device for bar in shares] == [f"RPC0[{worker.address}]" for worker in workers]
        assert all(bar.measured and bar.weights and bar.kv for bar in shares)
        await runtime.chat.idle()
    async with running(tmp_path, fake_engine, **runner) as runtime:
        told: list[Event] = []
        runtime.events.subscribe(told.append)
        restored = await ask(runtime, chat, "And then?")
        assert restored.receipt is not None
        assert restored.receipt.source is Source.DISK
        assert restored.receipt.cached_tokens > 0.9 * restored.receipt.prompt_tokens
        await runtime.chat.idle()

        workers[1].kill()
        assert await runtime.chat.send(chat, "And after that?") is None
        failed = next(event for event in told if isinstance(event, TurnFailed))
        assert failed.error.title == "An RPC server is not responding"
        assert runtime.engine.status.failure is not None
        assert runtime.engine.status.failure.kind is FailureKind.WORKER_LOST
        assert workers[1].address in runtime.engine.status.failure.detail

        workers[1].start()
        answered = await runtime.chat.retry(chat)
        assert answered is not None
        assert answered.receipt is not None
        assert answered.receipt.cached_tokens > 0.9 * answered.receipt.prompt_tokens
