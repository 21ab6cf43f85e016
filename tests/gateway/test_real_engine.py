"""The door before the real llama-server: the ids are those it uses, and every answer is the one it gives by itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from kvchat.engine.finding.discovery import EngineLocation
from kvchat.engine.running.plan import LaunchPlan
from kvchat.gateway import passing
from kvchat.gateway.passing import TAIL
from kvchat.settings import Settings
from tests.engine.waiting import until
from tests.gateway.corpus import REQUESTS, TEMPLATE
from tests.gateway.doors import OpenDoor, door, receipt_in
from tests.users_server import KEY, UsersServer

pytestmark = pytest.mark.engine

LIMITS = {"/v1/responses": "max_output_tokens"}
OF_THE_MOMENT = {"id", "created", "created_at", "completed_at", "timings", "item_id"}
OF_THE_CACHE = {"cache_read_input_tokens", "input_tokens", "cached_tokens"}


def settings(tmp_path: Path, model: Path, engine: EngineLocation) -> Settings:
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE, "utf-8")
    return Settings(
        model_path=str(model),
        engine_path=str(engine.path),
        engine_arguments=f"--chat-template-file {template}",
        context_size=8192,
        free_floor_bytes=0,
    )


def greedy(path: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    return body | {LIMITS.get(path, "max_tokens"): 6, "temperature": 0, "top_k": 1} | more


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen35"])
async def test_ids_and_answers_are_the_engines_own(
    tmp_path: Path,
    tiny_model: Callable[[str], Path],
    real_llama_server: EngineLocation,
    architecture: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was read in steps of our ids, the engine finds in its cache to the last: it made the same of the request."""
    monkeypatch.setattr(passing, "LEAST_STEPS", 1)
    monkeypatch.setattr(passing, "STEP_MS", 0.0)
    model, path = tiny_model(architecture), real_llama_server.path
    assert path is not None
    chosen = settings(tmp_path, model, real_llama_server)
    arguments = tuple(chosen.engine_arguments.split())
    (tmp_path / "slots").mkdir()
    theirs = UsersServer(path, LaunchPlan(model, 8192, tmp_path / "slots", extra=arguments))
    wrong: list[str] = []
    try:
        async with door(tmp_path / "home", chosen) as at, httpx2.AsyncClient(timeout=120, trust_env=False) as direct:
            await until(theirs.listens)
            direct.base_url, direct.headers["authorization"] = theirs.address.url, f"Bearer {KEY}"
            while (await direct.get("/health")).status_code != 200:
                pass
            for name, (where, body) in REQUESTS.items():
                if fault := await ids_fault(at, where, body):
                    wrong.append(f"{name}: {fault}")
            for name, (where, body) in REQUESTS.items():
                wrong += [f"{name}: {fault}" async for fault in faults(at, direct, where, body)]
    finally:
        theirs.end()
    assert not wrong, "\n".join(wrong)


async def faults(at: OpenDoor, direct: httpx2.AsyncClient, where: str, body: dict[str, Any]) -> Any:
    for stream in (False, True):
        asked = greedy(where, body, stream=stream)
        ours, theirs = [await one.post(where, json=asked) for one in (at.client, direct)]
        if ours.status_code != theirs.status_code:
            yield f"{ours.status_code} {ours.text} instead of {theirs.status_code} {theirs.text}"
            continue
        if (one := said(ours.text, stream)) != (other := said(theirs.text, stream)):
            yield f"stream {stream}: {one}\n instead of {other}"
        passage = at.last
        if passage.miss == passing.RENDERS_OTHERWISE:
            yield passage.miss
        if stream and receipt_in(ours.text)["prompt"] != passage.prompt:
            yield "the receipt says otherwise"
        await at.settled()


async def ids_fault(at: OpenDoor, where: str, body: dict[str, Any]) -> str:
    """What is wrong with the ids of a request's prompt: those that were read in steps, the engine has to find."""
    at.runtime.chat.slots.forget()
    if at.runtime.engine.is_ready():
        await (await at.runtime.engine.ready()).engine.erase_slot()
    await at.client.post(where, json=greedy(where, body))
    passage = at.last
    await at.settled()
    known = (passage.found or 0) + passage.read + TAIL
    if passage.miss == passing.RENDERS_OTHERWISE or passage.cached != passage.found or known != passage.prompt:
        return f"of {passage.prompt} tokens {passage.found} were found, {passage.read} read, {passage.cached} of use"
    return ""


def said(text: str, stream: bool) -> Any:
    """What an answer says, but for what is of the moment."""
    if not stream:
        return bare(json.loads(text))
    lines = [line for line in text.splitlines() if line and not line.startswith(": kvchat")]
    return [bare(json.loads(line[6:])) if line.startswith("data: {") else line for line in lines]


def bare(value: Any) -> Any:
    if isinstance(value, dict):
        left_out = OF_THE_MOMENT | OF_THE_CACHE
        return {name: bare(one) for name, one in value.items() if name not in left_out}
    return [bare(one) for one in value] if isinstance(value, list) else value
