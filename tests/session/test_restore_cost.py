from __future__ import annotations

import pytest

from kvchat.session.restore_cost import MIN_GAIN, BreakEven, PrefillSample, PrefillSpeed, RestoreCost
from kvchat.text.formatting import TimeRange, format_estimate, sum_times

CONTEXT = 8192


def reading_at(ms_per_token: float) -> RestoreCost:
    cost = RestoreCost()
    cost.speed.learn(1000, 1000 * ms_per_token, 0)
    return cost


@pytest.mark.parametrize(
    ("per_token", "fixed", "tokens"),
    [
        (20_000, 0, MIN_GAIN),  # 0.1 ms a token against 4: at once
        (20_000, 40_000_000, 52),  # 200 ms of recurrent state to load first: 51.3 tokens' reading
        (0, 400_000_000, 501),
        (1_000_000, 0, None),  # 5 ms a token
        (20_000, 10**10, None),  # beyond the context
    ],
)
def test_the_break_even_is_the_least_gain_worth_its_restore(per_token: int, fixed: int, tokens: int | None) -> None:
    cost = reading_at(4.0)
    cost.learn_restore(200_000_000, 1000)
    assert cost.break_even(lambda n: fixed + n * per_token, CONTEXT) == BreakEven(tokens, 4.0, 5e-6)


def test_nothing_is_said_before_both_rates_were_measured() -> None:
    cost = RestoreCost()
    cost.speed.learn(1000, 4000, 0)
    assert cost.break_even(lambda n: n, CONTEXT) is None
    cost.learn_restore(1_000_000, 5)
    assert cost.break_even(lambda n: n, CONTEXT) is not None


def test_one_slow_restore_among_others_changes_nothing() -> None:
    cost = reading_at(1.0)
    for ms in (5, 5, 5000, 5):
        cost.learn_restore(1_000_000, ms)
    assert cost.is_worth(1000, 1_000_000)
    assert not cost.is_worth_trying(MIN_GAIN - 1, 10)
    assert cost.restore_ms_per_byte == 5e-6, "what gains too little says nothing of the rate"


def test_restores_found_too_slow_are_tried_again_some_time() -> None:
    cost = reading_at(1.0)
    cost.learn_restore(1_000_000, 5000)
    tried = [cost.is_worth_trying(1000, 1_000_000) for _ in range(20)]
    assert not any(tried[:5])
    assert tried[-1]
    cost.learn_restore(1_000_000, 5000)
    assert not cost.is_worth(1000, 1_000_000)


def read_in(*seconds: float, tokens: int = 2000) -> PrefillSpeed:
    """As if texts of so many tokens had been read in so many seconds each."""
    speed = PrefillSpeed()
    speed.recall(PrefillSample(tokens, 1000 * one) for one in seconds)
    return speed


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        ((59,), "about 59 s"),
        ((59, 62, 70), "about 62 s"),
        ((59, 120), "1 to 2 min"),
        ((59, 60, 62, 61, 840), "about 61 s"),  # one that met a busy moment
        ((59, 60, 120, 130, 840), "1 to 2 min"),
        ((120, 840, 59), ""),  # nothing is known
        ((), ""),
    ],
)
def test_a_machine_whose_speed_varies_is_given_a_range_or_nothing(seconds: tuple[float, ...], told: str) -> None:
    time = read_in(*seconds).forecast(2000)
    assert (format_estimate(time) if time else "") == told


def test_only_the_last_readings_count_and_a_greeting_says_nothing_of_a_book() -> None:
    assert read_in(840, 120, *[59] * 5).forecast(2000) == TimeRange(59, 59)
    speed = read_in(1.8, tokens=70)
    assert speed.forecast(3000) is None
    assert speed.forecast(140) == TimeRange(3.6, 3.6)
    speed.learn(2000, 20_000, 70)
    assert speed.forecast(3000) == TimeRange(30, 30)


def test_the_steps_of_one_prompt_are_one_reading() -> None:
    speed = PrefillSpeed()
    for step in range(10):
        speed.learn(32, 100 * (step + 1), 32 * step)
    assert [(one.tokens, one.ms) for one in speed.samples] == [(320, 5500)]
    speed.learn(100, 1000, 0)
    assert len(speed.samples) == 2
    assert speed.ms_per_step_token() == (10.0, 1000 / 32)


def test_each_model_has_its_own_speed() -> None:
    cost = reading_at(4.0)
    cost.use_model("another")
    assert cost.prefill_ms(1000) == 0
    cost.use_model("")
    assert cost.prefill_ms(1000) == 4000
    assert sum_times([TimeRange(1, 2), TimeRange(3, 4)]) == TimeRange(4, 6)
    assert sum_times([TimeRange(1, 2), None]) is None
    assert sum_times([]) is None
