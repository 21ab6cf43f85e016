"""`kvchat chats` as a user types it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.__main__ import main
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Conversation, MessageState, Role
from kvchat.system.paths import resolve_paths
from kvchat.text.safe_text import safe_prose


@pytest.fixture
def chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Conversation]]:
    monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / "home"))
    with closing(Database(resolve_paths().ensure().database)) as database:
        for title in ("Old birds", "New \x1b[31mbirds"):
            made = database.create_conversation(title, None)
            database.append_question(made.id, "Which bird?")
            database.append(made.id, None, Role.ASSISTANT, "A **stork**.", MessageState.COMPLETE)
        yield sorted(database.conversations(), key=lambda one: one.title, reverse=True)


def left() -> list[str]:
    with closing(Database(resolve_paths().database)) as database:
        return [one.title for one in database.conversations()]


def test_they_are_listed_shown_renamed_and_deleted(chats, capfd):
    first, old = chats
    assert main(["chats"]) == 0
    shown = capfd.readouterr().out
    assert f"{old.id[:8]}  " in shown
    assert "New ␛[31mbirds" in shown
    assert main(["chats", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)["chats"]
    assert {chat["id"] for chat in told} == {first.id, old.id}
    assert told[0]["updated_at"].startswith("20")
    assert main(["chats", "show", first.id[:12]]) == 0
    assert "A **stork**." in capfd.readouterr().out
    assert main(["chats", "show", first.id, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)
    assert main(["chats", "rename", first.id, " Storks "]) == 0
    assert "Storks" in capfd.readouterr().out
    assert "Storks" in left()
    assert main(["chats", "rename", first.id, " "]) == 1
    assert "needs a title" in capfd.readouterr().err
    assert main(["chats", "delete", first.id, old.id]) == 0
    assert "2 chats deleted; kept in Recently deleted for 7 days" in capfd.readouterr().out
    assert left() == []
    with closing(sqlite3.connect(resolve_paths().database)) as database:
        assert database.execute("SELECT count(*) FROM messages").fetchone() == (4,), "the words are still there"


@pytest.mark.parametrize("action", [["show", "zzz"], ["rename", "zzz", "x"], ["delete", "zzz"], ["show", ""]])
def test_one_that_is_not_there(chats, capsys, action):
    assert main(["chats", *action]) == 1
    assert "No chat has the id" in capsys.readouterr().err
    assert len(left()) == 2


def test_the_beginning_of_several_ids_is_refused_with_the_chats_it_could_mean(chats, capsys, tmp_path):
    with closing(Database(resolve_paths().database)) as database:
        for number in range(16):  # then two ids at least begin with the same of 16 digits
            database.create_conversation(f"Chat {number}", None)
        known = database.conversations()
    by_digit = {one.id[0]: [other for other in known if other.id[0] == one.id[0]] for one in known}
    digit, alike = next((digit, some) for digit, some in by_digit.items() if len(some) > 1)
    for command in (["chats", "show", digit], ["export", "--chat", digit, str(tmp_path / "x")]):
        assert main(command) == 1
        refused = capsys.readouterr().err
        assert f"Several chat ids start with {digit}" in refused
        assert all(f"{one.id[:8]}  {safe_prose(one.title)}" in refused for one in alike)


def test_none_yet(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / "home"))
    assert main(["chats"]) == 0
    assert "Run `kvchat ask` to start one" in capsys.readouterr().out
