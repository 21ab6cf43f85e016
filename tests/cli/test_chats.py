"""`kvchat chats` in this process."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Conversation, MessageState, Role
from kvchat.system.paths import Paths
from kvchat.text.safe_text import safe_prose


@pytest.fixture
def chats(paths: Paths) -> Iterator[list[Conversation]]:
    with closing(Database(paths.ensure().database)) as database:
        for title in ("Old birds", "New \x1b[31mbirds"):
            chat = database.create_conversation(title)
            database.append_question(chat.id, "Which bird?")
            database.append(chat.id, None, Role.ASSISTANT, "A **stork**.", MessageState.COMPLETE)
        yield sorted(database.conversations(), key=lambda chat: chat.title, reverse=True)


def titles(paths: Paths) -> list[str]:
    with closing(Database(paths.database)) as database:
        return [chat.title for chat in database.conversations()]


def test_chats_are_listed_shown_renamed_and_deleted(chats, paths, run, run_json):
    first, old = chats
    shown = run("chats").out
    assert f"{old.id[:8]}  " in shown
    assert "New ␛[31mbirds" in shown
    listed = run_json("chats")["chats"]
    assert {chat["id"] for chat in listed} == {first.id, old.id}
    keys = "id title title_by_user created_at updated_at leaf_id model folder on_top archived"
    assert set(listed[0]) == set(keys.split())
    assert listed[0]["updated_at"].startswith("20")
    assert "A **stork**." in run("chats", "show", first.id[:12]).out
    assert run_json("chats", "show", first.id)
    assert "Storks" in run("chats", "rename", first.id, " Storks ").out
    assert "Storks" in titles(paths)
    assert "needs a title" in run("chats", "rename", first.id, " ", code=1).err
    assert "2 chats deleted; kept in Recently deleted for 7 days" in run("chats", "delete", first.id, old.id).out
    assert titles(paths) == []
    assert "Run `kvchat ask` to start one" in run("chats").out
    with closing(sqlite3.connect(paths.database)) as database:
        assert database.execute("SELECT count(*) FROM messages").fetchone() == (4,), "they can be restored"


def test_unknown_and_ambiguous_ids_are_refused(chats, paths, tmp_path, run):
    for action in (["show", "zzz"], ["rename", "zzz", "x"], ["delete", "zzz"], ["show", ""]):
        assert "No chat has the id" in run("chats", *action, code=1).err
    assert len(titles(paths)) == 2
    with closing(Database(paths.database)) as database:
        for number in range(16):  # then at least two of 18 ids start with the same of 16 digits
            database.create_conversation(f"Chat {number}")
        known = database.conversations()
    digit = Counter(chat.id[0] for chat in known).most_common(1)[0][0]
    for command in (["chats", "show", digit], ["export", "--chat", digit, str(tmp_path / "x")]):
        refused = run(*command, code=1).err
        assert f"Several chat ids start with {digit}" in refused
        matches = [chat for chat in known if chat.id.startswith(digit)]
        assert all(f"{chat.id[:8]}  {safe_prose(chat.title)}" in refused for chat in matches[:10])
