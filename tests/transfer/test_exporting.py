"""Markdown and HTML exports."""

import zipfile
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from kvchat.chat.record.messages import MessageState, Role, new_message
from kvchat.errors import KvchatError
from kvchat.tools.tool import ToolCall
from kvchat.transfer.exporting import ExportForm, export_file
from tests.transfer.library import made_conversation, open_library


def test_markdown_of_one_or_several_conversations(tmp_path):
    database = open_library(tmp_path)
    conversation = made_conversation(database)
    leaf = database.rows("SELECT id FROM messages WHERE content LIKE 'A **plant**%'", ())[0]["id"]
    database.set_leaf(conversation.id, leaf)
    target = tmp_path / "trees.md"
    assert export_file(database, [conversation.id], ExportForm.from_suffix(target), target) == 1
    text = target.read_text("utf-8")
    assert text.startswith("# Trees 🌳 和 أشجار\n")
    assert "## You\n\nWhat is a tree?\n\n## Reply\n\n> *Thinking*\n>\n> Hm.\n> Trees.\n\nA **plant**." in text
    assert text.endswith("```python\nprint(1)\n```\n")  # the block that was cut off is closed
    ids = [made_conversation(database, title).id for title in ('a<b>:"/\\|?*\n c. ', 'a<b>:"/\\|?*\n c. ', "...")]
    target = tmp_path / "all.zip"
    assert export_file(database, ids, ExportForm.from_suffix(target), target) == 3
    with zipfile.ZipFile(target) as archive:
        assert sorted({name[:5] for name in archive.namelist()}) == ["Chat ", "a b c"], "names suit any system"
        assert len(set(archive.namelist())) == 3
    with pytest.raises(KvchatError, match="could not be written") as failure:
        export_file(database, ids, ExportForm.JSON, tmp_path / "no folder" / "all.json")
    assert "no folder" in failure.value.detail


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))


def test_page_has_no_scripts_or_remote_content(tmp_path):
    database = open_library(tmp_path)
    conversation = made_conversation(database, "<script>alert(1)</script>")
    bad = "<script>x</script> <img src=x onerror=y> ![p](http://a.b/c.png) [l](javascript:alert(1)) [ok](https://a.b)"
    for role in (Role.USER, Role.ASSISTANT):
        leaf = database.branch(conversation.id)[-1]
        database.append(conversation.id, leaf.id, role, bad, MessageState.COMPLETE)
    target = tmp_path / "all.html"
    export_file(database, [conversation.id], ExportForm.from_suffix(target), target)
    tags = Tags(target.read_text("utf-8")).seen
    assert not {"script", "img", "link", "iframe", "object"} & {tag for tag, _ in tags}
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on") or name == "src"]
    assert {a["href"] for tag, a in tags if tag == "a"} == {"https://a.b"}


def test_hidden_characters_are_shown_or_dropped_except_in_json(tmp_path):
    database = open_library(tmp_path)
    hidden = "\U000e0049\u00ad\u2063\u3164"
    conversation = database.create_conversation(f"T{hidden}itle")
    text = f"Pro{hidden}se `co{hidden}de`\n\n```\nblo{hidden}ck\n```\n\n    inden{hidden}ted\n\nend{hidden}ing"
    asked = database.append(conversation.id, None, Role.USER, f"Que{hidden}stion ❤️", MessageState.COMPLETE)
    database.append(conversation.id, asked.id, Role.ASSISTANT, text, MessageState.COMPLETE)
    database.rename(conversation.id, f"T{hidden}itle", by_user=True)
    for name in ("x.md", "x.html", "x.json"):
        target = tmp_path / name
        export_file(database, [conversation.id], ExportForm.from_suffix(target), target)
        written = target.read_text("utf-8")
        if name == "x.json":
            assert written.count(hidden) == 7
            continue
        assert not set(hidden) & set(written)
        for seen in ("Question ❤️", "Title", "ending"):
            assert seen in written
        for code in ("co", "blo", "inden"):
            assert f"{code}⟦TAG I⟧⟦SHY⟧⟦U+2063⟧⟦HANGUL FILLER⟧" in written


def test_tool_calls_are_exported_as_text(tmp_path):
    database, call = open_library(tmp_path), ToolCall("1", "read_file", '{"path": "a"}')
    conversation = made_conversation(database)
    reply = database.append_message(replace(database.branch(conversation.id)[-1], calls=(call,)))
    hostile = "```\n</details><script>x</script>"
    result = new_message(conversation.id, Role.TOOL, hostile, parent_id=reply.id)
    database.append_message(replace(result, calls=(call,)))
    for name in ("a.md", "a.html"):
        export_file(database, [conversation.id], ExportForm.from_suffix(tmp_path / name), tmp_path / name)
    markdown, page = [(tmp_path / name).read_text("utf-8") for name in ("a.md", "a.html")]
    assert '*Tool call: read_file*\n\n```\n{"path": "a"}\n```\n\n## Tool result\n\n````\n```\n</details>' in markdown
    assert not {"script"} & {tag for tag, _ in Tags(page).seen}
    assert "read_file" in page
