"""Regenerate, edit, continue, branch and delete, on a fake engine: what becomes of the tree and of the save points."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvchat.chat.events import ReplyDelta
from kvchat.chat.record.database import ConversationGone
from kvchat.chat.record.messages import Message, MessageState, Role
from kvchat.chat.turn_context import ReplyInProgress
from kvchat.engine.api.wire import Sampling
from kvchat.session.events import Restored
from kvchat.session.proof import Source
from tests.chat.stage import QUESTION, Stage

WHOLE = "One two three four five six seven eight nine ten."


async def page(stage: Stage, chat: str) -> list[Message]:
    return await stage.messages(chat)


async def words(stage: Stage, chat: str) -> list[str]:
    return [message.content for message in await page(stage, chat)]


async def begun(stage: Stage, chat: str, letters: int) -> Message:
    """A reply that its limit cut off."""
    stage.fake.set(FAKE_REPLY=WHOLE)
    reply = await stage.finish(stage.service.send(chat, QUESTION, Sampling(max_tokens=letters)))
    assert (reply.state, reply.content) == (MessageState.LIMITED, WHOLE[:letters])
    return reply


async def test_regenerated_reply_is_a_sibling(stage: Stage) -> None:
    chat = await stage.answered_chat()
    first = (await page(stage, chat))[1]
    await stage.answered(chat, "And the harbour?")
    stage.fake.set(FAKE_REPLY="Something else.")
    again = await stage.finish(stage.service.regenerate(first))
    assert again.receipt.source is Source.HOT
    question, reply = await page(stage, chat)
    assert (reply.id, reply.siblings, question.siblings) == (again.id, (first.id, again.id), ())
    await stage.service.switch(chat, first.id)
    assert (await words(stage, chat))[-1] == "You said: And the harbour?", "a branch is shown to its end"


async def test_edited_messages_are_branches(stage: Stage) -> None:
    chat = await stage.answered_chat(system="You are brief.")
    await stage.answered(chat, "And the harbour?")
    _, first, reply, *_ = await page(stage, chat)
    asked = len(stage.requests("/v1/chat/completions"))
    edited = await stage.service.edit_reply(reply, "It flows.")
    assert await words(stage, chat) == ["You are brief.", QUESTION, "It flows."]
    assert len(stage.requests("/v1/chat/completions")) == asked, "nothing is generated"
    assert edited.receipt is None
    assert (await page(stage, chat))[-1].state is MessageState.EDITED
    await stage.finish(stage.service.edit(first, "And the wood?"))
    assert (await words(stage, chat))[1:] == ["And the wood?", "You said: And the wood?"]
    assert (await page(stage, chat))[1].siblings[0] == first.id


@pytest.mark.parametrize("echo", [None, 1])
async def test_reply_continues_where_it_ended(stage: Stage, echo: int | None) -> None:
    chat = await stage.chat()
    stage.fake.set(FAKE_ECHO=echo, FAKE_EXACT_ONLY=1)
    reply = await begun(stage, chat, 18)
    stage.events.clear()
    whole = await stage.finish(stage.service.continue_reply(reply))
    assert whole.receipt is not None
    assert (whole.id, whole.state, whole.content) == (reply.id, MessageState.COMPLETE, WHOLE)
    stored = (await page(stage, chat))[-1]
    assert stored.receipt is not None
    known_by_then = replace(stored.receipt, settle_ms=None, save_ms=None)  # those are told afterwards
    assert replace(stored, receipt=known_by_then) == whole
    assert "".join(event.text for event in stage.of(ReplyDelta)) == WHOLE, "whoever listens hears all of it"


async def test_empty_continuation_leaves_the_reply_unchanged(stage: Stage) -> None:
    chat = await stage.chat()
    reply = await begun(stage, chat, 18)
    stage.fake.set(FAKE_BREAK_STREAM="no more")
    stage.fake.set(FAKE_REPLY=WHOLE[:18])
    whole = await stage.service.continue_reply(reply)
    assert whole.receipt == reply.receipt
    assert (await words(stage, chat)) == [QUESTION, WHOLE[:18]]
    stage.fake.set(FAKE_BREAK_STREAM=None, FAKE_REPLY=WHOLE, FAKE_TOKEN_DELAY=5)
    future = stage.service.continue_reply(reply)
    await stage.until(lambda: stage.service.answering_chats)
    with pytest.raises(ReplyInProgress):
        await stage.service.delete_message(reply)
    stage.service.stop(chat)
    await future
    assert (await page(stage, chat))[-1].content == WHOLE[:18]


async def test_delete_and_undo_include_following_messages(stage: Stage) -> None:
    chat = await stage.chat()
    for text in (QUESTION, "Two?", "Three?"):
        await stage.answered(chat, text)
    before = await page(stage, chat)
    removed = await stage.service.delete_message(before[2])
    assert await page(stage, chat) == before[:2]
    await stage.service.restore_messages(removed)
    assert await page(stage, chat) == before
    again = await stage.service.regenerate(before[1])
    assert again is not None
    removed = await stage.service.delete_message(again)
    assert await page(stage, chat) == before, "the branch beside it is shown"
    await stage.service.recently_deleted.purge_chat(chat)
    with pytest.raises(ConversationGone):
        await stage.service.restore_messages(removed)


async def test_switching_branches_restores_the_state(stage: Stage) -> None:
    """Where states cannot be cut the other branch's own save point is needed."""
    chat = await stage.chat()
    stage.fake.set(FAKE_EXACT_ONLY=1)
    await stage.answered(chat)
    question = (await page(stage, chat))[0]
    await stage.finish(
        stage.service.edit(question, "Another question altogether, about a violin and a lamp in the night.")
    )
    await stage.show(chat)
    stage.events.clear()
    await stage.service.switch(chat, question.id)
    await stage.idle()
    assert stage.of(Restored)
    receipt = await stage.answered(chat, "Go on.")
    assert receipt.prefetched
    assert receipt.cached_tokens == stage.of(Restored)[0].tokens
    assert (await page(stage, chat))[0].role is Role.USER
