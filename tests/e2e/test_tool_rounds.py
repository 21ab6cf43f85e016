"""Tool calls with the real engine, its own parser and models of three memory kinds."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvchat.cli.arguments import BenchOptions
from kvchat.engine.discovery.engines import EngineLocation
from kvchat.session.proof import Source
from tests.bench.tools import measure_rounds

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen35"])
async def test_each_round_continues_warm_after_a_restart(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny_model: Callable[[str], Path],
    real_llama_server: EngineLocation,
) -> None:
    monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / "home"))
    options = BenchOptions(model=tiny_model(kind), engine=real_llama_server.path)
    first, *later = await measure_rounds(options, tools=30, rounds=3)
    before = first
    for entry in later:
        assert entry["source"] in (Source.DISK, Source.WARM)
        assert entry["cached_tokens"] >= before["prompt_tokens"]  # only the call and its result are new
        before = entry
    assert all(entry["agrees"] for entry in (first, *later))
