import json
from dataclasses import replace
from datetime import date, datetime, time, timedelta

import pytest

from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import MessageState, Receipt, Role, parse_receipt, receipt_to_json
from kvchat.chat.turn.receipts import (
    MAX_DAYS,
    REPLY_KINDS,
    Phase,
    read_statistics,
    receipt_details,
    receipt_line,
    receipt_sentence,
    timeline,
)
from kvchat.session.proof import Source
from kvchat.text.reasons import Reason, ReasonCode

WARM = Receipt(
    ttft_ms=312.0,
    restore_ms=21.0,
    prefill_ms=200.0,
    first_token_ms=91.0,
    prompt_tokens=5918,
    cached_tokens=5906,
    predicted_tokens=80,
    tokens_per_second=41.26,
    source=Source.DISK,
    restored_bytes=136_000_000,
    saved_ms=36_200.0,
)


GONE, FIRST, ALIKE = map(Reason, (ReasonCode.DELETED_MEANWHILE, ReasonCode.FIRST_REPLY, ReasonCode.NOTHING_ALIKE))
AHEAD = replace(WARM, source=Source.AHEAD, read_ahead_tokens=2000, read_ahead_ms=9500.0)
COLD = replace(WARM, ttft_ms=34_600, source=Source.COLD, cached_tokens=0, miss_reason=GONE)


@pytest.mark.parametrize(
    ("receipt", "line"),
    [
        (WARM, "0.3 s · remembered"),
        (replace(WARM, source=Source.HOT, ttft_ms=94), "under 0.1 s · still loaded"),
        (replace(WARM, source=Source.HOT, cached_tokens=30, ttft_ms=19_000), "19 s · processed"),
        (replace(WARM, source=Source.HOT, cached_tokens=4000, earlier_tokens=5800), "0.3 s · partly still loaded"),
        (replace(WARM, queue_wait_ms=12_000), "0.3 s · remembered · waited 12 s for another reply"),
        (replace(WARM, imported=True), "0.3 s · remembered · imported memory, not verified"),
        (COLD, "35 s · reprocessed"),
        (replace(WARM, cached_tokens=30, ttft_ms=1_900, miss_reason=FIRST), "1.9 s · first reply"),
        (replace(COLD, ttft_ms=145_000, miss_reason=ALIKE), "2 min · processed"),  # a program's first
    ],
)
def test_receipt_line(receipt: Receipt, line: str) -> None:
    assert receipt_line(receipt) == line


@pytest.mark.parametrize(
    ("receipt", "sentence"),
    [
        (WARM, "0.31 s · processed 12 new tokens, remembered 5,906 from disk · saved about 36 s"),
        (COLD, "34.6 s · processed 5,918 tokens · its memory was deleted in the meantime"),
    ],
)
def test_receipt_sentence(receipt: Receipt, sentence: str) -> None:
    assert receipt_sentence(receipt) == sentence


def test_hollow_restore_in_receipt_texts() -> None:
    hollow = replace(COLD, hollow=True, miss_reason=Reason(ReasonCode.HOLLOW_RESTORE, {"accepted": 5906, "reused": 0}))
    assert receipt_line(hollow) == "35 s · reprocessed: the loaded memory was not used"
    assert receipt_sentence(hollow) == "34.6 s · reprocessed 5,918 tokens: the loaded memory was not used"
    assert ("Source", "reprocessed; the loaded memory was not used") in receipt_details(hollow)


def test_receipt_round_trip_drops_invalid_values() -> None:
    stored = json.loads(receipt_to_json(WARM))
    assert parse_receipt(json.dumps(stored | {"of_a_newer_version": 3.5})) == WARM
    del stored["settle_ms"], stored["save_ms"]
    assert parse_receipt(json.dumps(stored)) == WARM
    missed = replace(WARM, miss_reason=Reason(ReasonCode.SET_ASIDE, {"reason": Reason(ReasonCode.HELD_LESS)}))
    assert parse_receipt(receipt_to_json(missed)) == WARM, "its words would lack figures"
    for reason in ("the first reply", {"code": "not-known-yet", "places": {}}, {"code": "hollow"}, 7):
        assert parse_receipt(json.dumps(stored | {"miss_reason": reason})) == WARM
    assert parse_receipt('["no", "receipt"]') is parse_receipt('"none"') is parse_receipt("7") is None


def test_timeline() -> None:
    whole = replace(AHEAD, settle_ms=220.0, save_ms=90.0)
    assert [(step.label, round(step.ms)) for step in timeline(whole)] == [
        ("Processed ahead", 9500),
        ("Loading", 21),
        ("Processing", 200),
        ("First token", 91),
        ("Generating", 1939),
        ("Finalizing", 220),
        ("Saving", 90),
    ]
    assert timeline(replace(whole, prefetched=True))[0].label == "Loaded ahead"
    assert [step.phase for step in timeline(COLD)][-1] is Phase.WRITING
    assert ("After the reply", "finalized in 0.22 s, saved in 90 ms") in receipt_details(whole)
    assert ("After the reply", "finalized in 0.22 s, not saved") in receipt_details(replace(whole, save_ms=None))


TODAY = date(2026, 11, 20)
A_RECEIPT = Receipt(300, 20, 70, 50, 6000, 5900, 400, 41.0, Source.HOT, saved_ms=30_000.0)


def store_reply(database: Database, receipt: Receipt | str | None, days_ago: int = 0, at: time = time(12)) -> None:
    chat = database.create_conversation("A chat")
    reply = database.append(chat.id, None, Role.ASSISTANT, "Baikal.", MessageState.COMPLETE)
    when = datetime.combine(TODAY - timedelta(days=days_ago), at).timestamp()
    stored = receipt_to_json(receipt) if isinstance(receipt, Receipt) else receipt
    database.write("UPDATE messages SET receipt = ?, created_at = ? WHERE id = ?", (stored, when, reply.id))


def missed(reason: ReasonCode, **more: bool) -> Receipt:
    return replace(A_RECEIPT, source=Source.COLD, ttft_ms=12_000, saved_ms=None, miss_reason=Reason(reason), **more)


def test_statistics_by_kind(database: Database) -> None:
    for source in (Source.HOT, Source.HOT, Source.AHEAD, Source.WARM, Source.DISK):
        store_reply(database, replace(A_RECEIPT, source=source))
    store_reply(database, replace(A_RECEIPT, cached_tokens=3000, earlier_tokens=5000))
    for reason in (ReasonCode.FIRST_REPLY, ReasonCode.NOTHING_SAVED):
        store_reply(database, missed(reason))
    statistics = read_statistics(database.file, TODAY)
    assert [statistics.kind_totals(kind) for kind in REPLY_KINDS] == [
        (2, 60.0, 0.3),
        (1, 30.0, 0.3),
        (1, 30.0, 0.3),
        (1, 30.0, 0.3),
        (1, 30.0, 0.3),
        (1, 0.0, 12.0),
        (1, 0.0, 12.0),
    ]


def test_statistics_by_local_day(database: Database) -> None:
    store_reply(database, A_RECEIPT, 0, time(23, 59, 59))
    store_reply(database, A_RECEIPT, 1, time(0, 0, 1))
    store_reply(database, A_RECEIPT, MAX_DAYS - 1, time(0, 0, 1))
    store_reply(database, A_RECEIPT, MAX_DAYS, time(23, 59, 59))
    store_reply(database, A_RECEIPT, -1)  # by a clock that was wrong
    statistics = read_statistics(database.file, TODAY)
    days = TODAY, TODAY - timedelta(days=1), TODAY - timedelta(days=MAX_DAYS - 1)
    assert {replies.day for replies in statistics.replies} == set(days)
    assert [statistics.day_totals(day) for day in days] == [(1, 30.0)] * 3
    assert statistics.day_totals(TODAY - timedelta(days=2)) == (0, 0)
    assert len(statistics.days) == MAX_DAYS
    assert statistics.days[-1] == TODAY


@pytest.mark.parametrize("receipt", [None, "{", "{}", '{"source": "hot", "saved_ms": 1e999}'])
def test_statistics_skip_invalid_receipts(database: Database, receipt: str | None) -> None:
    store_reply(database, receipt)
    store_reply(database, replace(A_RECEIPT, source=Source.DISK))
    assert [
        (replies.day, replies.kind, replies.count) for replies in read_statistics(database.file, TODAY).replies
    ] == [(TODAY, "remembered from disk", 1)]
