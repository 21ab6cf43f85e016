"""A backup of the chats and the settings as one zip. `restore.py` puts one back."""

from __future__ import annotations

import json
import sqlite3
import tempfile
import zipfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from blake3 import blake3

from kvchat.errors import KvchatError
from kvchat.settings import Settings
from kvchat.system import migrations
from kvchat.system.concurrency import Progress
from kvchat.system.files import open_plain, whole_file
from kvchat.system.paths import Paths
from kvchat.words.language import _

FORMAT = "kvchat-backup"
VERSION = 1
MANIFEST = "manifest.json"
# All that a backup has and that a restore takes, by their names in the zip.
DATABASE, SETTINGS = "data/conversations.db", "config/settings.json"
PIECE = 1024 * 1024  # bytes
# The settings that say what answers: the program that is run, and the servers that chats are sent to.
WHAT_ANSWERS = ("engine_path", "engine_arguments", "engine_url", "rpc_workers")


class BackupFailed(KvchatError):
    """A backup could not be made or put back."""


@dataclass(frozen=True)
class BackupFacts:
    """What a backup holds."""

    made_at: datetime
    conversations: int
    size: int  # of the file, in bytes
    unpacked: int = 0  # bytes
    engine: tuple[str, ...] = ()  # what answers by its settings, as `engine_of` has it


def engine_of(settings: Settings) -> tuple[str, ...]:
    """What answers by these settings; empty texts where they say nothing of it."""
    return tuple(getattr(settings, name) or "" for name in WHAT_ANSWERS)


def make_backup(paths: Paths, target: Path, progress: Progress = lambda done, total: None) -> BackupFacts:
    """Write the conversations and the settings into a zip.

    Models and engines can be fetched again; save points are a cache and no data; keys and tokens stay here.
    The database is copied as of one moment, whoever uses it meanwhile. `target` is there whole or not at all, and for
    its owner's eyes only. `progress` is told bytes. Raises BackupFailed and what `progress` raises.
    """
    try:
        with whole_file(target, private=True) as new, new.open("wb") as out:
            facts = write_backup(paths, out, progress)
        return replace(facts, size=target.stat().st_size)
    except (OSError, sqlite3.Error) as error:
        raise BackupFailed(
            _("The backup could not be made"),
            f"{target}: {getattr(error, 'strerror', None) or error}.",
            _("Choose another place, or make room there."),
        ) from error


def write_backup(paths: Paths, out: IO[bytes], progress: Progress = lambda done, total: None) -> BackupFacts:
    """The same into a file that is open. Raises OSError, sqlite3.Error and what `progress` raises."""
    with tempfile.TemporaryDirectory(prefix="kvchat-backup-") as folder:
        database = Path(folder) / "conversations.db"
        _copy_database(paths.database, database, progress)
        files = {DATABASE: database}  # the copy, not the live one
        if paths.settings_file.is_file():
            files[SETTINGS] = paths.settings_file
        unpacked = sum(file.stat().st_size for file in files.values())
        facts = BackupFacts(datetime.now(UTC), _count(database), 0, unpacked)
        return replace(facts, size=_write_zip(out, files, facts, progress))


def _copy_database(source: Path, target: Path, progress: Progress) -> None:
    with closing(sqlite3.connect(source)) as live:
        migrations.back_up(live, target, lambda: progress(0, 0))
    with closing(sqlite3.connect(target)) as copy:
        copy.execute("PRAGMA journal_mode = DELETE")


def _count(database: Path) -> int:
    with closing(sqlite3.connect(database)) as db:
        return int(db.execute("SELECT count(*) FROM conversations").fetchone()[0])


def _write_zip(out: IO[bytes], files: Mapping[str, Path], facts: BackupFacts, progress: Progress) -> int:
    """Returns how many bytes the files take in it."""
    entries: dict[str, Any] = {}
    done = 0
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in files.items():
            digest, size = blake3(), 0
            with open_plain(file) as source, archive.open(name, "w", force_zip64=True) as packed:
                while piece := source.read(PIECE):
                    digest.update(piece)
                    packed.write(piece)
                    size += len(piece)
                    progress(done + size, facts.unpacked)
            done += size
            entries[name] = {"size": size, "blake3": digest.hexdigest()}
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "made_at": facts.made_at.isoformat(),
            "conversations": facts.conversations,
            "files": entries,
        }
        archive.writestr(MANIFEST, json.dumps(manifest, indent=1))
        return sum(member.compress_size for member in archive.infolist())
