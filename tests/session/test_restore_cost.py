from __future__ import annotations

import pytest

from kvchat.session.restore_cost import LEAST_GAIN, BreakEven, RestoreCost

CONTEXT = 8192


@pytest.mark.parametrize(
    ("per_token", "fixed", "tokens"),
    [
        (20_000, 0, LEAST_GAIN),  # 0.1 ms a token against 4: at once
        (20_000, 40_000_000, 52),  # 200 ms of recurrent state to load first: 51.3 tokens' reading
        (0, 400_000_000, 501),
        (1_000_000, 0, None),  # 5 ms a token
        (20_000, 10**10, None),  # beyond the context
    ],
)
def test_the_break_even_is_the_least_gain_worth_its_restore(per_token: int, fixed: int, tokens: int | None) -> None:
    cost = RestoreCost(prefill_ms_per_token=4.0)
    cost.learn_restore(200_000_000, 1000)
    assert cost.break_even(lambda n: fixed + n * per_token, CONTEXT) == BreakEven(tokens, 4.0, 5e-6)


def test_nothing_is_said_before_both_rates_were_measured() -> None:
    cost = RestoreCost()
    cost.learn_prefill(1000, 4000)
    assert cost.break_even(lambda n: n, CONTEXT) is None
    cost.learn_restore(1_000_000, 5)
    assert cost.break_even(lambda n: n, CONTEXT) is not None


def test_one_slow_restore_among_others_changes_nothing() -> None:
    cost = RestoreCost(prefill_ms_per_token=1.0)
    for ms in (5, 5, 5000, 5):
        cost.learn_restore(1_000_000, ms)
    assert cost.worth(1000, 1_000_000)


def test_restores_found_too_slow_are_tried_again_some_time() -> None:
    cost = RestoreCost(prefill_ms_per_token=1.0)
    cost.learn_restore(1_000_000, 5000)
    tried = [cost.worth_trying(1000, 1_000_000) for _ in range(20)]
    assert not any(tried[:5])
    assert tried[-1]
    cost.learn_restore(1_000_000, 5000)
    assert not cost.worth(1000, 1_000_000)


def test_what_gains_too_little_says_nothing_of_the_rate() -> None:
    cost = RestoreCost(prefill_ms_per_token=1.0)
    cost.learn_restore(1_000_000, 5)
    assert not cost.worth_trying(LEAST_GAIN - 1, 10)
    assert cost.restore_ms_per_byte == 5e-6
