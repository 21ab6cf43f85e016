"""`kvchat search` as a user types it."""

from __future__ import annotations

import json

import pytest

from kvchat.__main__ import main
from kvchat.chat.record.messages import Attachment, Conversation, MessageState, Role
from kvchat.system.paths import resolve_paths
from tests.transfer.library import open_library


@pytest.fixture
def made(tmp_path, monkeypatch) -> Conversation:
    monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / "home"))
    paths = resolve_paths()
    paths.ensure()
    database = open_library(paths.data)
    conversation = database.create_conversation("Birds", None)
    database.append_question(conversation.id, "北京 in here?", [Attachment("birds.txt", 9, "h", "a Heron\x1b[31m")])
    database.append(conversation.id, None, Role.ASSISTANT, "The **stork**, no.", MessageState.COMPLETE)
    database.close()
    return conversation


def test_what_is_found_is_printed_and_marked_in_a_terminal(made, capsys, monkeypatch):
    assert main(["search", "stork"]) == 0
    assert capsys.readouterr().out == f"{made.id}  Birds\n    The stork, no.\n"
    assert main(["search", "heron", "京"]) == 0
    assert "北京 in here?" in capsys.readouterr().out
    assert main(["search", "heron"]) == 0
    assert "    birds.txt: a Heron␛[31m\n" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    main(["search", "stork"])
    assert "The \x1b[1mstork\x1b[0m, no." in capsys.readouterr().out


def test_nothing_found_is_another_exit_code(made, capsys):
    assert main(["search", "--json", "xyzzy"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"chats": []}
    assert printed.err == "No matches.\n"


def test_as_json(made, capsys):
    assert main(["search", "--json", "heron"]) == 0
    (chat,) = json.loads(capsys.readouterr().out)["chats"]
    assert (chat["conversation_id"], chat["title"], chat["in_document"]) == (made.id, "Birds", True)
    start, end = chat["marks"][0]
    assert chat["excerpt"][start:end] == "Heron"
