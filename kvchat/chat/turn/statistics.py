"""What replies cost day by day, added up from their receipts, and what their memory took on the disk.

For the page of plots, and as a table to take along.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import cached_property
from pathlib import Path

from kvchat.chat.record.database import Database
from kvchat.chat.turn.receipts import UNUSED
from kvchat.session.proof import NOTHING_TO_MISS, Source
from kvchat.words.language import N_, _, retold
from kvchat.words.wording import FIRST_REPLY, READ_AGAIN, READ_AHEAD, REMEMBERED, STILL_LOADED

MOST_DAYS, LEAST_DAYS = 90, 14  # looked back, today included; a plot of fewer would be one wide bar
_KINDS = {
    Source.HOT: STILL_LOADED,
    Source.AHEAD: READ_AHEAD,
    Source.WARM: REMEMBERED,
    Source.DISK: N_("remembered from disk"),
    None: FIRST_REPLY,
    Source.COLD: READ_AGAIN,
}
KINDS = tuple(_KINDS.values())  # where replies went on from, the quickest first
_DAY = N_("day")
_OF_REPLIES = (
    *(N_("went on from"), N_("why it was read"), N_("replies")),
    *(N_("time saved (s)"), N_("time to first word (s, sum)")),
)
_OF_DISK = N_("memory on disk (bytes)"), N_("its limit (bytes)")
_QUERY = """
    SELECT date(created_at, 'unixepoch', 'localtime') AS day, receipt ->> '$.source' AS source,
        CASE WHEN receipt ->> '$.hollow' THEN ? ELSE receipt ->> '$.miss_reason' END AS reason,
        count(*) AS count, total(receipt ->> '$.saved_ms') / 1000,
        total(max(0, (receipt ->> '$.saved_ms') - coalesce(receipt ->> '$.read_ahead_ms', 0))) / 1000,
        total(receipt ->> '$.ttft_ms') / 1000
    FROM messages WHERE receipt IS NOT NULL AND created_at >= ? AND json_valid(receipt)
    GROUP BY 1, 2, 3 HAVING day <= ? ORDER BY 1
"""
_DISK_QUERY = """
    SELECT day, used, quota FROM disk_by_day
    WHERE day >= coalesce((SELECT max(day) FROM disk_by_day WHERE day < ?), '') AND day <= ? ORDER BY day
"""


@dataclass(frozen=True)
class Replies:
    """Those of one day that went on from the same and had to be read again for the same reason. Times in seconds."""

    day: date
    kind: str  # one of KINDS
    reason: str  # empty where nothing was missed
    count: int
    saved_s: float  # an estimate: not waited for prefill
    not_read_s: float  # of that, what was not read before Send either: it took no energy
    first_token_s: float  # from Send to the first token, of all of them together


@dataclass(frozen=True)
class Disk:
    """What the memory of chats took on the disk at the end of a day, as far as it was known then. Bytes."""

    day: date
    used: int
    quota: int


@dataclass(frozen=True)
class Statistics:
    """The replies of the last MOST_DAYS days, by day and kind; the disk on those days that are known."""

    replies: tuple[Replies, ...]
    today: date
    disk: tuple[Disk, ...] = ()  # the oldest first; one may lie before those days

    @cached_property
    def days(self) -> tuple[date, ...]:
        """The days to be shown, up to today."""
        first = min((*(one.day for one in self.replies), *(one.day for one in self.disk)), default=self.today)
        back = min(max((self.today - first).days, LEAST_DAYS - 1), MOST_DAYS - 1)
        return tuple(self.today - timedelta(days=ago) for ago in range(back, -1, -1))

    @cached_property
    def counts(self) -> Counter[tuple[date, str]]:
        """How many replies there were, by day and kind."""
        counts: Counter[tuple[date, str]] = Counter()
        for one in self.replies:
            counts[one.day, one.kind] += one.count
        return counts

    @cached_property
    def saved_s(self) -> dict[date, float]:
        """Seconds saved, by day."""
        saved: defaultdict[date, float] = defaultdict(float)
        for one in self.replies:
            saved[one.day] += one.saved_s
        return saved

    @cached_property
    def disk_by_day(self) -> dict[date, Disk]:
        """What was last known on each day to be shown; none before the first that is known."""
        return {day: known[-1] for day in self.days if (known := [one for one in self.disk if one.day <= day])}

    @cached_property
    def reasons(self) -> list[tuple[str, int]]:
        """Why something had to be read again, and how often, the most frequent first."""
        reasons: Counter[str] = Counter()
        for one in self.replies:
            reasons[one.reason] += one.count
        return [(reason, count) for reason, count in reasons.most_common() if reason]

    def of_kind(self, kind: str) -> tuple[int, float, float]:
        """How many replies went on from there, the seconds they saved, and those to the first token, on average."""
        some = [one for one in self.replies if one.kind == kind]
        count = sum(one.count for one in some)
        return count, sum(one.saved_s for one in some), sum(one.first_token_s for one in some) / max(count, 1)

    def watt_hours(self, watts: float) -> float:
        """The energy that reading what was remembered would have taken at so much power."""
        return sum(one.not_read_s for one in self.replies) * watts / 3600

    def as_csv(self, watts: float | None = None) -> str:
        """A line for each day, kind and reason; the disk stands in a line of its own.

        `watts`: what the graphics card takes at most while it reads.
        """
        out = io.StringIO(newline="")
        table = csv.writer(out)
        energy = (N_("energy saved, at most (Wh)"),) if watts else ()
        table.writerow(map(_, (_DAY, *_OF_REPLIES, *energy, *_OF_DISK)))
        for day in self.days:
            for one in self.replies:
                if one.day == day:
                    cells = _(one.kind), retold(one.reason), one.count, f"{one.saved_s:.3f}", f"{one.first_token_s:.3f}"
                    used = (f"{one.not_read_s * watts / 3600:.4f}",) if watts else ()
                    table.writerow((day.isoformat(), *cells, *used, "", ""))
            if disk := self.disk_by_day.get(day):
                table.writerow((day.isoformat(), *("",) * len(_OF_REPLIES + energy), disk.used, disk.quota))
        return out.getvalue()


def note_disk(database: Database, used: int, quota: int, today: date | None = None) -> None:
    """Keep what the memory of chats takes on the disk now, and may take, as what is known of today. Bytes."""
    statement = (
        "INSERT INTO disk_by_day VALUES (?, ?, ?) ON CONFLICT (day) DO UPDATE"
        " SET used = excluded.used, quota = excluded.quota"
    )
    database.write(statement, ((today or date.today()).isoformat(), used, quota))


def read_statistics(file: Path, today: date | None = None) -> Statistics:
    """Add up what the chats' file says, on a connection of its own: it holds no chat up. Raises StorageFailed."""
    today = today or date.today()
    since = datetime.combine(today - timedelta(days=MOST_DAYS - 1), time.min).timestamp()
    with closing(Database(file)) as database:
        rows = database.rows(_QUERY, (UNUSED, since, today.isoformat()))
        of_disk = database.rows(_DISK_QUERY, (date.fromtimestamp(since).isoformat(), today.isoformat()))
    sums: defaultdict[tuple[date, str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0.0, 0.0])
    for day, source, reason, *figures in rows:
        if (kind := _kind_of(source, reason)) and all(map(math.isfinite, figures)):
            why = "" if kind == FIRST_REPLY else _in_general(str(reason or ""))
            key = date.fromisoformat(day), kind, why
            sums[key] = [a + b for a, b in zip(sums[key], figures, strict=True)]
    replies = (Replies(*key, int(count), *seconds) for key, (count, *seconds) in sums.items())
    disk = (Disk(date.fromisoformat(row["day"]), int(row["used"]), int(row["quota"])) for row in of_disk)
    return Statistics(tuple(replies), today, tuple(disk))


def _kind_of(source: object, reason: object) -> str | None:
    """None for what no version has written."""
    if reason == NOTHING_TO_MISS:
        return FIRST_REPLY
    return next((kind for one, kind in _KINDS.items() if one and one.value == source), None)


def _in_general(reason: str) -> str:
    """A reason without what is said of one reply alone: its counts, and what is added to it."""
    return re.sub(r"\d[\d,.]*", "…", re.split(r" \(|; ", reason)[0]).strip()
