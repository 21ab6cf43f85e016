"""Permanent deletion leaves no trace on the disk, and keeps what others need."""

import asyncio
import contextlib
import dataclasses
import os
import sqlite3
import struct
import threading
import time
from pathlib import Path

import pytest

from kvchat.chat import deletion
from kvchat.chat.events import EngineChanged, Notice
from kvchat.chat.record import recovery
from kvchat.chat.record.messages import Attachment
from kvchat.chat.record.recovery import back_up, list_backups
from kvchat.chat.record.titles import title_from
from kvchat.chat.turn import titles
from kvchat.engine.api.connection import EngineState, EngineStatus
from kvchat.engine.api.errors import EngineGone
from kvchat.engine_host.paired_computer import PairedComputer, PairedComputerStore
from kvchat.kvstore.savepoint import StoreRefused
from kvchat.session.proof import Source
from kvchat.system import migrations
from tests.chat.stage import QUESTION, Stage
from tests.fake_llama_server import FIRST_BYTE

SECRET = "Xylograph Quokka"  # in no other text


def traces(stage: Stage) -> list[Path]:
    """Return the files that contain the secret, as text or as tokens."""
    stage.database.checkpoint()
    texts = [form.encode() for word in SECRET.split() for form in (word, word.lower(), word[2:])]
    tokens = [struct.pack(f"<{len(text)}i", *(FIRST_BYTE + byte for byte in text)) for text in texts]
    files = [file for file in stage.home.rglob("*") if file.is_file()]
    return [file for file in files if any(trace in file.read_bytes() for trace in texts + tokens)]


async def secret_chat(stage: Stage) -> str:
    """Return a chat whose second question and its attachment contain the secret."""
    chat = await stage.answered_chat()
    document = Attachment("Quokka.txt", 9, "h", f"{SECRET} in a document, {QUESTION}")
    assert await stage.finish(stage.service.send(chat, f"What is a {SECRET}?", attachments=(document,)))
    assert (await stage.service.finder.find("quokka")).chats
    assert back_up(stage.runtime.paths.database, replace_todays=True)
    return chat


def row_count(stage: Stage, table: str) -> int:
    return int(stage.database.rows(f"SELECT count(*) FROM {table}")[0][0])


def let_days_pass(stage: Stage, days: float) -> None:
    with contextlib.closing(sqlite3.connect(stage.home / "data" / "conversations.db")) as db, db:
        db.execute("UPDATE conversations SET deleted_at = deleted_at - ?1, deleted_s = ?1", (days * 86_400,))
        db.execute("UPDATE removed SET removed_at = removed_at - ?1, deleted_s = ?1", (days * 86_400,))


async def test_deleted_message_leaves_no_trace_after_undo(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = await secret_chat(stage)
    assert {file.name.partition(".")[0] for file in traces(stage)} >= {"conversations", "index"}
    assert list_backups(stage.runtime.paths.database)[0] in traces(stage)
    monkeypatch.setattr(deletion, "UNDO_PERIOD_S", 0)
    await stage.runtime.apply_settings(dataclasses.replace(stage.settings, keep_deleted_days=0))
    _, _, question, _ = await stage.messages(chat)
    await stage.service.delete_message(question)
    await stage.until(lambda: not row_count(stage, "removed"))
    await stage.idle()
    assert traces(stage) == []
    assert len(stage.save_points()) == 1
    assert (await stage.answered(chat, "And the Danube?")).source is not Source.COLD
    assert not (await stage.service.finder.find("quokka")).chats


@pytest.mark.parametrize("deleted", ["message", "chat"])
async def test_deletion_of_a_killed_run_is_completed(stage: Stage, deleted: str) -> None:
    chat = await secret_chat(stage)
    if deleted == "chat":
        await stage.service.recently_deleted.delete([chat])
    else:
        await stage.service.delete_message((await stage.messages(chat))[2])
    stage.service.recently_deleted._deleted_here.clear()  # as if killed
    await stage.runtime.close()
    let_days_pass(stage, 8)
    assert len(stage.save_points()) == 2
    await stage.restart()
    assert len(stage.save_points()) == (deleted == "message")
    stage.service.recently_deleted.start()
    await stage.idle()
    assert traces(stage) == []
    assert row_count(stage, "deleted") == 0


async def test_deleted_chat_leaves_no_trace(stage: Stage) -> None:
    await stage.answered_chat()
    chat = await secret_chat(stage)
    await stage.service.rename(chat, f"About the {SECRET}")
    draft = Attachment("more.txt", 9, "h", f"Even more about {SECRET}")
    stage.database.store_drafts({chat: f"More about {SECRET}"}, {chat: (draft,)})
    await stage.service.recently_deleted.purge_chat(chat)
    await stage.idle()
    assert traces(stage) == []
    assert len(stage.save_points()) == 1


async def test_concurrent_deletions_are_overwritten_together(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, released = [], asyncio.Event()

    async def purge() -> None:
        calls.append("purge")
        await released.wait()

    monkeypatch.setattr(stage.service.finder, "purge_deleted", purge)
    purges = [stage.service.recently_deleted.purge({str(number): {str(number)}}) for number in range(5)]
    tasks = [asyncio.create_task(purge) for purge in purges]
    await stage.until(lambda: len(stage.service.recently_deleted._pending_ids) == 5)
    released.set()
    await asyncio.gather(*tasks)
    assert len(calls) == 2


async def title_of(stage: Stage, chat: str) -> str:
    return (await stage.service.conversation(chat)).title


async def test_title_from_a_deleted_question_is_replaced(stage: Stage) -> None:
    chat = await stage.answered_chat(SECRET, "Be brief.")
    question, reply = (await stage.messages(chat))[1:]
    await stage.service.edit(question, "Another question")
    removed = await stage.service.delete_message(question)
    assert await title_of(stage, chat) == "Another question"
    await stage.service.restore_messages(removed)
    assert await title_of(stage, chat) == SECRET
    await stage.idle()
    assert reply.id in {row["id"] for row in removed.rows}


async def test_generated_title_with_words_of_a_deleted_message_is_replaced(stage: Stage) -> None:
    chat, database = await secret_chat(stage), stage.database
    _, first, question, last = await stage.messages(chat)
    for title, left in (("River and garden", "River and garden"), ("The quokka's river", title_from(QUESTION))):
        titles.mark_title_due(database, chat)
        assert titles.store_title(database, chat, title, first.id)
        removed = await stage.service.delete_message(question)
        assert await title_of(stage, chat) == left
        await stage.service.restore_messages(removed)
        assert await title_of(stage, chat) == title
    titles.mark_title_due(database, chat)
    await stage.service.delete_message(question)
    assert not titles.store_title(database, chat, "Made of a quokka before it went", last.id)
    assert titles.is_title_due(database, chat)


def test_old_migration_backups_are_deleted(tmp_path: Path) -> None:
    database, old, new = (tmp_path / name for name in ("a.db", "a.db.before-3", "a.db.before-4"))
    for file in (database, old, new):
        file.touch()
    week_ago = time.time() - 7.5 * 86_400
    for file in (database, old):
        os.utime(file, (week_ago, week_ago))
    migrations.drop_old_copies(database)
    assert sorted(tmp_path.iterdir()) == [database, new]


async def test_failed_deletion_is_reported_once_and_retried(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    chat, inventory, refusals = await secret_chat(stage), stage.store.inventory, iter(range(4))
    delete = inventory.delete_conversation

    def refuse_at_first(conversation_id: str) -> int:
        if next(refusals, None) is not None:
            raise StoreRefused("The save points could not be read or written.", "The disk no longer exists.")
        return delete(conversation_id)

    monkeypatch.setattr(inventory, "delete_conversation", refuse_at_first)
    monkeypatch.setattr(deletion, "RETRY_DELAY_S", 0.01)
    await stage.service.recently_deleted.purge_chat(chat)
    await stage.until(lambda: not row_count(stage, "deleted"))
    await stage.idle()
    (notice,) = stage.of(Notice)
    assert notice.title == "Some deleted data has not been erased yet"
    assert "The disk no longer exists." in notice.detail
    assert traces(stage) == []


class OtherComputer:
    def __init__(self) -> None:
        self.is_away, self.forgotten = False, list[str]()

    async def forget_chat(self, chat: str) -> None:
        self.forgotten.append(chat)

    async def connect(self) -> "OtherComputer":
        if self.is_away:
            raise EngineGone("The other computer is not available", "", "")
        return self


async def test_chat_is_erased_here_while_the_paired_computer_is_away(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, other = await secret_chat(stage), OtherComputer()
    monkeypatch.setattr(stage.runtime.engine, "memory_server", other.connect)
    other.is_away = True
    await stage.service.recently_deleted.purge_chat(chat)
    await stage.until(lambda: stage.of(Notice))
    assert traces(stage) == []
    assert (row_count(stage, "deleted"), other.forgotten) == (1, [])
    other.is_away = False
    stage.service.recently_deleted.start()  # as after a restart
    await stage.until(lambda: not row_count(stage, "deleted"))
    assert other.forgotten == [chat]


async def test_paired_computer_not_in_use_forgets_the_chat_once_it_is_used(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, other, engine = await secret_chat(stage), OtherComputer(), stage.runtime.engine
    PairedComputerStore(stage.runtime.paths).save(PairedComputer("https://box:8738", name="box"))
    await stage.service.recently_deleted.purge_chat(chat)
    await stage.idle()
    assert traces(stage) == []
    ready = EngineChanged(EngineStatus(EngineState.READY))
    stage.runtime.events.publish(ready)  # the own engine
    await stage.idle()
    assert row_count(stage, "deleted") == 1
    assert not stage.of(Notice)
    monkeypatch.setattr(engine, "memory_server", other.connect)
    stage.runtime.events.publish(ready)
    await stage.until(lambda: not row_count(stage, "deleted"))
    assert other.forgotten == [chat]


async def test_deletion_continues_if_its_caller_is_cancelled(stage: Stage) -> None:
    """Also while it waits for another write."""
    chat = await stage.answered_chat()
    assert stage.save_points()
    slots, writing = stage.slots, threading.Event()
    waiting = asyncio.gather(slots.writer.run(writing.wait), slots.discard(chat))
    await asyncio.sleep(0)
    waiting.cancel()
    writing.set()
    await slots.writer.run(lambda: None)
    assert not stage.save_points()


async def test_chat_deleted_during_a_backup_is_not_in_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    chat, file = await secret_chat(stage), stage.runtime.paths.database
    other = await stage.answered_chat()
    copied, deleted, copy = threading.Event(), threading.Event(), recovery._copy_chats

    def copy_and_wait(source: Path, target: Path) -> None:
        copy(source, target)
        copied.set()
        assert deleted.wait(240)

    monkeypatch.setattr(recovery, "_copy_chats", copy_and_wait)
    backup = asyncio.create_task(asyncio.to_thread(back_up, file, replace_todays=True))
    assert await asyncio.to_thread(copied.wait, 240)
    await stage.service.recently_deleted.purge_chat(chat)
    await stage.idle()
    deleted.set()
    assert await backup
    assert traces(stage) == []
    with contextlib.closing(sqlite3.connect(list_backups(file)[0])) as db:
        assert db.execute("SELECT DISTINCT conversation_id FROM messages").fetchall() == [(other,)]
