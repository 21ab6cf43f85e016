"""What was deleted for good is nowhere on the disk, and what others need of it stays."""

from __future__ import annotations

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
from kvchat.chat.events import Notice
from kvchat.chat.record import recovery
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Attachment
from kvchat.chat.record.recovery import back_up, list_backups
from kvchat.chat.record.titles import title_from
from kvchat.chat.turn import titles
from kvchat.kvstore.savepoint import StoreRefused
from kvchat.session.proof import Source
from kvchat.system import migrations
from tests.chat.stage import QUESTION, Stage
from tests.fake_llama_server import FIRST_BYTE

SECRET = "Xylograph Quokka"  # in no other text


def traces(stage: Stage) -> list[Path]:
    """The files that hold the secret, as text or as tokens."""
    stage.database.checkpoint()
    kinds = [form for word in SECRET.split() for form in (word, word.lower(), word[2:])]
    texts = [kind.encode() for kind in kinds]
    tokens = [struct.pack(f"<{len(text)}i", *(FIRST_BYTE + byte for byte in text)) for text in texts]
    files = [file for file in stage.home.rglob("*") if file.is_file()]
    return [file for file in files if any(trace in file.read_bytes() for trace in texts + tokens)]


async def asked(stage: Stage) -> str:
    """A chat whose second question, and what is attached to it, hold the secret."""
    chat = await stage.answered_chat()
    document = Attachment("Quokka.txt", 9, "h", f"{SECRET} in a document, {QUESTION}")
    reply = await stage.service.send(chat, f"What is a {SECRET}?", attachments=(document,))
    assert reply is not None
    await stage.idle()
    assert (await stage.service.finder.find("quokka")).chats
    assert back_up(stage.runtime.paths.database, repeat_today=True)
    return chat


async def keep_deleted(stage: Stage, days: int) -> None:
    """For so long what was deleted can be had back; with 0 only until Undo goes."""
    await stage.runtime.apply_settings(dataclasses.replace(stage.settings, keep_deleted_days=days))


async def forgotten(stage: Stage) -> None:
    await stage.until(lambda: not rows(stage, "removed"))
    await stage.idle()


async def test_a_deleted_message_is_nowhere_when_it_cannot_be_undone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = await asked(stage)
    assert {file.name.partition(".")[0] for file in traces(stage)} >= {"conversations", "index"}
    assert list_backups(stage.runtime.paths.database)[0] in traces(stage)
    monkeypatch.setattr(deletion, "UNDO_PERIOD_S", 0)
    await keep_deleted(stage, 0)
    _, _, question, _ = await stage.messages(chat)
    await stage.service.delete_message(question)
    await forgotten(stage)
    assert traces(stage) == []
    assert len(stage.save_points()) == 1
    assert (await stage.answered(chat, "And the Danube?")).source is not Source.COLD
    assert not (await stage.service.finder.find("quokka")).chats


def let_days_pass(stage: Stage, days: float) -> None:
    with contextlib.closing(sqlite3.connect(stage.home / "data" / "conversations.db")) as db, db:
        db.execute("UPDATE conversations SET deleted_at = deleted_at - ?1, deleted_s = ?1", (days * 86_400,))
        db.execute("UPDATE removed SET removed_at = removed_at - ?1, deleted_s = ?1", (days * 86_400,))


async def killed(stage: Stage) -> None:
    """End as a process does that is killed before it has forgotten anything."""
    stage.service.recently_deleted._deleted_here.clear()
    await stage.runtime.close()


@pytest.mark.parametrize("what", ["message", "chat"])
async def test_a_run_that_was_killed_leaves_nothing_of_what_was_deleted(stage: Stage, what: str) -> None:
    chat = await asked(stage)
    if what == "chat":
        await stage.service.recently_deleted.delete([chat])
    else:
        await stage.service.delete_message((await stage.messages(chat))[2])
    await killed(stage)
    let_days_pass(stage, 8)
    assert len(stage.save_points()) == 2
    await stage.restart()
    assert len(stage.save_points()) == (what == "message")
    stage.service.recently_deleted.start()
    await stage.idle()
    assert traces(stage) == []
    assert rows(stage, "deleted") == 0


def rows(stage: Stage, table: str) -> int:
    with stage.database.reading() as db:
        return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


async def test_a_deleted_chat_is_nowhere(stage: Stage) -> None:
    await stage.answered(await stage.chat())
    chat = await asked(stage)
    await stage.service.rename(chat, f"About the {SECRET}")
    await stage.service.turn_context.run(
        Database.store_drafts,
        {chat: f"More about {SECRET}"},
        {chat: (Attachment("more.txt", 9, "h", f"Even more about {SECRET}"),)},
    )
    await stage.service.recently_deleted.purge_chat(chat)
    await stage.idle()
    assert traces(stage) == []
    assert len(stage.save_points()) == 1


async def test_many_that_go_at_once_are_overwritten_together(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, go = [], asyncio.Event()

    async def forget() -> None:
        calls.append("forget")
        await go.wait()

    monkeypatch.setattr(stage.service.finder, "purge_deleted", forget)
    forget_chat = stage.service.recently_deleted.purge
    waiting = [asyncio.create_task(forget_chat({str(number): {str(number)}})) for number in range(5)]
    await stage.until(lambda: sum(task.done() for task in waiting) == 4)
    go.set()
    await asyncio.gather(*waiting)
    assert len(calls) == 2


async def title_of(stage: Stage, chat: str) -> str:
    conversation = await stage.service.conversation(chat)
    return conversation.title


async def test_the_title_goes_with_the_question_it_was_made_of(stage: Stage) -> None:
    chat = await stage.answered_chat(SECRET, system="Be brief.")
    question, reply = (await stage.messages(chat))[1:]
    await stage.service.edit(question, "Another question")
    removed = await stage.service.delete_message(question)

    assert await title_of(stage, chat) == "Another question"
    await stage.service.restore_messages(removed)
    assert await title_of(stage, chat) == SECRET
    await stage.idle()
    assert reply.id in {row["id"] for row in removed.rows}


async def test_a_title_by_the_model_goes_with_the_words_it_has_from_a_message(stage: Stage) -> None:
    chat = await asked(stage)
    database = stage.database

    _, first, question, last = await stage.messages(chat)
    for made, left in (("River and garden", "River and garden"), ("The quokka's river", title_from(QUESTION))):
        titles.mark_title_due(database, chat)
        assert titles.store_title(database, chat, made, first.id)
        removed = await stage.service.delete_message(question)
        assert await title_of(stage, chat) == left
        await stage.service.restore_messages(removed)
        assert await title_of(stage, chat) == made
    titles.mark_title_due(database, chat)
    await stage.service.delete_message(question)
    assert not titles.store_title(database, chat, "Made of a quokka before it went", last.id)
    assert titles.is_title_due(database, chat)


def test_copies_made_before_a_migration_do_not_stay(tmp_path: Path) -> None:
    database, old, new = (tmp_path / name for name in ("a.db", "a.db.before-3", "a.db.before-4"))
    for file in (database, old, new):
        file.touch()
    week_ago = time.time() - 7.5 * 86_400
    for file in (database, old):
        os.utime(file, (week_ago, week_ago))
    migrations.drop_old_copies(database)
    assert sorted(tmp_path.iterdir()) == [database, new]


async def test_what_cannot_be_deleted_is_told_once_and_tried_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = await asked(stage)
    store, refusals, told = stage.store, iter(range(4)), []
    stage.runtime.events.subscribe(lambda event: told.append(event) if isinstance(event, Notice) else None)
    delete = store.inventory.delete_conversation

    def refuse_at_first(conversation_id: str) -> int:
        if next(refusals, None) is not None:
            raise StoreRefused("The save points could not be read or written.", "The disk no longer exists.")
        return delete(conversation_id)

    monkeypatch.setattr(store.inventory, "delete_conversation", refuse_at_first)
    monkeypatch.setattr(deletion, "RETRY_DELAY_S", 0.01)
    await stage.service.recently_deleted.purge_chat(chat)
    await stage.until(lambda: not rows(stage, "deleted"))
    await stage.idle()
    assert [notice.title for notice in told] == ["Some deleted data has not been erased yet"]
    assert "The disk no longer exists." in told[0].detail
    assert traces(stage) == []


async def test_a_start_looks_only_at_what_was_kept_since_the_last(stage: Stage) -> None:
    await asked(stage)
    by, store = stage.database.file_id(), stage.store
    assert len(store.inventory.unchecked(by).messages) == 1
    await stage.restart()
    assert stage.store.inventory.unchecked(by).messages == {}
    assert len(stage.store.inventory.unchecked("another file").messages) == 1
    assert len(stage.save_points()) == 2


async def test_whoever_waits_for_a_deletion_may_be_cancelled(stage: Stage) -> None:
    """The memory goes all the same, also where it waits for something else to be written first."""
    chat = await stage.answered_chat()
    assert stage.save_points()
    slots, writing = stage.slots, threading.Event()
    slots.write(writing.wait)
    waiting = asyncio.gather(slots.discard(chat))
    await asyncio.sleep(0)
    waiting.cancel()
    writing.set()
    await slots.write(lambda: None)
    assert not stage.save_points()


async def test_a_chat_that_goes_while_a_backup_is_made_is_not_in_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, file = await asked(stage), stage.runtime.paths.database
    other = await stage.answered_chat()
    copied, deleted, copy = threading.Event(), threading.Event(), recovery._copy_chats

    def copy_and_wait(source: Path, target: Path) -> None:
        copy(source, target)
        copied.set()
        assert deleted.wait(240)

    monkeypatch.setattr(recovery, "_copy_chats", copy_and_wait)
    made = asyncio.create_task(asyncio.to_thread(back_up, file, repeat_today=True))
    assert await asyncio.to_thread(copied.wait, 240)
    await stage.service.recently_deleted.purge_chat(chat)
    await stage.idle()
    deleted.set()
    assert await made
    assert traces(stage) == []
    with contextlib.closing(sqlite3.connect(list_backups(file)[0])) as backup:
        assert backup.execute("SELECT DISTINCT conversation_id FROM messages").fetchall() == [(other,)]
