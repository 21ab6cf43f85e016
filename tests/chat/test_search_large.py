"""Search over 10,000 chats with 100,000 messages; prints the times."""

import time
from pathlib import Path

import pytest

from kvchat.chat.record.database import Database
from kvchat.chat.search import MAX_CHATS, find, index_batch
from tests.chat.library import MESSAGES, fill

CHATS = 10_000
QUERIES = {
    "a rare word": "platypus",
    "rare Chinese": "鸭嘴兽",
    "a word in every message": "the",
    "two letters, as typed": "ba",
    "one Chinese character": "北",
    "two Chinese characters": "北京",
    "an emoji": "😀",
    "two common words": "time year",
    "a word without its accent": "cafe",
    "many words begin so": "gra sto",
    "common but never together": '"people way day man thing"',
    "at the end of 200 documents": "appendix",
    "the same in Chinese": "附录",
    "nowhere": "xyzzy",
}


@pytest.mark.slow
def test_search_in_ten_thousand_chats(tmp_path: Path) -> None:
    database = Database(tmp_path / "chats.db")
    fill(database, CHATS)
    started = time.perf_counter()
    while index_batch(database):
        pass
    print(f"\nindexing {CHATS * MESSAGES:,} messages: {time.perf_counter() - started:.1f} s")
    hits = {}
    for label, query in QUERIES.items():
        times = []
        for _ in range(5):
            started = time.perf_counter()
            hits[label] = find(database, query)
            times.append(time.perf_counter() - started)
        print(f"{label:28} {1000 * sorted(times)[2]:7.1f} ms, {len(hits[label])} chats")
    started = time.perf_counter()
    assert len(database.conversations()) == CHATS
    print(f"{'the list of all chats':28} {1000 * (time.perf_counter() - started):7.1f} ms")
    database.close()
    size = (tmp_path / "chats.db").stat().st_size
    print(f"on disk {size / 1e6:.0f} MB")
    for label in ("a rare word", "rare Chinese"):
        assert [(hit.conversation_id, hit.message_ids) for hit in hits[label]] == [("chat77", ("chat77.5",))]
    assert hits["nowhere"] == hits["common but never together"] == ()
    assert all(hit.in_document and hit.excerpt for hit in hits["at the end of 200 documents"])
    assert len(hits["the same in Chinese"]) == MAX_CHATS
    assert len(hits["a word in every message"]) > 40
    assert all(hit.marks for label in ("one Chinese character", "an emoji") for hit in hits[label])
