"""Full-text search in any script, and its index."""

import itertools
import time

import pytest

from kvchat.chat import search
from kvchat.chat.options import NewChat, store_chat
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Attachment, MessageState, Role
from kvchat.chat.search import _HITS_QUERY, ChatHit, excerpt, find, index_batch
from kvchat.text.safe_text import safe_prose
from kvchat.text.search import find_first_match, find_matches, parse_query


def chat(database: Database, *texts: str, title: str = "A chat") -> str:
    conversation = store_chat(database, NewChat(title, "You are a helpful zebra."))
    for text in texts:
        database.append(conversation.id, None, Role.USER, text, MessageState.COMPLETE)
    return conversation.id


def search_all(database: Database, query: str) -> tuple[ChatHit, ...]:
    while index_batch(database):
        pass
    return find(database, query)


def marked(hit: ChatHit) -> list[str]:
    return [hit.excerpt[start:end] for start, end in hit.marks]


@pytest.mark.parametrize(
    ("text", "query", "hit"),
    [
        ("The quick brown fox", "QUICK", "quick"),
        ("The quick brown fox", "qui", "qui"),
        ("un café à Zürich", "cafe", "café"),
        ("un cafe\u0301 noir", "café", "cafe\u0301"),
        ("Die Straße", "strasse", "Straße"),
        ("我们去北京旅游", "北京", "北京"),
        ("東京タワーに登る", "タワー", "タワー"),
        ("저는 서울에서 살아요", "서울", "서울"),
        ("ฉันรักประเทศไทย", "ประเทศ", "ประเทศ"),
        ("مَرْحَبًا بالعالم", "مرحبا", "مَرْحَبًا"),
        ("नमस्ते दुनिया", "दुनिया", "दुनिया"),
        ("well done 👍🏽 and on", "👍", "👍🏽"),
        ("flag 🇨🇳 here", "🇨🇳", "🇨🇳"),
        ("call os.path.join() here", "path.join", "path.join"),
        ('say "hello world" now', '"hello world"', "hello world"),
    ],
)
def test_finds_and_marks_any_script(database: Database, text: str, query: str, hit: str) -> None:
    id = chat(database, text)
    chat(database, "nothing of the kind 无 ない 다른 อื่น")
    (only,) = search_all(database, query)
    assert only.conversation_id == id
    assert marked(only)[0] == hit


@pytest.mark.parametrize("query", ["", "  ", "?!", '"', "…", "京北", "zebra", "uick", '"brown quick"', "fox cat"])
def test_no_false_hits(database: Database, query: str) -> None:
    chat(database, "The quick brown fox", "北京", "cat")
    assert search_all(database, query) == ()


@pytest.mark.parametrize("query", ["NEAR(a b)", "title:x", "(", "'; DROP TABLE messages", "a AND", "\0x"])
def test_query_syntax_is_not_interpreted(database: Database, query: str) -> None:
    chat(database, "x")
    search_all(database, query)


def test_index_follows_changes(database: Database) -> None:
    id = chat(database, "first words", title="Harvest")
    reply = database.append(id, None, Role.ASSISTANT, "", MessageState.STREAMING)
    assert search_all(database, "harvest")[0].message_ids == ()
    for text in ("Once", "Once upon a time"):
        with database.transaction() as db:
            db.execute("UPDATE messages SET content = ? WHERE id = ?", (text, reply.id))
    assert search_all(database, "upon")[0].message_ids == (reply.id,)
    database.rename(id, "Autumn", by_user=True)
    assert not search_all(database, "harvest")
    assert search_all(database, "autumn")
    database.remove_empty_reply(reply)
    assert not search_all(database, "upon")
    database.delete(id)
    assert not search_all(database, "autumn")
    with database.reading() as db:
        assert [
            db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("searched", "searched_words")
        ] == [0, 0]


def test_titles_come_first_then_newest_messages(database: Database) -> None:
    titled = chat(database, title="All about apples")
    older = chat(database, "an apple", "two apples")
    newer = chat(database, "apple pie")
    assert [hit.conversation_id for hit in search_all(database, "apple")] == [titled, newer, older]
    assert len(search_all(database, "apple")[2].message_ids) == 2


def test_finds_documents_by_name_and_text(database: Database) -> None:
    id = chat(database, "Hello")
    report = Attachment("Bericht 2024.pdf", 9, "h", "Viel Text. " * 900 + "鸭嘴兽 lives in Tasmania.")
    other = Attachment("other.txt", 9, "i", "nothing of the kind")
    question = database.append_question(id, "What is **this** about?", [other, report])
    for query, mark in (("鸭嘴", "鸭嘴"), ("tasm", "Tasm"), ("bericht", "Bericht")):
        (hit,) = search_all(database, query)
        assert (hit.message_ids, hit.in_document) == ((question.id,), True)
        assert hit.excerpt.startswith("Bericht 2024.pdf: ")
        assert marked(hit) == [mark]
    (hit,) = search_all(database, "about tasmania")
    assert (hit.in_document, marked(hit)) == (False, ["about"])
    database.remove_empty_reply(question)
    assert not search_all(database, "tasmania")


def test_time_for_document_excerpts_is_limited(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_DOCUMENT_BUDGET_S", 0)
    monkeypatch.setattr(time, "thread_time", itertools.count().__next__)
    for number in range(3):
        long = Attachment(f"{number}.txt", 9, "h", "x " * 200 + "needle")
        database.append_question(chat(database), "", [long])
        time.sleep(0.02)  # the clock of Windows ticks every 16 ms
    hits = search_all(database, "needle")
    assert [hit.excerpt for hit in hits][1:] == ["1.txt", "0.txt"]
    assert marked(hits[0]) == ["needle"]
    assert all(hit.in_document for hit in hits)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("> - [x] _the_ *needle*\n> - **北京**烤鸭", "the needle 北京烤鸭"),
        ("| a | needle |\n|---|:-:|\n| 1 | 2 |", "a needle 1 2"),
        ("see [the needle](https://example.org/x_y) ![a cat](c.png)", "see the needle a cat"),
        ("```python\nneedle = 2**3  # __x__\n```\n**done**", "needle = 2**3 # __x__ done"),
        ("snake_needle_case, 2*3*4, `a**b|c` and 1\\*needle", "snake_needle_case, 2*3*4, a**b|c and 1*needle"),
        ("[x](https://needle.org)", "[x](https://needle.org)"),
        ("a\u202eneedle\u200b\x1b[31m", "aneedle␛[31m"),
    ],
)
def test_excerpt_has_no_markup(text: str, line: str) -> None:
    plain = excerpt(text, parse_query("needle a*"), is_markdown=True)
    assert plain.text == line
    question = excerpt(text, parse_query("needle a*"), is_markdown=False)
    assert question.text == " ".join(safe_prose(text).split())


def test_code_in_a_distant_fence_is_unchanged() -> None:
    plain = excerpt("```\n" + "x = 1\n" * 500 + "y = **needle**", parse_query("needle"), is_markdown=True)
    assert plain.text.endswith("x = 1 y = **needle**")


def test_word_across_a_read_step_is_matched_whole() -> None:
    for before in range(4080, 4100):
        text = "x" * before + " needles " + "x" * 5000
        assert find_first_match(text, parse_query('"needle"')) is None
        assert find_first_match(text, parse_query('"needles"')) == (before + 1, before + 8)


def test_excerpt_begins_before_the_hit(database: Database) -> None:
    chat(database, "so many words\n" * 50 + "and the needle\nin them " + "x" * 500)
    (hit,) = search_all(database, "needle")
    assert hit.excerpt.startswith("…")
    assert "and the needle in them" in hit.excerpt
    assert marked(hit) == ["needle"]


def test_marks_do_not_overlap() -> None:
    assert find_matches("foobar foo", parse_query("foo foobar")) == [(0, 3), (7, 10)]


def test_search_query_needs_no_sorting(database: Database) -> None:
    with database.reading() as db:
        plan = [row["detail"] for row in db.execute("EXPLAIN QUERY PLAN " + _HITS_QUERY, ("x", 9))]
    assert len(plan) == 3
    assert "VIRTUAL TABLE INDEX" in plan[0]
    assert not any("TEMP B-TREE" in step or step.startswith("SCAN conversations") for step in plan)
