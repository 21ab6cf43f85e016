"""Finding words in all messages and titles: the index in the conversations' file, and what is asked of it.

Triggers note what must be read anew, so that every writer of the file is covered, and a reply that streams costs one
mark; the words follow in steps of a few hundred messages, before a search and while nothing else is to be done.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from kvchat.chat.database import Database
from kvchat.chat.database_file import StorageFailed
from kvchat.chat.folding import Term, spans, spread, terms_of
from kvchat.chat.worker import Worker

MOST_CHATS = 100  # shown for one search
_MOST_MESSAGES = 500  # the newest ones that are looked at for one search
_AT_ONCE = 200  # messages indexed in one transaction: some 20 ms
_BEFORE, _AFTER = 32, 160  # characters of an excerpt around its first hit

_NEWEST = """
    SELECT conversation_id, message_id FROM searched_words
    CROSS JOIN searched ON number = searched_words.rowid CROSS JOIN conversations ON conversations.id = conversation_id
    WHERE searched_words MATCH ? AND deleted_at IS NULL ORDER BY searched_words.rowid DESC LIMIT ?
"""


@dataclass(frozen=True)
class FoundChat:
    """A chat in which something was found."""

    conversation_id: str
    title: str
    message_ids: tuple[str, ...]  # the newest first; none where only the title has the words
    excerpt: str
    marks: tuple[tuple[int, int], ...]  # of the hits in the excerpt


@dataclass(frozen=True)
class Found:
    """What a search found, titles first, then the newest messages."""

    chats: tuple[FoundChat, ...]
    complete: bool  # whether every message was in the index already


class Finder:
    """Searches, and keeps the index up to date in the background. Belongs to the event loop's thread."""

    def __init__(self, database: Database, worker: Worker) -> None:
        self._database = database
        self._worker = worker
        self._indexing: asyncio.Task[None] | None = None

    async def find(self, query: str) -> Found:
        """Chats with all words of the query in their title or in one message. Raises StorageFailed."""
        complete = not await self._worker.run(index_some, self._database)
        if not complete:
            self.begin_indexing()
        return Found(await self._worker.run(find, self._database, query), complete)

    def begin_indexing(self) -> None:
        """Bring the index up to date in the background, between whatever else the database is asked for."""
        if self._indexing is None or self._indexing.done():
            self._indexing = asyncio.create_task(self._index_all())

    def close(self) -> None:
        """Leave the rest for the next time."""
        if self._indexing is not None:
            self._indexing.cancel()

    async def _index_all(self) -> None:
        with contextlib.suppress(StorageFailed):  # the search itself will tell
            while await self._worker.run(index_some, self._database):
                pass


def index_some(database: Database) -> bool:
    """Index some of what has changed; whether there is more. Raises StorageFailed."""
    stale = """
        SELECT number, coalesce(content, title) AS text, message_id IS NULL AS is_title
        FROM searched JOIN conversations ON conversations.id = searched.conversation_id
        LEFT JOIN messages ON messages.id = message_id WHERE stale LIMIT ?
    """
    with database.reading() as db:
        rows = db.execute(stale, (_AT_ONCE,)).fetchall()
    if not rows:
        return False
    words = [
        (r["number"], spread(r["text"]) if r["is_title"] else "", "" if r["is_title"] else spread(r["text"]))
        for r in rows
    ]
    numbers = [(row["number"],) for row in rows]
    with database.transaction() as db:
        db.executemany("DELETE FROM searched_words WHERE rowid = ?", numbers)
        db.executemany("INSERT INTO searched_words (rowid, title, body) VALUES (?, ?, ?)", words)
        db.executemany("UPDATE searched SET stale = 0 WHERE number = ?", numbers)
    return len(rows) == _AT_ONCE


def find(database: Database, query: str) -> tuple[FoundChat, ...]:
    """The chats with all words of the query in their title or in one message, as far as they are indexed."""
    terms = terms_of(query)
    if not terms:
        return ()
    expression = " AND ".join(term.expression for term in terms)
    hits: dict[str, list[str]] = {}
    with database.reading() as db:
        for column, most in (("title", MOST_CHATS), ("body", _MOST_MESSAGES)):
            for row in db.execute(_NEWEST, (f"{{{column}}} : ({expression})", most)):
                messages = hits.setdefault(row["conversation_id"], [])
                if row["message_id"]:
                    messages.append(row["message_id"])
        shown = list(hits.items())[:MOST_CHATS]
        return tuple(_found(database, id, tuple(messages), terms) for id, messages in shown)


def _found(database: Database, conversation_id: str, messages: tuple[str, ...], terms: tuple[Term, ...]) -> FoundChat:
    text = "SELECT title, (SELECT content FROM messages WHERE id = ?) AS content FROM conversations WHERE id = ?"
    with database.reading() as db:
        row = db.execute(text, (messages[0] if messages else None, conversation_id)).fetchone()
    excerpt, marks = _excerpt(row["content"] or "", terms)
    return FoundChat(conversation_id, row["title"], messages, excerpt, marks)


def _excerpt(text: str, terms: tuple[Term, ...]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """A line of the text around its first hit, and where the hits are in it."""
    found = spans(text, terms)
    start = max(found[0][0] - _BEFORE, 0) if found else 0
    if start:  # not in the middle of a word, where there are words
        start = text.find(" ", start, found[0][0]) + 1 or start
    line = ("…" if start else "") + " ".join(text[start : start + _BEFORE + _AFTER].split())
    return line, tuple(spans(line, terms))
