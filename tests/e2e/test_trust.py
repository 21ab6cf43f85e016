"""Nobody's memory serves, or is betrayed to, somebody it is not for: a real engine, programs, and a forged chat."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvchat.chat.record.messages import Receipt
from kvchat.engine.finding.discovery import EngineLocation
from kvchat.engine.speaking.wire import Sampling
from kvchat.runtime import Runtime
from kvchat.settings import Settings
from tests.e2e.home import notes
from tests.gateway.doors import OpenDoor, door

pytestmark = pytest.mark.engine

SECRET = f"Our project is called Heron.\n{notes(12)}"
SHORT = Sampling(4, temperature=0.0)
FEW = 40  # tokens that any two prompts may share: the template's first words
DIALECTS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "several", "twice")


def settings(model: Path, engine: EngineLocation, **more: Any) -> Settings:
    return Settings(model_path=str(model), engine_path=str(engine.path), context_size=4096, free_floor_bytes=0, **more)


async def said(runtime: Runtime, chat: str, words: str) -> Receipt:
    """What a reply to the user's own words cost; everything is saved."""
    runtime.chat.slots.restore_cost.prefill_ms_per_token = 100.0  # as with a large model: restoring pays
    reply = await runtime.chat.send(chat, words, SHORT)
    assert reply is not None
    assert reply.receipt is not None
    await runtime.chat.idle()
    return reply.receipt


def body(dialect: str, words: str) -> tuple[str, dict[str, Any]]:
    said = [{"role": "user", "content": words}]
    match dialect:
        case "/v1/completions":
            return dialect, {"prompt": f"<|im_start|>user\n{words}", "max_tokens": 4}
        case "/v1/responses":
            return dialect, {"input": words, "max_output_tokens": 4}
        case "several":
            return "/v1/completions", {"prompt": [f"<|im_start|>user\n{words}", "And you?"], "max_tokens": 4}
        case "twice":
            return "/v1/chat/completions", {"messages": said, "max_tokens": 4, "n": 2}
    return dialect, {"messages": said, "max_tokens": 4}


def taken_from_cache(answer: Any) -> list[int]:
    """Every count of reused tokens in an answer, wherever its dialect has it."""
    if isinstance(answer, dict):
        names = ("cached_tokens", "cache_n", "cache_read_input_tokens")
        own = [value for name, value in answer.items() if name in names and isinstance(value, int)]
        return own + [count for value in answer.values() for count in taken_from_cache(value)]
    return [count for value in answer for count in taken_from_cache(value)] if isinstance(answer, list) else []


async def asked(at: OpenDoor, program: str, dialect: str, words: str) -> int:
    """How much of its prompt a program is told was known before it asked."""
    path, wanted = body(dialect, words)
    at.runtime.chat.slots.restore_cost.prefill_ms_per_token = 100.0  # as with a large model: restoring pays
    answer = await at.client.post(path, json=wanted, headers={"user-agent": program})
    assert answer.status_code == 200, answer.text
    told = [int(answer.headers.get("x-kvchat-found", 0)), at.last.found or 0, at.last.cached or 0]
    if dialect != "/v1/messages":  # there kvchat itself reads all but the last token first
        told += taken_from_cache(answer.json())
    await at.settled()
    return max(told)


@pytest.mark.parametrize("architecture", ["llama", "qwen35"])
@pytest.mark.parametrize("slots", [1, 3])
async def test_a_program_cannot_find_out_what_others_asked(
    tmp_path: Path,
    tiny_model: Callable[[str], Path],
    real_llama_server: EngineLocation,
    slots: int,
    architecture: str,
) -> None:
    """Neither from what is saved nor from what the engine still has in a slot, in whatever dialect it asks."""
    chosen = settings(tiny_model(architecture), real_llama_server, slots=slots)
    async with door(tmp_path / "home", chosen) as at:
        chat = await at.runtime.chat.new_conversation("")
        await said(at.runtime, chat.id, SECRET)
        for number, dialect in enumerate(DIALECTS):
            if slots > 1 or dialect != "twice":
                assert await asked(at, f"spy{number}", dialect, SECRET) < FEW, dialect
        assert await asked(at, "editor", "/v1/chat/completions", SECRET) < FEW
        own = await asked(at, "editor", "/v1/chat/completions", SECRET)
        assert own > 2 * FEW or architecture == "qwen35", "its own it does find"
        assert await asked(at, "another", "/v1/chat/completions", SECRET) < FEW
        told = await said(at.runtime, chat.id, "And you?")
        assert told.cached_tokens > 2 * FEW, "the chat has lost nothing"


async def test_a_program_goes_on_from_no_chat_while_that_is_being_saved(
    tmp_path: Path, tiny_model: Callable[[str], Path], real_llama_server: EngineLocation
) -> None:
    chosen = settings(tiny_model("llama"), real_llama_server, slots=2)
    async with door(tmp_path / "home", chosen) as at:
        chat = await at.runtime.chat.new_conversation("")
        await at.runtime.chat.send(chat.id, SECRET, SHORT)
        assert await asked(at, "spy", "/v1/chat/completions", SECRET) < FEW
