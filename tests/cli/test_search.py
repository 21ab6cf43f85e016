"""`kvchat search` in this process."""

from contextlib import closing

import pytest

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


def test_matches_are_printed_and_highlighted_in_a_terminal(chat, monkeypatch, run):
    assert run("search", "stork").out == f"{chat.id}  Birds\n    The stork, no.\n"
    assert "北京 in here?" in run("search", "heron", "京").out
    assert "    birds.txt: a Heron␛[31m\n" in run("search", "heron").out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert "The \x1b[1mstork\x1b[0m, no." in run("search", "stork").out


def test_matches_as_json_and_the_exit_code_without_matches(chat, run_json, run):
    (match,) = run_json("search", "heron")["chats"]
    assert (match["conversation_id"], match["title"], match["in_document"]) == (chat.id, "Birds", True)
    assert set(match) == {"conversation_id", "title", "message_ids", "excerpt", "marks", "in_document"}
    start, end = match["marks"][0]
    assert match["excerpt"][start:end] == "Heron"
    assert run("search", "--json", "xyzzy", code=1) == ('{\n  "chats": []\n}\n', "No matches.\n")
