from __future__ import annotations

import dataclasses

from kvchat.chat.messages import Receipt, Source
from kvchat.chat.receipts import receipt_details, receipt_line

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


def test_a_restored_reply_says_what_it_saved() -> None:
    assert receipt_line(WARM).text == "0.31 s · 5,906 of 5,918 tokens from disk · saved about 36 s"
    assert not receipt_line(WARM).fault


def test_a_cold_reply_says_why() -> None:
    cold = dataclasses.replace(WARM, source=Source.COLD, cached_tokens=0, miss_reason="its file was damaged")
    assert receipt_line(cold).text == "0.31 s · 5,918 tokens read · its file was damaged"


def test_a_hollow_restore_is_a_fault() -> None:
    hollow = dataclasses.replace(WARM, source=Source.COLD, cached_tokens=0, hollow=True, miss_reason="hollow restore")
    assert receipt_line(hollow).fault
    assert "5,918 of 5,918 tokens read again" in receipt_line(hollow).text
    assert ("Source", "hollow restore: loaded, but the engine did not use it") in receipt_details(hollow)


def test_a_restore_before_send_is_named_as_not_counted() -> None:
    ahead = dict(receipt_details(dataclasses.replace(WARM, restored_ahead=True)))
    assert ahead["  Restore"] == "136 MB in 21 ms (before you pressed Send, not counted)"
