"""What ran out of memory is kept to for a while, and then tried again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kvchat.library.memory.demand import DAY_S, Circumstances, LoadLimit, LoadLimits

HERE = Circumstances("model", 5_000_000_000, "version: 1", "CUDA")


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limits(tmp_path: Path, clock: Clock) -> LoadLimits:
    return LoadLimits(tmp_path / "state" / "limits.json", clock)


def test_a_limit_holds_in_the_same_circumstances_alone(limits: LoadLimits, clock: Clock) -> None:
    assert limits.find(HERE) is None
    assert limits.learn(HERE, 8192, ran_out=True) == limits.find(HERE) == LoadLimit(8192, 1, clock.now)
    for other in ({"model": "other"}, {"build": "version: 2"}, {"device": "CPU"}):
        assert limits.find(dataclasses.replace(HERE, **other)) is None
    assert limits.knows(HERE.size, HERE.build, HERE.device)
    assert not limits.knows(HERE.size + 1, HERE.build, HERE.device)


def test_more_is_tried_again_after_a_day_and_after_twice_as_long_each_time(limits: LoadLimits, clock: Clock) -> None:
    waits = []
    for _ in range(8):
        limit = limits.learn(HERE, 8192, ran_out=True)
        assert limit is not None
        waits.append((limit.until - clock.now) / DAY_S)
        assert limits.learn(HERE, 8192, ran_out=True) == limit, "within that time it counts once"
        clock.now = limit.until - 1
        assert limits.find(HERE) == limit
        clock.now = limit.until
        assert limits.find(HERE) is None
    assert waits == [1, 2, 4, 8, 16, 32, 32, 32]


def test_a_load_that_takes_more_lifts_it_and_one_that_takes_less_does_not(limits: LoadLimits, clock: Clock) -> None:
    limits.learn(HERE, 8192, ran_out=True)
    assert limits.learn(HERE, 8192, ran_out=False) == limits.find(HERE) is not None
    assert limits.learn(HERE, 8448, ran_out=False) is None
    assert limits.find(HERE) is None
    limits.learn(HERE, 8192, ran_out=True)
    clock.now -= 60
    assert limits.find(HERE) is None, "a date to come is not believed"


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a": 1}', '{"a": {"tokens": "x", "times": 1, "at": 1}}', '{"a": {"tokens": 1e999}}', "\0"]
)
def test_a_damaged_file_is_an_empty_one(limits: LoadLimits, tmp_path: Path, text: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "limits.json").write_text(text)
    assert limits.find(HERE) is None
    limits.learn(HERE, 8192, ran_out=True)
    assert limits.find(HERE) is not None
