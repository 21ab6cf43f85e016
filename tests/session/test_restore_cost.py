import pytest

from kvchat.session.restore_cost import MIN_GAIN, BreakEven, PrefillSpeed, RestoreCost
from kvchat.text.formatting import TimeRange, format_estimate, sum_times

CONTEXT = 8192


@pytest.fixture(autouse=True)
def restores_are_worthwhile() -> None:
    """Decide as the product does."""


def make_cost(ms_per_token: float) -> RestoreCost:
    cost = RestoreCost()
    cost.speed.learn(1000, 1000 * ms_per_token, 0)
    return cost


@pytest.mark.parametrize(
    ("per_token", "fixed", "tokens"),
    [
        (20_000, 0, MIN_GAIN),  # 0.1 ms a token against 4: at once
        (20_000, 40_000_000, 52),  # 200 ms to load the recurrent state: as long as processing 51.3 tokens
        (0, 400_000_000, 501),
        (1_000_000, 0, None),  # 5 ms a token
        (20_000, 10**10, None),  # beyond the context
    ],
)
def test_the_break_even_is_the_least_gain_worth_a_restore(per_token: int, fixed: int, tokens: int | None) -> None:
    cost = make_cost(4.0)
    assert cost.break_even(lambda n: n, CONTEXT) is None, "no restore was measured"
    cost.record_restore(200_000_000, 1000)
    assert cost.break_even(lambda n: fixed + n * per_token, CONTEXT) == BreakEven(tokens, 4.0, 5e-6)


def test_a_single_slow_restore_changes_nothing() -> None:
    cost = make_cost(1.0)
    for ms in (5, 5, 5000, 5):
        cost.record_restore(1_000_000, ms)
    assert cost.is_worthwhile(1000, 1_000_000)
    assert not cost.is_worth_trying(MIN_GAIN - 1, 10)
    assert cost.restore_ms_per_byte == 5e-6, "too small a gain does not change the rate"


def test_slow_restores_are_tried_again_later() -> None:
    cost = make_cost(1.0)
    cost.record_restore(1_000_000, 5000)
    tried = [cost.is_worth_trying(1000, 1_000_000) for _ in range(20)]
    assert not any(tried[:5])
    assert tried[-1]
    cost.record_restore(1_000_000, 5000)
    assert not cost.is_worthwhile(1000, 1_000_000)


def speed_after(*seconds: float, tokens: int = 2000) -> PrefillSpeed:
    """Return the speed after processing `tokens` in each of these times."""
    speed = PrefillSpeed()
    speed.add_earlier_samples((tokens, 1000 * time_s) for time_s in seconds)
    return speed


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ((59,), "about 59 s"),
        ((59, 62, 70), "about 62 s"),
        ((59, 120), "1 to 2 min"),
        ((59, 60, 62, 61, 840), "about 61 s"),  # one met a busy moment
        ((59, 60, 120, 130, 840), "1 to 2 min"),
        ((120, 840, 59), ""),  # nothing is known
        ((), ""),
    ],
)
def test_varying_speeds_give_a_range_or_nothing(seconds: tuple[float, ...], text: str) -> None:
    time = speed_after(*seconds).forecast(2000)
    assert (format_estimate(time) if time else "") == text


def test_only_recent_and_long_enough_samples_count() -> None:
    assert speed_after(840, 120, *[59] * 5).forecast(2000) == TimeRange(59, 59)
    speed = speed_after(1.8, tokens=70)
    assert speed.forecast(3000) is None
    assert speed.forecast(140) == TimeRange(3.6, 3.6)
    speed.learn(2000, 20_000, 70)
    assert speed.forecast(3000) == TimeRange(30, 30)


def test_the_steps_of_one_prompt_are_one_sample() -> None:
    speed = PrefillSpeed()
    for step in range(10):
        speed.learn(32, 100 * (step + 1), 32 * step)
    assert [(sample.tokens, sample.ms) for sample in speed.samples] == [(320, 5500)]
    speed.learn(100, 1000, 0)
    assert len(speed.samples) == 2
    assert speed.step_rates() == {True: 10.0, False: 1000 / 32}


def test_each_model_has_its_own_speed() -> None:
    cost = make_cost(4.0)
    cost.use_model("another")
    assert cost.prefill_ms(1000) == 0
    cost.use_model("")
    assert cost.prefill_ms(1000) == 4000
    assert sum_times([TimeRange(1, 2), TimeRange(3, 4)]) == TimeRange(4, 6)
    assert sum_times([TimeRange(1, 2), None]) is None
    assert sum_times([]) is None
