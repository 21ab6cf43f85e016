"""Databases of every earlier format, one file per migration. They must always open.

`python -m tests.formats` makes the missing file of a new migration; existing files are never made again.
"""

import gzip
import sqlite3
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from kvchat.chat.record.migrations import MIGRATIONS as CHATS
from kvchat.kvstore.index.schema import MIGRATIONS as INDEX
from kvchat.system.migrations import migrate

FOLDER = Path(__file__).parent
RECEIPT = (
    '{"ttft_ms": 310.0, "restore_ms": 21.0, "prefill_ms": 2000.0, "first_token_ms": 9.0, "prompt_tokens": 1000,'
    ' "cached_tokens": 0, "predicted_tokens": 7, "tokens_per_second": 41.0, "source": "cold", "miss_reason": "",'
    ' "model": "m"}'
)
# Rows that each format introduced.
CHAT_ROWS = {
    1: f"""
        INSERT INTO conversations
            (id, title, title_by_user, created_at, updated_at, leaf_id, model, folder, on_top, used, deleted_s)
            VALUES ('c', 'Herons', 1, 1.0, 2.0, 'r', '/models/m.gguf', 'Birds', 1, 3, 60);
        INSERT INTO messages (id, conversation_id, parent_id, role, content, thinking, state, created_at, receipt)
            VALUES ('s', 'c', NULL, 'system', 'Be kind.', '', 'complete', 1.0, NULL),
            ('q', 'c', 's', 'user', 'Where do herons sleep? 🜁', '', 'complete', 1.1, NULL),
            ('r', 'c', 'q', 'assistant', 'In trees.', 'hm', 'complete', 1.2, '{RECEIPT}'),
            ('b', 'c', 'q', 'assistant', 'On one leg.', '', 'interrupted', 1.3, NULL);
        INSERT INTO attachments VALUES ('q', 0, 'a.txt', 7, 'h', 'A lake.', x''), ('q', 1, 'a.png', 3, 'i', '', x'89');
        INSERT INTO presets VALUES ('p', 'Brief', 'Be brief.', NULL, '', 0);
        INSERT INTO drafts VALUES ('c', 'And storks');
        INSERT INTO draft_attachments VALUES ('c', 0, 'b.txt', 7, 'j', 'A pond.', x'');
        INSERT INTO deleted VALUES ('gone', 'c');
        INSERT INTO removed (id, conversation_id, removed_at, leaf_id, title, rows)
            VALUES ('away', 'c', 2.0, 'r', 'Herons', '{{"messages": [], "attachments": []}}');
        INSERT INTO prepared (id, name, paths, sources, texts, created_at) VALUES ('d', 'docs', '[]', '[]', '[]', 1.0)
    """
}
# Two turns that share rows, and one file of unknown layout.
INDEX_ROWS = {
    1: """
        INSERT INTO fingerprints VALUES (1, '{}');
        INSERT INTO trees VALUES (1, 1, 'chats');
        INSERT INTO nodes VALUES (1, 1, 0, x'01', 1, x'01000000');
        INSERT INTO conversations (id, name) VALUES (1, 'thesis'), (2, 'letter');
        INSERT INTO blocks (id, name, size, residue, xxh3, disk_bytes)
            SELECT column1, CAST(printf('%032d', column1) AS BLOB), column2, column3, x'', column4
            FROM (VALUES (1, 5000, 0, 8192), (2, 100, 1, 4096), (3, 90, 1, 4096), (4, 70, 0, 4096));
        INSERT INTO links VALUES (1, 0, 1, 0, 0, 1, 0, 0), (2, 1, 2, -1, 0, 1, 0, 0), (3, 1, 3, -1, 0, 1, 0, 0),
            (4, 0, 4, -1, 0, 1, 0, 0);
        INSERT INTO save_points (id, conversation_id, fingerprint_id, node_id, n_tokens, file_size, prefill_ms,
            created_at, last_used_at, row_map, seal, link_id) VALUES (1, 1, 1, 1, 1, 5100, 0, 0, 0, x'', x'', 2),
            (2, 2, 1, 1, 1, 5100, 0, 0, 0, x'', x'', 3), (3, 2, 1, 1, 1, 70, 0, 0, 0, x'', x'', 4)
    """
}


def earlier(kind: str, number: int, target: Path) -> Path:
    """Unpack the example of a format to `target`. kind: "chats" or "index"."""
    target.write_bytes(gzip.decompress((FOLDER / f"{kind}-{number:02}.db.gz").read_bytes()))
    return target


def _make(kind: str, steps: Sequence[str], rows: Mapping[int, str]) -> None:
    for number in range(1, len(steps) + 1):
        packed = FOLDER / f"{kind}-{number:02}.db.gz"
        if packed.exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "made.db"
            with closing(sqlite3.connect(file, isolation_level=None)) as db:
                for step in range(1, number + 1):
                    migrate(db, file, steps[:step], "", keep_copy=False)
                    db.executescript(rows.get(step, ""))
                db.execute("VACUUM")
            packed.write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        sys.stdout.write(f"made {packed.name}\n")


def make_missing() -> None:
    _make("chats", CHATS, CHAT_ROWS)
    _make("index", INDEX, INDEX_ROWS)
