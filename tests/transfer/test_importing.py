"""Imports of other applications' exports, and of invalid files."""

import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from kvchat.chat.record.database_file import StorageFailed
from kvchat.chat.record.messages import Role
from kvchat.transfer import importing, untrusted_files
from kvchat.transfer.exporting import ExportForm, export_file
from kvchat.transfer.foreign import parse_chatgpt
from kvchat.transfer.importing import import_paths
from tests.systems import WINDOWS, needs_pipes
from tests.transfer.library import everything, made_conversation, open_library


def chatgpt() -> dict[str, Any]:
    def node(key, parent, role, *parts, **metadata):
        content = {"content_type": "text", "parts": list(parts)}
        message = {"id": key, "author": {"role": role}, "create_time": 1700000000.5, "content": content}
        return {"id": key, "parent": parent, "children": [], "message": message | {"metadata": metadata}}

    thoughts, picture = node("think", "q", "assistant"), node("picture", "root", "user")
    thoughts["message"]["content"] = {"content_type": "thoughts", "thoughts": [{"summary": "S", "content": "Hm."}]}
    pointer = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://x"}
    picture["message"]["content"] = {"content_type": "multimodal_text", "parts": [pointer, "Which tree?"]}
    nodes = [
        {"id": "root", "parent": None, "message": None, "children": []},
        node("hidden", "root", "system", "secret", is_visually_hidden_from_conversation=True),
        node("q", "hidden", "user", "What is a tree?"),
        thoughts,
        node("tool", "think", "tool", "looked it up"),
        node("a1", "tool", "assistant", "A plant."),
        node("a2", "q", "assistant", "A graph."),
        picture,
    ]
    entry = {"title": "Trees", "create_time": 1700000000.0, "update_time": 1700000009.0, "conversation_id": "c-1"}
    return entry | {"current_node": "a1", "mapping": {found["id"]: found for found in nodes}}


def claude() -> dict[str, Any]:
    def message(key, sender, text, **more):
        content = [{"type": "thinking", "thinking": "Hm."}] if sender == "assistant" else []
        content.append({"type": "text", "text": text})
        made = {"uuid": key, "sender": sender, "text": text, "content": content}
        return made | {"created_at": "2025-05-01T10:00:00.123456Z"} | more

    files = [{"file_name": "notes.txt", "extracted_content": "Oak, elm."}]
    messages = [message("1", "human", "Which trees?", attachments=files), message("2", "assistant", "Oak and elm.")]
    times = {"created_at": "2025-05-01T10:00:00Z", "updated_at": "2025-05-01T10:05:00+00:00"}
    return {"uuid": "c-2", "name": "Bäume", "chat_messages": messages} | times


def open_webui() -> dict[str, Any]:
    reasoning = (
        '<details type="reasoning" done="true" duration="3">\n<summary>Thought for 3 seconds</summary>\n'
        "&gt; Is 1 &lt; 2?\n&gt; Yes.\n</details>\n"
    )
    messages = {
        "u": {"id": "u", "parentId": None, "childrenIds": ["a", "b"], "role": "user", "content": "1 < 2?"},
        "a": {"id": "a", "parentId": "u", "childrenIds": [], "role": "assistant", "content": reasoning + "Yes."},
        "b": {"id": "b", "parentId": "u", "childrenIds": [], "role": "assistant", "content": "Of course."},
    }
    chat = {"history": {"messages": messages, "currentId": "a"}, "models": ["x"]}
    return {"id": "c-3", "title": "Numbers", "created_at": 1700000000, "updated_at": 1700000100, "chat": chat}


def lm_studio() -> dict[str, Any]:
    def version(role, text, **more):
        return {"type": "singleStep", "role": role, "content": [{"type": "text", "text": text}]} | more

    thinks = version("", "Hm.", type="contentBlock", style={"type": "thinking"})
    steps = [thinks, version("", "An oak.", type="contentBlock"), {"type": "debugInfoBlock", "debugInfo": "x"}]
    answers = [version("assistant", "An elm."), {"type": "multiStep", "role": "assistant", "steps": steps}]
    messages = [
        {"versions": [version("user", "Which tree?")], "currentlySelected": 0},
        {"versions": answers, "currentlySelected": 1},
        {"versions": [version("user", "Why?")], "currentlySelected": 0},
    ]
    return {"name": "Oaks", "createdAt": 1700000000000, "systemPrompt": "Be brief.", "messages": messages}


def write(folder: Path, data: Any, name: str = "conversations.json") -> Path:
    file = folder / name
    file.write_text(json.dumps(data), "utf-8")
    return file


def branch_texts(database, conversation) -> list[tuple[Role, str, str]]:
    return [(m.role, m.content, m.thinking) for m in database.branch(conversation.id)]


QUESTION, ANSWER = (Role.USER, "What is a tree?", ""), (Role.ASSISTANT, "A plant.", "")
LOOKED_UP = (Role.TOOL, "looked it up", "")
FILED = (Role.USER, "notes.txt:\n\nOak, elm.\n\nWhich trees?", "")
OAK = [(Role.SYSTEM, "Be brief.", ""), (Role.USER, "Which tree?", ""), (Role.ASSISTANT, "An oak.", "Hm.")]


@pytest.mark.parametrize(
    ("entry", "title", "branch", "messages"),
    [
        (chatgpt(), "Trees", [QUESTION, (Role.ASSISTANT, "", "Hm."), LOOKED_UP, ANSWER], 6),
        (claude(), "Bäume", [FILED, (Role.ASSISTANT, "Oak and elm.", "Hm.")], 2),
        (open_webui(), "Numbers", [(Role.USER, "1 < 2?", ""), (Role.ASSISTANT, "Yes.", "Is 1 < 2?\nYes.")], 3),
        (lm_studio(), "Oaks", [*OAK, (Role.USER, "Why?", "")], 5),
    ],
    ids=["ChatGPT", "Claude", "Open WebUI", "LM Studio"],
)
def test_exports_of_other_applications(tmp_path, entry, title, branch, messages):
    database = open_library(tmp_path)
    file = write(tmp_path, [entry])
    report = import_paths(database, [file])
    assert report.problems == ()
    (conversation,) = database.conversations()
    assert (conversation.title, conversation.title_by_user) == (title, True)
    assert conversation.created_at.year in (2023, 2025)
    assert branch_texts(database, conversation) == branch
    assert len(everything(database)[1]) == messages
    again = import_paths(database, [file])
    assert (again.imported, len(again.existing)) == ((), 1)


def test_bad_entries_are_reported_and_the_rest_is_imported(tmp_path):
    database = open_library(tmp_path)
    circle = open_webui()
    circle["chat"]["history"]["messages"]["u"]["parentId"] = "a"
    (tmp_path / "cut.json").write_text('[\n{"title": "x",\n', "utf-8")
    (tmp_path / "latin.json").write_bytes(b'["\xe4"]')
    (tmp_path / "deep.json").write_text("[" * 100_000, "utf-8")
    (tmp_path / "cut.zip").write_bytes(b"PK\x03\x04 and no more")
    paths = [
        write(tmp_path, [chatgpt(), {"a": 1}, circle, {"title": "Empty\nchat", "mapping": {}}, 7], "mixed.json"),
        *(tmp_path / name for name in ("cut.json", "latin.json", "deep.json", "cut.zip", "missing.json")),
        write(tmp_path, {"format": "kvchat-conversations", "version": 99, "conversations": []}, "newer.json"),
        write(tmp_path, [], "empty.json"),
    ]
    row = {"id": "x", "title": "x" * 2000, "created_at": 1, "updated_at": 1, "messages": []}
    entries = [row, row | {"messages": [{}] * 100_001}]
    paths.append(write(tmp_path, {"format": "kvchat-conversations", "version": 1, "conversations": entries}, "y.json"))
    report = import_paths(database, paths)
    assert sorted(chat.title for chat in database.conversations()) == ["Trees", "x" * 1000]
    assert report.problems == (
        "mixed.json, chat 2: it is not a chat in a supported format",
        "mixed.json, chat 3 “Numbers”: its messages form a loop",
        "mixed.json, chat 4 “Empty chat”: it has no messages",
        "mixed.json, chat 5: it is not a chat in a supported format",
        "cut.json: line 3, column 1: invalid JSON (Expecting property name enclosed in double quotes)",
        "latin.json: it is not UTF-8 text",
        "deep.json: it is nested too deeply",
        "cut.zip: the zip file is damaged (File is not a zip file)",
        f"missing.json: {'File not found' if WINDOWS else 'No such file or directory'}",
        "newer.json: it was created by a newer version of kvchat",
        "empty.json: it contains no chats",
        f"y.json, chat 2 “{'x' * 60}”: it has more than 100,000 messages",
    )


@needs_pipes
def test_failed_import_is_undone(tmp_path):
    """From a zip, and a folder with a pipe, which is not waited for."""
    database = open_library(tmp_path)
    before = everything(database)

    def disk_fails(done: int, total: int) -> None:
        if done == 3:
            raise StorageFailed("no")

    folder, archived = tmp_path / "exports", tmp_path / "export.zip"
    folder.mkdir()
    with zipfile.ZipFile(archived, "w") as archive:
        archive.writestr("user.json", json.dumps({"id": "me"}))
        archive.writestr("conversations.json", json.dumps([chatgpt(), claude()]))
    write(folder, lm_studio(), "1700000000000.conversation.json")
    os.mkfifo(folder / "a.json")
    with pytest.raises(StorageFailed):
        import_paths(database, [archived, folder], disk_fails)
    assert everything(database) == before
    report = import_paths(database, [archived, folder])
    assert (len(report.imported), report.problems) == (3, ("a.json: It is a pipe, not a file",))


def test_list_is_read_in_chunks_of_any_size(tmp_path, monkeypatch):
    monkeypatch.setattr(untrusted_files, "_READ_CHARACTERS", 7)
    database = open_library(tmp_path)
    entries = [chatgpt(), claude(), open_webui() | {"title": 'Ä 🌳 \\ " \n'}, 7, 1.5e-3]
    (tmp_path / "x.json").write_text(json.dumps(entries, indent=1, ensure_ascii=False), "utf-8-sig")
    report = import_paths(database, [tmp_path / "x.json"])
    assert len(report.imported) == 3
    assert [problem.split(":")[0] for problem in report.problems] == ["x.json, chat 4", "x.json, chat 5"]
    monkeypatch.setattr(importing, "MAX_CHATS", 3)
    assert (
        import_paths(database, [tmp_path / "x.json"])
        .problems[0]
        .endswith("kvchat imported only 3 chats, the maximum for one import")
    )


@pytest.mark.parametrize("step", [3, 1_000_000])
@pytest.mark.parametrize(
    ("after", "problem"),
    [
        ('\n {"a": tru}]', "line 2, column 8: invalid JSON (Expecting value); the 2 chats before it were imported"),
        (' {"a": 1}\n]\n]', "line 3, column 1: invalid JSON (Extra data); the 3 chats before it were imported"),
        (
            '\n"abc',
            "line 2, column 1: invalid JSON (Unterminated string starting at); the 2 chats before it were imported",
        ),
        ("\n]", "line 2, column 1: invalid JSON (Expecting value); the 2 chats before it were imported"),
    ],
)
def test_chats_before_the_damage_are_imported(tmp_path, monkeypatch, step, after, problem):
    monkeypatch.setattr(untrusted_files, "_READ_CHARACTERS", step)
    (tmp_path / "x.json").write_text(f"[{json.dumps(chatgpt())}, {json.dumps(claude())},{after}", "utf-8")
    report = import_paths(open_library(tmp_path), [tmp_path / "x.json"])
    assert len(report.imported) == 2
    assert report.problems[-1] == f"x.json: {problem}"


@pytest.mark.parametrize(
    ("limit", "value", "content", "problem"),
    [
        ("MAX_CHAT", 10_000, b'[{"title": "' + b"x" * 30_000 + b'"}]', "one chat in it is larger than 10 KB"),
        ("MAX_CHAT", 10_000, b'{"title": "' + b"x" * 30_000 + b'"}', "one chat in it is larger than 10 KB"),
        ("MAX_FILE", 10_000, b"[" + b" " * 30_000 + b"]", "it is larger than 10 KB"),
        ("MAX_ELEMENTS", 1000, b"[[" + b"{}," * 3000 + b"{}]]", "one chat in it has more than 1,000 JSON elements"),
        ("MAX_ELEMENTS", 1000, b"[[" + b"1," * 3000 + b"1]]", "one chat in it has more than 1,000 numbers"),
        ("MAX_ELEMENTS", 1000, b"[[" + b"1.5," * 3000 + b"1]]", "one chat in it has more than 1,000 numbers"),
        ("MAX_ELEMENTS", 1000, b"[" + b"9" * 9000 + b"]", "Exceeds the limit"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_limits(tmp_path, monkeypatch, limit, value, content, problem, zipped):
    monkeypatch.setattr(untrusted_files, "_READ_CHARACTERS", 5000)
    monkeypatch.setattr(untrusted_files, limit, value)
    file = tmp_path / "x.json"
    file.write_bytes(content)
    if zipped:
        file = tmp_path / "x.zip"
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("conversations.json", content)
    report = import_paths(open_library(tmp_path), [file])
    assert report.imported == ()
    assert len(report.problems) == 1
    assert problem in report.problems[0]


def test_hostile_zips_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(importing, "MAX_FILE", 1_000_000)
    monkeypatch.setattr(untrusted_files, "MAX_DIRECTORY", 10_000)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"{number}.json", b" " * 400_000)
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as archive:
        for number in range(300):
            archive.writestr(f"{number}.json", b"[]")
    with zipfile.ZipFile(tmp_path / "lzma.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("conversations.json", b"[]")
    with zipfile.ZipFile(tmp_path / "nested.zip", "w") as archive:
        archive.write(tmp_path / "bomb.zip", "inner.zip")
    with zipfile.ZipFile(tmp_path / "named.zip", "w") as archive:
        archive.writestr("\x1b[2J\n\u202e.json", b"[]")
    paths = [tmp_path / f"{name}.zip" for name in ("bomb", "many", "lzma", "nested", "named")]
    assert import_paths(open_library(tmp_path), paths).problems == (
        "bomb.zip: it is larger than 1 MB when unpacked",
        "many.zip: the zip file is damaged (it contains too many files)",
        "lzma.zip: the zip file is damaged (it uses an unsupported compression method)",
        "nested.zip: the zip file contains no JSON",
        "named.zip, ␛[2J .json: it contains no chats",
    )


@pytest.mark.slow
def test_skipped_messages_take_linear_time():
    """100,000 in a row, and as many that answer the last one, took hours."""
    tall = {f"n{i}": {"parent": f"n{i - 1}" if i else None, "message": None} for i in range(100_000)}
    message = {"author": {"role": "user"}, "content": {"content_type": "text", "parts": ["x"]}}
    wide = {f"m{i}": {"parent": "n99999", "message": message} for i in range(100_000)}
    row = parse_chatgpt(chatgpt() | {"mapping": tall | wide, "current_node": "m7"}, "x")
    assert {message["parent_id"] for message in row["messages"]} == {None}


def test_unclosed_reasoning_takes_linear_time(tmp_path):
    entry = open_webui()
    opening = '<details type="reasoning"> <summary>'
    entry["chat"]["history"]["messages"]["a"]["content"] = opening * 100_000
    assert len(import_paths(open_library(tmp_path), [write(tmp_path, entry)]).imported) == 1


@pytest.mark.parametrize("id", ["\x1b]0;gotcha\x07", "program/zed", "half \ud800"])
def test_foreign_ids_are_replaced(tmp_path, id):
    """Terminals display the id of a chat, and the store names the entries of programs `program/…`."""
    theirs, file = open_library(tmp_path / "theirs"), tmp_path / "chats.json"
    made = made_conversation(theirs)
    export_file(theirs, [made.id], ExportForm.JSON, file)
    before = [message.content for message in theirs.branch(made.id)]
    theirs.close()
    known = json.loads(file.read_text("utf-8"))
    message = known["conversations"][0]["messages"][1]["id"]
    written = json.dumps(known).replace(made.id, json.dumps(id)[1:-1]).replace(message, json.dumps(f"{id} 2")[1:-1])
    file.write_text(written, "utf-8")
    here = open_library(tmp_path / "here")
    report = import_paths(here, [file])
    assert report.problems == ()
    assert [re.fullmatch("[0-9a-f]{32}", imported) is not None for imported in report.imported] == [True]
    assert [message.content for message in here.branch(report.imported[0])] == before
    assert all(re.fullmatch("[0-9a-f]{32}", row["id"]) for row in here.rows("SELECT id FROM messages"))
    assert import_paths(here, [file]).existing == report.imported
    here.close()
