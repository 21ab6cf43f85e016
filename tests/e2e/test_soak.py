"""A minute of each long run; `packaging/soak` does them at full length."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.home import engine_path
from tests.models import tiny_model
from tests.soak import kills, person, programs
from tests.soak.__main__ import kinds

pytestmark = pytest.mark.e2e


def test_killed_at_random_moments_nothing_is_lost_or_left(tmp_path):
    tally = kills.run(tmp_path, kinds()[:2], rounds=4, seed=1)
    assert tally.moments.total() == 4


def test_many_turns_take_no_more_than_few():
    """In a process of its own: in this one comes and goes what other tests have left."""
    soak = [sys.executable, "-m", "tests.soak", "--turns", "60"]
    done = subprocess.run(soak, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "turns 60: nothing lost" in done.stdout


@pytest.mark.parametrize(("model", "slots"), [("llama", 1), ("gemma3", 2), ("qwen35", 2)])
async def test_whatever_is_prepared_the_replies_are_those_of_a_cold_engine(tmp_path, model, slots):
    shaped, program = tiny_model(model, heeds=True), engine_path("llama-server")
    heard = await person.run(tmp_path, shaped, program, count=60, seed=1, slots=slots)
    assert heard["draft read"]
    assert heard["restored"]


async def test_other_programs_are_never_answered_for_each_other(tmp_path):
    happened = await programs.run(tmp_path, tiny_model("llama", heeds=True), engine_path("llama-server"), 20, seed=1)
    assert happened["window"]
    assert all(happened[path] for path in programs.DIALECTS)
