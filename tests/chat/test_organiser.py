"""Folders, the archive, and deletion that can be undone."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.chat.deletion import purge_left_behind
from kvchat.chat.record.database import Database
from kvchat.chat.record.database_file import StorageFailed
from kvchat.chat.record.messages import Conversation
from kvchat.chat.search import find
from kvchat.runtime import open_runtime
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths
from tests.chat.library import fill_chat
from tests.chat.stage import Stage


async def listed(stage: Stage) -> dict[str, Conversation]:
    return {conversation.id: conversation for conversation in await stage.runtime.chat.conversations()}


def deleted_ids(database: Database) -> set[str]:
    with database.reading() as db:
        return {row["id"] for row in db.execute("SELECT id FROM conversations WHERE deleted_at IS NOT NULL")}


async def test_chats_stay_where_they_are_put(stage: Stage) -> None:
    ids = [await stage.chat() for _ in range(3)]
    await stage.runtime.chat.arrange(ids[:2], "folder", "Work")
    await stage.runtime.chat.arrange(ids[1:], "on_top", True)
    await stage.runtime.chat.arrange(ids[2:], "archived", True)
    chats = await listed(stage)
    assert [(chats[id].folder, chats[id].on_top, chats[id].archived) for id in ids] == [
        ("Work", False, False),
        ("Work", True, False),
        (None, True, True),
    ]
    await stage.runtime.chat.arrange(ids, "folder", None)
    assert [chat.folder for chat in (await listed(stage)).values()] == [None] * 3


async def test_a_deleted_chat_comes_back_whole(stage: Stage) -> None:
    id = await stage.chat()
    await stage.ask(id, "Find me a marmot")
    before = await stage.runtime.chat.messages(id)
    points = len(stage.kept().save_points())
    assert points
    await stage.runtime.chat.recently_deleted.delete([id])
    assert await listed(stage) == {}
    assert await stage.runtime.chat.conversation(id) is None
    assert not (await stage.runtime.chat.finder.find("marmot")).chats
    await stage.runtime.chat.recently_deleted.restore_chats([id])
    assert list(await listed(stage)) == [id]
    assert await stage.runtime.chat.messages(id) == before
    assert len(stage.kept().save_points()) == points
    assert (await stage.runtime.chat.finder.find("marmot")).chats[0].conversation_id == id


async def test_what_is_not_undone_goes_with_its_save_points(stage: Stage) -> None:
    await stage.runtime.apply_settings(dataclasses.replace(stage.settings, keep_deleted_days=0))
    ids = [await stage.chat() for _ in range(2)]
    await stage.ask(ids[0], "Hello marmot")
    await stage.runtime.chat.recently_deleted.delete(ids)
    await stage.runtime.chat.recently_deleted.restore_chats(ids[1:])
    stage.runtime.chat.close()
    await stage.runtime.chat.idle()
    assert list(await listed(stage)) == ids[1:]
    assert deleted_ids(stage.runtime._database) == set()
    assert len(stage.kept().save_points()) == 0
    assert find(stage.runtime._database, "marmot") == ()


@pytest.mark.parametrize(("days", "seconds"), [(0, 3600), (7, 7.1 * 86_400)])
async def test_a_run_that_was_killed_leaves_nothing_behind(stage: Stage, days: int, seconds: float) -> None:
    old, new = [await stage.chat() for _ in range(2)]
    await stage.runtime.chat.recently_deleted.delete([old, new])
    with stage.runtime._database.transaction() as db:
        db.execute(
            "UPDATE conversations SET deleted_at = deleted_at - ?1, deleted_s = ?1 WHERE id = ?2", (seconds, old)
        )
    purge_left_behind(stage.runtime._database, days * 86_400)
    assert deleted_ids(stage.runtime._database) == {new}


async def test_a_long_chat_that_was_left_behind_goes_when_kvchat_starts(tmp_path: Path) -> None:
    """SQLite follows a cascade no more than 1,000 messages deep."""
    paths = resolve_paths({"KVCHAT_HOME": str(tmp_path)})
    with closing(Database(paths.database)) as database:
        chat = database.create_conversation("x")
        fill_chat(database, chat.id, 1500)
        delete_long_ago(database, chat.id)
    runtime = await open_runtime(paths, Settings())
    assert deleted_ids(runtime._database) == set()
    await runtime.close()


async def test_kvchat_starts_where_what_was_left_behind_cannot_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(database: Database, conversation_id: str) -> None:
        raise StorageFailed("no")

    paths = resolve_paths({"KVCHAT_HOME": str(tmp_path)})
    with closing(Database(paths.database)) as database:
        chat = database.create_conversation("x")
        delete_long_ago(database, chat.id)
    monkeypatch.setattr(Database, "delete", fail)
    runtime = await open_runtime(paths, Settings())
    assert deleted_ids(runtime._database) == {chat.id}
    await runtime.close()


def delete_long_ago(database: Database, conversation_id: str) -> None:
    with database.transaction() as db:
        db.execute("UPDATE conversations SET deleted_at = 1700000001, deleted_s = 1e8 WHERE id = ?", (conversation_id,))
