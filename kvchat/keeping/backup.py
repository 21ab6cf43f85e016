"""A backup of the whole data folder as one zip, and putting it back.

A restore is checked first, laid ready, and takes the data's place when kvchat starts next, before anything has opened
the database. What it replaces is kept in a folder beside it.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from blake3 import blake3

from kvchat import migrations
from kvchat.chat.migrations import MIGRATIONS
from kvchat.errors import KvchatError
from kvchat.paths import Paths
from kvchat.stoppable import Progress
from kvchat.whole_file import whole_file

FORMAT = "kvchat-backup"
VERSION = 1
_MANIFEST = "manifest.json"
_WAITING = "restore"  # in the data folder: a checked backup that takes its place at the next start
_READY = "ready"  # written last into it
_PIECE = 1024 * 1024  # bytes
# In the data folder and left out, by how names begin: models can be fetched again, the database is copied by SQLite.
_LEFT_OUT = (_WAITING, "replaced-", "models", "conversations.db")


class BackupFailed(KvchatError):
    """A backup could not be made."""


class BadBackup(KvchatError):
    """A file is not a backup, or it is damaged. Nothing has been changed."""


@dataclass(frozen=True)
class BackupFacts:
    """What a backup holds."""

    made_at: datetime
    conversations: int
    size: int  # bytes, unpacked


def make_backup(paths: Paths, target: Path, progress: Progress = lambda done, total: None) -> BackupFacts:
    """Write the conversations, everything else in the data folder and the settings into a zip.

    Models are left out, they can be fetched again; save points are a cache and no data; keys and tokens stay here.
    The database is copied as of one moment, whoever uses it meanwhile. `target` is there whole or not at all.
    `progress` is told bytes. Raises BackupFailed and what `progress` raises.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="kvchat-backup-") as folder:
            database = Path(folder) / "conversations.db"
            _copy_database(paths.database, database, progress)
            files = {"data/conversations.db": database} | dict(_files(paths))
            facts = BackupFacts(datetime.now(UTC), _count(database), sum(f.stat().st_size for f in files.values()))
            with whole_file(target) as new:
                _write_zip(new, files, facts, progress)
        return facts
    except (OSError, sqlite3.Error) as error:
        raise BackupFailed(
            "The backup could not be made", f"{target}: {error}.", "Choose another place, or make room there."
        ) from error


def check_backup(source: Path) -> BackupFacts:
    """Look at a backup without unpacking it. Raises BadBackup."""
    try:
        with zipfile.ZipFile(source) as archive:
            return _facts(_manifest(archive))
    except (OSError, zipfile.BadZipFile) as error:
        raise _bad(source, str(error)) from error


def lay_ready(paths: Paths, source: Path, progress: Progress = lambda done, total: None) -> BackupFacts:
    """Unpack a backup, check every byte and the database in it, and lay it ready for the next start.

    Nothing of the present data changes. `progress` is told bytes. Raises BadBackup and what `progress` raises; then
    nothing is laid ready.
    """
    waiting = paths.data / _WAITING
    forget_waiting(paths)
    try:
        with zipfile.ZipFile(source) as archive:
            manifest = _manifest(archive)
            facts, done = _facts(manifest), 0
            for name, entry in manifest["files"].items():
                done = _unpack(archive, name, entry, waiting, done, lambda so_far: progress(so_far, facts.size))
        _check_database(waiting / "data" / "conversations.db")
        progress(facts.size, facts.size)
        with whole_file(waiting / _READY) as ready:
            ready.write_text(f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}", "utf-8")
        return facts
    except (OSError, zipfile.BadZipFile, sqlite3.Error, ValueError, RuntimeError) as error:
        raise _bad(source, str(error)) from error
    finally:
        if not (waiting / _READY).exists():
            forget_waiting(paths)


def forget_waiting(paths: Paths) -> None:
    """Give up a restore that was laid ready."""
    waiting = paths.data / _WAITING
    with suppress(OSError):
        (waiting / _READY).unlink()
    shutil.rmtree(waiting, ignore_errors=True)


def finish_restore(paths: Paths) -> Path | None:
    """Put what was laid ready in the data's place; returns the folder with what it replaced, None if nothing waited.

    To be called before anything opens the database. While another kvchat has it open nothing happens. Interrupted at
    any point, the next call goes on where this one was. Raises BackupFailed.
    """
    waiting = paths.data / _WAITING
    if not (waiting / _READY).exists():
        return None
    replaced = paths.data / f"replaced-{(waiting / _READY).read_text('utf-8')}"
    try:
        if (waiting / "data" / "conversations.db").exists() and not _nobody_uses(paths.database):
            return None
        for name, place in (("data", paths.data), ("config", paths.config)):
            for file in sorted(f for f in (waiting / name).rglob("*") if f.is_file()):
                inner = file.relative_to(waiting / name)
                _swap(file, place / inner, replaced / name / inner)
        forget_waiting(paths)
        return replaced
    except OSError as error:
        raise BackupFailed(
            "The backup could not be put back", f"{error}.", "Make room on the disk and start kvchat again."
        ) from error


def _swap(new: Path, place: Path, aside: Path) -> None:
    """`place` goes aside, `new` takes its place. What went aside first stays there if this is done twice."""
    aside.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for suffix in ("-wal", "-shm"):  # an old database's journal must not meet the new database
        journal = place.with_name(place.name + suffix)
        if journal.exists():
            journal.replace(aside.with_name(aside.name + suffix))
    if place.exists() and not aside.exists():
        _move(place, aside)
    _move(new, place)


def _move(source: Path, target: Path) -> None:
    """Rename; where settings and data lie on two file systems, copy first. `target` is there whole or not at all."""
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = target.with_name(f".{target.name}.part")
        shutil.copy2(source, copy)
        copy.replace(target)
        source.unlink()


def _nobody_uses(database: Path) -> bool:
    """Whether no other process has the database open: only then does SQLite let its journal mode be changed."""
    if not database.exists():
        return True
    try:
        with closing(sqlite3.connect(database, timeout=0)) as db:
            return bool(db.execute("PRAGMA journal_mode = DELETE").fetchone()[0] == "delete")
    except sqlite3.OperationalError:
        return False
    except sqlite3.DatabaseError:  # damaged: a good reason to restore
        return True


def _copy_database(source: Path, target: Path, progress: Progress) -> None:
    with closing(sqlite3.connect(source)) as live:
        migrations.back_up(live, target, lambda: progress(0, 0))
    with closing(sqlite3.connect(target)) as copy:
        copy.execute("PRAGMA journal_mode = DELETE")


def _count(database: Path) -> int:
    with closing(sqlite3.connect(database)) as db:
        return int(db.execute("SELECT count(*) FROM conversations").fetchone()[0])


def _files(paths: Paths) -> Iterator[tuple[str, Path]]:
    """What a backup holds beside the database, by its name in the zip. Of the settings, nothing that is secret."""
    for file in sorted(paths.data.rglob("*")):
        inner = file.relative_to(paths.data)
        if file.is_file() and not file.is_symlink() and not inner.parts[0].startswith(_LEFT_OUT):
            yield str(PurePosixPath("data", *inner.parts)), file
    if paths.settings_file.is_file():
        yield f"config/{paths.settings_file.name}", paths.settings_file


def _write_zip(out: Path, files: Mapping[str, Path], facts: BackupFacts, progress: Progress) -> None:
    entries: dict[str, Any] = {}
    done = 0
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in files.items():
            digest, size = blake3(), 0
            with file.open("rb") as source, archive.open(name, "w", force_zip64=True) as packed:
                while piece := source.read(_PIECE):
                    digest.update(piece)
                    packed.write(piece)
                    size += len(piece)
                    progress(done + size, facts.size)
            done += size
            entries[name] = {"size": size, "blake3": digest.hexdigest()}
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "made_at": facts.made_at.isoformat(),
            "conversations": facts.conversations,
            "files": entries,
        }
        archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))


def _manifest(archive: zipfile.ZipFile) -> dict[str, Any]:
    """The list of what the backup holds, checked. Raises zipfile.BadZipFile."""
    try:
        manifest = json.loads(archive.read(_MANIFEST))
        if manifest["format"] != FORMAT:
            raise ValueError
        if manifest["version"] != VERSION:
            raise zipfile.BadZipFile("it was made by a newer kvchat")
        datetime.fromisoformat(manifest["made_at"])
        if "data/conversations.db" not in manifest["files"]:
            raise ValueError
        for name, entry in manifest["files"].items():
            parts = PurePosixPath(name).parts
            if parts[0] not in ("data", "config") or len(parts) < 2 or ".." in parts or "\\" in name or ":" in name:
                raise zipfile.BadZipFile(f"it would write outside kvchat's folders: {name}")
            if not isinstance(entry["size"], int) or not isinstance(entry["blake3"], str):
                raise ValueError
        return dict(manifest)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise zipfile.BadZipFile("it is not a backup of kvchat's") from error


def _facts(manifest: Mapping[str, Any]) -> BackupFacts:
    size = sum(int(entry["size"]) for entry in manifest["files"].values())
    return BackupFacts(datetime.fromisoformat(manifest["made_at"]), int(manifest["conversations"]), size)


def _unpack(
    archive: zipfile.ZipFile, name: str, entry: Mapping[str, Any], into: Path, before: int, tell: Callable[[int], None]
) -> int:
    """Unpack one file; tells `before` and what there is of it, piece by piece, and returns both at its end.

    Raises zipfile.BadZipFile where it is not what the manifest says.
    """
    target = into / name
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest, size = blake3(), 0
    try:
        with archive.open(name) as packed, target.open("xb") as out:
            while (piece := packed.read(_PIECE)) and size <= entry["size"]:
                digest.update(piece)
                size += out.write(piece)
                tell(before + size)
            out.flush()
            os.fsync(out.fileno())
    except KeyError as error:
        raise zipfile.BadZipFile(f"{name} is missing in it") from error
    target.chmod(0o600)
    if size != entry["size"] or digest.hexdigest() != entry["blake3"]:
        raise zipfile.BadZipFile(f"{name} is damaged")
    return before + size


def _check_database(database: Path) -> None:
    """Raises zipfile.BadZipFile unless this kvchat can open it."""
    with closing(sqlite3.connect(database)) as db:
        if db.execute("PRAGMA integrity_check").fetchone()[0] != "ok":
            raise zipfile.BadZipFile("the chats in it are damaged")
        if migrations.version(db) > len(MIGRATIONS):
            raise zipfile.BadZipFile("it was made by a newer kvchat")


def _bad(source: Path, reason: str) -> BadBackup:
    return BadBackup(
        "This backup cannot be used", f"{source.name}: {reason}.", "Choose another one. Nothing has been changed."
    )
