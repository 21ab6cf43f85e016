"""The figures the block store must reach, measured; each is printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest

from kvchat.kvstore.savepoint import RestorePlan, Tokens
from tests.kvstore.many_chats import fill, measure
from tests.kvstore.store_bench import Bench, Model

REPOSITORY = Path(__file__).parents[2]
T = TypeVar("T")
SMOLLM = Model(layers=30, row_size=384)
CONVERSATIONS, BLOCKS_EACH = 2_000, 50  # 100,000 blocks, 290,000 uses of them


@pytest.mark.slow
def test_rows_are_written_once_over_40_turns_of_short_replies(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", SMOLLM, memory=10**10)
    lengths = [400]
    for turn in range(40):
        lengths.append(lengths[-1] + 20 + 13 * turn % 40)
    tokens = tuple(range(1, lengths[-1] + 1))
    written = [0]
    for length, data in zip(lengths, SMOLLM.growing(tokens, lengths), strict=True):
        bench.save("thesis", tokens[:length], data=data)
        written.append(bench.inventory.usage().bytes_written)
    new = [(b - a) * SMOLLM.row_bytes for a, b in pairwise(lengths)]
    ratios = [(b - a) / rows for a, b, rows in zip(written[1:], written[2:], new, strict=False)]
    usage = bench.inventory.usage()
    unique = lengths[-1] * SMOLLM.row_bytes
    on_disk = sum(path.stat().st_size for path in bench.folder.rglob("*") if path.is_file())
    print(f"written / new rows: {sum(ratios) / 40:.3f}, worst {max(ratios):.3f}; disk / unique {on_disk / unique:.3f}")
    assert usage.unique_rows_bytes == unique
    assert max(ratios) <= 1.5
    assert on_disk <= 1.05 * unique


@pytest.mark.slow
def test_what_is_measured_among_many_chats_is_found_there() -> None:
    found = [name for name in measure(60) if name.startswith("find:") and "whole" in name]
    assert len(found) == 14
    for name in found:
        assert name.endswith("nothing") == any(
            words in name for words in ("another beginning", "new chat", "cut short")
        )


@pytest.mark.slow
def test_a_lookup_and_the_panel_are_quick_among_100_000_blocks(bench: Bench) -> None:
    system = tuple(range(1, 1801))

    def turn(number: int, place: int) -> Tokens:
        return system + tuple(range(10_000 + 300 * number, 10_198 + 300 * number + place))

    fill(bench, CONVERSATIONS, turn, BLOCKS_EACH)
    prompt = system + tuple(range(10_000 + 300 * 777, 10_200 + 300 * 777)) + (5,) * 100
    times: dict[str, float] = {}

    def timed(name: str, do: Callable[[], T]) -> T:
        tries = []
        for _ in range(5):  # the best of them, of the processor: this machine may be busy
            started = time.process_time()
            answer = do()
            tries.append(1000 * (time.process_time() - started))
        times[name] = min(tries)
        return answer

    for name, asked, used in (("a known chat", prompt, 2000), ("a new chat", system + (5,) * 100, 1800)):
        plan = timed(name, partial(bench.find, asked))
        assert isinstance(plan, RestorePlan)
        assert plan.tokens_used == used
    assert len(timed("usage", bench.inventory.usage).conversations) == CONVERSATIONS
    assert (
        len(timed("plan of a prune", lambda: bench.inventory.plan_prune(0)).conversations) == CONVERSATIONS * 49 // 50
    )
    print({name: f"{ms:.1f} ms" for name, ms in times.items()})
    # The figures to reach are 20 ms for a lookup and 200 ms for the panel; far beyond that is a scan gone wrong.
    assert max(times["a known chat"], times["a new chat"]) < 100
    assert times["usage"] < 200
    assert times["plan of a prune"] < 1000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc")
def test_a_file_of_1_gb_costs_at_most_64_mb_and_its_rebuild_is_timed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.kvstore.one_gigabyte", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True, env=os.environ)
    figures = json.loads(done.stdout)
    print(figures)
    assert figures["size_mb"] > 1000
    assert figures["exact"]
    assert figures["absorb_mb"] <= 64
    assert figures["rebuild_mb"] <= 64
    assert figures["compose_mb"] <= 64
