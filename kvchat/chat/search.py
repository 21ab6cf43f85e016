"""Full-text search in messages, attachments and titles.

Triggers mark changed text; it is indexed in steps, before a search and when idle. `text/search.py` prepares text
so that FTS5 finds words without case or accents, and single characters of scripts without spaces.
"""

import asyncio
import contextlib
import re
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.chat.record.database import Database
from kvchat.chat.record.database_file import ChatsDamaged, StorageFailed
from kvchat.chat.record.messages import Role, as_text
from kvchat.chat.turn_context import TurnContext
from kvchat.text.formatting import one_line
from kvchat.text.safe_text import safe_prose
from kvchat.text.search import Term, find_first_match, find_matches, parse_query, split_words

Marks = tuple[tuple[int, int], ...]

_BEFORE, _AFTER = 32, 160  # characters of context around the first hit
_MARGIN = 240  # extra characters read on both sides to find a mark's other end
_FENCE = re.compile(r"^[ \t]*(?:```|~~~).*$", re.MULTILINE)
_LINE = re.compile(  # Markdown line prefixes, and lines without words
    r"^[ \t]*(?:(?:>[ \t]?|\#{1,6}[ \t]+|[-*+][ \t]+(?:\[[ xX]\][ \t]+)?)+|[-=|:*_ \t]{3,}$)", re.MULTILINE
)
_INLINE = re.compile(
    r"(?P<tick>`+)(?P<code>[^`\n]+)(?P=tick)"
    r"|!?\[(?P<words>[^\]\n]*)\]\([^)\n]*\)"
    r"|(?P<gone>\*\*|__|~~|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w))"
    r"|\\(?P<escaped>[!-/:-@\[-`{-~])"
)
_ROW = re.compile(r"^[ \t]*\|.*$", re.MULTILINE)


@dataclass(frozen=True)
class Excerpt:
    text: str
    marks: Marks


def excerpt(text: str, terms: Sequence[Term], *, is_markdown: bool) -> Excerpt | None:
    """Return the line around the first hit, or None. `is_markdown`: strip the markup, unless that hides the hit."""
    at = find_first_match(text, terms)
    if at is None:
        return None
    begin = max(at[0] - _BEFORE - _MARGIN, 0)
    piece = text[begin : at[1] + _AFTER + _MARGIN]
    in_code = len(_FENCE.findall(text, 0, begin)) % 2 == 1
    readings = (strip_markdown(piece, starts_in_code=in_code), piece) if is_markdown else (piece,)
    for reading in readings:
        line = one_line(safe_prose(reading))
        if matches := find_matches(line, terms):
            break
    start = max(matches[0][0] - _BEFORE, 0) if matches else 0
    if start:  # start at a word if possible
        start = line.find(" ", start, matches[0][0]) + 1 or start
    line = ("…" if start or begin else "") + line[start : start + _BEFORE + _AFTER]
    return Excerpt(line, tuple(find_matches(line, terms)))


def leading_excerpt(text: str, terms: Sequence[Term] = ()) -> Excerpt:
    line = one_line(safe_prose(text[: _BEFORE + _AFTER + _MARGIN]))[: _BEFORE + _AFTER]
    return Excerpt(line, tuple(find_matches(line, terms)))


def strip_markdown(piece: str, *, starts_in_code: bool = False) -> str:
    """Strip the markup from a piece of Markdown, cut anywhere. `starts_in_code`: it starts in a fenced block."""

    def strip_part(part: str) -> str:
        rows = _ROW.sub(lambda row: row[0].replace("|", " "), _LINE.sub("", part))
        return _INLINE.sub(lambda found: found["code"] or found["words"] or found["escaped"] or "", rows)

    parts = _FENCE.split(piece)
    return "\n".join(part if (i % 2 == 1) is not starts_in_code else strip_part(part) for i, part in enumerate(parts))


MAX_CHATS = 100  # per search
_MAX_FOR_MODEL = 20  # chats
_MAX_MESSAGES = 500  # newest messages checked per search
_BATCH_MESSAGES = 200  # messages per index transaction: some 20 ms
_BATCH_CHARACTERS = 400_000  # one document may be longer than all messages
_MERGE_PAGES, _FULL_MERGE_PAGES = 200, -200  # index pages rewritten per transaction
_DOCUMENT_BUDGET_S = 0.02  # time to read documents for one search's excerpts
_MAX_DOCUMENT_CHARACTERS = 200_000

_HITS_QUERY = """
    SELECT conversation_id, message_id, conversations.title AS chat_title FROM searched_words
    CROSS JOIN searched ON number = searched_words.rowid CROSS JOIN conversations ON conversations.id = conversation_id
    WHERE searched_words MATCH ? AND deleted_at IS NULL ORDER BY searched_words.rowid DESC LIMIT ?
"""


@dataclass(frozen=True)
class ChatHit:
    conversation_id: str
    title: str
    message_ids: tuple[str, ...]  # newest first; empty if only the title matches
    excerpt: str
    marks: Marks  # hits in the excerpt
    in_document: bool = False  # an attachment of the newest message matches, not its text


@dataclass(frozen=True)
class ChatSearchResult:
    """Search results: titles first, then the newest messages."""

    chats: tuple[ChatHit, ...]
    complete: bool  # all messages were indexed


class ChatSearch:
    """Searches chats, and keeps the index up to date in the background. Event-loop thread only."""

    def __init__(self, turn_context: TurnContext) -> None:
        self._run = turn_context.run
        self._indexing: asyncio.Task[None] | None = None

    async def find(self, query: str) -> ChatSearchResult:
        """Return chats with all query words in the title or in one message. Raises StorageFailed."""
        complete = not await self._run(index_batch)
        if not complete:
            self.start_indexing()
        return ChatSearchResult(await self._run(find, query), complete)

    async def titles_and_excerpts(self, query: str) -> list[tuple[str, str]]:
        """Return the titles and excerpts of the first results, for a model to read. Raises StorageFailed."""
        return [(hit.title, hit.excerpt) for hit in (await self.find(query)).chats[:_MAX_FOR_MODEL]]

    def start_indexing(self) -> None:
        async def index() -> None:
            with contextlib.suppress(StorageFailed):  # the search reports it
                await self._index_all()

        if self._indexing is None or self._indexing.done():
            self._indexing = asyncio.create_task(index())

    async def purge_deleted(self) -> None:
        """Erase the words of deleted texts, which the index has only marked as deleted."""

        def merge(database: Database, pages: int) -> bool:
            """Merge part of the index; True if there is more. Negative `pages` start a merge (FTS5's `merge`)."""
            with database.transaction() as db:
                before = db.total_changes
                db.execute("INSERT INTO searched_words (searched_words, rank) VALUES ('merge', ?)", (pages,))
                return db.total_changes - before >= 2

        await self._index_all()
        pages = _FULL_MERGE_PAGES
        while await self._run(merge, pages):
            pages = _MERGE_PAGES

    async def _index_all(self) -> None:
        while await self._run(index_batch):
            pass

    def close(self) -> None:
        if self._indexing is not None:
            self._indexing.cancel()


def index_batch(database: Database) -> bool:
    """Index some changed texts; True if there are more."""
    stale = """
        SELECT number, message_id IS NULL AS is_title, coalesce(content, title) AS text, (
            SELECT group_concat(name || char(10) || text || char(10) || whole, char(10)) FROM attachments
            WHERE attachments.message_id = searched.message_id
        ) AS documents
        FROM searched JOIN conversations ON conversations.id = searched.conversation_id
        LEFT JOIN messages ON messages.id = message_id WHERE stale LIMIT ?
    """
    entries: list[tuple[int, str, str]] = []
    length = 0
    with database.reading() as db:
        for row in db.execute(stale, (_BATCH_MESSAGES,)):
            text = split_words("\n".join(map(as_text, filter(None, (row["text"], row["documents"])))))
            entries.append((row["number"], text, "") if row["is_title"] else (row["number"], "", text))
            length += len(text)
            if length > _BATCH_CHARACTERS:
                break
    if not entries:
        return False
    numbers = [(number,) for number, _, _ in entries]
    try:
        with database.transaction() as db:
            db.executemany("DELETE FROM searched_words WHERE rowid = ?", numbers)
            db.executemany("INSERT INTO searched_words (rowid, title, body) VALUES (?, ?, ?)", entries)
            db.executemany("UPDATE searched SET stale = 0 WHERE number = ?", numbers)
    except (ChatsDamaged, sqlite3.IntegrityError):
        _recreate_index(database)
        return True
    return len(entries) == _BATCH_MESSAGES or length > _BATCH_CHARACTERS


def _recreate_index(database: Database) -> None:
    with database.transaction() as db:
        statement = db.execute("SELECT sql FROM sqlite_master WHERE name = 'searched_words'").fetchone()[0]
        db.execute("DROP TABLE searched_words")
        db.execute(statement)
        db.execute("UPDATE searched SET stale = 1")


def find(database: Database, query: str) -> tuple[ChatHit, ...]:
    """Find the chats with all query words in the title or in one message, as far as they are indexed."""
    terms = parse_query(query)
    if not terms:
        return ()
    try:
        return _find_terms(database, terms)
    except ChatsDamaged:
        _recreate_index(database)
        while index_batch(database):
            pass
        return _find_terms(database, terms)


def _find_terms(database: Database, terms: tuple[Term, ...]) -> tuple[ChatHit, ...]:
    expression = " AND ".join(term.expression for term in terms)
    hits: dict[str, tuple[str, list[str]]] = {}  # titles and messages by chat
    with database.reading() as db:
        for column, most in (("title", MAX_CHATS), ("body", _MAX_MESSAGES)):
            for row in db.execute(_HITS_QUERY, (f"{{{column}}} : ({expression})", most)):
                title = safe_prose(as_text(row["chat_title"]))
                messages = hits.setdefault(row["conversation_id"], (title, []))[1]
                if row["message_id"]:
                    messages.append(row["message_id"])
        document_excerpts = _DocumentExcerpts(db, terms)
        chats = []
        for id, (title, messages) in list(hits.items())[:MAX_CHATS]:
            message = None
            if messages:
                message = db.execute("SELECT content, role FROM messages WHERE id = ?", (messages[0],)).fetchone()
            if message is None:  # title match, or a damaged file
                chats.append(ChatHit(id, title, (), "", ()))
                continue
            content = as_text(message["content"])
            line = excerpt(content, terms, is_markdown=message["role"] == Role.ASSISTANT.value)
            document = None if line else document_excerpts.excerpt(messages[0])
            line = line or document or leading_excerpt(content)
            chats.append(ChatHit(id, title, tuple(messages), line.text, line.marks, in_document=document is not None))
        return tuple(chats)


class _DocumentExcerpts:
    """Excerpts of attachments; after a total time limit, only their names."""

    def __init__(self, db: sqlite3.Connection, terms: tuple[Term, ...]) -> None:
        self._db, self._terms, self._spent_s = db, terms, 0.0

    def excerpt(self, message_id: str) -> Excerpt | None:
        query = (
            "SELECT name, substr(iif(whole = '', text, whole), 1, ?) AS text FROM attachments"
            " WHERE message_id = ? ORDER BY position"
        )
        names = []
        for row in self._db.execute(query, (_MAX_DOCUMENT_CHARACTERS, message_id)):
            name = leading_excerpt(as_text(row["name"]), self._terms)
            names.append(name)
            text, line = as_text(row["text"]), None
            if self._spent_s <= _DOCUMENT_BUDGET_S:
                started = time.thread_time()
                line = excerpt(text, self._terms, is_markdown=False)
                self._spent_s += time.thread_time() - started
            if line is not None or name.marks:
                line = line or leading_excerpt(text)
                before = len(name.text) + 2
                marks = tuple((start + before, end + before) for start, end in line.marks)
                return Excerpt(f"{name.text}: {line.text}", (*name.marks, *marks))
        return names[0] if names else None
