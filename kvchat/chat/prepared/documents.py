"""Documents of a prepared set: read from files, folders and repositories, and stored. Blocking."""

import dataclasses
import itertools
import json
import os
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from blake3 import blake3

from kvchat.chat.attachments import AttachmentError, document_format, document_from_bytes, is_picture, read_bytes
from kvchat.chat.options import NewChat
from kvchat.chat.prepared.gitignore import IgnoreRule, is_ignored, read_rules
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Attachment, Message, Role, as_datetime, as_text, new_message
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.system.files import is_online_only
from kvchat.text.formatting import format_size
from kvchat.text.language import _, format_number, join_list, plural

MAX_TEXT_CHARACTERS = 32_000_000  # more than any context holds
MAX_FILES = 20_000  # checked at most
_SNIFF_BYTES = 8192  # bytes of a file checked before reading the rest

# Follows the documents in the prompt: attachments precede the text.
INSTRUCTION = "Use these documents to answer."


class PreparationError(KvchatError):
    """The documents cannot be read, processed or stored."""


@dataclass(frozen=True)
class SourceFile:
    path: str
    name: str  # shown to the model
    size: int  # bytes
    mtime_ns: int
    hash: str  # BLAKE3, as hex


@dataclass(frozen=True)
class Document:
    source: SourceFile
    text: str

    @property
    def attachment(self) -> Attachment:
        return Attachment(self.source.name, self.source.size, self.source.hash, self.text)


@dataclass(frozen=True)
class FileChanges:
    changed: int = 0
    added: int = 0
    removed: int = 0

    def __bool__(self) -> bool:
        return any((self.changed, self.added, self.removed))

    @property
    def text(self) -> str:
        changed, added, gone = self.changed, self.added, self.removed
        full = (
            plural(changed, "{count} file changed", "{count} files changed"),
            plural(added, "{count} file added", "{count} files added"),
            plural(gone, "{count} file removed", "{count} files removed"),
        )
        short = (
            plural(changed, "{count} changed", "{count} changed"),
            plural(added, "{count} added", "{count} added"),
            plural(gone, "{count} removed", "{count} removed"),
        )
        first, *others = [place for place, count in enumerate((changed, added, gone)) if count] or [0]
        return join_list([full[first], *(short[place] for place in others)])


def read_documents(paths: Sequence[Path], previous_files: Sequence[SourceFile] = ()) -> tuple[Document, ...]:
    """Read all documents, those in `previous_files` first and in that order, so that unchanged ones stay a prefix."""
    places = {source.path: number for number, source in enumerate(previous_files)}
    files = sorted(_find_files(paths), key=lambda file: places.get(str(file[0]), len(places)))
    documents: list[Document] = []
    characters = 0
    for path, name, is_explicit in files:
        if (document := _read_document(path, name, explicit=is_explicit)) is None:
            continue
        documents.append(document)
        characters += len(document.text)
        if characters > MAX_TEXT_CHARACTERS:
            limit, advice = format_size(MAX_TEXT_CHARACTERS), _("Choose only the relevant part.")
            detail = _(
                "The documents contain more than {most_text} of text, which is too long for any model.", most_text=limit
            )
            raise PreparationError(_("This is too much to prepare"), detail, advice)
    if not documents:
        detail, advice = _("No files with text were found."), _("Choose text, code, PDF, Office, EPUB or HTML files.")
        raise PreparationError(_("There is nothing to prepare"), detail, advice)
    return tuple(documents)


def detect_changes(paths: Sequence[Path], previous_files: Sequence[SourceFile]) -> FileChanges:
    previous = {source.path: source for source in previous_files}
    try:
        files = {str(path): (path, name) for path, name, _ in _find_files(filter(Path.exists, paths))}
    except PreparationError:  # too many files now: rereading reports it
        return FileChanges(added=1)
    changed = 0
    for source in (previous[path] for path in files.keys() & previous.keys()):
        try:
            path = Path(source.path)
            now = path.stat()
            if (now.st_size, now.st_mtime_ns) != (source.size, source.mtime_ns):
                changed += now.st_size != source.size or blake3(read_bytes(path)).hexdigest() != source.hash
        except (OSError, AttachmentError):
            changed += 1
    new = sum(_read_document(*files[path], explicit=False) is not None for path in files.keys() - previous.keys())
    return FileChanges(changed, new, len(previous.keys() - files.keys()))


def _read_document(path: Path, name: str, *, explicit: bool) -> Document | None:
    """Read a file's text, or None if it has none; if the user named the file (`explicit`), raise AttachmentError."""
    try:
        if not explicit:
            if is_online_only(path.stat()):
                return None
            with path.open("rb") as file:
                head = file.read(_SNIFF_BYTES)
            is_utf16 = head.startswith((b"\xff\xfe", b"\xfe\xff"))
            if b"\0" in head and not is_utf16 and document_format(name, head) is None:
                return None
        changed = path.stat().st_mtime_ns if path.exists() else 0  # taken before reading, to detect changes meanwhile
        data = read_bytes(path)
        if is_picture(data):
            raise AttachmentError(path.name, _("It is an image."), _("kvchat can prepare only files with text."))
        read = document_from_bytes(name, data)
    except (AttachmentError, OSError):
        if explicit:
            raise
        return None
    return Document(SourceFile(str(path), read.name, read.size, changed, read.hash), read.text)


def _find_files(paths: Iterable[Path]) -> Iterator[tuple[Path, str, bool]]:
    visited: set[Path] = set()
    for path in map(Path.absolute, paths):
        inside = iter((path,))
        if path.is_dir():
            above = [path, *path.parents]
            root = next((number for number, parent in enumerate(above) if (parent / ".git").exists()), 0)
            inside = _walk_folder(path, [rules for parent in above[root:0:-1] for rules in read_rules(parent)])
        for file in itertools.islice(inside, MAX_FILES + 1 - len(visited)):
            name = str(file.relative_to(path.parent).as_posix())
            if file not in visited:
                visited.add(file)
                yield file, os.fsencode(name).decode("utf-8", "replace"), file == path
            if len(visited) > MAX_FILES:
                detail = _("It contains more than {most_files} files.", most_files=format_number(MAX_FILES))
                advice = _("Choose only the relevant subfolder.")
                raise PreparationError(_("This is too much to prepare"), detail, advice)


def _walk_folder(folder: Path, rules: Sequence[IgnoreRule]) -> Iterator[Path]:
    """Yield a folder's files, except ignored ones. `rules`: those of its parent folders, innermost last."""
    rules = [*rules, *read_rules(folder)]
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        path = folder / entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name.startswith(".") or entry.is_symlink() or is_ignored(path, rules, is_folder=is_folder):
            continue
        if is_folder:
            yield from _walk_folder(path, rules)
        elif entry.is_file(follow_symlinks=False):
            yield path


@dataclass(frozen=True)
class PreparedSet:
    id: str
    name: str
    paths: tuple[str, ...]  # named by the user
    sources: tuple[SourceFile, ...]
    label: str  # of its save points; empty: never completely processed
    fingerprint: Fingerprint | None  # of the engine that processed them, as are the fields below
    model: str  # path
    context_size: int
    tokens: int
    read_ms: float  # estimate for processing all of it
    created_at: datetime

    @property
    def owner(self) -> str:
        return f"prepared:{self.id}"

    @property
    def is_read(self) -> bool:
        return bool(self.label)


def all_prepared(database: Database) -> list[PreparedSet]:
    rows = database.rows(
        "SELECT id, name, paths, sources, label, fingerprint, model, context_size, tokens, read_ms, created_at"
        " FROM prepared ORDER BY name COLLATE NOCASE"
    )
    return [prepared for row in rows if (prepared := _prepared_from_row(row)) is not None]


def add(database: Database, name: str, paths: Sequence[str], documents: Sequence[Document]) -> PreparedSet:
    id, now = uuid.uuid4().hex, datetime.now(UTC).timestamp()
    statement = "INSERT OR IGNORE INTO prepared (id, name, paths, sources, texts, created_at) VALUES (?, ?, ?, ?, ?, ?)"
    if not database.write(statement, (id, name, json.dumps(paths), *_to_json(documents), now)):
        advice = _("Choose another name, or reprocess the existing one.")
        raise PreparationError(_("“{name}” is already in the library", name=name), "", advice)
    return next(prepared for prepared in all_prepared(database) if prepared.id == id)


def finish(database: Database, prepared: PreparedSet, documents: Sequence[Document]) -> None:
    facts = json.dumps(dataclasses.asdict(prepared.fingerprint)) if prepared.fingerprint else None
    database.write(
        "UPDATE prepared SET sources = ?, texts = ?, label = ?, fingerprint = ?, model = ?, context_size = ?,"
        " tokens = ?, read_ms = ?, created_at = ? WHERE id = ?",
        (
            *(*_to_json(documents), prepared.label, facts, prepared.model, prepared.context_size),
            *(prepared.tokens, prepared.read_ms, prepared.created_at.timestamp(), prepared.id),
        ),
    )


def remove(database: Database, prepared: PreparedSet) -> None:
    with database.transaction() as db:
        db.execute("DELETE FROM prepared WHERE id = ?", (prepared.id,))
        db.execute("INSERT OR IGNORE INTO deleted VALUES (?1, ?1)", (prepared.owner,))


def new_chat(database: Database, prepared: PreparedSet) -> NewChat:
    """Return a chat that starts with copies of the documents, so that it does not change with the set."""
    rows = database.rows("SELECT texts FROM prepared WHERE id = ?", (prepared.id,))
    if not rows:
        title = _("“{name}” is no longer in the library", name=prepared.name)
        raise PreparationError(title, "", _("Prepare it again."))
    texts = json.loads(as_text(rows[0]["texts"]))
    documents = [Document(source, text).attachment for source, text in zip(prepared.sources, texts, strict=True)]
    return NewChat(prepared.name, INSTRUCTION, tuple(documents), prepared=prepared.id)


def chat_documents(database: Database, conversation_id: str) -> tuple[str | None, list[tuple[str, str]]]:
    """Return the id of the set a chat started with, if known, and its documents' names and hashes."""
    query = (
        "SELECT DISTINCT position, name, hash FROM attachments JOIN messages ON messages.id = message_id"
        " WHERE conversation_id = ? AND role = 'system' ORDER BY position"
    )
    documents = [(as_text(row["name"]), as_text(row["hash"])) for row in database.rows(query, (conversation_id,))]
    known = database.rows("SELECT prepared FROM conversations WHERE id = ?", (conversation_id,)) if documents else []
    return next((as_text(row["prepared"]) for row in known if row["prepared"]), None), documents


def system_message(documents: Sequence[Attachment]) -> Message:
    return new_message("", Role.SYSTEM, INSTRUCTION, attachments=documents)


def _to_json(documents: Sequence[Document]) -> tuple[str, str]:
    sources = json.dumps([dataclasses.asdict(document.source) for document in documents])
    return sources, json.dumps([document.text for document in documents])


def _prepared_from_row(row: sqlite3.Row) -> PreparedSet | None:
    try:
        facts = row["fingerprint"]
        return PreparedSet(
            as_text(row["id"]),
            as_text(row["name"]),
            tuple(json.loads(row["paths"])),
            tuple(SourceFile(**source) for source in json.loads(row["sources"])),
            as_text(row["label"]),
            Fingerprint(**json.loads(facts)) if facts else None,
            as_text(row["model"]),
            int(row["context_size"]),
            int(row["tokens"]),
            float(row["read_ms"]),
            as_datetime(row["created_at"]),
        )
    except (ValueError, TypeError):
        return None
