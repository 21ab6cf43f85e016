"""A reply is forked into a conversation of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.chat.options import ChatOptions, answer_settings, remember_model, store_options
from kvchat.chat.record import tree
from kvchat.chat.record.database import ConversationGone, Database
from kvchat.chat.record.messages import Attachment, MessageState, Role
from kvchat.engine.speaking.wire import Sampling


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(tmp_path / "chats.db")) as database:
        yield database


def test_it_has_what_was_said_so_far_and_is_answered_alike(database: Database) -> None:
    chat = database.create_conversation("Lakes", "Be brief.").id
    store_options(database, chat, ChatOptions(Sampling(temperature=0.25)))
    remember_model(database, chat, "/models/a.gguf", replace=True)
    file = Attachment("lakes.txt", 5, "h", "Jeju", b"\x89PNG")
    database.append_question(chat, "Which is deepest?", (file,))
    leaf = database.branch(chat)[-1].id
    reply = database.append(chat, leaf, Role.ASSISTANT, "Baikal.", MessageState.STOPPED)
    database.append_question(chat, "And the largest?")
    before = database.branch(chat)
    made = tree.fork(database, reply)
    copies = database.branch(made)
    assert [(one.role, one.content, one.state, one.attachments) for one in copies] == [
        (one.role, one.content, one.state, one.attachments) for one in before[:3]
    ]
    assert not {one.id for one in copies} & {one.id for one in before}
    assert [one.parent_id for one in copies] == [None, copies[0].id, copies[1].id]
    forked = database.conversation(made)
    assert (forked.title, forked.model) == ("Lakes", "/models/a.gguf")
    assert answer_settings(database, made) == answer_settings(database, chat)
    assert database.branch(chat) == before
    database.delete(chat)
    assert database.branch(made) == copies, "neither needs the other"
    with pytest.raises(ConversationGone):
        tree.fork(database, reply)
