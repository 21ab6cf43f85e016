"""Contents of the save-point store of a KVCHAT_HOME, read from outside a running kvchat."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvchat.kvstore.index import points as index_points
from kvchat.kvstore.savepoint import SavePoint


def flip_a_byte(file: Path) -> None:
    """Damage a file in the middle; its times and size stay."""
    found, data = file.stat(), bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


@dataclass(frozen=True)
class StoreContents:
    home: Path

    @property
    def folder(self) -> Path:
        return self.home / "cache" / "savepoints"

    def save_points(self) -> list[SavePoint]:
        with self._index() as db:
            if db is None:
                return []
            ids = [int(row[0]) for row in db.execute("SELECT id FROM save_points ORDER BY id")]
            return [point for id in ids if (point := index_points.load(db, id)) is not None]

    def absorbed(self) -> int:
        with self._index() as db:
            if db is None:
                return 0
            return int(db.execute("SELECT count(*) FROM save_points WHERE link_id IS NOT NULL").fetchone()[0])

    def block_files(self) -> list[Path]:
        return sorted(file for file in (self.folder / "blocks").rglob("*") if file.is_file())

    @contextmanager
    def _index(self) -> Iterator[sqlite3.Connection | None]:
        file = self.folder / "index.db"
        if not file.exists():
            yield None
            return
        db = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
        try:
            db.execute("SELECT 1 FROM save_points").fetchone()
            yield db
        except sqlite3.OperationalError:  # not made yet
            yield None
        finally:
            db.close()


def spoil(file: Path, damage: str) -> None:
    """Damage a file: "truncated", "empty", "flipped", "foreign" or "missing"."""
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
        return
    middle = len(data) // 2
    spoiled = {
        "truncated": data[:middle],
        "empty": b"",
        "flipped": data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :],
        "foreign": b"GIF89a" * 1000,
    }
    file.chmod(0o600)
    file.write_bytes(spoiled[damage])
