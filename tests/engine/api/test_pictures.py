"""Pictures with both real engines: placeholders, processing into the slot, save and restore."""

import base64
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kvchat.engine.api.client import EngineRefused, LlamaServerClient
from kvchat.engine.api.pictures import PicturePrompts, picture_ids, without_pictures
from kvchat.engine.api.wire import ChatMessage, Picture, Sampling, Timings
from kvchat.engine.process.plan import LaunchPlan
from kvchat.tools.tool import ToolCall
from tests.engine_fixtures import supervised
from tests.models import seeing
from tests.pictures import png

RED, GREEN = Picture(png(255, 0, 0)), Picture(png(0, 255, 0))
GREEDY = Sampling(max_tokens=6, temperature=0.0, seed=1)


def question(*pictures: Picture) -> ChatMessage:
    return ChatMessage("user", "What do you see? <|im_end|> ünïcode 晚餐", pictures=pictures)


@pytest.fixture(params=["embedded_engine", "real_llama_server"])
async def engine(request: pytest.FixtureRequest, smollm2: Path, tmp_path: Path) -> AsyncIterator[LlamaServerClient]:
    model = seeing(smollm2)
    plan = LaunchPlan(model, 1024, tmp_path, projector=model.with_name(f"mmproj-{model.name}"))
    async with supervised(request.getfixturevalue(request.param), plan) as supervisor:
        engine = await supervisor.ready()
        facts = await engine.facts()
        assert facts.has_vision
        yield engine.with_projector("projector", facts.media_marker)


async def reply_to(engine: LlamaServerClient, *messages: ChatMessage) -> tuple[str, Timings]:
    chunks = [chunk async for chunk in engine.chat(messages, GREEDY)]
    timings = chunks[-1].timings
    assert timings is not None
    return "".join(chunk.text for chunk in chunks), timings


@pytest.mark.engine
async def test_picture_prompt_is_counted_settled_saved_and_restored(engine: LlamaServerClient) -> None:
    asked = question(RED, GREEN)
    tokens = await engine.prompt_tokens([asked])
    assert picture_ids("projector", RED, 16) == tokens[tokens.index(picture_ids("projector", RED, 16)[0]) :][:16]
    cold, timings = await reply_to(engine, asked)
    assert timings.prompt_tokens == len(tokens)  # the count equals the tokens that the chat sent

    settled = await engine.prefill(tokens[:-1])
    assert settled.prompt_tokens == len(tokens) - 1
    assert settled.cache_n > 40  # the same prompt for the engine: only its end is processed again
    assert (await engine.save_slot("a.bin")).tokens == len(tokens) - 1

    _, timings = await reply_to(engine, question(GREEN, RED))
    assert timings.cache_n < 32  # other pictures make another prompt
    assert (await engine.restore_slot("a.bin")).tokens == len(tokens) - 1
    warm, timings = await reply_to(engine, asked)
    assert (warm, timings.cache_n) == (cold, len(tokens) - 1)

    # The engine refuses a file that is no picture, and continues to run.
    with pytest.raises(EngineRefused):
        await engine.prompt_tokens([question(Picture(b"\x89PNG and then nothing"))])
    with pytest.raises(EngineRefused, match="no longer available"):
        await engine.prefill((1, 2, *picture_ids("projector", Picture(png(1, 2, 3)), 16), 3))
    assert (await reply_to(engine, question(RED)))[1].predicted_n == 6


@pytest.mark.engine
async def test_pictures_in_a_tools_result(engine: LlamaServerClient) -> None:
    call = ToolCall("call-1", "screenshot", "{}")
    asked = [
        ChatMessage("user", "Look at it."),
        ChatMessage("assistant", "Yes.", calls=(call,)),
        ChatMessage("tool", "Here it is.", pictures=(RED,), calls=(call,)),
    ]
    tokens = await engine.prompt_tokens(asked)
    assert picture_ids("projector", RED, 16)[0] in tokens
    _, timings = await reply_to(engine, *asked)
    assert timings.prompt_tokens == len(tokens)
    assert (await engine.prefill(tokens[:-1])).cache_n > 40

    silent, render = engine.for_slot(0), engine._render  # a template may leave them out

    async def render_text(body: Mapping[str, Any]) -> str:
        return (await render(body)).replace(engine._picture_prompts()._marker, "")

    silent._render = render_text  # type: ignore[method-assign]
    described = [*asked[:2], without_pictures(asked[2])]
    assert await silent.prompt_tokens(asked) == await engine.prompt_tokens(described)
    assert (await reply_to(silent, *asked))[1].prompt_tokens == len(await engine.prompt_tokens(described))


def test_picture_ids_are_unique() -> None:
    ids = picture_ids("a projector", RED, 300)
    assert len(set(ids)) == 300
    assert max(ids) <= -2
    assert min(ids) >= -(2**31)
    assert ids[:16] != picture_ids("a projector", RED, 16)  # a build may make more tokens: ids must differ
    assert ids[0] not in (picture_ids("another", RED, 1)[0], picture_ids("a projector", GREEN, 1)[0])


class Letters:
    """An engine with one token per letter, except one for "th"; it begins every prompt with token 1."""

    PAIR = 500

    async def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/detokenize":
            return {"content": "".join("th" if token == self.PAIR else chr(token) for token in body["tokens"])}
        if path == "/apply-template":
            return {"prompt": "user:<m>."}
        return {"input_tokens": 1 + len("user:.") + 4}

    async def tokenize(self, text: str, special: bool) -> tuple[int, ...]:
        pieces = text.replace("th", chr(self.PAIR))
        return (*((1,) if special else ()), *map(ord, pieces))


async def test_prompt_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Letters()
    pictures_of = PicturePrompts(engine.call, engine.tokenize, "p", "<m>")
    tokens = await pictures_of.tokens("see <m><m> the th", [RED, GREEN])
    assert len(tokens) == 1 + 4 + 4 + 4 + 5
    assert tokens[5:13] == picture_ids("p", RED, 4) + picture_ids("p", GREEN, 4)
    again = await pictures_of.completion_prompt(tokens)
    assert again["prompt_string"] == "see <m><m> the th"
    assert [base64.b64decode(data) for data in again["multimodal_data"]] == [RED.data, GREEN.data]
    tokens = await pictures_of.tokens("<m>", [RED])
    with pytest.raises(EngineRefused, match="only between words"):
        await pictures_of.completion_prompt((*tokens, ord("t"), ord("h")))  # the engine would merge them into one token
    with pytest.raises(EngineRefused, match="does not support images"):
        await pictures_of.tokens("no place for it", [RED])
    monkeypatch.setattr("kvchat.engine.api.pictures.CACHE_BYTES", len(RED.data) + len(GREEN.data))
    await pictures_of.tokens("<m><m>", [GREEN, Picture(png(0, 0, 255))])
    with pytest.raises(EngineRefused, match="no longer available"):
        await pictures_of.completion_prompt(tokens)
