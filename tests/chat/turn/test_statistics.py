"""What receipts come to, added up by a real database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from pathlib import Path

import pytest

from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import MessageState, Receipt, Role, receipt_json
from kvchat.chat.turn.receipts import KINDS, LEAST_DAYS, MOST_DAYS, read_statistics
from kvchat.session.proof import Source
from kvchat.words.reasons import Reason, ReasonCode

TODAY = date(2026, 11, 20)
A_RECEIPT = Receipt(300, 20, 70, 50, 6000, 5900, 400, 41.0, Source.HOT, saved_ms=30_000.0)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(tmp_path / "conversations.db")) as database:
        yield database


def written(database: Database, receipt: Receipt | str | None, days_ago: int = 0, at: time = time(12)) -> None:
    chat = database.create_conversation("A chat")
    reply = database.append(chat.id, None, Role.ASSISTANT, "Baikal.", MessageState.COMPLETE)
    when = datetime.combine(TODAY - timedelta(days=days_ago), at).timestamp()
    stored = receipt_json(receipt) if isinstance(receipt, Receipt) else receipt
    database.write("UPDATE messages SET receipt = ?, created_at = ? WHERE id = ?", (stored, when, reply.id))


def a_miss(reason: ReasonCode, **more: bool) -> Receipt:
    return replace(A_RECEIPT, source=Source.COLD, ttft_ms=12_000, saved_ms=None, miss_reason=Reason(reason), **more)


def test_replies_are_added_up_by_what_they_went_on_from(database: Database) -> None:
    for source in (Source.HOT, Source.HOT, Source.AHEAD, Source.WARM, Source.DISK):
        written(database, replace(A_RECEIPT, source=source))
    written(database, replace(A_RECEIPT, cached_tokens=3000, earlier_tokens=5000))
    for reason in (ReasonCode.FIRST_REPLY, ReasonCode.NOTHING_SAVED):
        written(database, a_miss(reason))
    found = read_statistics(database.file, TODAY)
    assert [found.of_kind(kind) for kind in KINDS] == [
        (2, 60.0, 0.3),
        (1, 30.0, 0.3),
        (1, 30.0, 0.3),
        (1, 30.0, 0.3),
        (1, 30.0, 0.3),
        (1, 0.0, 12.0),
        (1, 0.0, 12.0),
    ]


def test_days_are_those_of_the_clock_here_and_of_the_last_ones_only(database: Database) -> None:
    written(database, A_RECEIPT, 0, time(23, 59, 59))
    written(database, A_RECEIPT, 1, time(0, 0, 1))
    written(database, A_RECEIPT, MOST_DAYS - 1, time(0, 0, 1))
    written(database, A_RECEIPT, MOST_DAYS, time(23, 59, 59))
    written(database, A_RECEIPT, -1)  # by a clock that was wrong
    found = read_statistics(database.file, TODAY)
    some = TODAY, TODAY - timedelta(days=1), TODAY - timedelta(days=MOST_DAYS - 1)
    assert {one.day for one in found.replies} == set(some)
    assert [found.on(day) for day in some] == [(1, 30.0)] * 3
    assert found.on(TODAY - timedelta(days=2)) == (0, 0)
    assert len(found.days) == MOST_DAYS
    assert found.days[-1] == TODAY


def test_a_new_user_sees_a_fortnight(database: Database) -> None:
    assert len(read_statistics(database.file, TODAY).days) == LEAST_DAYS
    written(database, A_RECEIPT)
    assert len(read_statistics(database.file, TODAY).days) == LEAST_DAYS


@pytest.mark.parametrize(
    "receipt", [None, "{", "5", "{}", '{"source": "other"}', '{"source": "hot", "saved_ms": 1e999}']
)
def test_receipts_that_make_no_sense_are_left_out(database: Database, receipt: str | None) -> None:
    written(database, receipt)
    written(database, replace(A_RECEIPT, source=Source.DISK))
    assert [(one.day, one.kind, one.count) for one in read_statistics(database.file, TODAY).replies] == [
        (TODAY, "remembered from disk", 1)
    ]
