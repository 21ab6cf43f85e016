"""Shares and dates in words."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from kvchat.ui.wording import since, size_of
from kvchat.wording import rough_duration


def test_two_sizes_share_their_unit() -> None:
    assert size_of(3_136_000_000, 20_000_000_000) == "3.1 of 20 GB"
    assert size_of(136_000_000, 20_000_000_000) == "136 MB of 20 GB"


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
    ("seconds", "words"),
    [(0, "1 s"), (7.6, "8 s"), (59.4, "59 s"), (59.6, "1 min"), (3599, "1 h"), (4800, "1 h 20 min"), (90_000, "25 h")],
)
def test_how_long_still(seconds: float, words: str) -> None:
    assert rough_duration(seconds) == words
