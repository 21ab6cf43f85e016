"""Sizes, times and receipts in words."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from kvchat.chat.messages import Receipt, Source
from kvchat.ui.wording import proved, receipt_details, receipt_line, since, size_of
from kvchat.wording import duration, size, tokens_short
from tests.ui.fake_runtime import a_receipt


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0"), (812, "812"), (5906, "5.9K"), (32_768, "32K"), (6000, "6K"), (130_500, "130K")]
)
def test_tokens(count: int, words: str) -> None:
    assert tokens_short(count) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(900, "900 bytes"), (42_600, "43 KB"), (1_500_000, "1.5 MB"), (136_000_000, "136 MB"), (20_000_000_000, "20 GB")],
)
def test_sizes(count: int, words: str) -> None:
    assert size(count) == words


def test_two_sizes_share_their_unit() -> None:
    assert size_of(3_136_000_000, 20_000_000_000) == "3.1 of 20 GB"
    assert size_of(136_000_000, 20_000_000_000) == "136 MB of 20 GB"


@pytest.mark.parametrize(
    ("ms", "words"), [(21.4, "21 ms"), (310, "0.31 s"), (9_990, "9.99 s"), (34_600, "34.6 s"), (125_000, "2 min 5 s")]
)
def test_times(ms: float, words: str) -> None:
    assert duration(ms) == words


@pytest.mark.parametrize(
    ("ago", "words"),
    [
        (timedelta(seconds=5), "just now"),
        (timedelta(minutes=5), "5 min ago"),
        (timedelta(hours=3), "3 h ago"),
        (timedelta(days=1), "yesterday"),
        (timedelta(days=5), "5 days ago"),
        (timedelta(days=40), "11 Oct 2026"),
    ],
)
def test_how_long_ago(ago: timedelta, words: str) -> None:
    now = datetime(2026, 11, 20, 12, 0)
    assert since(now - ago, now) == words


@pytest.mark.parametrize(
    ("receipt", "text", "fault"),
    [
        (a_receipt(Source.DISK), "0.31 s · 5,906 of 5,918 tokens from disk · saved about 36 s", False),
        (a_receipt(Source.HOT), "0.31 s · 5,906 of 5,918 tokens still hot · saved about 36 s", False),
        (a_receipt(Source.WARM), "0.31 s · 5,906 of 5,918 tokens from memory · saved about 36 s", False),
        (a_receipt(Source.DISK, saved_ms=None), "0.31 s · 5,906 of 5,918 tokens from disk", False),
        (a_receipt(Source.COLD), "34.6 s · 5,918 tokens read", False),
        (a_receipt(Source.COLD, miss_reason="no save point"), "34.6 s · 5,918 tokens read · no save point", False),
        (
            a_receipt(Source.COLD, hollow=True),
            "34.6 s · hollow restore: 5,918 of 5,918 tokens read again",
            True,
        ),
    ],
)
def test_receipt_line(receipt: Receipt, text: str, fault: bool) -> None:
    line = receipt_line(receipt)
    assert (line.text, line.fault) == (text, fault)


def test_receipt_details_split_the_time_and_name_the_miss() -> None:
    details = dict(receipt_details(a_receipt(Source.DISK)))
    assert details["  Restore"] == "136 MB in 21 ms"
    assert details["  Prefill"] == "70 ms for 12 tokens"
    assert details["Prompt"] == "5,918 tokens, 5,906 of them cached"
    assert details["Time saved (estimate)"] == "36.2 s"
    missed = dict(receipt_details(a_receipt(Source.COLD, hollow=True, miss_reason="the engine re-read everything")))
    assert missed["Why it missed"] == "the engine re-read everything"
    assert missed["Source"].startswith("hollow restore")


def test_a_restore_ahead_is_said_not_to_count() -> None:
    details = dict(receipt_details(a_receipt(Source.DISK, restored_ahead=True)))
    assert "before you pressed Send" in details["  Restore"]


def test_proof_needs_most_of_the_prompt() -> None:
    assert proved(5906, 5918)
    assert not proved(12, 5918)
    assert not proved(0, 0)
