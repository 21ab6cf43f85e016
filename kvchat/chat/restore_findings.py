"""What was found out about restoring, kept with the conversations: the self-test runs once per engine build.

That it does not work may have had another reason: it is tried again after a week, and when the user asks for it.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from kvchat.chat.events import EventBus, Notice
from kvchat.chat.record.database import Database
from kvchat.chat.record.database_file import StorageFailed
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.session.restore_support import Finding, Strategy
from kvchat.system.concurrency import Worker
from kvchat.words.language import _

RETEST_AFTER_S = 7 * 86_400.0  # where restoring does not work


@dataclass(frozen=True)
class Subject:
    """What a finding is about: it holds for nothing else."""

    fingerprint: Fingerprint  # model, KV types and every flag that changes what a state means
    build: str  # of the engine

    @property
    def key(self) -> tuple[str, str]:
        """Its name in the database."""
        return json.dumps(asdict(self.fingerprint), sort_keys=True), self.build


class Findings:
    """The findings on disk. A database that fails costs another self-test and no more."""

    def __init__(
        self, database: Database, worker: Worker, events: EventBus, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` tells seconds since 1970."""
        self._clock = clock
        self._database = database
        self._worker = worker
        self._events = events

    async def known(self, subject: Subject) -> Finding | None:
        """What was found out before, None if nothing was, or if it is time to try again."""
        with suppress(StorageFailed):
            return await self._worker.run(_load, self._database, subject, self._clock() - RETEST_AFTER_S)
        return None

    async def forget(self, subject: Subject) -> None:
        """Try it out again when an engine comes up next."""
        with suppress(StorageFailed):
            statement = "DELETE FROM restore_findings WHERE fingerprint = ? AND build = ?"
            await self._worker.run(self._database.write, statement, subject.key)

    async def learn(self, subject: Subject, finding: Finding, before: Finding | None = None) -> None:
        """Keep a finding. The user is told when restoring turns out not to work, or less well than it seemed."""
        with suppress(StorageFailed):
            await self._worker.run(store_finding, self._database, subject, finding, self._clock())
        if not finding.strategy.saves:
            self._events.publish(Notice(_("Chats cannot be remembered here"), finding.words))
        elif finding.strategy is Strategy.LONG and before is None:
            self._events.publish(Notice(_("Short chats cannot be remembered here"), finding.words))
        elif before is not None and before.strategy is not finding.strategy:
            self._events.publish(Notice(_("Remembering chats did not work as expected"), finding.words))


def newest_finding(file: Path, model: str) -> tuple[Finding, str] | None:
    """The last finding for a model, by its identity, and the engine build it is about. Only reads the database.

    None where that cannot be read: whoever opens the chats is told why.
    """
    query = (
        "SELECT strategy, proved, reason, hollow, build FROM restore_findings WHERE fingerprint ->> '$.model' = ?"
        " ORDER BY found_at DESC LIMIT 1"
    )
    uri = file.absolute().as_uri()
    if not file.is_file():  # SQLite would wait for a pipe's other end
        return None
    with suppress(sqlite3.Error, ValueError), closing(sqlite3.connect(f"{uri}?mode=ro", uri=True)) as db:
        row = db.execute(query, (model,)).fetchone()
        return (_finding(row[:4]), str(row[4])) if row else None
    return None


def forget_model(file: Path, model: str) -> None:
    """Forget every finding for a model, by its identity. Raises StorageFailed."""
    with closing(Database(file)) as database:
        database.write("DELETE FROM restore_findings WHERE fingerprint ->> '$.model' = ?", (model,))


def _load(database: Database, subject: Subject, oldest: float) -> Finding | None:
    """`oldest`: when what does not work must have been found out since, to be believed."""
    query = (
        "SELECT strategy, proved, reason, hollow FROM restore_findings"
        " WHERE fingerprint = ? AND build = ? AND (strategy <> ? OR found_at >= ?)"
    )
    found = database.rows(query, (*subject.key, Strategy.NONE.value, oldest))
    return _finding(tuple(found[0])) if found else None


def store_finding(database: Database, subject: Subject, finding: Finding, found_at: float) -> None:
    """Keep a finding in place of an older one; `found_at` in seconds since 1970. Raises StorageFailed."""
    values = (finding.strategy.value, finding.proved, finding.reason, finding.hollow, found_at)
    database.write("INSERT OR REPLACE INTO restore_findings VALUES (?, ?, ?, ?, ?, ?, ?)", (*subject.key, *values))


def _finding(row: tuple[str, int, str, int]) -> Finding:
    strategy, proved, reason, hollow = row
    return Finding(Strategy(strategy), bool(proved), reason, hollow)
