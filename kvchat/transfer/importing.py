"""Import of conversations from kvchat's and other applications' exports, with an error report."""

import itertools
import json
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from kvchat.chat.record.database import Database
from kvchat.chat.record.database_file import StorageFailed
from kvchat.kvstore.exchange import BadMemory
from kvchat.kvstore.savepoint import StoreRefused
from kvchat.kvstore.store import BlockStore
from kvchat.system.concurrency import OnProgress
from kvchat.system.files import open_regular_file, run_with_timeout
from kvchat.text.formatting import format_size, one_line
from kvchat.text.language import N_, _, format_number, join_list, punctuation
from kvchat.text.safe_text import safe_prose
from kvchat.transfer.foreign import foreign_parser
from kvchat.transfer.memory_file import ImportedMemory, MemoryFile, is_memory_file, open_memory_file
from kvchat.transfer.rows import BadConversation, Row, replace_foreign_ids, store_rows, undo_import
from kvchat.transfer.untrusted_files import MAX_FILE, ZIP_FAULTS, is_zip, open_zip, read_conversations

MAX_CHATS = 100_000  # examined per import, including non-chats
TITLE_WIDTH = 60  # characters of a title in a problem line


@dataclass(frozen=True)
class ImportReport:
    """Result of an import. Each conversation is imported whole or not at all."""

    imported: tuple[str, ...] = ()  # ids of new conversations
    existing: tuple[str, ...] = ()  # ids already present, left unchanged, including recently deleted ones
    problems: tuple[str, ...] = ()  # one line each: file, conversation, reason
    memories: tuple[ImportedMemory, ...] = ()  # imported with conversations
    notes: tuple[str, ...] = ()  # one sentence each: memory that was skipped, results of its test


def import_paths(
    database: Database,
    paths: Iterable[Path],
    progress: OnProgress = lambda done, total: None,
    call: Callable[..., Any] = lambda function, *args: function(*args),
    *,
    store: BlockStore | None = None,
    passphrase: str = "",
) -> ImportReport:
    """Import files, zips and folders. `progress` gets the number of conversations read, or bytes of memory.

    `call` runs database access, one conversation at a time. Invalid files and entries are reported. The memory of a
    new conversation goes into `store` for that conversation only; faulty memory is reported and not imported.

    Raises StorageFailed, PassphraseNeeded and what `progress` raises, after undoing the import.
    """
    imported: list[str] = []
    existing: list[str] = []
    problems: list[str] = []
    memories: list[ImportedMemory] = []
    notes: list[str] = []
    try:
        for done, entry in enumerate(entry for path in paths for entry in _read_entries(path, passphrase)):
            progress(done, 0)
            if done == MAX_CHATS:
                too_many = N_("{where}: kvchat imported only {most_chats} chats, the maximum for one import")
                problems.append(_(too_many, where=entry.location, most_chats=format_number(MAX_CHATS)))
                break
            try:
                row = entry.row()
                is_new = call(store_rows, database, row)
                (imported if is_new else existing).append(row["id"])
                if entry.memory and row["id"] in existing:
                    skipped = N_("The chat memory in {file} was not imported because the chat already exists.")
                    notes.append(_(skipped, file=entry.location))
                elif entry.memory and store is not None:
                    memories.append(entry.memory.import_into(store, row["id"], progress))
            except (BadConversation, RecursionError) as problem:
                problems.append(f"{entry.location}: {_describe_error(problem)}")
            except (BadMemory, StoreRefused) as problem:
                left_out = N_("{where}: the chat was imported without its memory: {problem}")
                problems.append(_(left_out, where=entry.location, problem=problem))
            progress(done + 1, 0)
    except BaseException:
        with suppress(StorageFailed, StoreRefused):
            for memory in memories:
                if store is not None and memory.conversation_id in imported:
                    store.inventory.delete_conversation(memory.conversation_id)
            for conversation_id in imported:
                call(undo_import, database, conversation_id)
        raise
    return ImportReport(tuple(imported), tuple(existing), tuple(problems), tuple(memories), tuple(notes))


@dataclass(frozen=True)
class _ImportEntry:
    location: str
    value: Any = None
    is_own: bool = False  # in kvchat's format
    name: str = ""  # replaces a missing id
    fault: str = ""
    memory: MemoryFile | None = None  # attached memory

    def row(self) -> Row:
        if self.fault:
            raise BadConversation(self.fault)
        if self.is_own:
            if not isinstance(self.value, dict):
                raise BadConversation(_("it is not a chat"))
            return replace_foreign_ids(self.value)
        parser = foreign_parser(self.value)
        if parser is None:
            raise BadConversation(_("it is not a chat in a supported format"))
        return parser(self.value, self.name)


def _read_entries(path: Path, passphrase: str) -> Iterator[_ImportEntry]:
    try:
        if run_with_timeout(path.is_dir):
            files = sorted(itertools.islice(path.rglob("*.json"), MAX_CHATS + 1))
            if not files:
                raise ValueError(_("it contains no chats"))
            for file in files:
                yield from _read_entries(file, passphrase)
        elif is_memory_file(path):
            with open_memory_file(path, passphrase) as memory:
                for entry in _read_file_entries(path.name, memory.chats):
                    yield replace(entry, memory=memory)
        elif is_zip(path) or path.suffix.lower() == ".zip":
            with open_zip(path) as archive:
                for member in _json_members(archive):
                    name = join_list((path.name, one_line(safe_prose(member.filename))))
                    yield from _read_file_entries(name, partial(archive.open, member))
        else:
            yield from _read_file_entries(path.name, partial(open_regular_file, path))
    except ZIP_FAULTS as error:
        yield _ImportEntry(path.name, fault=_describe_error(error))


def _json_members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    members = [member for member in archive.infolist() if member.filename.endswith(".json")]
    conversations = [member for member in members if Path(member.filename).name == "conversations.json"]
    chosen = conversations or members  # exports also hold other JSON: users, feedback, projects
    if not chosen:
        raise ValueError(_("the zip file contains no JSON"))
    if sum(member.file_size for member in chosen) > MAX_FILE:
        raise ValueError(_("it is larger than {largest_file} when unpacked", largest_file=format_size(MAX_FILE)))
    return chosen


def _read_file_entries(name: str, open_file: Callable[[], IO[bytes]]) -> Iterator[_ImportEntry]:
    count = 0
    try:
        with open_file() as file:
            for count, parsed in enumerate(read_conversations(file), 1):
                where = name if parsed.is_alone_in_file else _("{name}, chat {count}", name=name, count=count)
                values = parsed.value if isinstance(parsed.value, dict) else {}
                title = values.get("title") or values.get("name")
                if isinstance(title, str):
                    where += " " + _("“{name}”", name=one_line(safe_prose(title[:TITLE_WIDTH])))
                yield _ImportEntry(
                    where, parsed.value, parsed.is_own, name if parsed.is_alone_in_file else f"{name}:{count}"
                )
            if not count:
                raise ValueError(_("it contains no chats"))
    except (*ZIP_FAULTS, MemoryError) as error:
        faults = [_describe_error(error)]
        if count > 1:
            faults.append(_("the {count} chats before it were imported", count=format_number(count)))
        yield _ImportEntry(name, fault=punctuation("; ").join(faults))


def _describe_error(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        place = {"line": error.lineno, "column": error.colno}
        return _("line {line}, column {column}: invalid JSON ({msg})", **place, msg=error.msg)
    if isinstance(error, UnicodeDecodeError):
        return _("it is not UTF-8 text")
    if isinstance(error, zipfile.BadZipFile | zlib.error | EOFError):
        return _("the zip file is damaged ({error})", error=error)
    if isinstance(error, RecursionError):
        return _("it is nested too deeply")
    if isinstance(error, MemoryError):
        return _("not enough memory to read it")
    return str(error.strerror or error) if isinstance(error, OSError) else str(error)
