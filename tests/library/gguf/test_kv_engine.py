"""The KV estimates against what the real llama-server says it allocates: every kind of memory, by tiny models."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

from kvchat.engine.finding.discovery import EngineLocation
from kvchat.engine.running.log import Allocations, Purpose, read_allocations
from kvchat.engine.running.plan import LaunchPlan, prepare
from kvchat.library.gguf.facts import read_facts
from kvchat.library.gguf.kv_cache import kv_bytes
from tests.models import bare_models

CONTEXT = 4096
TOLERANCE = 0.02  # of the engine's own figure
KV_TYPES = ("f16", "q8_0", "q4_0")

# Full attention in its variants, MLA, sparse attention with an indexer, sliding windows of every pattern, chunks,
# shared layers, recurrent, hybrids, and both.
ARCHITECTURES = (
    *("llama", "qwen3", "qwen3moe", "phi3", "glm4moe", "command-r", "olmo2", "granite", "smollm3", "minimax-m2"),
    *("deepseek2", "deepseek32", "glm-dsa", "dots3note", "minimax-m3"),
    *("gemma2", "gemma3", "afmoe", "gpt-oss", "cohere2", "cohere2moe", "llama4", "smallthinker", "mimo2", "plamo3"),
    *("mamba", "mamba2", "qwen3next", "qwen35", "jamba", "lfm2", "granitehybrid", "nemotron_h", "falcon-h1"),
    *("kimi-linear", "minimax-01"),
)


@pytest.mark.engine
def test_kv_sizes_are_the_engines(real_llama_server: EngineLocation, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:  # 300 MB, not to be kept with the last runs' folders
        for architecture, model in bare_models(ARCHITECTURES, Path(folder)).items():
            facts = read_facts(model)
            for kv_type in KV_TYPES:
                plan = LaunchPlan(model, CONTEXT, tmp_path, kv_type_k=kv_type, kv_type_v=kv_type)
                actual = allocations(real_llama_server, plan).on_host(Purpose.KV)
                assert actual > 0
                estimated = kv_bytes(facts.kv, CONTEXT, kv_type, kv_type)
                assert estimated == pytest.approx(actual, rel=TOLERANCE), (architecture, kv_type)


def allocations(engine: EngineLocation, plan: LaunchPlan) -> Allocations:
    """What the engine reports as it loads; it is ended as soon as it has told everything."""
    invocation = prepare(engine, plan)
    lines = []
    with subprocess.Popen(
        invocation.command, env=invocation.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if "compute buffer size" in line:  # the last it allocates
                break
        process.kill()
    found = read_allocations(lines)
    assert found is not None, "".join(lines[-20:])
    return found
