from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import psutil
import pytest

from kvchat.library.gguf_facts import GgufFacts, read_facts
from kvchat.library.memory import (
    KV_TYPES,
    DeviceMemory,
    available_memory,
    cgroup_room,
    kv_bytes,
    kv_bytes_per_token,
    kv_estimate,
)
from tests.library.gguf_files import LLAMA, write_gguf

MIB = 1024 * 1024


@pytest.fixture
def llama(tmp_path: Path) -> GgufFacts:
    return read_facts(write_gguf(tmp_path / "llama.gguf"))


def test_smollm2_exactly(smollm2: Path) -> None:
    facts = read_facts(smollm2)
    assert kv_bytes_per_token(facts) == 23_040
    assert kv_bytes(facts, 8192) == 23_040 * 8192
    assert kv_bytes_per_token(facts, "q8_0", "q8_0") == 23_040 / 2 * 34 / 32
    assert kv_bytes_per_token(facts, "f32", "q4_0") == 30 * 3 * 64 * (4 + 18 / 32)
    assert kv_estimate(facts, 8192).exact


def test_kv_types_are_those_of_llama_cpp() -> None:
    for name, size in KV_TYPES.items():
        assert size == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name.upper()]]


def test_unknown_kv_type_is_refused(llama: GgufFacts) -> None:
    with pytest.raises(ValueError, match="q3_5"):
        kv_bytes_per_token(llama, "q3_5")


# What b11434's llama-server logs at --ctx-size 4096 ("llama_kv_cache: size", "llama_memory_recurrent: size"), in bytes.
@pytest.mark.parametrize(
    ("architecture", "per_token", "fixed"),
    [
        ("llama", 2048, 0),
        ("gemma3", 1024, 768 * 1024),
        ("qwen35", 1024, 4 * (3 * (256 + 2 * 2 * 128) + 128 * 256)),
    ],
)
def test_tiny_models_as_the_engine_allocates(
    tiny_model: Callable[[str], Path], architecture: str, per_token: int, fixed: int
) -> None:
    estimate = kv_estimate(read_facts(tiny_model(architecture)), 4096)
    assert (estimate.per_token, estimate.fixed, estimate.exact) == (per_token, fixed, True)


def test_a_sliding_window_is_no_longer_than_the_context(tmp_path: Path) -> None:
    fields = LLAMA | {"attention.sliding_window": 4096, "attention.sliding_window_pattern": 0}
    facts = read_facts(write_gguf(tmp_path / "m.gguf", fields))
    row = 2 * 2 * 16 * 2
    assert kv_bytes(facts, 1000) == 4 * row * 1024
    assert kv_bytes(facts, 100_000) == 4 * row * (4096 + 512)


def test_known_architectures_have_their_pattern_and_others_an_upper_bound(tmp_path: Path) -> None:
    fields = LLAMA | {"attention.sliding_window": 512, "block_count": 6}
    known = read_facts(write_gguf(tmp_path / "gemma.gguf", fields, architecture="gemma3"))
    unknown = read_facts(write_gguf(tmp_path / "new.gguf", fields, architecture="brandnew"))
    row = 2 * 2 * 16 * 2
    assert kv_bytes_per_token(known) == row
    assert kv_bytes_per_token(unknown) == 6 * row
    assert "sliding window" in kv_estimate(unknown, 4096).notes[0]


def test_hybrids_count_attention_in_attention_layers_alone(tmp_path: Path) -> None:
    state = {"ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 16, "ssm.group_count": 1}
    row, per_layer = 2 * 2 * 16 * 2, 4 * (3 * (128 + 2 * 16) + 16 * 128)
    interval = write_gguf(tmp_path / "a.gguf", LLAMA | state | {"full_attention_interval": 2}, architecture="qwen3next")
    listed = write_gguf(tmp_path / "b.gguf", LLAMA | state | {"attention.head_count_kv": [0, 2, 0, 2]})
    for path in (interval, listed):
        estimate = kv_estimate(read_facts(path), 4096)
        assert (estimate.per_token, estimate.fixed, estimate.exact) == (2 * row, 2 * per_layer, True)
    silent = kv_estimate(read_facts(write_gguf(tmp_path / "c.gguf", LLAMA | state)), 4096)
    assert (silent.per_token, silent.fixed, silent.exact) == (4 * row, 4 * per_layer, False)


def test_shared_layers_keep_no_rows(tmp_path: Path) -> None:
    facts = read_facts(write_gguf(tmp_path / "m.gguf", LLAMA | {"attention.shared_kv_layers": 3}))
    assert kv_bytes_per_token(facts) == 2 * 2 * 16 * 2


def test_latent_attention_keeps_one_compressed_row(tmp_path: Path) -> None:
    # DeepSeek-V2-Lite: 27 layers of 512 + 64 values, as llama.cpp allocates them ("V: 0.00 MiB")
    mla = {
        "block_count": 27,
        "attention.kv_lora_rank": 512,
        "attention.key_length_mla": 192,
        "rope.dimension_count": 64,
    }
    facts = read_facts(write_gguf(tmp_path / "m.gguf", LLAMA | mla, architecture="deepseek2"))
    assert kv_bytes_per_token(facts) == 27 * 576 * 2


def test_available_memory_without_limits_is_the_computers(tmp_path: Path) -> None:
    devices = [DeviceMemory("CUDA0", 8 * MIB), DeviceMemory("CUDA1", 4 * MIB)]
    memory = available_memory(devices, root=tmp_path)
    assert memory.available == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    assert not memory.limited
    assert memory.device_free == 12 * MIB


def fake_group(root: Path, cgroup: str, folder: str, **files: str) -> None:
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (root / folder / name.replace("__", ".")).write_text(content)


def test_cgroup_v2_limit_of_a_parent_counts_and_page_cache_does_not(tmp_path: Path) -> None:
    fake_group(tmp_path, "0::/outer/inner\n", "sys/fs/cgroup/outer/inner", memory__max="max\n", memory__current="9\n")
    stat = f"anon 5\ninactive_file {20 * MIB}\n"
    fake_group(
        tmp_path,
        "0::/outer/inner\n",
        "sys/fs/cgroup/outer",
        memory__max=f"{100 * MIB}\n",
        memory__current=f"{70 * MIB}\n",
        memory__stat=stat,
    )
    assert cgroup_room(tmp_path) == 50 * MIB
    memory = available_memory(root=tmp_path)
    assert (memory.available, memory.limited) == (50 * MIB, True)


def test_cgroup_v1_limit(tmp_path: Path) -> None:
    fake_group(
        tmp_path,
        "5:cpu,cpuacct:/box\n4:memory:/box\n",
        "sys/fs/cgroup/memory/box",
        memory__limit_in_bytes=f"{64 * MIB}\n",
        memory__usage_in_bytes=f"{24 * MIB}\n",
    )
    assert cgroup_room(tmp_path) == 40 * MIB


def test_no_cgroup_limit(tmp_path: Path) -> None:
    assert cgroup_room(tmp_path) is None
    fake_group(tmp_path, "0::/\n", "sys/fs/cgroup", memory__max="max\n", memory__current="9\n")
    assert cgroup_room(tmp_path) is None
    huge = tmp_path / "v1"
    fake_group(
        huge,
        "4:memory:/\n",
        "sys/fs/cgroup/memory",
        memory__limit_in_bytes="9223372036854771712",
        memory__usage_in_bytes="9",
    )
    assert cgroup_room(huge) is None
