"""A projector is loaded only once a chat has pictures; if it is unusable, chats without pictures still work."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.chat.attachments import ESTIMATED_PICTURE_TOKENS, picture_attachment
from kvchat.chat.events import Notice, QuestionNotStored, TurnFailed
from kvchat.engine_host.choice import choose_engine
from kvchat.library.memory.demand import LoadLimits
from kvchat.tools.toolbox import Toolbox
from tests.chat.sky import Sky, chat_with_tools, plan
from tests.chat.stage import Stage
from tests.engine_fixtures import FakeEngine
from tests.library.gguf_files import LLAMA, write_gguf
from tests.pictures import png

RED = picture_attachment("red.png", png())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "Heron-7B-Q8_0.gguf", dict(LLAMA))


@pytest.fixture
async def stage(tmp_path: Path, fake_engine: FakeEngine, model: Path) -> AsyncIterator[Stage]:
    async with Stage(tmp_path / "home", fake_engine, model) as stage:
        yield stage


def add_projector(stage: Stage) -> Path:
    assert stage.settings.model_path
    projector = Path(stage.settings.model_path).with_name("mmproj-F16.gguf")
    projector.write_bytes(b"p" * 5_000_000)
    return projector


def arguments(stage: Stage) -> list[str]:
    """Return the arguments of the last engine that was started."""
    found: list[str] = stage.fake.launches()[-1]["arguments"]
    return found


async def show(stage: Stage, chat: str) -> None:
    assert await stage.runtime.chat.send(chat, "What is it?", attachments=(RED,)) is None
    await stage.runtime.chat.wait_until_idle()


async def test_without_projector_nothing_is_stored(stage: Stage) -> None:
    chat = await stage.chat()
    await stage.answered(chat)
    pid = stage.runtime.engine.engine_pid
    await show(stage, chat)
    refused = stage.of(QuestionNotStored)[-1]
    assert "does not support images" in refused.error.title
    assert refused.attachments == (RED,)
    assert len(await stage.runtime.chat.messages(chat)) == 2
    assert stage.runtime.engine.engine_pid == pid


async def test_audio_projector(stage: Stage) -> None:
    chat, projector = await stage.chat(), add_projector(stage)
    await stage.answered(chat)
    assert "--mmproj" not in arguments(stage)
    assert await stage.runtime.chat.context.count_tokens(RED) == (ESTIMATED_PICTURE_TOKENS, False)
    await show(stage, chat)
    assert str(projector) in arguments(stage)
    assert "(mmproj) but reports no image support" in str(stage.of(TurnFailed)[-1].error)
    other = await stage.chat()
    await stage.answered(other)


@pytest.mark.parametrize("problem", ["another model's", "no vision"])
async def test_tools_picture_with_an_unusable_projector(stage: Stage, problem: str) -> None:
    sky = Sky()
    stage.service.turn_context.toolbox = Toolbox(lambda: [sky])
    add_projector(stage)
    chat = await chat_with_tools(stage)
    plan(stage, [("weather", "Oz")])
    sky.hold = asyncio.Event()
    reply = stage.service.send(chat, "Show me Oz.")
    await stage.until(lambda: sky.calls)
    if problem == "another model's":
        stage.fake.set(FAKE_EXIT_AT_START="1:llama_model_load: error loading model: mismatch with mmproj")
    sky.hold.set()
    await stage.until(lambda: stage.of(Notice))
    assert "its vision file (mmproj) cannot be used" in stage.of(Notice)[-1].title
    stage.fake.set(FAKE_EXIT_AT_START=None)
    assert await stage.finish(reply) is not None, stage.errors()
    assert "You cannot see them" in str(stage.requests("/v1/chat/completions")[-1]["messages"])
    await stage.answered(chat, "And now?")


async def test_picture_goes_to_the_chats_own_model(stage: Stage, tmp_path: Path) -> None:
    stage.fake.set(FAKE_SEES="1")
    chat = await stage.chat()
    await stage.answered(chat)
    own, projector = stage.settings.model_path, add_projector(stage)
    (tmp_path / "other").mkdir()
    other = write_gguf(tmp_path / "other" / "Swan-7B-Q8_0.gguf", dict(LLAMA))
    await stage.runtime.apply_settings(replace(stage.runtime.settings, model_path=str(other)))
    await show(stage, chat)
    assert {own, str(projector)} <= set(arguments(stage))


async def test_engine_too_old_to_count_pictures(stage: Stage) -> None:
    stage.fake.set(FAKE_SEES="1")
    chat = await stage.chat()
    add_projector(stage)
    await show(stage, chat)
    assert "a newer one can" in str(stage.of(TurnFailed)[-1].error)


def test_projector_takes_memory_but_keeps_the_fingerprint(tmp_path: Path, fake_engine: FakeEngine, model: Path) -> None:
    stage = Stage(tmp_path, fake_engine, model)
    blind = choose_engine(stage.settings, tmp_path)
    add_projector(stage)
    seeing = choose_engine(stage.settings, tmp_path, needs_vision=True)
    assert seeing.fingerprint == blind.fingerprint
    assert seeing.finding_key != blind.finding_key  # each has its own restore finding
    assert seeing.context.needed - blind.context.needed == 5_000_000
    assert choose_engine(stage.settings, tmp_path).plan == blind.plan
    limits = LoadLimits(tmp_path / "limits.json")
    limits.record_load(seeing.limit_key, 2048, out_of_memory=True)  # with the projector
    assert choose_engine(stage.settings, tmp_path, limits).demand.limit is None
    assert choose_engine(stage.settings, tmp_path, limits, needs_vision=True).demand.limit is not None
    larger = [choice.larger_context(2048, choice.memory, None) for choice in (seeing, blind)]
    assert larger[0]
    assert larger[1]
    assert larger[0].needed - larger[1].needed == 5_000_000
