"""Taking conversations in: own JSON and other applications' exports, file by file, with a report of what went wrong."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvchat.chat.database import Database
from kvchat.chat.database_file import StorageFailed
from kvchat.chat.worker import Caller, call_here
from kvchat.keeping.foreign import foreign_parser
from kvchat.keeping.own_json import own_entries
from kvchat.keeping.rows import BadConversation, Row, store_rows, take_back
from kvchat.stoppable import Progress
from kvchat.wording import one_line

LARGEST_FILE = 2_000_000_000  # bytes; a zip claiming more is no export of conversations
TITLE_WIDTH = 60  # characters of a title in a problem's line


@dataclass(frozen=True)
class ImportReport:
    """What came of an import. A conversation is taken in whole or not at all."""

    imported: tuple[str, ...] = ()  # ids of new conversations
    known: int = 0  # conversations that were here already, left as they are
    problems: tuple[str, ...] = ()  # one line each: file, conversation, reason

    def __add__(self, other: ImportReport) -> ImportReport:
        """Both together."""
        return ImportReport(self.imported + other.imported, self.known + other.known, self.problems + other.problems)


def import_paths(
    database: Database,
    paths: Iterable[Path],
    progress: Progress = lambda done, total: None,
    call: Caller = call_here,
) -> ImportReport:
    """Import files, zips and folders. `progress` is told how many conversations have been looked at.

    The database is used by `call`, for one conversation at a time. Bad files and entries are in the report. Raises
    StorageFailed and what `progress` raises; then it takes back what it has taken in.
    """
    report, done = ImportReport(), 0
    try:
        for path in paths:
            for name, document in _documents(path):
                progress(done, 0)
                if isinstance(document, Exception):
                    report += ImportReport(problems=(f"{name}: {_reason(document)}",))
                    continue
                for entry in _entries(name, document):
                    report += _take(database, entry, call)
                    done += 1
                    progress(done, 0)
    except BaseException:
        with suppress(StorageFailed):
            for conversation_id in report.imported:
                call(take_back, database, conversation_id)
        raise
    return report


@dataclass(frozen=True)
class _Entry:
    """One conversation in a file, or why a file has none."""

    where: str
    row: Callable[[], Row]


def _take(database: Database, entry: _Entry, call: Caller) -> ImportReport:
    try:
        row = entry.row()
        return ImportReport(imported=(row["id"],)) if call(store_rows, database, row) else ImportReport(known=1)
    except BadConversation as problem:
        return ImportReport(problems=(f"{entry.where}: {problem}",))
    except RecursionError:
        return ImportReport(problems=(f"{entry.where}: it is nested too deeply",))


def _documents(path: Path) -> Iterator[tuple[str, Any]]:
    """The JSON documents under a path, with their names; an exception in place of one that cannot be read."""
    try:
        if path.is_dir():
            for file in sorted(path.rglob("*.json")):
                yield from _documents(file)
        elif path.suffix.lower() == ".zip" or zipfile.is_zipfile(path):
            yield from _zipped(path)
        else:
            yield path.name, _parsed(path.read_bytes())
    except (OSError, ValueError, RecursionError, zipfile.BadZipFile) as error:
        yield path.name, error


def _zipped(path: Path) -> Iterator[tuple[str, Any]]:
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".json")]
        conversations = [m for m in members if Path(m.filename).name == "conversations.json"]
        found = conversations or members  # exports hold other JSON as well: users, feedback, projects
        if not found:
            yield path.name, ValueError("the zip holds no JSON")
        for member in found:
            name = f"{path.name}, {member.filename}"
            try:
                if member.file_size > LARGEST_FILE:
                    raise ValueError("it is too large to be an export")
                yield name, _parsed(archive.read(member))
            except (OSError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
                yield name, error


def _parsed(content: bytes) -> Any:
    return json.loads(content.decode("utf-8-sig"))


def _entries(name: str, document: Any) -> Iterator[_Entry]:
    """The conversations in a document, whoever wrote it."""
    try:
        own = own_entries(document)
    except ValueError as error:
        yield _Entry(name, _raiser(str(error)))
        return
    entries = own if own is not None else document if isinstance(document, list) else [document]
    if not entries:
        yield _Entry(name, _raiser("it holds no chats"))
    for number, entry in enumerate(entries, 1):
        where = name if len(entries) == 1 else f"{name}, chat {number}"
        if title := _title(entry):
            where += f" “{title}”"
        spare_name = name if len(entries) == 1 else f"{name}:{number}"
        yield _Entry(where, _reader(entry, spare_name, own=own is not None))


def _reader(entry: Any, name: str, *, own: bool) -> Callable[[], Row]:
    if own:
        return (lambda: entry) if isinstance(entry, dict) else _raiser("it is not a chat")
    parser = foreign_parser(entry)
    if parser is None:
        return _raiser("it is not a chat in any form that kvchat knows")
    return lambda: parser(entry, name)


def _raiser(reason: str) -> Callable[[], Row]:
    def fail() -> Row:
        raise BadConversation(reason)

    return fail


def _title(entry: Any) -> str:
    found = (entry.get("title") or entry.get("name")) if isinstance(entry, dict) else None
    return one_line(found)[:TITLE_WIDTH] if isinstance(found, str) else ""


def _reason(error: Exception) -> str:
    """Why a file could not be read, in words."""
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}: it is not JSON ({error.msg})"
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    if isinstance(error, zipfile.BadZipFile):
        return f"the zip is damaged ({error})"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, OSError):
        return str(error.strerror or error)
    return str(error)
