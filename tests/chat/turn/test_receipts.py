from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvchat.chat.record.messages import Receipt, receipt_json, receipt_of
from kvchat.chat.turn.receipts import Phase, receipt_details, receipt_line, receipt_sentence, timeline
from kvchat.session.proof import Source
from kvchat.words.reasons import Reason, ReasonCode

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
        (replace(WARM, source=Source.WARM), "0.3 s · remembered"),
        (replace(WARM, source=Source.HOT, ttft_ms=94), "under 0.1 s · still loaded"),
        (replace(WARM, cached_tokens=1000), "0.3 s · remembered in part"),
        (replace(WARM, source=Source.HOT, cached_tokens=30, ttft_ms=19_000), "19 s · read"),
        (replace(WARM, source=Source.HOT, cached_tokens=4000, earlier_tokens=3900), "0.3 s · still loaded"),
        (replace(WARM, source=Source.HOT, cached_tokens=4000, earlier_tokens=5800), "0.3 s · still loaded in part"),
        (replace(WARM, queue_wait_ms=12_000), "0.3 s · remembered · waited 12 s for another reply"),
        (replace(WARM, engine_wait_ms=4_000), "0.3 s · remembered · waited 4.0 s for the engine to start"),
        (replace(WARM, imported=True), "0.3 s · remembered · imported memory, not verified"),
        (COLD, "35 s · read again"),
        (
            replace(WARM, cached_tokens=30, ttft_ms=1_900, miss_reason=FIRST),
            "1.9 s · first reply",
        ),
        (replace(COLD, ttft_ms=145_000, miss_reason=FIRST), "2 min · first reply"),
        (replace(COLD, ttft_ms=145_000, miss_reason=ALIKE), "2 min · read"),  # a program's first
    ],
)
def test_a_reply_says_two_things_at_a_glance(receipt: Receipt, line: str) -> None:
    assert receipt_line(receipt) == line


@pytest.mark.parametrize(
    ("receipt", "sentence"),
    [
        (WARM, "0.31 s · processed 12 new tokens, remembered 5,906 from disk · saved about 36 s"),
        (replace(WARM, source=Source.WARM), "0.31 s · processed 12 new tokens, remembered 5,906 · saved about 36 s"),
        (replace(WARM, source=Source.HOT, saved_ms=50), "0.31 s · processed 12 new tokens, 5,906 still loaded"),
        (
            replace(WARM, cached_tokens=5917, saved_ms=None),
            "0.31 s · processed 1 new token, remembered 5,917 from disk",
        ),
        (COLD, "34.6 s · processed 5,918 tokens · its memory was deleted in the meantime"),
    ],
)
def test_the_counts_are_in_a_sentence(receipt: Receipt, sentence: str) -> None:
    assert receipt_sentence(receipt) == sentence


def test_a_hollow_restore_is_told() -> None:
    hollow = replace(COLD, hollow=True, miss_reason=Reason(ReasonCode.HOLLOW, {"accepted": 5906, "reused": 0}))
    assert receipt_line(hollow) == "35 s · read again: the loaded memory was not used"
    assert receipt_sentence(hollow) == "34.6 s · reprocessed 5,918 tokens: the loaded memory was not used"
    assert ("Source", "read again; hollow restore: the loaded memory was not used") in receipt_details(hollow)


def test_a_restore_before_send_is_named_as_not_counted() -> None:
    ahead = dict(receipt_details(replace(WARM, prefetched=True)))
    assert ahead["  Loading (restore)"] == "136 MB in 21 ms (before you pressed Send, not counted)"


def test_a_receipt_comes_back_and_what_makes_no_sense_in_it_is_left_out() -> None:
    stored = json.loads(receipt_json(WARM))
    assert receipt_of(json.dumps(stored | {"of_a_newer_version": 3.5})) == WARM
    del stored["settle_ms"], stored["save_ms"]
    assert receipt_of(json.dumps(stored)) == WARM
    missed = replace(WARM, miss_reason=Reason(ReasonCode.SET_ASIDE, {"reason": Reason(ReasonCode.HELD_LESS)}))
    assert receipt_of(receipt_json(missed)) == WARM, "its words would lack figures"
    for reason in ("the first reply", {"code": "not-known-yet", "places": {}}, {"code": "hollow"}, 7):
        assert receipt_of(json.dumps(stored | {"miss_reason": reason})) == WARM
    assert receipt_of('["no", "receipt"]') is receipt_of('"none"') is receipt_of("7") is None


def test_a_speed_that_was_not_measured_is_not_told() -> None:
    assert dict(receipt_details(replace(WARM, predicted_tokens=1, tokens_per_second=0.0)))["Reply"] == "1 token"


def test_the_timeline_goes_from_before_send_to_after_the_reply() -> None:
    whole = replace(AHEAD, settle_ms=220.0, save_ms=90.0)
    assert [(step.words, round(step.ms)) for step in timeline(whole)] == [
        ("Processed ahead", 9500),
        ("Loading", 21),
        ("Processing", 200),
        ("First token", 91),
        ("Generating", 1939),
        ("Finalizing", 220),
        ("Saving", 90),
    ]
    assert timeline(replace(whole, prefetched=True))[0].words == "Loaded ahead"
    assert [step.phase for step in timeline(COLD)][-1] is Phase.WRITING
    assert ("After the reply", "finalized in 0.22 s, saved in 90 ms") in receipt_details(whole)
    assert ("After the reply", "finalized in 0.22 s, not saved") in receipt_details(replace(whole, save_ms=None))
