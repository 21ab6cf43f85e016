"""Titles by the model: when it is asked, what that costs the chat, and who wins."""

from __future__ import annotations

from typing import Any

import pytest

from kvchat.chat.events import ConversationsChanged
from kvchat.chat.record.messages import Conversation, MessageState, Role
from kvchat.chat.record.titles import TITLE_REQUEST
from kvchat.chat.turn import titles as titles_module
from kvchat.chat.turn.titles import NoTitle, is_title_due
from kvchat.engine.api.connection import EngineState
from kvchat.engine.api.wire import Sampling
from tests.chat.stage import QUESTION, Stage

TITLE = "River and garden"
FIRST_WORDS = "Tell me about the river and the garden, please…"


async def begun(stage: Stage, reply: str = TITLE) -> str:
    """A chat with one reply; from then on the model answers with `reply`."""
    chat = await stage.answered_chat()
    stage.service.title_generator.enable(lambda: True)
    stage.fake.set(FAKE_REPLY=reply)
    return chat


async def have_time(stage: Stage) -> None:
    stage.service.title_generator.generate_due()
    await stage.idle()


async def shown(stage: Stage, chat: str) -> Conversation:
    found = await stage.service.conversation(chat)
    assert found is not None
    return found


def asked(stage: Stage) -> list[dict[str, Any]]:
    return [
        body
        for body in stage.requests("/v1/chat/completions")
        if body["messages"][-1]["content"] == TITLE_REQUEST  # type: ignore[index]
    ]


async def due(stage: Stage, chat: str) -> bool:
    return await stage.runtime._worker.run(is_title_due, stage.database, chat)


async def test_a_new_chat_is_named_soon_after_its_first_reply(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(titles_module, "IDLE_S", 0.0)
    chat = await begun(stage)
    before = await shown(stage, chat)
    assert before.title == FIRST_WORDS
    stage.events.clear()
    stage.service.select(chat)
    await stage.until(lambda: ConversationsChanged() in stage.events)
    after = await shown(stage, chat)
    assert (after.title, after.title_by_user) == (TITLE, False)
    assert after.updated_at == before.updated_at, "the list keeps its order"
    assert [m["role"] for m in asked(stage)[0]["messages"]] == ["user", "assistant", "user"]
    assert asked(stage)[0]["temperature"] == 0


@pytest.mark.parametrize("cut", [True, False])
async def test_the_chat_goes_on_as_if_nothing_had_been(stage: Stage, cut: bool, request: pytest.FixtureRequest) -> None:
    if not cut:
        request.getfixturevalue("cannot_cut")
    chat = await begun(stage)
    messages, saved = await stage.messages(chat), stage.save_points()
    await have_time(stage)
    assert (await shown(stage, chat)).title == TITLE
    assert await stage.messages(chat) == messages
    assert stage.save_points() == saved
    assert not cut or stage.requests("/completion")[-1]["prompt"] == list(saved[-1].tokens), "the turn boundary"
    receipt = await stage.answered(chat, "And the harbour?")
    assert receipt.cached_tokens == saved[-1].n_tokens
    assert len(stage.requests("/slots/0?action=restore")) == (not cut)


@pytest.mark.parametrize("why", ["it would have to be read again", "no engine runs"])
async def test_where_a_title_would_cost_something_there_is_none(
    stage: Stage, why: str, request: pytest.FixtureRequest
) -> None:
    if why != "no engine runs":
        request.getfixturevalue("cannot_cut")
    chat = await begun(stage)
    if why == "no engine runs":
        await stage.runtime.stop_engine()
    else:
        await stage.runtime.save_points.delete(chat)
    await have_time(stage)
    assert not asked(stage)
    assert (stage.engine.status.state is EngineState.STOPPED) == (why == "no engine runs")
    assert await due(stage, chat)


@pytest.mark.parametrize("cut", [True, False])
async def test_a_message_ends_it_at_once_and_finds_the_slot_as_it_was(
    stage: Stage, cut: bool, request: pytest.FixtureRequest
) -> None:
    if not cut:
        request.getfixturevalue("cannot_cut")
    chat = await begun(stage, "a " * 100)
    saved = stage.save_points()[-1]
    stage.fake.set(FAKE_TOKEN_DELAY=0.3)  # six seconds for all that it may say
    stage.service.title_generator.generate_due()
    await stage.until(lambda: asked(stage))
    sent = stage.service.send(chat, "And the harbour?")
    await stage.service.title_generator.idle()
    stage.fake.set(FAKE_TOKEN_DELAY=None, FAKE_REPLY=TITLE)
    reply = await sent
    await stage.idle()
    assert reply.receipt.cached_tokens == saved.n_tokens
    assert (await shown(stage, chat)).title == FIRST_WORDS
    await have_time(stage)
    assert (await shown(stage, chat)).title == TITLE
    assert len(asked(stage)) == 2


async def test_a_name_given_meanwhile_stays(stage: Stage) -> None:
    chat = await begun(stage)
    stage.fake.set(FAKE_TOKEN_DELAY=0.2)
    stage.service.title_generator.generate_due()
    await stage.until(lambda: asked(stage))
    await stage.service.rename(chat, "Mine")
    await stage.idle()
    assert (await shown(stage, chat)).title == "Mine"
    await have_time(stage)
    assert len(asked(stage)) == 1


@pytest.mark.parametrize("reply", ["Here is what I think of it:", "x " * 60, TITLE_REQUEST, "Unshakeable", "it dies"])
async def test_what_is_no_title_is_not_asked_for_again(stage: Stage, reply: str) -> None:
    chat = await begun(stage, reply)
    stage.fake.set(FAKE_DIE_DURING="stream" if reply == "it dies" else None)
    await have_time(stage)
    stage.fake.set(FAKE_DIE_DURING=None)
    assert (await stage.answered(chat, "Next?")).cached_tokens
    await have_time(stage)
    assert (await shown(stage, chat)).title == FIRST_WORDS
    assert len(asked(stage)) == 1


async def test_a_reply_that_was_cut_off_is_waited_for(stage: Stage) -> None:
    chat = await stage.chat()
    reply = await stage.finish(stage.service.send(chat, QUESTION, Sampling(max_tokens=4)))
    assert reply.state is MessageState.LIMITED
    stage.service.title_generator.enable(lambda: True)
    await have_time(stage)
    assert not asked(stage)


async def test_only_chats_begun_here_are_named_and_only_if_that_is_wished(stage: Stage) -> None:
    chat = await begun(stage)
    stage.service.title_generator.enable(lambda: False)
    await have_time(stage)
    stage.service.title_generator.enable(lambda: True)
    database = stage.database
    imported = await stage.runtime._worker.run(database.create_conversation, "From elsewhere")
    complete = MessageState.COMPLETE
    question = await stage.runtime._worker.run(database.append, imported.id, None, Role.USER, QUESTION, complete)
    where = imported.id, question.id
    await stage.runtime._worker.run(database.append, *where, Role.ASSISTANT, "A river.", complete)
    await stage.ask(imported.id, "And the harbour?")
    await have_time(stage)
    assert not asked(stage)
    assert (await shown(stage, imported.id)).title == "From elsewhere"
    assert await due(stage, chat)


async def test_what_is_thought_first_is_no_title(stage: Stage) -> None:
    stage.fake.set(FAKE_THINKING="Hm.\nA river?")
    chat = await begun(stage, f"\n\n{TITLE}\nI hope you like it. " + "word " * 200)
    await have_time(stage)
    assert (await shown(stage, chat)).title == TITLE
    body = asked(stage)[0]
    assert body["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False}
    assert body["max_tokens"] > 500, "the model thinks although it was asked not to"


async def test_closing_does_not_wait_for_a_title(stage: Stage) -> None:
    chat = await begun(stage)
    stage.fake.set(FAKE_TOKEN_DELAY=3600)
    stage.service.title_generator.generate_due()
    await stage.until(lambda: asked(stage))
    assert await due(stage, chat)
    await stage.runtime.close()


async def test_the_user_can_have_any_chat_named(stage: Stage) -> None:
    chat = await begun(stage)
    await stage.service.rename(chat, "Mine")
    await stage.service.title_generator.generate(chat)
    assert ((await shown(stage, chat)).title, (await shown(stage, chat)).title_by_user) == (TITLE, False)


@pytest.mark.parametrize("asked_at_all", [True, False])
async def test_where_that_fails_the_name_stays_and_the_user_is_told(stage: Stage, asked_at_all: bool) -> None:
    chat = await begun(stage, "Unshakeable")
    await stage.service.rename(chat, "Mine")
    if not asked_at_all:
        await stage.runtime.stop_engine()
    with pytest.raises(NoTitle):
        await stage.service.title_generator.generate(chat)
    assert len(asked(stage)) == asked_at_all
    assert ((await shown(stage, chat)).title, (await shown(stage, chat)).title_by_user) == ("Mine", True)
    assert not await due(stage, chat)


async def test_a_chat_that_is_being_named_anyway_can_be_named_by_the_user_too(stage: Stage) -> None:
    chat = await begun(stage)
    stage.fake.set(FAKE_TOKEN_DELAY=0.1)
    stage.service.title_generator.generate_due()
    await stage.until(lambda: asked(stage))
    await stage.service.title_generator.generate(chat)
    assert (await shown(stage, chat)).title == TITLE
