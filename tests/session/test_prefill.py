"""Sizes of processing steps, chosen from the times of earlier ones."""

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

PLENTY = 200 * BATCH_SIZE  # tokens left to process


def run_steps(
    steps: int, duration: Callable[[int], float], pacer: StepPacer | None = None
) -> tuple[StepPacer, list[float]]:
    """Return the pacer after these steps, and the ms of each; `duration`: ms for a number of tokens."""
    pacer, times = pacer or StepPacer(), []
    for _ in range(steps):
        times.append(duration(pacer.tokens(PLENTY)))
        pacer.learn(pacer.tokens(PLENTY), times[-1])
    return pacer, times


@pytest.mark.parametrize("per_token", [0.02, 0.3, 1.5, 3.5, 20.0, 200.0])
def test_steps_approach_the_target_time(per_token: float) -> None:
    pacer, times = run_steps(20, lambda tokens: 5 + per_token * tokens)
    assert times[-1] <= 1.1 * TARGET_STEP_MS or pacer.tokens(PLENTY) == MIN_STEP
    assert times[-1] >= 0.8 * TARGET_STEP_MS or pacer.tokens(PLENTY) % BATCH_SIZE == 0
    assert pacer.tokens(PLENTY) <= MAX_STEP


def deep(depth: int) -> Callable[[int], float]:
    """Times measured with llama.cpp on two cores: in a deep context, small steps take twice as long per token."""
    return lambda tokens: 5 + tokens * (3.2 + (0.0033 if tokens < FULL_STEP else 0.0011) * depth)


def test_a_whole_step_becomes_smaller_only_if_it_takes_much_too_long() -> None:
    pacer, times = run_steps(20, deep(3000))
    assert pacer.tokens(PLENTY) == FULL_STEP
    assert max(times) < deep(3000)(FULL_STEP - 1)
    _, times = run_steps(20, deep(6000))
    assert all(ms <= 1.2 * TARGET_STEP_MS for ms in times[6:])
    assert sum(ms > 2 * TARGET_STEP_MS for ms in times) <= 2


def test_small_steps_are_avoided_if_they_save_little_time() -> None:
    """With gigabytes of rows on two cores, 8 tokens took 0.7 s and 64 took 1.2 s."""
    pacer, times = run_steps(20, lambda tokens: 600 + 9 * tokens, StepPacer({True: 5.0}))
    assert pacer.tokens(PLENTY) == FULL_STEP
    assert sum(ms < 1000 for ms in times) == 1


def test_the_remaining_tokens_are_processed_in_small_steps_too() -> None:
    duration = deep(4000)
    pacer = StepPacer({True: duration(FULL_STEP) / FULL_STEP, False: duration(30) / 30})
    assert duration(pacer.tokens(60)) <= 1.1 * TARGET_STEP_MS
    assert pacer.tokens(5) == 5


def test_steps_and_tail_match_the_engines_batches() -> None:
    """Its rounding depends on the batch size."""
    pacer = StepPacer({True: 0.3})
    assert pacer.tokens(PLENTY) == BATCH_SIZE
    assert pacer.tokens(PLENTY - FULL_STEP) == BATCH_SIZE - FULL_STEP  # after a first step of so many
    for missing, tail in ((300, 300), (2 * BATCH_SIZE, BATCH_SIZE), (1100, 76)):
        assert tail_size(missing, 0.3, TARGET_STEP_MS) == tail
        assert (missing - tail) % BATCH_SIZE == 0
    assert tail_size(1100, None, TARGET_STEP_MS) == tail_size(1100, 0.6, TARGET_STEP_MS) == TAIL_TOKENS


def test_one_slow_or_tiny_step_changes_little() -> None:
    assert StepPacer().tokens(PLENTY) == FIRST_STEP, "a small one where nothing was measured"
    pacer, _ = run_steps(5, lambda tokens: 1.0 * tokens)
    before = pacer.tokens(PLENTY)
    pacer.learn(before, 20 * TARGET_STEP_MS)
    assert pacer.tokens(PLENTY) >= before / 1.5
    pacer.learn(pacer.tokens(PLENTY), TARGET_STEP_MS)
    assert pacer.tokens(PLENTY) >= before / 1.5
    pacer = StepPacer({True: 2.0, False: 4.0})
    pacer.learn(3, 90)
    assert pacer.rates == {True: 2.0, False: 4.0}
