"""`kvchat search` in this process."""

from contextlib import closing

import pytest

from kvchat.__main__ import main
from kvchat.chat.record.messages import Attachment, Conversation, MessageState, Role
from kvchat.system.paths import Paths
from tests.transfer.library import open_library


@pytest.fixture(autouse=True)
def chat(paths: Paths) -> Conversation:
    with closing(open_library(paths.ensure().data)) as database:
        chat = database.create_conversation("Birds")
        database.append_question(chat.id, "北京 in here?", [Attachment("birds.txt", 9, "h", "a Heron\x1b[31m")])
        database.append(chat.id, None, Role.ASSISTANT, "The **stork**, no.", MessageState.COMPLETE)
    return chat


def test_matches_are_printed_and_highlighted_in_a_terminal(chat, capsys, monkeypatch):
    assert main(["search", "stork"]) == 0
    assert capsys.readouterr().out == f"{chat.id}  Birds\n    The stork, no.\n"
    assert main(["search", "heron", "京"]) == 0
    assert "北京 in here?" in capsys.readouterr().out
    assert main(["search", "heron"]) == 0
    assert "    birds.txt: a Heron␛[31m\n" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    main(["search", "stork"])
    assert "The \x1b[1mstork\x1b[0m, no." in capsys.readouterr().out


def test_matches_as_json_and_the_exit_code_without_matches(chat, run_json, capsys):
    (match,) = run_json("search", "heron")["chats"]
    assert (match["conversation_id"], match["title"], match["in_document"]) == (chat.id, "Birds", True)
    assert set(match) == {"conversation_id", "title", "message_ids", "excerpt", "marks", "in_document"}
    start, end = match["marks"][0]
    assert match["excerpt"][start:end] == "Heron"
    assert main(["search", "--json", "xyzzy"]) == 1
    assert capsys.readouterr() == ('{\n  "chats": []\n}\n', "No matches.\n")
