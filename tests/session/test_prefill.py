"""How much is read at a time, by how long the steps before took."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvchat.engine.process.plan import BATCH_SIZE
from kvchat.session.prefill import (
    FIRST_STEP,
    FULL_STEP,
    MAX_STEP,
    MIN_STEP,
    TAIL_TOKENS,
    TARGET_STEP_MS,
    StepPacer,
    tail_size,
)

PLENTY = 200 * BATCH_SIZE  # tokens are left to read


def after(steps: int, took: Callable[[int], float], pace: StepPacer | None = None) -> tuple[StepPacer, list[float]]:
    """The pace after so many steps on a machine that takes so long for so many tokens; how long each took."""
    pace, times = pace or StepPacer(), []
    for _ in range(steps):
        times.append(took(pace.tokens(PLENTY)))
        pace.learn(pace.tokens(PLENTY), times[-1])
    return pace, times


@pytest.mark.parametrize("per_token", [0.02, 0.3, 1.5, 3.5, 20.0, 200.0])
def test_a_step_comes_to_take_about_as_long_as_it_should(per_token: float) -> None:
    pace, times = after(20, lambda tokens: 5 + per_token * tokens)
    assert times[-1] <= 1.1 * TARGET_STEP_MS or pace.tokens(PLENTY) == MIN_STEP
    assert times[-1] >= 0.8 * TARGET_STEP_MS or pace.tokens(PLENTY) % BATCH_SIZE == 0
    assert pace.tokens(PLENTY) <= MAX_STEP


def deep(depth: int) -> Callable[[int], float]:
    """What was measured with llama.cpp on two cores: fewer than 64 tokens take twice as long for each, if deep."""
    return lambda tokens: 5 + tokens * (3.2 + (0.0033 if tokens < FULL_STEP else 0.0011) * depth)


def test_a_step_that_could_be_whole_is_made_smaller_only_if_it_takes_much_too_long() -> None:
    pace, times = after(20, deep(3000))
    assert pace.tokens(PLENTY) == FULL_STEP
    assert max(times) < deep(3000)(FULL_STEP - 1)
    _, times = after(20, deep(6000))
    assert all(took <= 1.2 * TARGET_STEP_MS for took in times[6:])
    assert sum(took > 2 * TARGET_STEP_MS for took in times) <= 2


def test_small_steps_that_are_hardly_quicker_than_a_whole_one_are_not_made() -> None:
    """As with gigabytes of rows on two cores: 8 tokens took 0.7 s, 64 of them 1.2 s."""
    pace, times = after(20, lambda tokens: 600 + 9 * tokens, StepPacer(whole=5.0))
    assert pace.tokens(PLENTY) == FULL_STEP
    assert sum(took < 1000 for took in times) == 1


def test_what_is_left_in_the_end_is_read_in_small_steps_too() -> None:
    took = deep(4000)
    pace = StepPacer(took(FULL_STEP) / FULL_STEP, took(30) / 30)
    assert took(pace.tokens(60)) <= 1.1 * TARGET_STEP_MS
    assert pace.tokens(5) == 5


def test_steps_and_what_is_left_are_as_the_engine_reads_in_one_piece() -> None:
    """It rounds by how many it reads at once."""
    pace = StepPacer(whole=0.3)
    assert pace.tokens(PLENTY) == BATCH_SIZE
    assert pace.tokens(PLENTY - FULL_STEP) == BATCH_SIZE - FULL_STEP  # after a first step of so many
    for missing, tail in ((300, 300), (2 * BATCH_SIZE, BATCH_SIZE), (1100, 76)):
        assert tail_size(missing, 0.3, TARGET_STEP_MS) == tail
        assert (missing - tail) % BATCH_SIZE == 0
    assert tail_size(1100, None, TARGET_STEP_MS) == tail_size(1100, 0.6, TARGET_STEP_MS) == TAIL_TOKENS


def test_one_step_that_met_a_busy_moment_or_has_few_tokens_changes_little() -> None:
    assert StepPacer().tokens(PLENTY) == FIRST_STEP, "a small one where nothing was measured"
    pace, _ = after(5, lambda tokens: 1.0 * tokens)
    before = pace.tokens(PLENTY)
    pace.learn(before, 20 * TARGET_STEP_MS)
    assert pace.tokens(PLENTY) >= before / 1.5
    pace.learn(pace.tokens(PLENTY), TARGET_STEP_MS)
    assert pace.tokens(PLENTY) >= before / 1.5
    pace = StepPacer(2.0, 4.0)
    pace.learn(3, 90)
    assert (pace.whole, pace.small) == (2.0, 4.0)
