"""What the index notes of itself: that there was one before it, and who has looked at it. In the caller's transaction.

The table of these notes is called `marks`, as it was made.
"""

from __future__ import annotations

import sqlite3
import time
from datetime import datetime

from kvchat.kvstore.index.check import moment
from kvchat.kvstore.savepoint import Loss, Unseen
from kvchat.words.reasons import Reason, ReasonCode


def note_index_loss(db: sqlite3.Connection) -> None:
    """From now on it is known that there was an index before this one."""
    _note(db, "lost", str(time.time()))


def index_lost_at(db: sqlite3.Connection) -> datetime | None:
    """When the index before this one was lost; None if that never happened."""
    at = _noted(db, "lost")
    return moment(float(at)) if at is not None else None


def untold_index_loss(db: sqlite3.Connection) -> tuple[Loss, ...]:
    """The loss of the whole index, which is one of no one chat, once."""
    if index_lost_at(db) is None or _noted(db, "told") is not None:
        return ()
    _note(db, "told", "")
    return (Loss("", 0, Reason(ReasonCode.INDEX_LOST)),)


def unseen(db: sqlite3.Connection, by: str) -> Unseen:
    """The messages in which save points end that have been added since `seen`, by conversation."""
    who, _, upto = (_noted(db, "seen") or "").rpartition(" ")
    last = int(upto) if who == by and by else 0
    query = (
        "SELECT DISTINCT name, message_id FROM save_points s JOIN conversations c ON c.id = s.conversation_id"
        " WHERE s.id > ?"
    )
    found: dict[str, set[str]] = {}
    for name, message_id in db.execute(query, (last,)):
        found.setdefault(name, set()).update([message_id] if message_id is not None else [])
    newest = db.execute("SELECT coalesce(max(id), 0) FROM save_points").fetchone()[0]
    return Unseen({name: frozenset(ids) for name, ids in found.items()}, max(last, newest))


def seen(db: sqlite3.Connection, by: str, what: Unseen) -> None:
    """Those have been looked at."""
    _note(db, "seen", f"{by} {what.upto}")


def _noted(db: sqlite3.Connection, name: str) -> str | None:
    row = db.execute("SELECT value FROM marks WHERE name = ?", (name,)).fetchone()
    return row[0] if row else None


def _note(db: sqlite3.Connection, name: str, value: str) -> None:
    db.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (name, value))
