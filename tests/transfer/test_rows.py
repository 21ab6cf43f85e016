"""Export as JSON and import again: equal to the last branch and receipt."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvchat.chat.options import PermissionMode, answer_settings
from kvchat.chat.record.messages import MessageState, Role
from kvchat.transfer.exporting import ExportForm, export_file
from kvchat.transfer.importing import import_paths
from kvchat.transfer.rows import BadConversation, conversation_rows, store_rows, write_json
from tests.transfer.library import RECEIPT, everything, made_conversation, open_library


def exported(database, folder: Path) -> Path:
    target = folder / "all.json"
    export_file(database, [c.id for c in database.conversations()], ExportForm.JSON, target)
    return target


def test_export_and_import_are_equal(tmp_path):
    here, there = open_library(tmp_path / "here"), open_library(tmp_path / "there")
    made_conversation(here)
    made_conversation(here, "Another", by_user=False)
    report = import_paths(there, [exported(here, tmp_path)])
    assert (len(report.imported), len(report.existing), report.problems) == (2, 0, ())
    assert everything(there) == everything(here)
    with pytest.raises(BadConversation):  # its messages belong to another chat
        store_rows(there, next(conversation_rows(here)) | {"id": "another"})
    assert everything(there) == everything(here)


def test_imported_chats_are_sorted_by_time(tmp_path):
    here, there = open_library(tmp_path / "here"), open_library(tmp_path / "there")
    for library, titles in ((here, "ac"), (there, "bd")):
        for title in titles:
            library.create_conversation(title)
    for title, when in (("a", 10), ("b", 20), ("c", 30), ("d", 40)):
        for library in (here, there):
            library.write("UPDATE conversations SET updated_at = ? WHERE title = ?", (when, title))
    import_paths(there, [exported(here, tmp_path)])
    assert [chat.title for chat in there.conversations()] == ["d", "c", "b", "a"]
    there.create_conversation("e")
    assert there.conversations()[0].title == "e"


@pytest.mark.slow
@given(
    texts=st.lists(
        st.tuples(st.text(), st.sampled_from([Role.USER, Role.ASSISTANT]), st.integers(0, 20)), min_size=1, max_size=12
    ),
    title=st.text(min_size=1),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_tree_survives_export_and_import(tmp_path_factory, texts, title):
    folder = tmp_path_factory.mktemp("library")
    here, there = open_library(folder / "here"), open_library(folder / "there")
    made = here.create_conversation(title.encode("utf-8", "replace").decode())
    ids: list[str | None] = [None]
    for text, role, parent in texts:
        content = text.encode("utf-8", "replace").decode()
        ids.append(here.append(made.id, ids[parent % len(ids)], role, content, MessageState.COMPLETE).id)
    assert import_paths(there, [exported(here, folder)]).problems == ()
    assert everything(there) == everything(here)
    here.close()
    there.close()


def exported_row(tmp_path) -> dict:
    here = open_library(tmp_path / "here")
    made_conversation(here)
    file = io.StringIO()
    write_json(conversation_rows(here), file)
    return json.loads(file.getvalue())["conversations"][0]


@pytest.mark.parametrize(
    ("place", "bad"),
    [
        (1, {"parent_id": "nobody"}),
        (0, {"role": "wizard"}),
        (0, {"state": "streaming"}),
        (1, {"receipt": {"source": "disk"}}),
        (0, {"created_at": 1e300}),
        (0, {"content": None}),
        (0, {"colour": ["red"]}),
        (0, {"attachments": [{"name": "a.txt", "size": 10**30, "hash": "", "text": "a"}]}),
        (None, {"leaf_id": "nobody"}),
        (None, {"messages": {}}),
        ("circle", {}),
        ("the same twice", {}),
    ],
)
def test_invalid_conversation_is_refused_whole(tmp_path, place, bad):
    row = exported_row(tmp_path)
    first, second = row["messages"][:2]
    (row["messages"][place] if isinstance(place, int) else row).update(bad)
    if place == "circle":
        first["parent_id"], second["parent_id"] = second["id"], first["id"]
    elif place == "the same twice":
        second["id"] = first["id"]
    there = open_library(tmp_path / "there")
    with pytest.raises(BadConversation):
        store_rows(there, row)
    assert everything(there) == [[], []]


def test_unknown_and_local_values_are_dropped(tmp_path):
    here, there = open_library(tmp_path / "here"), open_library(tmp_path / "there")
    made_conversation(here)
    (row,) = conversation_rows(here)
    row |= {"mood": "good", "model": "//elsewhere/share/model.gguf", "deleted_at": 1, "title_due": 1}
    row["messages"][0] |= {"mood": 3, "content": "half \ud83d here"}  # no file can hold that half
    reply = next(message for message in row["messages"] if message["receipt"])
    reply["receipt"]["energy_joules"] = 3.5
    assert store_rows(there, row)
    assert [chat.model for chat in there.conversations()] == [None]
    assert there.branch(row["id"])[0].content == "half \ufffd here"
    assert next(message for message in there.branch(row["id"]) if message.receipt).receipt == RECEIPT


def test_an_imported_chat_grants_no_tool_calls(tmp_path):
    row = exported_row(tmp_path) | {"options": '{"permission": "all", "tools": ["files/*"]}'}
    there = open_library(tmp_path / "there")
    assert store_rows(there, row)
    options = answer_settings(there, row["id"]).options
    assert options.permission is PermissionMode.READ_ONLY
    assert options.tools == ("files/*",)
