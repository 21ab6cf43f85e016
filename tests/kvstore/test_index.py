"""The index's own doings: formats, and the space it takes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from kvchat.kvstore import disk, index_usage
from kvchat.kvstore.index import TOO_NEW, Index
from kvchat.kvstore.index_schema import MIGRATIONS
from kvchat.migrations import migrate

FIRST_FORMAT = """
    INSERT INTO fingerprints VALUES (1, '{}');
    INSERT INTO conversations (id, name) VALUES (1, 'thesis'), (2, 'letter');
    INSERT INTO save_points
        (id, conversation_id, fingerprint_id, node_id, n_tokens, file_size, prefill_ms, created_at, last_used_at)
        VALUES (1, 1, 1, 1, 9, 5100, 0, 0, 0), (2, 2, 1, 1, 9, 5100, 0, 0, 0), (3, 2, 1, 1, 9, 70, 0, 0, 0);
    INSERT INTO blocks VALUES (1, x'01', 5000, 0), (2, x'02', 100, 1), (3, x'03', 90, 1), (4, x'04', 70, 1);
    INSERT INTO block_uses VALUES (1, 0, 1, 0, 0, 1, 0, 0), (1, 1, 2, -1, 0, 1, 0, 0), (2, 0, 1, 0, 0, 1, 0, 0),
        (2, 1, 3, -1, 0, 1, 0, 0), (3, 0, 4, -1, 0, 1, 0, 0)
"""  # two turns that share rows, and one file of unknown layout


def test_an_index_of_the_first_format_is_counted_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        migrate(db, path, MIGRATIONS[:1], TOO_NEW)
        db.executescript(FIRST_FORMAT)
    index = Index(path, lambda damaged: None)
    with index.read() as db:
        totals = index_usage.totals(db, "")
        letter, thesis = index_usage.by_conversation(db)
    index.close()
    assert (totals.rows, totals.disk) == (5070, 8192 + 3 * 4096)
    assert (thesis.conversation_id, thesis.exclusive_bytes, thesis.shared_bytes) == ("thesis", 4096, 8192)
    assert (letter.conversation_id, letter.exclusive_bytes, letter.shared_bytes) == ("letter", 2 * 4096, 8192)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["index.db"], "no copy of what may be lost anyway"


def test_what_deleted_save_points_took_is_given_back(tmp_path: Path) -> None:
    index = Index(tmp_path / "index.db", lambda damaged: None)
    with index.write() as db:
        db.execute("INSERT INTO nodes VALUES (1, 1, 0, x'01', 9, zeroblob(1000000))")
    with index.write() as db:
        db.execute("DELETE FROM nodes")
    assert disk.tree_size(tmp_path) > 1_000_000
    index.shrink()
    assert disk.tree_size(tmp_path) < 250_000
    index.close()
