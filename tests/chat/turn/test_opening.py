"""Regenerate, edit, continue, branch and delete: the message tree and the save points."""

from dataclasses import replace

import pytest

from kvchat.chat.events import ReplyDelta
from kvchat.chat.record.database import ConversationGone
from kvchat.chat.record.messages import Message, MessageState
from kvchat.chat.turn_context import ReplyInProgress
from kvchat.engine.api.wire import Sampling
from kvchat.session.proof import Source
from tests.chat.stage import QUESTION, Stage

WHOLE = "One two three four five six seven eight nine ten."


async def texts(stage: Stage, chat: str) -> list[str]:
    return [message.content for message in await stage.messages(chat)]


async def limited_reply(stage: Stage, chat: str, letters: int) -> Message:
    """Return a reply cut off by its token limit."""
    stage.fake.set(FAKE_REPLY=WHOLE)
    reply = await stage.finish(stage.service.send(chat, QUESTION, Sampling(max_tokens=letters)))
    assert (reply.state, reply.content) == (MessageState.LIMITED, WHOLE[:letters])
    return reply


async def test_regenerated_reply_is_a_sibling(stage: Stage) -> None:
    chat = await stage.answered_chat()
    first = (await stage.messages(chat))[1]
    await stage.answered(chat, "And the harbour?")
    stage.fake.set(FAKE_REPLY="Something else.")
    again = await stage.finish(stage.service.regenerate(first))
    assert again.receipt.source is Source.HOT
    question, reply = await stage.messages(chat)
    assert (reply.id, reply.siblings, question.siblings) == (again.id, (first.id, again.id), ())
    await stage.service.switch(chat, first.id)
    assert (await texts(stage, chat))[-1] == "You said: And the harbour?", "a branch is shown to its end"


@pytest.mark.parametrize("echo", [None, 1])
async def test_reply_continues_where_it_ended(stage: Stage, echo: int | None) -> None:
    chat = await stage.chat()
    stage.fake.set(FAKE_ECHO=echo, FAKE_EXACT_ONLY=1)
    reply = await limited_reply(stage, chat, 18)
    stage.events.clear()
    whole = await stage.finish(stage.service.continue_reply(reply))
    assert whole.receipt is not None
    assert (whole.id, whole.state, whole.content) == (reply.id, MessageState.COMPLETE, WHOLE)
    stored = (await stage.messages(chat))[-1]
    assert replace(stored, receipt=replace(stored.receipt, settle_ms=None, save_ms=None)) == whole
    assert "".join(event.text for event in stage.of(ReplyDelta)) == WHOLE, "listeners get all of it"


async def test_empty_continuation_leaves_the_reply_unchanged(stage: Stage) -> None:
    chat = await stage.chat()
    reply = await limited_reply(stage, chat, 18)
    stage.fake.set(FAKE_BREAK_STREAM="no more", FAKE_REPLY=WHOLE[:18])
    assert (await stage.service.continue_reply(reply)).receipt == reply.receipt
    assert (await texts(stage, chat)) == [QUESTION, WHOLE[:18]]
    stage.fake.set(FAKE_BREAK_STREAM=None, FAKE_REPLY=WHOLE, FAKE_TOKEN_DELAY=5)
    future = stage.service.continue_reply(reply)
    await stage.until(lambda: stage.service.answering_chats)
    with pytest.raises(ReplyInProgress):
        await stage.service.delete_message(reply)
    stage.service.stop(chat)
    await future
    assert (await texts(stage, chat))[-1] == WHOLE[:18]


async def test_delete_and_undo_include_following_messages(stage: Stage) -> None:
    chat = await stage.answered_chat()
    for text in ("Two?", "Three?"):
        await stage.answered(chat, text)
    before = await stage.messages(chat)
    removed = await stage.service.delete_message(before[2])
    assert await stage.messages(chat) == before[:2]
    await stage.service.restore_messages(removed)
    assert await stage.messages(chat) == before
    again = await stage.service.regenerate(before[1])
    removed = await stage.service.delete_message(again)
    assert await stage.messages(chat) == before, "the sibling branch is shown"
    await stage.service.recently_deleted.purge_chat(chat)
    with pytest.raises(ConversationGone):
        await stage.service.restore_messages(removed)
