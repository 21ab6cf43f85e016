"""How long the next reply will be waited for: what is learned from receipts, and what is told of it."""

from __future__ import annotations

import pytest

from kvchat.chat.record.messages import Receipt
from kvchat.chat.turn.prediction import Forecast, Rates
from kvchat.session.proof import Source
from kvchat.session.restore_cost import Prefill


def receipt(read: int, cached: int = 0, source: Source = Source.HOT, size: int = 0) -> Receipt:
    """What a machine would say that reads a token in 2 ms, more slowly the deeper, and restores a GB in a second."""
    prefill = 15 + read * 2.0 + read * (cached + read / 2) * 0.001
    restore = {Source.WARM: 0.5, Source.DISK: 1.0}.get(source, 0.0) * size / 1e6
    return Receipt(
        restore + prefill + 40, restore, prefill, 40, read + cached, cached, 20, 50, source, None, restored_bytes=size
    )


ALL = [
    receipt(1500),
    receipt(30, 1520, Source.DISK, 100_000_000),
    receipt(40, 1600, Source.WARM, 100_000_000),
    receipt(2000, 1700),
    receipt(60, 4000),
    receipt(25),
    receipt(35, 8000),
]


def test_nothing_is_predicted_before_anything_was_measured() -> None:
    assert Rates.learned([]).ttft_ms(2000, 0) is None


def test_one_receipt_is_enough_for_a_rate_by_the_token() -> None:
    rates = Rates.learned([receipt(1000)])
    assert rates.prefill_ms(500, 0) == pytest.approx(receipt(1000).prefill_ms / 2)


@pytest.mark.parametrize(("read", "after"), [(30, 0), (2000, 0), (500, 6000), (4000, 100)])
def test_reading_is_predicted_by_how_much_there_is_and_how_deep_it_stands(read: int, after: int) -> None:
    assert Rates.learned(ALL).prefill_ms(read, after) == pytest.approx(receipt(read, after).prefill_ms, rel=0.02)


def test_restoring_is_predicted_by_bytes_and_where_they_are() -> None:
    rates = Rates.learned(ALL)
    assert rates.restore_ms(Source.DISK, 300_000_000) == pytest.approx(300)
    assert rates.restore_ms(Source.WARM, 300_000_000) == pytest.approx(150)
    whole = rates.ttft_ms(100, 3000, Source.DISK, 300_000_000)
    assert whole == pytest.approx(300 + receipt(100, 3000).prefill_ms + 40, rel=0.02)


def test_what_was_restored_from_one_place_alone_says_something_of_the_other() -> None:
    rates = Rates.learned([receipt(30, 1500, Source.DISK, 100_000_000)])
    assert rates.restore_ms(Source.WARM, 200_000_000) == pytest.approx(200)


def test_one_reply_that_met_a_busy_machine_changes_little() -> None:
    slow = [Receipt(90_000, 0, 90_000, 40, 900, 0, 20, 50, Source.COLD)]
    assert Rates.learned([*ALL, *slow]).prefill_ms(2000, 0) == pytest.approx(receipt(2000).prefill_ms, rel=0.25)


def deep(read: int, after: int) -> float:
    """What llama.cpp takes on a processor: fewer than 64 tokens take three times as long for how deep they stand."""
    return 15 + read * (2.0 + (after + read / 2) * (0.003 if read < 64 else 0.001))


def test_a_short_message_deep_in_a_chat_takes_longer_for_each_token_than_a_long_one() -> None:
    cases = [(1500, 0), (30, 1500), (40, 4000), (2000, 1700), (25, 0), (300, 6000), (50, 6000), (700, 500), (9, 3000)]
    lately = [Prefill(read, after, deep(read, after)) for read, after in cases]
    rates = Rates.learned([], lately)
    for read, after in [(32, 5000), (900, 5000), (20, 200)]:
        assert rates.prefill_ms(read, after) == pytest.approx(deep(read, after), rel=0.1)


def test_a_few_short_messages_say_nothing_of_how_deep_a_long_chat_stands() -> None:
    """As seen in a first hour on a busy machine: a chat of 3,300 tokens on the disk was said to take two minutes."""
    first = [(35, 0, 1819.0), (2179, 1006, 59_134.0), (151, 88, 4258.0), (1, 54, 257.0)]
    lately = [Prefill(read, after, ms) for read, after, ms in first]
    assert Rates.learned([], lately).prefill_ms(32, 3300) < 4000


def test_a_greeting_says_nothing_of_a_book() -> None:
    """The first reply of all took 1.8 s for 35 tokens, and 3,000 pasted ones were said to take minutes."""
    rates = Rates.learned([receipt(35)])
    assert rates.ttft_ms(3000, 35) is None
    assert rates.ttft_ms(500, 35) is not None


def test_what_was_read_just_now_tells_that_the_machine_is_busy() -> None:
    def read(times_slower: float) -> list[Prefill]:
        return [Prefill(one, 100, times_slower * deep(one, 100)) for one in (64, 200, 80)]

    receipts = [receipt(tokens) for tokens in range(20, 800, 20)]
    usual = Rates.learned(receipts, read(1.0)).ttft_ms(300, 100)
    slower = Rates.learned(receipts, [*read(1.0), *read(3.0)]).ttft_ms(300, 100)
    once = Rates.learned(receipts, [*read(1.0), *read(3.0)[:1]]).ttft_ms(300, 100)
    assert None not in (usual, slower, once)
    assert (slower or 0) > 2 * (usual or 0)
    assert once == pytest.approx(usual, rel=0.15)


def test_only_a_wait_that_would_be_noticed_is_told() -> None:
    assert Forecast(Source.HOT, 0, 400).short == Forecast(Source.HOT, 0, 400).of_message == ""
    assert Forecast(Source.HOT, 0, 400).of_chat == "still loaded: answers at once"
    assert Forecast(Source.COLD, 2100).of_chat == "must be read again"
    cold = Forecast(Source.COLD, 2100, 4_200)
    assert (cold.short, cold.of_chat) == ("4 s", "must be read again: answers in about 4 s")
    assert cold.of_message == "about 4 s: 2,100 tokens to read"
    assert Forecast(Source.DISK, 12, 1_600).of_message == "about 2 s: loading it, and 12 tokens to read"
    assert Forecast(Source.WARM, 0, 200).of_chat == "remembered, in memory: comes back in a moment"
    assert Forecast(Source.COLD, 0, begun=False).of_chat == "nothing said yet"
