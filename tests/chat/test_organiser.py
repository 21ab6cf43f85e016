"""Folders, the archive, and deletion that can be undone."""

import dataclasses
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.chat.record.database import Database
from kvchat.chat.record.database_file import StorageFailed
from kvchat.chat.record.messages import Conversation
from kvchat.chat.search import find
from kvchat.runtime import open_runtime
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths
from tests.chat.stage import Stage


async def conversations(stage: Stage) -> dict[str, Conversation]:
    return {conversation.id: conversation for conversation in await stage.service.conversations()}


def deleted_ids(database: Database) -> set[str]:
    return {row["id"] for row in database.rows("SELECT id FROM conversations WHERE deleted_at IS NOT NULL")}


async def test_chats_are_deleted_at_exit_if_none_are_kept(stage: Stage) -> None:
    await stage.runtime.apply_settings(dataclasses.replace(stage.settings, keep_deleted_days=0))
    ids = [await stage.chat() for _ in range(2)]
    await stage.ask(ids[0], "Hello marmot")
    await stage.service.recently_deleted.delete(ids)
    await stage.service.recently_deleted.restore_chats(ids[1:])
    stage.service.close()
    await stage.idle()
    assert list(await conversations(stage)) == ids[1:]
    assert deleted_ids(stage.database) == set()
    assert stage.save_points() == []
    assert find(stage.database, "marmot") == ()


async def test_failed_deletion_does_not_prevent_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(database: Database, conversation_id: str) -> None:
        raise StorageFailed("no")

    paths = resolve_paths({"KVCHAT_HOME": str(tmp_path)})
    with closing(Database(paths.database)) as database:
        chat = database.create_conversation("x").id
        database.write("UPDATE conversations SET deleted_at = 1700000001, deleted_s = 1e8", ())
    monkeypatch.setattr(Database, "delete", fail)
    runtime = await open_runtime(paths, Settings())
    assert deleted_ids(runtime._database) == {chat}
    await runtime.close()
