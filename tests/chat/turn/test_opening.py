"""Regenerate, edit, continue, branch and delete: the message tree and the save points."""

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


async def test_edited_messages_are_branches(stage: Stage) -> None:
    chat = await stage.answered_chat(system="You are brief.")
    await stage.answered(chat, "And the harbour?")
    _, question, reply, *_ = await stage.messages(chat)
    requests = len(stage.requests("/v1/chat/completions"))
    edited = await stage.service.edit_reply(reply, "It flows.")
    assert await texts(stage, chat) == ["You are brief.", QUESTION, "It flows."]
    assert len(stage.requests("/v1/chat/completions")) == requests, "nothing is generated"
    assert edited.receipt is None
    assert (await stage.messages(chat))[-1].state is MessageState.EDITED
    await stage.finish(stage.service.edit(question, "And the wood?"))
    assert (await texts(stage, chat))[1:] == ["And the wood?", "You said: And the wood?"]
    assert (await stage.messages(chat))[1].siblings[0] == question.id


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


@pytest.mark.usefixtures("cannot_cut")
async def test_switching_branches_restores_the_state(stage: Stage) -> None:
    """States that cannot be cut need the other branch's own save point."""
    chat = await stage.answered_chat()
    question = (await stage.messages(chat))[0]
    other = "Another question altogether, about a violin and a lamp in the night."
    await stage.finish(stage.service.edit(question, other))
    await stage.show(chat)
    stage.events.clear()
    await stage.service.switch(chat, question.id)
    await stage.idle()
    receipt = await stage.answered(chat, "Go on.")
    assert receipt.prefetched
    assert receipt.cached_tokens == stage.of(Restored)[0].tokens
    assert (await stage.messages(chat))[0].role is Role.USER
