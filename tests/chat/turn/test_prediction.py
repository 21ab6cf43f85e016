"""What is told of how long the next reply will be waited for."""

from __future__ import annotations

from kvchat.chat.turn.forecasts import Forecast
from kvchat.session.proof import Source
from kvchat.words.wording import TimeRange


def after(least: float, most: float | None = None) -> TimeRange:
    return TimeRange(least, most or least)


def test_only_a_wait_that_would_be_noticed_is_told() -> None:
    assert Forecast(Source.HOT, 0, after(0.4)).of_message == ""
    assert Forecast(Source.HOT, 0, after(0.4)).of_chat == "still loaded: answers at once"
    assert Forecast(Source.COLD, 2100).of_chat == "must be read again"
    cold = Forecast(Source.COLD, 2100, after(4.2))
    assert cold.of_chat == "must be read again: answers in about 4 s"
    assert cold.of_message == "about 4 s: 2,100 tokens to read"
    assert Forecast(Source.DISK, 12, after(1.6)).of_message == "about 2 s: loading it, and 12 tokens to read"
    assert Forecast(Source.WARM, 0, after(0.2)).of_chat == "remembered, in memory: comes back in a moment"
    assert Forecast(Source.COLD, 0, begun=False).of_chat == "nothing said yet"
    varied = Forecast(Source.COLD, 2100, after(59, 170))
    assert (varied.of_chat, varied.of_message) == (
        "must be read again: answers in 1 to 3 min",
        "1 to 3 min: 2,100 tokens to read",
    )
