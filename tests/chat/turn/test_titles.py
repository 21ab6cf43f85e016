"""Titles by the model: when it is asked, and what that costs the chat."""

from typing import Any

import pytest

from kvchat.chat.events import ConversationsChanged
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Conversation, MessageState, Role
from kvchat.chat.record.titles import TITLE_REQUEST
from kvchat.chat.turn import titles as titles_module
from kvchat.chat.turn.titles import NoTitle, is_title_due
from kvchat.engine.api.connection import EngineState
from tests.chat.stage import QUESTION, Stage

TITLE = "River and garden"
FIRST_WORDS = "Tell me about the river and the garden, please…"


async def start_chat(stage: Stage, answer: str = TITLE) -> str:
    """Return a chat with one reply; from then on the model answers with `answer`."""
    chat = await stage.answered_chat()
    stage.service.title_generator.enable(lambda: True)
    stage.fake.set(FAKE_REPLY=answer)
    return chat


async def generate(stage: Stage) -> None:
    stage.service.title_generator.generate_due()
    await stage.idle()


async def conversation(stage: Stage, chat: str) -> Conversation:
    conversation = await stage.service.conversation(chat)
    assert conversation is not None
    return conversation


async def title_of(stage: Stage, chat: str) -> str:
    return (await conversation(stage, chat)).title


def title_requests(stage: Stage) -> list[dict[str, Any]]:
    bodies: list[dict[str, Any]] = stage.requests("/v1/chat/completions")
    return [body for body in bodies if body["messages"][-1]["content"] == TITLE_REQUEST]


async def is_due(stage: Stage, chat: str) -> bool:
    return await stage.service.turn_context.run(is_title_due, chat)


async def test_new_chat_is_named_after_its_first_reply(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(titles_module, "IDLE_S", 0.0)
    chat = await start_chat(stage)
    before = await conversation(stage, chat)
    assert before.title == FIRST_WORDS
    stage.events.clear()
    stage.service.select(chat)
    await stage.until(lambda: ConversationsChanged() in stage.events)
    after = await conversation(stage, chat)
    assert (after.title, after.title_by_user) == (TITLE, False)
    assert after.updated_at == before.updated_at, "the list keeps its order"
    (body,) = title_requests(stage)
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert body["temperature"] == 0


@pytest.mark.parametrize("obstacle", ["chat would be reread", "no engine"])
async def test_no_title_if_it_would_cost_something(stage: Stage, obstacle: str, request: pytest.FixtureRequest) -> None:
    if obstacle != "no engine":
        request.getfixturevalue("cannot_cut")
    chat = await start_chat(stage)
    if obstacle == "no engine":
        await stage.runtime.stop_engine()
    else:
        await stage.runtime.save_points.delete(chat)
    await generate(stage)
    assert not title_requests(stage)
    assert (stage.engine.status.state is EngineState.STOPPED) == (obstacle == "no engine")
    assert await is_due(stage, chat)


@pytest.mark.usefixtures("can_cut")
async def test_message_interrupts_a_title_request(stage: Stage) -> None:
    chat = await start_chat(stage, "a " * 100)
    saved = stage.save_points()[-1]
    stage.fake.set(FAKE_TOKEN_DELAY=0.3)  # six seconds for the maximum length
    stage.service.title_generator.generate_due()
    await stage.until(lambda: title_requests(stage))
    sent = stage.service.send(chat, "And the harbour?")
    await stage.service.title_generator.wait_until_idle()
    stage.fake.set(FAKE_TOKEN_DELAY=None, FAKE_REPLY=TITLE)
    reply = await stage.finish(sent)
    assert reply.receipt.cached_tokens == saved.n_tokens
    assert await title_of(stage, chat) == FIRST_WORDS
    await generate(stage)
    assert await title_of(stage, chat) == TITLE
    assert len(title_requests(stage)) == 2


async def test_users_title_set_meanwhile_is_kept(stage: Stage) -> None:
    chat = await start_chat(stage)
    stage.fake.set(FAKE_TOKEN_DELAY=0.2)
    stage.service.title_generator.generate_due()
    await stage.until(lambda: title_requests(stage))
    await stage.service.rename(chat, "Mine")
    await stage.idle()
    assert await title_of(stage, chat) == "Mine"
    await generate(stage)
    assert len(title_requests(stage)) == 1


@pytest.mark.parametrize("answer", ["Unshakeable", "it dies"])
async def test_unusable_answer_is_not_requested_again(stage: Stage, answer: str) -> None:
    chat = await start_chat(stage, answer)
    stage.fake.set(FAKE_DIE_DURING="stream" if answer == "it dies" else None)
    await generate(stage)
    stage.fake.set(FAKE_DIE_DURING=None)
    assert (await stage.answered(chat, "Next?")).cached_tokens
    await generate(stage)
    assert await title_of(stage, chat) == FIRST_WORDS
    assert len(title_requests(stage)) == 1


async def test_only_chats_started_here_are_named_and_only_if_enabled(stage: Stage) -> None:
    chat = await start_chat(stage)
    stage.service.title_generator.enable(lambda: False)
    await generate(stage)
    stage.service.title_generator.enable(lambda: True)
    run, complete = stage.service.turn_context.run, MessageState.COMPLETE
    imported = (await run(Database.create_conversation, "From elsewhere")).id
    question = await run(Database.append, imported, None, Role.USER, QUESTION, complete)
    await run(Database.append, imported, question.id, Role.ASSISTANT, "A river.", complete)
    await stage.ask(imported, "And the harbour?")
    await generate(stage)
    assert not title_requests(stage)
    assert await title_of(stage, imported) == "From elsewhere"
    assert await is_due(stage, chat)


async def test_thinking_is_not_part_of_the_title(stage: Stage) -> None:
    stage.fake.set(FAKE_THINKING="Hm.\nA river?")
    chat = await start_chat(stage, f"\n\n{TITLE}\nI hope you like it. " + "word " * 200)
    await generate(stage)
    assert await title_of(stage, chat) == TITLE
    (body,) = title_requests(stage)
    assert body["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False}
    assert body["max_tokens"] > 500, "the model thinks although it was asked not to"


async def test_closing_does_not_wait_for_a_title(stage: Stage) -> None:
    chat = await start_chat(stage)
    stage.fake.set(FAKE_TOKEN_DELAY=3600)
    stage.service.title_generator.generate_due()
    await stage.until(lambda: title_requests(stage))
    assert await is_due(stage, chat)
    await stage.runtime.close()


@pytest.mark.parametrize("state", ["titled by user", "title request running"])
async def test_user_can_have_a_chat_named(stage: Stage, state: str) -> None:
    chat = await start_chat(stage)
    if state == "titled by user":
        await stage.service.rename(chat, "Mine")
    else:
        stage.fake.set(FAKE_TOKEN_DELAY=0.1)
        stage.service.title_generator.generate_due()
        await stage.until(lambda: title_requests(stage))
    await stage.service.title_generator.generate(chat)
    named = await conversation(stage, chat)
    assert (named.title, named.title_by_user) == (TITLE, False)


@pytest.mark.parametrize("has_engine", [True, False])
async def test_title_is_kept_if_naming_fails(stage: Stage, has_engine: bool) -> None:
    chat = await start_chat(stage, "Unshakeable")
    await stage.service.rename(chat, "Mine")
    if not has_engine:
        await stage.runtime.stop_engine()
    with pytest.raises(NoTitle):
        await stage.service.title_generator.generate(chat)
    assert len(title_requests(stage)) == has_engine
    named = await conversation(stage, chat)
    assert (named.title, named.title_by_user) == ("Mine", True)
    assert not await is_due(stage, chat)
