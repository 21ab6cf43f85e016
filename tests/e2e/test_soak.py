"""A minute of each soak test; `packaging/soak` runs them at full length."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.api_dialects import DIALECTS
from tests.e2e.home import engine_path
from tests.models import tiny_model
from tests.soak import kills, person, programs
from tests.soak.__main__ import kinds

pytestmark = pytest.mark.e2e


def test_kills_at_random_moments_lose_and_leave_nothing(tmp_path):
    tally = kills.run(tmp_path, kinds()[:2], rounds=4, seed=1)
    assert tally.moments.total() == 4


def test_many_turns_use_no_more_than_few():
    """In its own process: the usage of this one varies with other tests."""
    soak = [sys.executable, "-m", "tests.soak", "--turns", "60"]
    done = subprocess.run(soak, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "turns 60: nothing lost" in done.stdout


@pytest.mark.parametrize(("model", "slots"), [("llama", 1), ("gemma3", 2), ("qwen35", 2)])
async def test_prepared_replies_equal_those_of_a_cold_engine(tmp_path, model, slots):
    shaped, engine = tiny_model(model, heeds=True), engine_path("llama-server")
    events = await person.run(tmp_path, shaped, engine, count=60, seed=1, slots=slots)
    assert events["draft read"]
    assert events["restored"]


async def test_programs_never_get_each_others_answers(tmp_path):
    counts = await programs.run(tmp_path, tiny_model("llama", heeds=True), engine_path("llama-server"), 20, seed=1)
    assert counts["window"]
    assert all(counts[path] for path in DIALECTS)
