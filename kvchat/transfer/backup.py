"""Back up the chats and settings as one zip, restore them, and repair a damaged chats file.

A backup to restore is checked and staged. At the next start it replaces the data before anything opens the database;
the old data is kept. A damaged chats file is rebuilt from its readable parts and the newest automatic backup.
"""

import errno
import json
import os
import shutil
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from blake3 import blake3

from kvchat.chat.record.database_file import damage_marker
from kvchat.chat.record.migrations import MIGRATIONS
from kvchat.chat.record.recovery import DAMAGE_ERRORS, SalvageReport, is_intact, list_backups, salvage
from kvchat.errors import KvchatError
from kvchat.settings import Settings, load_settings, parse_settings, save_settings
from kvchat.system import migrations
from kvchat.system.concurrency import OnProgress
from kvchat.system.files import atomic_write, open_regular_file, replace_file
from kvchat.system.paths import RESTORE_FOLDER, Paths
from kvchat.text.formatting import format_size
from kvchat.text.language import _, format_number, join_list, join_sentences, plural
from kvchat.transfer.rows import without_permission
from kvchat.transfer.untrusted_files import ZIP_FAULTS, open_zip

_READY = "ready"  # written last: marks the folder complete
_MAX_MANIFEST = 16_000_000  # bytes
# Settings for access to this computer and for the reach of tools.
_ACCESS_SETTINGS = (
    *("api_server", "api_host", "api_port", "api_origins", "share_devices", "share_port"),
    *("tool_folders", "web_search_url"),
)
FORMAT = "kvchat-backup"
VERSION = 1
MANIFEST = "manifest.json"
# Names in the zip of all files that are backed up and restored.
DATABASE, SETTINGS = "data/conversations.db", "config/settings.json"
CHUNK_BYTES = 1024 * 1024  # bytes
# Settings that choose the engine: the program to run, and the servers that receive chats.
ENGINE_SETTINGS = ("engine_path", "engine_arguments", "engine_url", "rpc_workers")


@dataclass(frozen=True)
class BackupFacts:
    made_at: datetime
    conversations: int
    size: int  # file size in bytes
    unpacked: int = 0  # bytes
    engine: tuple[str, ...] = ()  # engine settings in the backup, from `engine_settings_of`


def engine_settings_of(settings: Settings) -> tuple[str, ...]:
    return tuple(getattr(settings, name) or "" for name in ENGINE_SETTINGS)


def make_backup(paths: Paths, target: Path, progress: OnProgress = lambda done, total: None) -> BackupFacts:
    """Write a snapshot of the chats and settings to a private zip. Raises KvchatError."""
    try:
        with atomic_write(target, private=True) as new, new.open("wb") as out:
            facts = write_backup(paths, out, progress)
        return replace(facts, size=target.stat().st_size)
    except (OSError, sqlite3.Error) as error:
        raise KvchatError(
            _("The backup could not be created"),
            f"{target}: {getattr(error, 'strerror', None) or error}.",
            _("Choose another folder, or free up disk space."),
        ) from error


def write_backup(paths: Paths, out: IO[bytes], progress: OnProgress = lambda done, total: None) -> BackupFacts:
    """Write a backup to an open file. Raises OSError, sqlite3.Error and what `progress` raises."""
    with tempfile.TemporaryDirectory(prefix="kvchat-backup-") as folder:
        database = Path(folder) / "conversations.db"
        with closing(sqlite3.connect(paths.database)) as live:
            migrations.back_up(live, database, lambda: progress(0, 0))
        with closing(sqlite3.connect(database)) as copy:
            copy.execute("PRAGMA journal_mode = DELETE")
            chats = int(copy.execute("SELECT count(*) FROM conversations").fetchone()[0])
        files = {DATABASE: database}  # the copy, not the live one
        if paths.settings_file.is_file():
            files[SETTINGS] = paths.settings_file
        made_at, unpacked, done = datetime.now(UTC), sum(file.stat().st_size for file in files.values()), 0
        entries: dict[str, Any] = {}
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, file in files.items():
                digest, start = blake3(), done
                with open_regular_file(file) as source, archive.open(name, "w", force_zip64=True) as packed:
                    while chunk := source.read(CHUNK_BYTES):
                        digest.update(chunk)
                        done += packed.write(chunk)
                        progress(done, unpacked)
                entries[name] = {"size": done - start, "blake3": digest.hexdigest()}
            manifest = {"format": FORMAT, "version": VERSION, "made_at": made_at.isoformat(), "conversations": chats}
            archive.writestr(MANIFEST, json.dumps(manifest | {"files": entries}, indent=1))
            return BackupFacts(made_at, chats, sum(member.compress_size for member in archive.infolist()), unpacked)


def check_backup(source: Path) -> BackupFacts:
    """Return the facts about a backup. Raises KvchatError if the file is damaged or not a backup."""
    with _unusable_if_damaged(source), open_zip(source) as archive:
        return _read_manifest(source, archive)[1]


def stage_restore(
    paths: Paths, source: Path, progress: OnProgress = lambda done, total: None, *, with_engine: bool = False
) -> BackupFacts:
    """Unpack a backup, verify its checksums and database, and stage it for the next start.

    Only chats and settings are restored. A backup may come from anyone, so this computer keeps its own settings for
    the API server, the reach of tools and, unless `with_engine`, the engine; permission to call tools is removed.
    Current data stays unchanged. `progress` gets bytes. Raises KvchatError and what `progress` raises; then nothing is
    staged.
    """
    staged = paths.data / RESTORE_FOLDER
    discard_staged(paths)
    try:
        with _unusable_if_damaged(source):
            with open_zip(source) as archive:
                (files, facts), done, free = _read_manifest(source, archive), 0, shutil.disk_usage(paths.data).free
                if facts.unpacked > free:
                    sizes = {"unpacked": format_size(facts.unpacked), "free": format_size(free)}
                    raise OSError(
                        errno.ENOSPC, _("it needs {unpacked} of disk space, but only {free} is free", **sizes)
                    )
                for name, entry in files.items():
                    done = _unpack(archive, name, entry, staged, done, lambda size: progress(size, facts.unpacked))
            with closing(sqlite3.connect(staged / DATABASE)) as db:
                if db.execute("PRAGMA integrity_check").fetchone()[0] != "ok":
                    raise zipfile.BadZipFile(_("its chat database is damaged"))
                if migrations.schema_version(db) > len(MIGRATIONS):
                    raise zipfile.BadZipFile(_("it was created by a newer version of kvchat"))
                _revoke_permissions(db)
            if SETTINGS in files:
                own, restored = load_settings(paths.settings_file), load_settings(staged / SETTINGS)
                names = _ACCESS_SETTINGS if with_engine else (*_ACCESS_SETTINGS, *ENGINE_SETTINGS)
                save_settings(staged / SETTINGS, replace(restored, **{name: getattr(own, name) for name in names}))
            progress(facts.unpacked, facts.unpacked)
            _mark_ready(paths)
            return facts
    finally:
        if not (staged / _READY).exists():
            discard_staged(paths)


def _revoke_permissions(db: sqlite3.Connection) -> None:
    """Remove permission to call tools, which no file may grant."""
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "tool_grants" in tables:
        db.execute("DELETE FROM tool_grants")
    for table in tables & {"conversations", "presets"}:
        for row, options in db.execute(f"SELECT rowid, options FROM {table} WHERE options <> ''").fetchall():
            db.execute(f"UPDATE {table} SET options = ? WHERE rowid = ?", (without_permission(str(options)), row))
    db.commit()


def _mark_ready(paths: Paths) -> None:
    with atomic_write(paths.data / RESTORE_FOLDER / _READY) as ready:
        ready.write_text(f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}", "utf-8")


def discard_staged(paths: Paths) -> None:
    staged = paths.data / RESTORE_FOLDER
    with suppress(OSError):
        (staged / _READY).unlink()
    shutil.rmtree(staged, ignore_errors=True)


def finish_restore(paths: Paths) -> Path | None:
    """Replace the data with the staged backup, if any; return the folder of the old data.

    An interrupted call can be repeated.
    """
    staged = paths.data / RESTORE_FOLDER
    if not (staged / _READY).exists():
        return None
    replaced = paths.data / f"replaced-{(staged / _READY).read_text('utf-8')}"
    try:
        for name, place in ((SETTINGS, paths.settings_file), (DATABASE, paths.database)):
            if (staged / name).is_file():
                _swap(staged / name, place, replaced / name)
        discard_staged(paths)
        return replaced
    except OSError as error:
        raise KvchatError(
            _("The backup could not be restored"),
            f"{error.filename or paths.data}: {error.strerror or error}.",
            _("Free up disk space and restart kvchat."),
        ) from error


def _swap(new: Path, place: Path, aside: Path) -> None:
    """Move the file at `place` to `aside`, then `new` to `place`. If `aside` already exists, it is kept."""
    aside.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for suffix in ("-wal", "-shm"):  # an old journal must not be applied to the new database
        journal = place.with_name(place.name + suffix)
        if journal.exists():
            replace_file(journal, aside.with_name(aside.name + suffix))
    if place.exists() and not aside.exists():
        _move(place, aside)
    _move(new, place)


def _move(source: Path, target: Path) -> None:
    """Move a file, also across file systems; `target` is never incomplete."""
    try:
        replace_file(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = target.with_name(f".{target.name}.part")
        shutil.copy2(source, copy)
        replace_file(copy, target)
        source.unlink()


def _read_manifest(source: Path, archive: zipfile.ZipFile) -> tuple[dict[str, dict[str, Any]], BackupFacts]:
    """Check the manifest; return its entries for the files to restore, and facts. Raises zipfile.BadZipFile."""
    try:
        with archive.open(MANIFEST) as packed:
            manifest = json.loads(packed.read(_MAX_MANIFEST))
        if manifest["format"] != FORMAT:
            raise ValueError
        if manifest["version"] != VERSION:
            raise zipfile.BadZipFile(_("it was created by a newer version of kvchat"))
        made_at, conversations = datetime.fromisoformat(manifest["made_at"]), int(manifest["conversations"])
        files = {name: manifest["files"][name] for name in (SETTINGS, DATABASE) if name in manifest["files"]}
        if DATABASE not in files:
            raise ValueError
        for entry in files.values():
            if not isinstance(entry["size"], int) or entry["size"] < 0 or not isinstance(entry["blake3"], str):
                raise ValueError
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
        raise zipfile.BadZipFile(_("it is not a kvchat backup")) from error
    engine: tuple[str, ...] = ()
    with suppress(KeyError, ValueError, RecursionError):
        if SETTINGS in files:
            with archive.open(SETTINGS) as packed:
                engine = engine_settings_of(parse_settings(json.loads(packed.read(_MAX_MANIFEST))))
    unpacked = sum(entry["size"] for entry in files.values())
    return files, BackupFacts(made_at, conversations, source.stat().st_size, unpacked, engine)


def _unpack(
    archive: zipfile.ZipFile,
    name: str,
    entry: Mapping[str, Any],
    folder: Path,
    done: int,
    report: Callable[[int], None],
) -> int:
    """Unpack and verify one file. Return `done` plus its size, and report this sum while unpacking.

    Raises zipfile.BadZipFile.
    """
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest, size = blake3(), 0
    try:
        with archive.open(name) as packed, target.open("xb") as out:
            while (chunk := packed.read(CHUNK_BYTES)) and size <= entry["size"]:
                digest.update(chunk)
                size += out.write(chunk)
                report(done + size)
            out.flush()
            os.fsync(out.fileno())
    except KeyError as error:
        raise zipfile.BadZipFile(_("{name} is missing", name=name)) from error
    target.chmod(0o600)
    if size != entry["size"] or digest.hexdigest() != entry["blake3"]:
        raise zipfile.BadZipFile(_("{name} is damaged", name=name))
    return done + size


@contextmanager
def _unusable_if_damaged(source: Path) -> Iterator[None]:
    try:
        yield
    except (*ZIP_FAULTS, sqlite3.Error) as error:
        raise KvchatError(
            _("This backup cannot be used"),
            f"{source.name}: {getattr(error, 'strerror', None) or error}.",
            _("Choose another backup. Nothing has been changed."),
        ) from error


_MAX_LISTED_CHATS = 8  # damaged chats


@dataclass(frozen=True)
class RepairReport:
    salvaged: SalvageReport
    previous_data: Path  # folder with the previous data

    @property
    def title(self) -> str:
        return _("Your chats were repaired") if self.salvaged.chats else _("No chats could be recovered")

    @property
    def text(self) -> str:
        salvaged = self.salvaged
        chats = plural(salvaged.chats, "{count} chat", "{count} chats")
        messages = plural(salvaged.messages, "{count} message", "{count} messages")
        lines = [_("Recovered: {chats} with {messages}.", chats=chats, messages=messages)]
        if salvaged.from_backup:
            lines.append(
                plural(
                    salvaged.from_backup,
                    "{count} message was recovered from the automatic backup.",
                    "{count} messages were recovered from the automatic backup.",
                )
            )
        if salvaged.lost_messages:
            named = [
                _("“{name}”", name=title) + f" ({format_number(count)})"
                for title, count in salvaged.lost_messages[:_MAX_LISTED_CHATS]
            ]
            if (more := len(salvaged.lost_messages) - len(named)) > 0:
                named.append(plural(more, "{count} more chat", "{count} more chats"))
            lines.append(_("Some messages could not be recovered in {named}.", named=join_list(named)))
        elif salvaged.unreadable:
            lines.append(_("Nothing could be recovered from the damaged file."))
        return join_sentences(*lines, _("The damaged file is now in {aside}.", aside=self.previous_data))


def repair(paths: Paths) -> RepairReport | None:
    """Replace a damaged chats file with its recoverable contents; None if undamaged. Raises KvchatError."""
    staged, file = paths.data / RESTORE_FOLDER, paths.database
    discard_staged(paths)
    try:
        if is_intact(file):
            damage_marker(file).unlink(missing_ok=True)
            return None
        new = staged / DATABASE
        copy = staged / "damaged" / file.name
        for folder in (new.parent, copy.parent):
            folder.mkdir(parents=True, mode=0o700)
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(file.with_name(file.name + suffix), copy.with_name(copy.name + suffix))
        salvaged = salvage(copy, next(iter(list_backups(file)), None), new)
        shutil.rmtree(copy.parent)
        _mark_ready(paths)
        aside = finish_restore(paths)
        assert aside is not None  # staged just above
        damage_marker(file).unlink(missing_ok=True)
        return RepairReport(salvaged, aside)
    except (OSError, *DAMAGE_ERRORS) as error:
        raise KvchatError(
            _("The chats could not be repaired"), f"{file}: {error}.", _("Free up disk space, then try again.")
        ) from error
    finally:
        discard_staged(paths)
