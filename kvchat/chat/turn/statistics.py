"""Daily totals of what replies saved, from their receipts."""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import cached_property
from pathlib import Path

from kvchat.chat.record.database import Database
from kvchat.session.proof import PROVED_SHARE, Source
from kvchat.words.language import N_
from kvchat.words.reasons import ReasonCode
from kvchat.words.wording import FIRST_REPLY, READ_AGAIN, READ_AHEAD, REMEMBERED, STILL_LOADED

MOST_DAYS, LEAST_DAYS = 90, 14  # including today; fewer would plot as one wide bar
_PARTLY = "partly"  # some of the previous reply's prompt was not reused
_KINDS = {
    Source.HOT.value: STILL_LOADED,
    Source.AHEAD.value: READ_AHEAD,
    Source.WARM.value: REMEMBERED,
    Source.DISK.value: N_("remembered from disk"),
    _PARTLY: N_("read again in part"),
    "": FIRST_REPLY,
    Source.COLD.value: READ_AGAIN,
}
KINDS = tuple(_KINDS.values())  # sources of replies, fastest first
_QUERY = """
    SELECT date(created_at, 'unixepoch', 'localtime') AS day,
        CASE WHEN receipt ->> '$.source' <> 'cold'
            AND receipt ->> '$.cached_tokens' < ? * (receipt ->> '$.earlier_tokens')
        THEN ? ELSE receipt ->> '$.source' END AS source,
        receipt ->> '$.miss_reason.code' = ? AS first, count(*),
        total(receipt ->> '$.saved_ms') / 1000, total(receipt ->> '$.ttft_ms') / 1000
    FROM messages WHERE receipt IS NOT NULL AND created_at >= ? AND json_valid(receipt)
    GROUP BY 1, 2, 3 HAVING day <= ? ORDER BY 1
"""


@dataclass(frozen=True)
class Replies:
    """The replies of one day and kind. Times in seconds."""

    day: date
    kind: str  # one of KINDS
    count: int
    saved_s: float  # estimated
    first_token_s: float  # total time from Send to the first token


@dataclass(frozen=True)
class Statistics:
    replies: tuple[Replies, ...]
    today: date

    @cached_property
    def days(self) -> tuple[date, ...]:
        first = min((replies.day for replies in self.replies), default=self.today)
        back = min(max((self.today - first).days, LEAST_DAYS - 1), MOST_DAYS - 1)
        return tuple(self.today - timedelta(days=ago) for ago in range(back, -1, -1))

    @cached_property
    def count(self) -> int:
        return sum(replies.count for replies in self.replies)

    def on(self, day: date) -> tuple[int, float]:
        that_day = [replies for replies in self.replies if replies.day == day]
        return sum(replies.count for replies in that_day), sum(replies.saved_s for replies in that_day)

    def of_kind(self, kind: str) -> tuple[int, float, float]:
        some = [replies for replies in self.replies if replies.kind == kind]
        count = sum(replies.count for replies in some)
        waited_s = sum(replies.first_token_s for replies in some)
        return count, sum(replies.saved_s for replies in some), waited_s / max(count, 1)


def read_statistics(file: Path, today: date | None = None) -> Statistics:
    """Sum the receipts in the chats' file, on a separate connection. Raises StorageFailed."""
    today = today or date.today()
    since = datetime.combine(today - timedelta(days=MOST_DAYS - 1), time.min).timestamp()
    with closing(Database(file)) as database:
        rows = database.rows(_QUERY, (PROVED_SHARE, _PARTLY, ReasonCode.FIRST_REPLY, since, today.isoformat()))
    sums: defaultdict[tuple[date, str], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for day, source, first, *figures in rows:
        kind = FIRST_REPLY if first else _KINDS.get(source or " ")
        if kind and all(map(math.isfinite, figures)):
            key = date.fromisoformat(day), kind
            sums[key] = [a + b for a, b in zip(sums[key], figures, strict=True)]
    return Statistics(tuple(Replies(*key, int(count), *seconds) for key, (count, *seconds) in sums.items()), today)
