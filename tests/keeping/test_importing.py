"""Other applications' exports, and files that are none."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from kvchat.chat.database_file import StorageFailed
from kvchat.chat.messages import Role
from kvchat.keeping.importing import import_paths
from tests.keeping.library import everything, open_library


def chatgpt() -> dict[str, Any]:
    def node(key, parent, role, *parts, **metadata):
        content = {"content_type": "text", "parts": list(parts)}
        message = {"id": key, "author": {"role": role}, "create_time": 1700000000.5, "content": content}
        return {"id": key, "parent": parent, "children": [], "message": message | {"metadata": metadata}}

    thoughts = node("think", "q", "assistant")
    thoughts["message"]["content"] = {"content_type": "thoughts", "thoughts": [{"summary": "S", "content": "Hm."}]}
    picture = node("picture", "root", "user")
    picture["message"]["content"] = {
        "content_type": "multimodal_text",
        "parts": [{"content_type": "image_asset_pointer", "asset_pointer": "file-service://x"}, "Which tree?"],
    }
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
    return {
        "title": "Trees",
        "create_time": 1700000000.0,
        "update_time": 1700000009.0,
        "conversation_id": "c-1",
        "current_node": "a1",
        "mapping": {found["id"]: found for found in nodes},
    }


def claude() -> dict[str, Any]:
    def message(key, sender, text, **more):
        content = [{"type": "thinking", "thinking": "Hm."}] if sender == "assistant" else []
        return {
            "uuid": key,
            "sender": sender,
            "text": text,
            "content": [*content, {"type": "text", "text": text}],
            "created_at": "2025-05-01T10:00:00.123456Z",
        } | more

    files = [{"file_name": "notes.txt", "extracted_content": "Oak, elm."}]
    return {
        "uuid": "c-2",
        "name": "Bäume",
        "created_at": "2025-05-01T10:00:00Z",
        "updated_at": "2025-05-01T10:05:00+00:00",
        "chat_messages": [
            message("1", "human", "Which trees?", attachments=files),
            message("2", "assistant", "Oak and elm."),
        ],
    }


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
    return {
        "id": "c-3",
        "title": "Numbers",
        "created_at": 1700000000,
        "updated_at": 1700000100,
        "chat": {"history": {"messages": messages, "currentId": "a"}, "models": ["x"]},
    }


def lm_studio() -> dict[str, Any]:
    def text(words):
        return [{"type": "text", "text": words}]

    steps = [
        {"type": "contentBlock", "style": {"type": "thinking"}, "content": text("Hm.")},
        {"type": "contentBlock", "content": text("An oak.")},
        {"type": "debugInfoBlock", "debugInfo": "x"},
    ]
    return {
        "name": "Oaks",
        "createdAt": 1700000000000,
        "systemPrompt": "Be brief.",
        "messages": [
            {
                "versions": [{"type": "singleStep", "role": "user", "content": text("Which tree?")}],
                "currentlySelected": 0,
            },
            {
                "versions": [
                    {"type": "singleStep", "role": "assistant", "content": text("An elm.")},
                    {"type": "multiStep", "role": "assistant", "steps": steps},
                ],
                "currentlySelected": 1,
            },
            {"versions": [{"type": "singleStep", "role": "user", "content": text("Why?")}], "currentlySelected": 0},
        ],
    }


def write(folder: Path, data: Any, name: str = "conversations.json") -> Path:
    file = folder / name
    file.write_text(json.dumps(data), "utf-8")
    return file


def said(database, conversation) -> list[tuple[Role, str, str]]:
    return [(m.role, m.content, m.thinking) for m in database.branch(conversation.id)]


@pytest.mark.parametrize(
    ("entry", "title", "branch", "messages"),
    [
        (
            chatgpt(),
            "Trees",
            [
                (Role.USER, "What is a tree?", ""),
                (Role.ASSISTANT, "", "Hm."),
                (Role.ASSISTANT, "A plant.", ""),
            ],
            5,
        ),
        (
            claude(),
            "Bäume",
            [(Role.USER, "notes.txt:\n\nOak, elm.\n\nWhich trees?", ""), (Role.ASSISTANT, "Oak and elm.", "Hm.")],
            2,
        ),
        (open_webui(), "Numbers", [(Role.USER, "1 < 2?", ""), (Role.ASSISTANT, "Yes.", "Is 1 < 2?\nYes.")], 3),
        (
            lm_studio(),
            "Oaks",
            [
                (Role.SYSTEM, "Be brief.", ""),
                (Role.USER, "Which tree?", ""),
                (Role.ASSISTANT, "An oak.", "Hm."),
                (Role.USER, "Why?", ""),
            ],
            5,
        ),
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
    assert said(database, conversation) == branch
    assert len(everything(database)[1]) == messages
    again = import_paths(database, [file])
    assert (again.imported, again.known) == ((), 1)


def test_an_export_comes_zipped_or_as_a_folder(tmp_path):
    database = open_library(tmp_path)
    with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
        archive.writestr("user.json", json.dumps({"id": "me"}))
        archive.writestr("conversations.json", json.dumps([chatgpt(), claude()]))
    folder = tmp_path / "lm-studio"
    folder.mkdir()
    write(folder, lm_studio(), "1700000000000.conversation.json")
    report = import_paths(database, [tmp_path / "export.zip", folder])
    assert (len(report.imported), report.problems) == (3, ())


def test_what_is_bad_is_named_and_the_rest_is_taken(tmp_path):
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
    report = import_paths(database, paths)
    assert len(report.imported) == 1
    assert report.problems == (
        "mixed.json, chat 2: it is not a chat in any form that kvchat knows",
        "mixed.json, chat 3 “Numbers”: its messages answer each other in a circle",
        "mixed.json, chat 4 “Empty chat”: it has no messages",
        "mixed.json, chat 5: it is not a chat in any form that kvchat knows",
        "cut.json: line 3, column 1: it is not JSON (Expecting property name enclosed in double quotes)",
        "latin.json: it is not text in UTF-8",
        "deep.json: it is nested too deeply",
        "cut.zip: the zip is damaged (File is not a zip file)",
        "missing.json: No such file or directory",
        "newer.json: it was written by a newer kvchat",
        "empty.json: it holds no chats",
    )


def test_an_import_that_fails_takes_back_what_it_took_in(tmp_path):
    database = open_library(tmp_path)
    before = everything(database)

    def disk_fails(done: int, total: int) -> None:
        if done == 3:
            raise StorageFailed("no")

    folder = tmp_path / "exports"
    folder.mkdir()
    for data, name in ((chatgpt(), "a.json"), (claude(), "b.json"), (lm_studio(), "c.json")):
        write(folder, data, name)
    with pytest.raises(StorageFailed):
        import_paths(database, [folder], disk_fails)
    assert everything(database) == before
    assert len(import_paths(database, [folder]).imported) == 3
