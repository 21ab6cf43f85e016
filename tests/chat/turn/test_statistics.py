"""What receipts come to, added up by a real database."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from pathlib import Path

import pytest

from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import MessageState, Receipt, Role
from kvchat.chat.record.rows import receipt_json
from kvchat.chat.turn.receipts import UNUSED
from kvchat.chat.turn.statistics import KINDS, LEAST_DAYS, MOST_DAYS, note_disk, read_statistics
from kvchat.session.proof import NOTHING_TO_MISS, Source

TODAY = date(2026, 11, 20)
A_RECEIPT = Receipt(300, 20, 70, 50, 6000, 5900, 400, 41.0, Source.HOT, saved_ms=30_000.0)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(tmp_path / "conversations.db")) as database:
        yield database


def written(database: Database, receipt: Receipt | str | None, days_ago: int = 0, at: time = time(12)) -> None:
    """A reply of that day, by the clock here."""
    chat = database.create_conversation("A chat")
    reply = database.append(chat.id, None, Role.ASSISTANT, "Baikal.", MessageState.COMPLETE)
    when = datetime.combine(TODAY - timedelta(days=days_ago), at).timestamp()
    stored = receipt_json(receipt) if isinstance(receipt, Receipt) else receipt
    database.write("UPDATE messages SET receipt = ?, created_at = ? WHERE id = ?", (stored, when, reply.id))


def a_miss(reason: str, **more: bool) -> Receipt:
    return replace(A_RECEIPT, source=Source.COLD, ttft_ms=12_000, saved_ms=None, miss_reason=reason, **more)


def test_replies_are_added_up_by_what_they_went_on_from(database: Database) -> None:
    for source in (Source.HOT, Source.HOT, Source.AHEAD, Source.WARM, Source.DISK):
        written(database, replace(A_RECEIPT, source=source))
    for reason in (NOTHING_TO_MISS, "nothing is kept of this chat"):
        written(database, a_miss(reason))
    found = read_statistics(database.file, TODAY)
    assert [found.of_kind(kind) for kind in KINDS] == [
        (2, 60.0, 0.3),
        (1, 30.0, 0.3),
        (1, 30.0, 0.3),
        (1, 30.0, 0.3),
        (1, 0.0, 12.0),
        (1, 0.0, 12.0),
    ]
    assert found.reasons == [("nothing is kept of this chat", 1)]


def test_days_are_those_of_the_clock_here_and_of_the_last_ones_only(database: Database) -> None:
    written(database, A_RECEIPT, 0, time(23, 59, 59))
    written(database, A_RECEIPT, 1, time(0, 0, 1))
    written(database, A_RECEIPT, MOST_DAYS - 1, time(0, 0, 1))
    written(database, A_RECEIPT, MOST_DAYS, time(23, 59, 59))
    written(database, A_RECEIPT, -1)  # by a clock that was wrong
    found = read_statistics(database.file, TODAY)
    assert {day: n for day, n in found.saved_s.items() if n} == {
        TODAY: 30.0,
        TODAY - timedelta(days=1): 30.0,
        TODAY - timedelta(days=MOST_DAYS - 1): 30.0,
    }
    assert len(found.days) == MOST_DAYS
    assert found.days[-1] == TODAY


def test_a_new_user_sees_a_fortnight(database: Database) -> None:
    assert len(read_statistics(database.file, TODAY).days) == LEAST_DAYS
    written(database, A_RECEIPT)
    assert len(read_statistics(database.file, TODAY).days) == LEAST_DAYS


def test_reasons_are_counted_without_what_is_said_of_one_reply_alone(database: Database) -> None:
    for number in (7, 1_200):
        written(database, a_miss(f"the engine reused {number:,} of {6000:,} tokens it had"))
        written(database, a_miss(f"a part of its memory was damaged (block {number})"))
        written(database, a_miss(f"hollow restore: the engine accepted {number:,} tokens", hollow=True))
    written(database, a_miss(f"nothing is kept of this chat; the list of what was kept was lost on {TODAY}"))
    assert dict(read_statistics(database.file, TODAY).reasons) == {
        "the engine reused … of … tokens it had": 2,
        "a part of its memory was damaged": 2,
        UNUSED: 2,
        "nothing is kept of this chat": 1,
    }


@pytest.mark.parametrize(
    "receipt", [None, "{", "5", "{}", '{"source": "other"}', '{"source": "hot", "saved_ms": 1e999}']
)
def test_receipts_that_make_no_sense_are_left_out(database: Database, receipt: str | None) -> None:
    written(database, receipt)
    written(database, replace(A_RECEIPT, source=Source.DISK))
    assert dict(read_statistics(database.file, TODAY).counts) == {(TODAY, "remembered from disk"): 1}


def test_what_was_read_ahead_saved_time_and_no_energy(database: Database) -> None:
    written(database, replace(A_RECEIPT, source=Source.AHEAD, read_ahead_tokens=5000, read_ahead_ms=24_000.0))
    written(database, A_RECEIPT)
    found = read_statistics(database.file, TODAY)
    assert found.saved_s[TODAY] == 60.0
    assert found.watt_hours(300.0) == pytest.approx(36 * 300 / 3600)


def test_the_table_has_units_and_as_many_lines_as_days_kinds_and_reasons(database: Database) -> None:
    written(database, A_RECEIPT, 1)
    written(database, A_RECEIPT, 1)
    written(database, a_miss('its "memory", deleted'))
    found = read_statistics(database.file, TODAY)
    header, *lines = csv.reader(io.StringIO(found.as_csv(300.0), newline=""))
    of_replies = ["replies", "time saved (s)", "time to first word (s, sum)", "energy saved, at most (Wh)"]
    assert header[3:] == [*of_replies, "memory on disk (bytes)", "its limit (bytes)"]
    assert lines == [
        ["2026-11-19", "still loaded", "", "2", "60.000", "0.600", "5.0000", "", ""],
        ["2026-11-20", "read again", 'its "memory", deleted', "1", "0.000", "12.000", "0.0000", "", ""],
    ]
    assert "Wh" not in found.as_csv()


def test_the_disk_is_known_from_the_first_day_on_that_was_noted(database: Database) -> None:
    """The last that was known of a day counts, on the days after it, too."""
    for days_ago, used in ((MOST_DAYS + 9, 1), (MOST_DAYS + 3, 2), (3, 30), (1, 40), (1, 50), (-1, 60)):
        note_disk(database, used, 100, TODAY - timedelta(days=days_ago))
    found = read_statistics(database.file, TODAY)
    assert len(found.days) == MOST_DAYS
    known = [found.disk_by_day[TODAY - timedelta(days=ago)].used for ago in (MOST_DAYS - 1, 4, 3, 2, 1, 0)]
    assert known == [2, 2, 30, 30, 50, 50]
    assert found.as_csv().splitlines()[-1] == "2026-11-20,,,,,,50,100"


def test_nothing_is_known_of_the_days_before(database: Database) -> None:
    note_disk(database, 5, 100, TODAY - timedelta(days=1))
    found = read_statistics(database.file, TODAY)
    assert set(found.disk_by_day) == {TODAY - timedelta(days=1), TODAY}
    assert len(found.days) == LEAST_DAYS
