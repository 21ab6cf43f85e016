"""Each conversation has its model: sending there has the engine change to it, and it is warm when it comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.chat.events import TurnFailed
from kvchat.engine_host.choice import ModelMissing
from kvchat.session.events import WaitingForEngine
from kvchat.session.proof import Source
from kvchat.settings import load_settings
from tests.chat.stage import Stage


@pytest.fixture
def other_model(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


def models_launched(stage: Stage) -> list[str]:
    """The model of every engine so far."""
    return [launch["arguments"][launch["arguments"].index("--model") + 1] for launch in stage.fake.launches()]


async def model_of(stage: Stage, chat: str) -> str | None:
    conversation = await stage.runtime.chat.conversation(chat)
    assert conversation is not None
    return conversation.model


async def test_each_conversation_remembers_its_model_and_comes_back_to_it_warm(stage: Stage, other_model: Path) -> None:
    first, starter = await stage.chat(), str(stage.settings.model_path)
    assert await model_of(stage, first) is None
    await stage.answered(first)
    await stage.runtime.use_model(other_model)
    second = await stage.chat()
    await stage.answered(second)
    assert (await model_of(stage, first), await model_of(stage, second)) == (starter, str(other_model))
    back = await stage.answered(first, "And then?")
    assert back.source is Source.WARM
    assert models_launched(stage) == [starter, str(other_model), starter]
    assert stage.of(WaitingForEngine)[-1].conversation_id == first
    assert stage.runtime.settings.model_path == starter  # the window shows the model in use


async def test_the_model_in_use_is_not_loaded_again(stage: Stage) -> None:
    first, second = await stage.chat(), await stage.chat()
    for chat in (first, second, first):
        await stage.answered(chat)
    assert len(stage.fake.launches()) == 1


async def test_looking_at_a_conversation_of_another_model_loads_nothing(stage: Stage, other_model: Path) -> None:
    first = await stage.chat()
    await stage.answered(first)
    second = await stage.chat()
    await stage.runtime.chat.use_model(second, str(other_model))
    await stage.answered(second)
    asked = len(stage.fake.requests())
    stage.runtime.chat.select(first)
    await stage.runtime.chat.idle()
    assert len(stage.fake.requests()) == asked
    assert len(stage.fake.launches()) == 2


async def test_a_missing_model_leaves_the_choice(stage: Stage, other_model: Path) -> None:
    chat, gone = await stage.chat(), "/gone/Lost-7B.gguf"
    await stage.answered(await stage.chat())
    await stage.runtime.chat.use_model(chat, gone)
    assert await stage.ask(chat) is None
    error = stage.of(TurnFailed)[-1].error
    assert isinstance(error, ModelMissing)
    assert (error.path, error.title) == (gone, "This chat’s model, Lost-7B, is no longer there")
    assert len(stage.fake.launches()) == 1
    await stage.runtime.locate_model(gone, other_model)
    assert await stage.runtime.chat.retry(chat) is not None
    assert models_launched(stage)[-1] == str(other_model)


async def test_a_conversation_begins_with_the_model_in_use(stage: Stage, other_model: Path) -> None:
    await stage.runtime.apply_settings(replace(stage.runtime.settings, model_path=str(other_model)))
    chat = await stage.chat()
    await stage.answered(chat)
    assert await model_of(stage, chat) == str(other_model)


async def test_the_app_starts_with_the_model_of_the_newest_conversation(stage: Stage, other_model: Path) -> None:
    await stage.answered(await stage.chat())
    newest = await stage.chat()
    await stage.runtime.chat.use_model(newest, str(other_model))
    await stage.runtime.stop_engine()
    await stage.runtime.begin()
    await stage.until(lambda: len(stage.fake.launches()) == 2)
    assert models_launched(stage)[-1] == str(other_model)


async def test_a_conversations_model_does_not_become_the_users_by_another_change(
    stage: Stage, other_model: Path
) -> None:
    chosen = stage.runtime.settings.model_path
    newest = await stage.chat()
    await stage.runtime.chat.use_model(newest, str(other_model))
    await stage.runtime.begin()
    await stage.runtime.apply_settings(replace(stage.runtime.settings, theme="dark"))
    stored = load_settings(stage.runtime.paths.settings_file)
    assert (stored.model_path, stored.theme) == (chosen, "dark")
    assert stage.runtime.settings.model_path == str(other_model)
    await stage.runtime.use_model(other_model)
    assert load_settings(stage.runtime.paths.settings_file).model_path == str(other_model)


async def test_looking_at_a_conversation_does_not_undo_the_model_just_chosen(stage: Stage, other_model: Path) -> None:
    chat = await stage.chat()
    await stage.answered(chat)  # with the starter model, which goes on running
    await stage.runtime.apply_settings(replace(stage.runtime.settings, model_path=str(other_model)))
    stage.runtime.chat.select(chat)
    await stage.runtime.chat.idle()
    await stage.runtime.chat.context.use(chat)
    assert stage.runtime.settings.model_path == str(other_model)
    assert stage.runtime.engine.restart_pending
