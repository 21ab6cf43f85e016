"""Files of earlier versions open with everything in them; those of newer versions are refused unchanged."""

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.chat.record.database import Database
from kvchat.chat.record.migrations import MIGRATIONS as CHATS
from kvchat.kvstore.index import usage
from kvchat.kvstore.index.index import Index
from kvchat.kvstore.index.schema import MIGRATIONS as INDEX
from kvchat.settings import SETTING_NAMES, Settings, load_settings, save_settings
from kvchat.system.migrations import DatabaseTooNew, schema_version
from tests.formats import FOLDER, earlier


def schema(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()
    return [(name, re.sub(r"\s+", " ", re.sub("--.*", "", sql))) for name, sql in rows]


@pytest.mark.parametrize("number", range(1, len(CHATS) + 1))
def test_every_chat_format_is_migrated_with_a_copy(number: int, tmp_path: Path) -> None:
    path, new = earlier("chats", number, tmp_path / "chats.db"), tmp_path / "new.db"
    with closing(Database(path)) as chats:
        assert [(c.id, c.title, c.title_by_user) for c in chats.conversations()] == [("c", "Herons", True)]
        assert [m.content for m in chats.branch("c")] == ["Be kind.", "Where do herons sleep? 🜁", "In trees."]
        assert chats.branch("c")[-1].receipt is not None
        assert [a.name for a in chats.branch("c")[1].attachments] == ["a.txt", "a.png"]
        assert len(chats.rows("SELECT * FROM searched")) == 4
    Database(new).close()
    assert schema(path) == schema(new), "released migrations never change"
    copy = tmp_path / f"chats.db.before-{len(CHATS)}"
    assert copy.exists() == (number < len(CHATS))
    if copy.exists():
        with closing(sqlite3.connect(copy)) as db:
            assert schema_version(db) == number
            assert db.execute("SELECT content FROM messages WHERE id = 'r'").fetchall() == [("In trees.",)]


@pytest.mark.parametrize("number", range(1, len(INDEX) + 1))
def test_every_index_format_is_migrated(number: int, tmp_path: Path) -> None:
    path, new = earlier("index", number, tmp_path / "index.db"), tmp_path / "new.db"
    index = Index(path)
    with index.read() as db:
        sizes = usage.load_totals(db)[2], usage.block_bytes(db)
        (letter, thesis), _devices = usage.conversation_usages(db)
    index.close()
    assert sizes == (5070, 8192 + 3 * 4096)
    assert (thesis.conversation_id, thesis.exclusive_bytes, thesis.shared_bytes) == ("thesis", 4096, 8192)
    assert (letter.conversation_id, letter.exclusive_bytes, letter.shared_bytes) == ("letter", 2 * 4096, 8192)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["index.db"], "no copy of a disposable file"
    Index(new).close()
    assert schema(path) == schema(new), "released migrations never change"


@pytest.mark.parametrize(("kind", "opens"), [("chats", Database), ("index", Index)])
def test_newer_format_is_refused_unchanged(kind: str, opens: Callable[[Path], object], tmp_path: Path) -> None:
    path = earlier(kind, len(CHATS if kind == "chats" else INDEX), tmp_path / "made.db")
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("INSERT INTO migrations VALUES (999, 0)")
        db.commit()
    before = path.read_bytes()
    with pytest.raises(DatabaseTooNew, match="newer version"):
        opens(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["made.db"]


def test_settings_of_every_version_are_read() -> None:
    for file in sorted(FOLDER.glob("settings-*.json")):
        written = json.loads(file.read_text("utf-8"))
        read = load_settings(file)
        found = {name: list(value) if isinstance(value := getattr(read, name), tuple) else value for name in written}
        assert found == written | {"model_path": str(Path(written["model_path"]))}, file.name
        untouched = {name for name in written if getattr(Settings(), name) == getattr(read, name)}
        assert not untouched, "the example has no default values"


def test_settings_of_a_newer_version_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"theme": "dark", "of_a_newer_version": [1]}', "utf-8")
    save_settings(path, Settings(theme="light"))
    written = json.loads(path.read_text("utf-8"))
    assert (written["theme"], written["of_a_newer_version"]) == ("light", [1])
    assert set(written) == {*SETTING_NAMES, "of_a_newer_version"}
