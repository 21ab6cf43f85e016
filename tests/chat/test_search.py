"""Full-text search in any script, and what keeps its index true."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvchat.chat.database import Database
from kvchat.chat.folding import spans, terms_of
from kvchat.chat.messages import MessageState, Role
from kvchat.chat.search import _NEWEST, FoundChat, find, index_some


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "chats.db")
    yield database
    database.close()


def chat(database: Database, *texts: str, title: str = "A chat") -> str:
    conversation = database.create_conversation(title, "You are a helpful zebra.")
    for text in texts:
        database.append(conversation.id, None, Role.USER, text, MessageState.COMPLETE)
    return conversation.id


def found(database: Database, query: str) -> tuple[FoundChat, ...]:
    while index_some(database):
        pass
    return find(database, query)


def marked(hit: FoundChat) -> list[str]:
    return [hit.excerpt[start:end] for start, end in hit.marks]


@pytest.mark.parametrize(
    ("text", "query", "hit"),
    [
        ("The quick brown fox", "QUICK", "quick"),
        ("The quick brown fox", "qui", "qui"),
        ("un café à Zürich", "cafe", "café"),
        ("un cafe\u0301 noir", "café", "cafe\u0301"),
        ("un cafe noir", "CAFÉ", "cafe"),
        ("Die Straße", "strasse", "Straße"),
        ("我们去北京旅游", "京", "京"),
        ("我们去北京旅游", "北京", "北京"),
        ("我们去北京旅游", "北京旅游", "北京旅游"),
        ("東京タワーに登る", "タワー", "タワー"),
        ("저는 서울에서 살아요", "서울", "서울"),
        ("ฉันรักประเทศไทย", "ประเทศ", "ประเทศ"),
        ("مَرْحَبًا بالعالم", "مرحبا", "مَرْحَبًا"),
        ("שלום עולם", "עולם", "עולם"),
        ("नमस्ते दुनिया", "दुनिया", "दुनिया"),
        ("well done 👍🏽 and on", "👍", "👍🏽"),
        ("flag 🇨🇳 here", "🇨🇳", "🇨🇳"),
        ("call os.path.join() here", "path.join", "path.join"),
        ("ｆｕｌｌ width", "full", "ｆｕｌｌ"),
        ('say "hello world" now', '"hello world"', "hello world"),
    ],
)
def test_found_in_any_script_and_marked(database: Database, text: str, query: str, hit: str) -> None:
    id = chat(database, text)
    chat(database, "nothing of the kind 无 ない 다른 อื่น")
    (only,) = found(database, query)
    assert only.conversation_id == id
    assert marked(only)[0] == hit


@pytest.mark.parametrize("query", ["", "  ", "?!", '"', "…", "京北", "zebra", "uick", '"brown quick"', "fox cat"])
def test_finds_nothing_that_was_not_said(database: Database, query: str) -> None:
    chat(database, "The quick brown fox", "北京", "cat")
    assert found(database, query) == ()


@pytest.mark.parametrize(
    "query", ["NEAR(a b)", "title:x", "a*", "-x", "(", "'; DROP TABLE messages", "{x}", "a AND", "\0x"]
)
def test_no_query_is_an_instruction(database: Database, query: str) -> None:
    chat(database, "x")
    found(database, query)


def test_the_index_follows_what_is_written(database: Database) -> None:
    id = chat(database, "first words", title="Harvest")
    reply = database.append(id, None, Role.ASSISTANT, "", MessageState.STREAMING)
    assert found(database, "harvest")[0].message_ids == ()
    for text in ("Once", "Once upon a time"):
        with database.transaction() as db:
            db.execute("UPDATE messages SET content = ? WHERE id = ?", (text, reply.id))
    assert found(database, "upon")[0].message_ids == (reply.id,)
    database.rename(id, "Autumn", by_user=True)
    assert not found(database, "harvest")
    assert found(database, "autumn")
    database.remove_leaf(reply)
    assert not found(database, "upon")
    database.delete(id)
    assert not found(database, "autumn")
    with database.reading() as db:
        assert [
            db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("searched", "searched_words")
        ] == [0, 0]


def test_titles_come_first_then_the_newest(database: Database) -> None:
    titled = chat(database, title="All about apples")
    older = chat(database, "an apple", "two apples")
    newer = chat(database, "apple pie")
    assert [hit.conversation_id for hit in found(database, "apple")] == [titled, newer, older]
    assert len(found(database, "apple")[2].message_ids) == 2


def test_an_excerpt_begins_before_the_hit(database: Database) -> None:
    chat(database, "so many words\n" * 50 + "and the needle\nin them " + "x" * 500)
    (hit,) = found(database, "needle")
    assert hit.excerpt.startswith("…")
    assert "and the needle in them" in hit.excerpt
    assert marked(hit) == ["needle"]


def test_marks_do_not_overlap() -> None:
    assert spans("foobar foo", terms_of("foo foobar")) == [(0, 3), (7, 10)]


def test_searching_reads_the_index_backwards_and_sorts_nothing(database: Database) -> None:
    with database.reading() as db:
        plan = [row["detail"] for row in db.execute("EXPLAIN QUERY PLAN " + _NEWEST, ("x", 9))]
    assert len(plan) == 3
    assert "VIRTUAL TABLE INDEX" in plan[0]
    assert not any("TEMP B-TREE" in step or step.startswith("SCAN conversations") for step in plan)
