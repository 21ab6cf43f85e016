"""Database records of prepared documents. Database thread only."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from kvchat.chat.prepared.sources import CannotPrepare, Document, Source
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Attachment, Conversation, Message, Role, new_message
from kvchat.chat.record.rows import text_of, time_of
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.words.language import _

# After the documents, which come first because only they are long.
INSTRUCTION = "Answer with the help of these documents."


@dataclass(frozen=True)
class Prepared:
    id: str
    name: str
    paths: tuple[str, ...]  # named by the user
    sources: tuple[Source, ...]
    label: str  # of its save points; empty: never read completely
    fingerprint: Fingerprint | None  # of the engine that read them, as are the fields below
    model: str  # path
    context_size: int
    tokens: int
    read_ms: float  # estimate for reading all of it
    created_at: datetime

    @property
    def owner(self) -> str:
        return owner_of(self.id)

    @property
    def is_read(self) -> bool:
        return bool(self.label)


def owner_of(prepared_id: str) -> str:
    return f"prepared:{prepared_id}"


def all_prepared(database: Database) -> list[Prepared]:
    query = (
        "SELECT id, name, paths, sources, label, fingerprint, model, context_size, tokens, read_ms, created_at"
        " FROM prepared ORDER BY name COLLATE NOCASE"
    )
    rows = database.rows(query)
    return [prepared for row in rows if (prepared := _prepared_of(row)) is not None]


def add(database: Database, name: str, paths: Sequence[str], documents: Sequence[Document]) -> Prepared:
    made, now = uuid.uuid4().hex, datetime.now(UTC).timestamp()
    statement = "INSERT OR IGNORE INTO prepared (id, name, paths, sources, texts, created_at) VALUES (?, ?, ?, ?, ?, ?)"
    if not database.write(statement, (made, name, json.dumps(paths), *_stored(documents), now)):
        advice = _("Choose another name, or reprocess the existing one.")
        raise CannotPrepare(_("“{name}” is already in the library", name=name), "", advice)
    return next(prepared for prepared in all_prepared(database) if prepared.id == made)


def finish(database: Database, prepared: Prepared, documents: Sequence[Document]) -> None:
    facts = json.dumps(dataclasses.asdict(prepared.fingerprint)) if prepared.fingerprint else None
    database.write(
        "UPDATE prepared SET sources = ?, texts = ?, label = ?, fingerprint = ?, model = ?, context_size = ?,"
        " tokens = ?, read_ms = ?, created_at = ? WHERE id = ?",
        (
            *(*_stored(documents), prepared.label, facts, prepared.model, prepared.context_size),
            *(prepared.tokens, prepared.read_ms, prepared.created_at.timestamp(), prepared.id),
        ),
    )


def remove(database: Database, prepared: Prepared) -> None:
    with database.transaction() as db:
        db.execute("DELETE FROM prepared WHERE id = ?", (prepared.id,))
        db.execute("INSERT OR IGNORE INTO deleted VALUES (?1, ?1)", (prepared.owner,))


def begin_chat(database: Database, prepared: Prepared, id: str = "") -> Conversation:
    row = next(iter(database.rows("SELECT texts FROM prepared WHERE id = ?", (prepared.id,))), None)
    if row is None:
        raise CannotPrepare(_("“{name}” is no longer in the library", name=prepared.name), "", _("Prepare it again."))
    texts = json.loads(text_of(row["texts"]))
    documents = [Document(source, text).attachment for source, text in zip(prepared.sources, texts, strict=True)]
    with database.transaction() as db:
        made = database.create_conversation(prepared.name, INSTRUCTION, documents, id=id)
        db.execute("UPDATE conversations SET prepared = ? WHERE id = ?", (prepared.id, made.id))
    return made


def begun_on(database: Database, conversation_id: str) -> tuple[str | None, list[tuple[str, str]]]:
    """Return the id of the set a chat started with, if known, and its documents' names and hashes."""
    query = (
        "SELECT DISTINCT position, name, hash FROM attachments JOIN messages ON messages.id = message_id"
        " WHERE conversation_id = ? AND role = 'system' ORDER BY position"
    )
    documents = [(text_of(row["name"]), text_of(row["hash"])) for row in database.rows(query, (conversation_id,))]
    known = database.rows("SELECT prepared FROM conversations WHERE id = ?", (conversation_id,)) if documents else []
    return next((text_of(row["prepared"]) for row in known if row["prepared"]), None), documents


def system_message(documents: Sequence[Attachment]) -> Message:
    return new_message("", Role.SYSTEM, INSTRUCTION, attachments=documents)


def _stored(documents: Sequence[Document]) -> tuple[str, str]:
    sources = json.dumps([dataclasses.asdict(document.source) for document in documents])
    return sources, json.dumps([document.text for document in documents])


def _prepared_of(row: sqlite3.Row) -> Prepared | None:
    try:
        facts = row["fingerprint"]
        return Prepared(
            text_of(row["id"]),
            text_of(row["name"]),
            tuple(json.loads(row["paths"])),
            tuple(Source(**source) for source in json.loads(row["sources"])),
            text_of(row["label"]),
            Fingerprint(**json.loads(facts)) if facts else None,
            text_of(row["model"]),
            int(row["context_size"]),
            int(row["tokens"]),
            float(row["read_ms"]),
            time_of(row["created_at"]),
        )
    except (ValueError, TypeError):
        return None
