"""`python -m tests.bench size` with small sizes."""

import json
import os
import subprocess
import sys

import pytest

from kvchat.kvstore.blocks.parser import parse_layout
from tests.bench.size import TOKEN_BYTES, write_slot_file
from tests.e2e.home import Home


def test_the_store_parses_a_generated_file_and_a_longer_one_extends_it(tmp_path):
    short, longer = tmp_path / "short.slot", tmp_path / "longer.slot"
    for path, n_tokens in ((short, 20), (longer, 30)):
        assert write_slot_file(path, tuple(range(1, n_tokens + 1))) == path.stat().st_size
    one, other = parse_layout(short), parse_layout(longer)
    assert sum(cache.row_bytes * cache.rows for cache in one.attention_caches) == 20 * TOKEN_BYTES
    first, again = short.read_bytes(), longer.read_bytes()
    for region, other_region in zip(one.attention_caches[0].regions, other.attention_caches[0].regions, strict=True):
        rows = first[region.offset : region.offset + 20 * region.row_size]
        assert again[other_region.offset : other_region.offset + len(rows)] == rows


@pytest.mark.engine
def test_the_benchmark_needs_no_model(tmp_path):
    home = Home(tmp_path / "home")
    home.write_settings(free_floor_bytes=0)
    command = [sys.executable, "-m", "tests.bench", "size", "--size", "40MB", "--tokens", "300"]
    environment = os.environ | {"KVCHAT_HOME": str(home.folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    wanted = "file_bytes restore_ms engine_restore_ms restore_ratio rebuild_ratio absorb_ratio warm_before_engine_ms"
    for name in (*wanted.split(), "next_turn_cpu_ratio"):
        assert figures[name] > 0, name
    assert figures["file_bytes"] > 250 * TOKEN_BYTES
    assert 100 * TOKEN_BYTES <= figures["next_turn_bytes_written"] < 0.5 * figures["made_bytes"]
