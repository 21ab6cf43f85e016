"""Both real engines with a real model: confirms the behavior that the fake engine imitates."""

import contextlib
import json
import socket
import struct
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx2
import psutil
import pytest

from kvchat.engine import embedded
from kvchat.engine.api.client import LlamaServerClient
from kvchat.engine.api.errors import EngineFailed, EngineRefused, FailureKind
from kvchat.engine.api.wire import ChatMessage, Sampling
from kvchat.engine.discovery.engines import EngineLocation, list_devices, probe
from kvchat.engine.process.plan import LaunchPlan, embedded_parameters
from kvchat.engine.process.supervisor import EngineSupervisor, RestartPolicy
from tests.engine_fixtures import supervised

pytestmark = pytest.mark.engine

HELLO = [
    ChatMessage("system", "You are terse."),
    ChatMessage("user", "Three colours? ünïcode 晚餐 <|im_end|> and code: `a  b`"),
]


@pytest.fixture(params=["embedded_engine", "real_llama_server"])
def location(request: pytest.FixtureRequest) -> EngineLocation:
    found: EngineLocation = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def plan(smollm2: Path, tmp_path: Path) -> LaunchPlan:
    return LaunchPlan(smollm2, 1024, tmp_path)


@pytest.fixture
async def supervisor(location: EngineLocation, plan: LaunchPlan) -> AsyncIterator[EngineSupervisor]:
    async with supervised(location, plan, policy=RestartPolicy(max_deaths=1)) as supervisor:
        yield supervisor


def tokens_in(file: Path) -> list[int]:
    """Return the tokens of a slot file: after magic, version and count come -1, 1, n, tokens, 0."""
    data = file.read_bytes()
    count = struct.unpack_from("<I", data, 8)[0]
    packed = struct.unpack_from(f"<{count}i", data, 12)
    assert packed[:2] == (-1, 1)
    return list(packed[3 : 3 + packed[2]])


async def test_turn_tokens_and_slot_file(supervisor: EngineSupervisor, plan: LaunchPlan) -> None:
    engine = await supervisor.ready()
    facts = await engine.facts()
    assert (facts.context_size, facts.total_slots, facts.model_path) == (1024, 1, str(plan.model))

    tokens = await engine.prompt_tokens(HELLO)
    cold = [chunk async for chunk in engine.chat(HELLO, Sampling(max_tokens=8, temperature=0.0, seed=1))]
    timings = cold[-1].timings
    assert (timings.cache_n, timings.prompt_n, timings.predicted_n) == (0, len(tokens), 8)
    assert any(chunk.progress for chunk in cold)

    saved = await engine.save_slot("a.bin")
    held = tokens_in(plan.slot_path / "a.bin")
    assert held[: len(tokens)] == list(tokens)  # the count equals the tokens that the chat sent
    assert saved.tokens == len(held) == len(tokens) + 7  # the last sampled token is not processed yet

    await engine.prefill(tokens)
    await engine.save_slot("b.bin")
    assert tokens_in(plan.slot_path / "b.bin") == list(tokens)

    await engine.erase_slot()
    assert (await engine.restore_slot("b.bin")).tokens == len(tokens)
    warm = [chunk async for chunk in engine.chat(HELLO, Sampling(max_tokens=8, temperature=0.0, seed=1))]
    assert warm[-1].timings.cache_n == len(tokens) - 1
    assert "".join(chunk.text for chunk in warm) == "".join(chunk.text for chunk in cold)

    async with contextlib.aclosing(LlamaServerClient(engine.base_url, "wrong")) as stranger:
        with pytest.raises(EngineRefused) as refusal:
            await stranger.facts()
        assert refusal.value.status == 401
    assert engine.key not in " ".join(psutil.Process(supervisor.pid).cmdline())
    assert engine.key not in "\n".join(supervisor.log.lines)


async def failure_kind(location: EngineLocation, plan: LaunchPlan) -> FailureKind:
    with pytest.raises(EngineFailed) as failed:
        async with supervised(location, plan, policy=RestartPolicy(max_deaths=1, port_attempts=1)):
            pass
    return failed.value.failure.kind


async def test_failure_kinds(location: EngineLocation, plan: LaunchPlan, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    for content in (b"hello, I am no model", plan.model.read_bytes()[:3_000_000]):
        bad.write_bytes(content)
        assert await failure_kind(location, replace(plan, model=bad)) is FailureKind.BAD_MODEL
    assert await failure_kind(location, replace(plan, context_size=16_000_000)) is FailureKind.OUT_OF_MEMORY
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        taken = replace(plan, port=stranger.getsockname()[1])
        assert await failure_kind(location, taken) is FailureKind.PORT_TAKEN


def test_version_and_devices(location: EngineLocation) -> None:
    assert any(character.isdigit() for character in probe(location).version)
    devices = list_devices(location)
    assert all(device.name and device.description for device in devices)
    if location.path is None:
        assert any(device.name == "CPU" for device in devices)


@pytest.mark.usefixtures("embedded_engine")
def test_embedded_engine_refuses_invalid_arguments_and_ignores_the_folder(plan: LaunchPlan, tmp_path: Path) -> None:
    for argument in ("not json", '{"no_such_field": 1}', '{"cache_type_k": "q99"}'):
        done = subprocess.run(embedded.command(argument), capture_output=True, check=False)
        assert done.returncode == embedded.EXIT_BAD_ARGUMENTS
        assert b"invalid argument" in done.stderr
    (tmp_path / "xllamacpp.py").write_text("raise SystemExit(99)")
    (tmp_path / "json.py").write_text("raise SystemExit(98)")
    parameters = replace(plan, model=tmp_path / "nothing.gguf", port=0)
    command = embedded.command(json.dumps(embedded_parameters(parameters)))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == embedded.EXIT_LOAD_FAILED


async def test_web_pages_and_strangers_are_refused(supervisor: EngineSupervisor) -> None:
    """A browser sends the page's origin, and shows the page the response only if the server names it, or "*"."""
    engine = await supervisor.ready()
    page = {"Origin": "https://example.org"}
    for key, status in ((engine.key, 200), ("guessed", 401)):
        headers = page | {"Authorization": f"Bearer {key}"}
        async with httpx2.AsyncClient(base_url=engine.base_url, headers=headers, trust_env=False) as browser:
            answer = await browser.get("/props")
        assert answer.status_code == status
        assert answer.headers.get("Access-Control-Allow-Origin") not in ("*", page["Origin"])
