"""KV cache sizes by header, and compared with the allocations of the real llama-server."""

import subprocess
import tempfile
from pathlib import Path

import pytest

from kvchat.engine.discovery.engines import EngineLocation
from kvchat.engine.process.log import Allocations, read_allocations
from kvchat.engine.process.plan import LaunchPlan, make_invocation
from kvchat.library.gguf.facts import read_facts
from kvchat.library.gguf.kv_cache import kv_bytes, kv_bytes_per_token, kv_fixed_bytes
from tests.library.gguf_files import LLAMA, write_gguf
from tests.models import bare_models, tiny_model

ROW = 2 * 2 * 16 * 2  # bytes per token and layer of LLAMA


def test_sliding_window_is_no_longer_than_the_context(tmp_path: Path) -> None:
    fields = LLAMA | {"attention.sliding_window": 4096, "attention.sliding_window_pattern": 0}
    facts = read_facts(write_gguf(tmp_path / "m.gguf", fields))
    assert kv_bytes(facts.kv, 1000) == 4 * ROW * 1024
    assert kv_bytes(facts.kv, 100_000) == 4 * ROW * (4096 + 512)


def test_hybrids_count_attention_only_in_attention_layers(tmp_path: Path) -> None:
    state = {"ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 16, "ssm.group_count": 1}
    per_layer = 4 * (3 * (128 + 2 * 16) + 16 * 128)
    for architecture, fields, layers in (
        ("qwen3next", {"full_attention_interval": 2}, 2),
        ("llama", {"attention.head_count_kv": [0, 2, 0, 2]}, 2),
        ("llama", {}, 4),
    ):
        layout = read_facts(write_gguf(tmp_path / "m.gguf", LLAMA | state | fields, architecture=architecture)).kv
        fixed = kv_fixed_bytes(layout, 4096, "f16")
        assert (kv_bytes_per_token(layout), fixed) == (layers * ROW, layers * per_layer)


def test_windows_of_known_architectures(tmp_path: Path) -> None:
    """Headers of llama.cpp's converter as b11434 reads them: without a pattern, or without a window at all."""

    def window(architecture: str, blocks: int, **fields: object) -> tuple[int, list[bool]]:
        shape = LLAMA | {"block_count": blocks} | {f"attention.{key}": value for key, value in fields.items()}
        facts = read_facts(write_gguf(tmp_path / "m.gguf", shape, architecture=architecture))
        return facts.kv.window, [layer.is_sliding for layer in facts.kv.layers]

    assert window("gpt-oss", 2, sliding_window=128) == (128, [True, False])
    assert window("cohere2moe", 4, sliding_window=128) == (128, [False, True, True, True])
    assert window("llama4", 4) == (8192, [True, True, True, False])
    assert window("gemma2", 2) == (4096, [True, False])
    assert window("phi3", 2, sliding_window=2047) == (0, [False, False])
    assert window("exaone4", 4, sliding_window=4096) == (0, [False] * 4)
    assert window("llama", 2, sliding_window=0) == (0, [False, False])


CONTEXT = 4096
TOLERANCE = 0.02  # of the engine's own figure
COMPARED_TYPES = ("f16", "q8_0", "q4_0")

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
def test_kv_sizes_agree_with_the_engine(real_llama_server: EngineLocation, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:  # 300 MB, not to be kept with the last runs' folders
        for architecture, model in bare_models(ARCHITECTURES, Path(folder)).items():
            facts = read_facts(model)
            for kv_type in COMPARED_TYPES:
                plan = LaunchPlan(model, CONTEXT, tmp_path, kv_type=kv_type)
                actual = allocations(real_llama_server, plan).bytes_on(None)["kv"]
                assert actual > 0
                estimated = kv_bytes(facts.kv, CONTEXT, kv_type)
                assert estimated == pytest.approx(actual, rel=TOLERANCE), (architecture, kv_type)


def allocations(engine: EngineLocation, plan: LaunchPlan) -> Allocations:
    """Return what the engine reports while it loads, then end it."""
    invocation = make_invocation(engine, plan)
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


@pytest.mark.engine
@pytest.mark.parametrize(("architecture", "window"), [("gemma3", 512), ("qwen35", None), ("llama", None)])
def test_kv_sizes_of_several_slots_agree_with_the_engine(
    real_llama_server: EngineLocation, tmp_path: Path, architecture: str, window: int | None
) -> None:
    """Each slot adds sliding windows and recurrent state; full attention adds nothing."""
    model = tiny_model(architecture, window)
    facts = read_facts(model)
    for slots in (1, 2, 4):
        took = allocations(real_llama_server, LaunchPlan(model, 8192, tmp_path, slots=slots))
        planned = kv_bytes(facts.kv, 8192, slots=slots)
        assert took.bytes_on(None)["kv"] == pytest.approx(planned, rel=0.01, abs=20_000)
