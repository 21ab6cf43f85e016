"""Conversations on disk: the tree, migrations, and failures of the file or the disk."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, tzinfo
from pathlib import Path

import pytest

from kvchat.chat.deletion import purge_orphans
from kvchat.chat.options import ChatOptions, NewChat, answer_settings, store_chat
from kvchat.chat.record import migrations, tree
from kvchat.chat.record.database import INTERRUPT_ABANDONED, ConversationGone, Database
from kvchat.chat.record.database_file import StorageFailed
from kvchat.chat.record.messages import (
    Attachment,
    Message,
    MessageState,
    Receipt,
    Role,
    ends_with_reply,
    prompt_messages,
)
from kvchat.engine.api.wire import ChatMessage, Sampling
from kvchat.session.proof import Source
from kvchat.text.reasons import Reason, ReasonCode
from kvchat.transfer.rows import conversation_rows, store_rows
from tests.chat.library import fill_chat
from tests.kvstore.store_bench import Bench
from tests.systems import has_mode

RECEIPT = Receipt(
    ttft_ms=310.0,
    restore_ms=21.0,
    prefill_ms=2000.0,
    first_token_ms=9.0,
    prompt_tokens=1000,
    cached_tokens=0,
    predicted_tokens=7,
    tokens_per_second=41.0,
    source=Source.COLD,
    miss_reason=Reason(ReasonCode.NOTHING_SAVED),
    model="m",
)


def append(database: Database, chat: str, parent: Message | None, role: Role, text: str) -> Message:
    return database.append(chat, parent.id if parent else None, role, text, MessageState.COMPLETE)


def test_conversation_round_trip(database: Database) -> None:
    chat = store_chat(database, NewChat("晚餐食譜 🍜", "Be kind."))
    system = database.branch(chat.id)[0]
    question = append(database, chat.id, system, Role.USER, "ما هذا؟\n\x00 and a NUL")
    reply = append(database, chat.id, question, Role.ASSISTANT, "")
    whole = dataclasses.replace(reply, content="42", thinking="hm", state=MessageState.COMPLETE, receipt=RECEIPT)
    database.update_reply(whole)
    assert database.branch(chat.id) == [system, question, whole]
    assert database.conversation(chat.id) is not None
    assert database.conversation("nobody") is None


class Clock(datetime):
    year_now = 2026

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Clock:
        return cls(cls.year_now, 11, 23, 12, tzinfo=tz)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    monkeypatch.setattr(Clock, "year_now", 2026)
    monkeypatch.setattr("kvchat.chat.record.database.datetime", Clock)
    return Clock


def test_wrong_clock_keeps_the_order_of_chats(database: Database, clock: type[Clock]) -> None:
    """The order follows a counter, not the clock."""
    first, second, third = [database.create_conversation(title) for title in "abc"]
    for year, chat in ((2031, first), (2026, second), (2019, third)):
        clock.year_now = year
        append(database, chat.id, None, Role.USER, "Hello")
        assert database.conversations()[0].id == chat.id
        assert database.newest(1)[0].id == chat.id
    clock.year_now = 2018
    made = database.create_conversation("d")
    assert [chat.id for chat in database.conversations()] == [made.id, third.id, second.id, first.id]


def test_wrong_clock_keeps_the_order_of_replies(database: Database, clock: type[Clock]) -> None:
    chat = database.create_conversation("a").id
    question = append(database, chat, None, Role.USER, "Where do herons sleep?")
    replies = []
    for year in (2031, 2026, 2019):
        clock.year_now = year
        replies.append(append(database, chat, question, Role.ASSISTANT, str(year)))
    removed = tree.remove(database, replies[-1])
    assert database.branch(chat)[-1] == replies[1], "the one before it"
    clock.year_now = 2018
    replies.append(append(database, chat, question, Role.ASSISTANT, "2018"))
    tree.restore_messages(database, removed.id)
    assert tree.current_branch(database, chat)[-1].siblings == tuple(reply.id for reply in replies)
    tree.switch(database, chat, question.id)
    assert database.branch(chat)[-1] == replies[-1], "the newest end"
    database.write("UPDATE conversations SET leaf_id = 'lost'")
    assert database.branch(chat)[-1] == replies[-1]
    [row] = conversation_rows(database, [chat])
    database.delete(chat)
    assert store_rows(database, row)
    assert tree.current_branch(database, chat)[-1].siblings == tuple(reply.id for reply in replies)


def test_long_conversation_can_be_deleted(database: Database) -> None:
    """SQLite limits a cascade to a depth of 1,000 messages."""
    chat = database.create_conversation("x")
    fill_chat(database, chat.id, 1500)
    database.delete(chat.id)
    assert database.conversations() == []


def test_drafts_are_deleted_with_their_conversation(database: Database) -> None:
    one, other = database.create_conversation("x"), database.create_conversation("y")
    database.store_drafts({one.id: "Dear", other.id: "湖", "": "Not begun", "gone": "lost"}, {})
    note, picture = Attachment("湖.txt", 9, "h", "A lake."), Attachment("a.png", 3, "i", "", b"\x89PN")
    database.store_drafts({one.id: ""}, {other.id: (note, picture), "": (note,), "gone": (note,), one.id: (picture,)})
    database.store_drafts({}, {one.id: ()})
    assert database.draft_attachments() == {other.id: (note, picture), "": (note,)}
    assert database.draft_texts() == {other.id: "湖", "": "Not begun"}
    database.delete(other.id)
    assert database.draft_texts() == {"": "Not begun"}
    assert database.draft_attachments() == {"": (note,)}


def test_prefill_timings_come_from_long_prefills(database: Database) -> None:
    assert not database.prefill_timings("m")
    chat = database.create_conversation("New chat")
    for receipt in (RECEIPT, dataclasses.replace(RECEIPT, cached_tokens=990)):  # the second read only 10 tokens
        reply = database.append(chat.id, None, Role.ASSISTANT, "", MessageState.STREAMING)
        database.update_reply(dataclasses.replace(reply, state=MessageState.COMPLETE, receipt=receipt))
    assert [ms / tokens for tokens, ms in database.prefill_timings("m")] == [2.0]
    assert not database.prefill_timings("another")


def test_database_file_is_private(database: Database) -> None:
    assert has_mode(database.file, 0o600)
    assert has_mode(database.file.parent, 0o700)


def test_migration_is_atomic_and_backed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "conversations.db"
    before = Database(path)
    chat = before.create_conversation("precious")
    before.close()
    broken = (*migrations.MIGRATIONS, "CREATE TABLE extra (x); SELECT nonsense FROM nowhere")
    monkeypatch.setattr(migrations, "MIGRATIONS", broken)
    with pytest.raises(StorageFailed):
        Database(path)
    monkeypatch.setattr(migrations, "MIGRATIONS", (*broken[:-1], "CREATE TABLE extra (x)"))
    after = Database(path)
    assert after.conversation(chat.id) == chat
    after.close()
    monkeypatch.setattr(migrations, "MIGRATIONS", broken[:-1])
    backup = Database(path.with_name(f"conversations.db.before-{len(broken)}"))
    assert backup.conversation(chat.id) == chat
    backup.close()


def test_invalid_database_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "conversations.db"
    path.write_bytes(b"this is not SQLite at all" * 50)
    with pytest.raises(StorageFailed, match="damaged"):
        Database(path)
    assert path.read_bytes().startswith(b"this is not")
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageFailed, match=r"could not be read or written|is empty"):
        Database(path)


def test_queries_at_start_and_per_turn_use_indexes(tmp_path: Path) -> None:
    """Covers the deletion of orphaned save points at startup, and the prefill timings read at each turn."""
    database, store = Database(tmp_path / "chats.db"), Bench(tmp_path / "store")
    for number in range(3):
        chat = database.create_conversation("A chat")
        reply = append(database, chat.id, None, Role.ASSISTANT, "r")
        store.save(chat.id, tuple(range(100 * number + 1, 100 * number + 99)), message=reply.id)
    store.save("a stranger", tuple(range(1, 50)), message="of nobody")
    asked: list[str] = []
    with database.reading() as db:
        db.set_trace_callback(asked.append)
    purge_orphans(store.store, database)
    database.prefill_timings("m")
    with database.reading() as db:
        db.set_trace_callback(None)
        queries = [query for query in asked if query.lstrip().startswith("SELECT")] + [INTERRUPT_ABANDONED]
        steps = [row["detail"] for query in queries for row in db.execute("EXPLAIN QUERY PLAN " + query)]
    database.close()
    assert {usage.conversation_id for usage in store.store.inventory.usage().conversations} >= {chat.id}
    assert "a stranger" not in {usage.conversation_id for usage in store.store.inventory.usage().conversations}
    assert len(queries) > 5
    scans = [step for step in steps if step.startswith("SCAN") and not step.endswith("INDEX messages_streaming")]
    assert not [step for step in scans if step.split()[1] in ("messages", "conversations")], scans
    assert "messages_streaming" in steps[-1]


def test_newest_lists_pinned_chats_first(database: Database) -> None:
    chats = [database.create_conversation(f"Chat {number}") for number in range(4)]
    database.write("UPDATE conversations SET on_top = 1 WHERE id = ?", (chats[0].id,))
    database.write("UPDATE conversations SET archived = 1 WHERE id = ?", (chats[3].id,))
    assert [chat.title for chat in database.newest(2)] == ["Chat 0", "Chat 2"]


def test_titles_cannot_reorder_surrounding_text(database: Database) -> None:
    chat = database.create_conversation("invoice\u202egpj.exe").id
    for conversations in (database.conversations(), database.newest(5)):
        assert [conversation.title for conversation in conversations] == ["invoicegpj.exe"]
    raw = database.rows("SELECT title FROM conversations WHERE id = ?", (chat,))
    assert raw[0]["title"] == "invoice\u202egpj.exe", "what is stored stays"


def test_fork_copies_messages_and_options(database: Database) -> None:
    options = ChatOptions(Sampling(temperature=0.25))
    chat = store_chat(database, NewChat("Lakes", "Be brief.", model="/models/a.gguf", options=options)).id
    file = Attachment("lakes.txt", 5, "h", "Jeju", b"\x89PNG")
    database.append_question(chat, "Which is deepest?", (file,))
    leaf = database.branch(chat)[-1].id
    reply = database.append(chat, leaf, Role.ASSISTANT, "Baikal.", MessageState.STOPPED)
    database.append_question(chat, "And the largest?")
    before = database.branch(chat)
    made = tree.fork(database, reply)
    copies = database.branch(made)
    originals = [
        dataclasses.replace(message, id=copy.id, conversation_id=made, parent_id=parent, created_at=copy.created_at)
        for message, copy, parent in zip(before[:3], copies, [None, copies[0].id, copies[1].id], strict=True)
    ]
    assert copies == originals
    assert not {message.id for message in copies} & {message.id for message in before}
    forked = database.conversation(made)
    assert (forked.title, forked.model) == ("Lakes", "/models/a.gguf")
    assert answer_settings(database, made) == answer_settings(database, chat)
    assert database.branch(chat) == before
    database.delete(chat)
    assert database.branch(made) == copies, "neither needs the other"
    with pytest.raises(ConversationGone):
        tree.fork(database, reply)


def message(role: Role, content: str, thinking: str = "") -> Message:
    return Message("id", "chat", None, role, content, thinking, MessageState.COMPLETE, datetime.now(UTC))


def test_prompt_roles_alternate() -> None:
    branch = [
        message(Role.SYSTEM, "s"),
        message(Role.USER, "a"),
        message(Role.ASSISTANT, "  "),
        message(Role.USER, "b"),
        message(Role.ASSISTANT, "c", "thought"),
    ]
    assert prompt_messages(branch) == [
        ChatMessage("system", "s"),
        ChatMessage("user", "a\n\nb"),
        ChatMessage("assistant", "c", "thought"),
    ]
    assert ends_with_reply(branch)
    assert not ends_with_reply(branch[:2])
    assert not ends_with_reply([])
