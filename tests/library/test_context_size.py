from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kvchat.library.context_size import ENOUGH_ON_DEVICE, MINIMUM, STEP, choose_context_size, memory_needed
from kvchat.library.gguf_facts import GgufFacts, read_facts
from kvchat.library.memory import DeviceMemory, MemoryFacts
from tests.library.gguf_files import LLAMA, write_gguf

GB = 1_000_000_000
PLENTY = MemoryFacts(500 * GB)


@pytest.fixture
def large(tmp_path: Path) -> GgufFacts:
    """Llama-3.1-8B's shape, with the size of its Q4_K_M: 131,072 KV bytes per token."""
    shape = {
        "block_count": 32,
        "context_length": 131_072,
        "embedding_length": 4096,
        "attention.head_count": 32,
        "attention.head_count_kv": 8,
        "vocab_size": 128_256,
    }
    return dataclasses.replace(read_facts(write_gguf(tmp_path / "large.gguf", shape)), size=4_920_000_000)


def test_all_the_model_was_trained_for_where_it_fits(smollm2: Path) -> None:
    choice = choose_context_size(read_facts(smollm2), MemoryFacts(14_200_000_000))
    assert choice.tokens == 8192
    assert choice.reason == (
        "8,192 tokens: all this model was trained for. Its KV cache takes 189 MB of the 14.2 GB free."
    )
    assert choice.fits
    assert not choice.warning


def test_no_needless_cap(large: GgufFacts) -> None:
    assert choose_context_size(large, PLENTY).tokens == 131_072


def test_as_much_as_fits_and_not_a_step_more(large: GgufFacts) -> None:
    choice = choose_context_size(large, MemoryFacts(10 * GB))
    assert choice.tokens % STEP == 0
    assert MINIMUM < choice.tokens < 131_072
    assert memory_needed(large, choice.tokens) <= 9 * GB < memory_needed(large, choice.tokens + STEP)
    assert choice.reason.startswith(f"{choice.tokens:,} tokens: what fits into memory; ")
    assert "trained for 131,072" in choice.reason


def test_a_smaller_kv_type_makes_room_for_more(large: GgufFacts) -> None:
    memory = MemoryFacts(10 * GB)
    assert choose_context_size(large, memory, "q8_0").tokens > 1.7 * choose_context_size(large, memory).tokens


def test_more_memory_never_means_less_context(large: GgufFacts) -> None:
    sizes = [choose_context_size(large, MemoryFacts(n * GB // 4)).tokens for n in range(0, 120)]
    assert sizes == sorted(sizes)
    assert sizes[0] == MINIMUM
    assert sizes[-1] == 131_072


def test_too_little_memory_gets_the_minimum_and_is_told(large: GgufFacts) -> None:
    choice = choose_context_size(large, MemoryFacts(4 * GB))
    assert choice.tokens == MINIMUM
    assert not choice.fits
    assert "may not fit" in choice.reason
    assert "only 3.6 GB of the 4 GB free can be spared" in choice.reason


def test_a_small_trained_context_is_the_least(tmp_path: Path) -> None:
    facts = read_facts(write_gguf(tmp_path / "small.gguf", LLAMA | {"context_length": 1000}))
    assert choose_context_size(facts, PLENTY).tokens == 1000
    assert choose_context_size(facts, MemoryFacts(0)).tokens == 1000


def test_a_crooked_trained_context_is_rounded_down(tmp_path: Path) -> None:
    facts = read_facts(write_gguf(tmp_path / "odd.gguf", LLAMA | {"context_length": 5000}))
    assert choose_context_size(facts, PLENTY).tokens == 4864


def test_the_users_wish_is_honoured(large: GgufFacts) -> None:
    fine = choose_context_size(large, PLENTY, wanted=4000)
    assert (fine.tokens, fine.warning) == (4000, "")
    assert "your own choice" in fine.reason
    beyond = choose_context_size(large, PLENTY, wanted=200_000)
    assert beyond.tokens == 200_000
    assert "trained for 131,072" in beyond.warning
    crowded = choose_context_size(large, MemoryFacts(8 * GB), wanted=100_000)
    assert crowded.tokens == 100_000
    assert crowded.warning.startswith("This may not fit")


def test_a_container_limit_is_named(large: GgufFacts) -> None:
    assert "allowed here" in choose_context_size(large, MemoryFacts(10 * GB, limited=True)).reason


def test_a_gpu_with_room_decides_alone(large: GgufFacts) -> None:
    memory = MemoryFacts(64 * GB, devices=(DeviceMemory("CUDA0", 12 * GB),))
    choice = choose_context_size(large, memory)
    assert ENOUGH_ON_DEVICE <= choice.tokens < 131_072
    assert "12 GB free on the GPU" in choice.reason


def test_a_gpu_that_is_too_small_adds_to_the_rest(large: GgufFacts) -> None:
    choice = choose_context_size(large, MemoryFacts(64 * GB, devices=(DeviceMemory("CUDA0", 6 * GB),)))
    assert choice.tokens == 131_072
    assert choice.free == 70 * GB


def test_an_upper_bound_is_called_one(tmp_path: Path) -> None:
    fields = LLAMA | {"attention.sliding_window": 512}
    facts = read_facts(write_gguf(tmp_path / "new.gguf", fields, architecture="brandnew"))
    assert "takes at most" in choose_context_size(facts, PLENTY).reason
