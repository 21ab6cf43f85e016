"""Slot files of both real engines for every kind of model memory, through the store."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import gguf
import pytest

from kvchat.engine.discovery.engines import EngineLocation
from kvchat.engine.process.plan import LaunchPlan
from kvchat.engine.process.supervisor import EngineSupervisor, RestartPolicy
from tests.kvstore.store_bench import Bench, parse_bytes
from tests.models import bare_models

pytestmark = pytest.mark.engine

TURNS = (90, 300, 301, 600)  # tokens: within a block, across one, by a single one, and across the next
TOKENS = tuple(number * 7 % 120 + 3 for number in range(TURNS[-1]))  # of a vocabulary of 128
CONTEXT = 1024

FULL = ("llama", "deepseek2", "minimax-m3")  # plain, latent, and with an indexer
WINDOWS = ("gemma3", "gpt-oss", "llama4")  # sliding, and chunked
HYBRID = ("qwen35", "qwen3next", "falcon-h1", "kimi-linear", "lfm2")  # the last with windows too
RECURRENT = ("mamba", "mamba2")
# The embedded engine is newer and appends context checkpoints; llama-server b11434 writes the older form.
BY_LLAMA_SERVER = ("llama", "deepseek2", "gemma3", "gpt-oss", "qwen35", "lfm2", "mamba")
CASES = [("embedded_engine", name) for name in (*FULL, *WINDOWS, *HYBRID, *RECURRENT)]
CASES += [("real_llama_server", name) for name in BY_LLAMA_SERVER]


@pytest.fixture(scope="module")
def models() -> Iterator[dict[str, Path]]:
    """Tiny models with a longer context than the 256 tokens they were trained for."""
    with tempfile.TemporaryDirectory() as folder:
        found = bare_models((*FULL, *WINDOWS, *HYBRID, *RECURRENT), Path(folder))
        for name, path in found.items():
            reader = gguf.GGUFReader(path, "r+")
            reader.fields[f"{name}.context_length"].parts[-1][0] = CONTEXT
            reader.data.flush()
        yield found


@pytest.fixture
async def supervisor() -> AsyncIterator[EngineSupervisor]:
    supervisor = EngineSupervisor(policy=RestartPolicy(max_deaths=1))
    yield supervisor
    await supervisor.close()


@pytest.mark.parametrize(("engine", "architecture"), CASES)
async def test_every_turn_is_restored_byte_for_byte(
    engine: str,
    architecture: str,
    models: dict[str, Path],
    supervisor: EngineSupervisor,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    location: EngineLocation = request.getfixturevalue(engine)
    bench = Bench(tmp_path / "store")
    await supervisor.start(location, iter([LaunchPlan(models[architecture], CONTEXT, bench.slots)]))
    running = await supervisor.ready()
    saved: dict[int, bytes] = {}
    points = {}
    for length in TURNS:
        await running.prefill(TOKENS[:length])
        answer = await running.save_slot("saved")
        assert answer.tokens == length
        saved[length] = (bench.slots / "saved").read_bytes()
        points[length] = bench.save("thesis", TOKENS[:length], data=saved[length])
    layouts = {length: parse_bytes(data) for length, data in saved.items()}
    for length in TURNS:
        assert bench.read(bench.stage_point(points[length])) == saved[length]
    if architecture in FULL:
        rows = sum(cache.row_bytes * cache.rows for cache in layouts[TURNS[-1]].attention_caches)
        assert bench.inventory.usage().unique_rows_bytes == rows, "every row is stored once"
        assert bench.restore((*TOKENS[:300], 1, 1), can_cut=True) == saved[300]
    elif engine == "embedded_engine":
        assert layouts[TURNS[-1]].checkpoints
    assert bool(layouts[TURNS[-1]].recurrent_state) == (architecture in (*HYBRID, *RECURRENT))
