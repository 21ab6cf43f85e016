from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.engine.process.log import Placement
from kvchat.library.gguf.facts import GgufFacts, read_facts
from kvchat.library.memory.context_size import (
    MIN_CONTEXT,
    STEP,
    SUFFICIENT_GPU_CONTEXT,
    ContextChoice,
    ContextChooser,
    slots_for,
)
from kvchat.library.memory.demand import Demand, DeviceMemory, LoadLimit, MemoryFacts, margin
from kvchat.text.formatting import format_size
from tests.library.gguf_files import LLAMA, llama_8b, write_gguf

GB = 1_000_000_000
PLENTY = MemoryFacts(500 * GB)


def choose(facts: GgufFacts, memory: MemoryFacts, kv_type: str = "f16", wanted: int | None = None) -> ContextChoice:
    """The context size for a model in this memory."""
    return ContextChooser(Demand(facts, kv_type), memory).choose(wanted)


@pytest.fixture
def large(tmp_path: Path) -> GgufFacts:
    return llama_8b(tmp_path)


def test_all_the_model_was_trained_for_where_it_fits(smollm2: Path) -> None:
    choice = choose(read_facts(smollm2), MemoryFacts(14_200_000_000))
    assert choice.tokens == 8192
    assert choice.full_explanation == (
        "8,192 tokens: the full context length of this model. "
        "With this context, the model needs about 446 MB of the 14.2 GB free; 1.4 GB stays reserved."
    )
    assert choice.fits
    assert not choice.warning


def test_slots_are_had_where_they_cost_the_context_a_trifle(large: GgufFacts, tmp_path: Path) -> None:
    assert slots_for(Demand(large), MemoryFacts(10 * GB), 4) == 4, "full attention: nothing"
    fields = LLAMA | {"attention.sliding_window": 4096, "attention.sliding_window_pattern": 2}
    slides = Demand(read_facts(write_gguf(tmp_path / "slides.gguf", fields)))
    assert slots_for(slides, PLENTY, 4) == 4
    tight = next(MemoryFacts(size) for size in range(0, GB, 1 << 18) if choose(slides.facts, MemoryFacts(size)).fits)
    assert slots_for(slides, tight, 4) == 1
    reason = ContextChooser(replace(slides, slots=2), PLENTY).choose().reason
    assert reason.endswith("Up to 2 parallel chats share this context.")


def test_as_much_as_fits_and_not_a_step_more(large: GgufFacts) -> None:
    memory = MemoryFacts(10 * GB)
    choice = choose(large, memory)
    assert choice.tokens % STEP == 0
    assert MIN_CONTEXT < choice.tokens < 131_072
    assert choice.needed <= 9 * GB < choose(large, memory, wanted=choice.tokens + STEP).needed
    assert choice.reason.startswith(f"{choice.tokens:,} tokens: the most that fits in memory; ")
    assert "supports 131,072" in choice.reason
    assert choose(large, memory, "q8_0").tokens > 1.7 * choice.tokens
    assert "allowed by the system" in choose(large, MemoryFacts(10 * GB, limited=True)).share
    sizes = [choose(large, MemoryFacts(n * GB // 4)).tokens for n in range(0, 120)]
    assert sizes == sorted(sizes), "more memory never means less context"
    assert (sizes[0], sizes[-1]) == (MIN_CONTEXT, 131_072)
    least = choose(large, MemoryFacts(4 * GB))
    assert (least.tokens, least.fits) == (MIN_CONTEXT, False)
    assert "may not fit" in least.reason
    assert "only 3.6 GB of the 4 GB free can be used" in least.reason


@pytest.mark.parametrize(("trained", "most", "least"), [(1000, 1000, 1000), (5000, 4864, MIN_CONTEXT)])
def test_a_small_trained_context_is_the_least_and_a_crooked_one_is_rounded_down(
    tmp_path: Path, trained: int, most: int, least: int
) -> None:
    facts = read_facts(write_gguf(tmp_path / "small.gguf", LLAMA | {"context_length": trained}))
    assert (choose(facts, PLENTY).tokens, choose(facts, MemoryFacts(0)).tokens) == (most, least)


def test_the_users_wish_is_honoured(large: GgufFacts) -> None:
    fine = choose(large, PLENTY, wanted=4000)
    assert (fine.tokens, fine.warning) == (4000, "")
    assert "set by you" in fine.reason
    for tokens, free, words in ((200_000, 500 * GB, "trained for 131,072"), (100_000, 8 * GB, "This may not fit")):
        unwise = choose(large, MemoryFacts(free), wanted=tokens)
        assert unwise.tokens == tokens
        assert words in unwise.warning


def on_gpu(facts: GgufFacts, gpu: int, computer: int = 64 * GB) -> ContextChoice:
    return choose(facts, MemoryFacts(computer, devices=(DeviceMemory("CUDA0", gpu),)))


def test_a_gpu_with_room_decides_alone_and_one_of_no_use_is_left_alone(large: GgufFacts, tmp_path: Path) -> None:
    choice = on_gpu(large, 12 * GB)
    assert SUFFICIENT_GPU_CONTEXT <= choice.tokens < 131_072
    assert "12 GB free on the GPU" in choice.share
    together = on_gpu(large, 4 * GB, 4 * GB)
    assert together.fits
    assert MIN_CONTEXT < together.tokens < SUFFICIENT_GPU_CONTEXT
    assert together.beside
    none = on_gpu(large, GB // 4)
    assert none.beside == "No part of the model fits on the GPU."
    assert (none.bars[0].needed, none.bars[1].kv) == (0, none.kv_bytes)
    mixture = on_gpu(llama_8b(tmp_path, experts=0.9), 6 * GB)
    assert [bar.kv for bar in mixture.bars] == [mixture.kv_bytes, 0], "experts leave the GPU first"


def test_a_gpu_that_is_too_small_takes_what_it_can(large: GgufFacts) -> None:
    choice = on_gpu(large, 6 * GB)
    assert choice.tokens == SUFFICIENT_GPU_CONTEXT
    assert choice.fits
    assert choice.beside == "Part of the model runs outside the GPU, which is slower."
    assert choice.fit_target == margin(6 * GB) // 2
    gpu, memory = choice.bars
    assert gpu.unused == pytest.approx(0, abs=10), "what the engine will make of it is not known yet"
    assert gpu.margin == margin(6 * GB)
    assert memory.weights > 295_000_000
    assert sum(bar.kv for bar in choice.bars) == choice.kv_bytes == 131_072 * SUFFICIENT_GPU_CONTEXT


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        (Placement(33, 33), ""),
        (Placement(20, 33), "20 of 33 layers fit on the GPU."),
        (Placement(33, 33, 12), "The experts of 12 layers do not fit on the GPU."),
        (Placement(0, 33), "No part of the model fits on the GPU."),
    ],
)
def test_what_the_engine_decided_is_told_after_the_load(large: GgufFacts, placement: Placement, words: str) -> None:
    choice = choose(large, MemoryFacts(64 * GB, devices=(DeviceMemory("CUDA0", 6 * GB),)))
    assert choice.with_placement(placement, "the GPU").beside == words
    assert choice.with_placement(None, "the GPU") == choice


def test_apples_gpu_memory_is_the_computers(large: GgufFacts) -> None:
    own = MemoryFacts(8 * GB, devices=(DeviceMemory("CUDA0", 11 * GB),))
    shared = MemoryFacts(8 * GB, devices=(DeviceMemory("MTL0", 11 * GB),))
    choice = choose(large, shared)
    assert choice.tokens < choose(large, own).tokens
    assert sum(bar.needed for bar in choice.bars) <= 8 * GB - margin(8 * GB)


def test_bars_add_up(large: GgufFacts) -> None:
    alone = choose(large, MemoryFacts(10 * GB))
    (bar,) = alone.bars
    assert bar.needed == alone.needed
    assert bar.needed + bar.margin + bar.unused == bar.free == 10 * GB
    pair = choose(large, MemoryFacts(64 * GB, devices=(DeviceMemory("A0", 6 * GB), DeviceMemory("A1", 12 * GB))))
    small, big, _ = pair.bars
    assert big.weights == pytest.approx(2 * small.weights, rel=0.01)
    assert small.fits
    assert big.fits


def test_chats_kept_ready_are_a_part_of_the_plan_and_take_nothing_from_a_model(large: GgufFacts) -> None:
    full = MemoryFacts(7 * GB, total=32 * GB).with_staging(disposable=5 * GB, place=16 * GB)
    choice, roomy = choose(large, full), choose(large, MemoryFacts(12 * GB))
    assert (choice.tokens, choice.fits) == (roomy.tokens, True)
    assert choice.tokens > choose(large, MemoryFacts(7 * GB)).tokens
    modest = choose(large, full, wanted=2048)
    (bar,) = modest.bars
    assert bar.staging > GB
    assert bar.needed + bar.staging + bar.margin + bar.unused == bar.free == 12 * GB
    assert " for cached chats, " in bar.summary


def test_a_size_that_ran_out_of_memory_bounds_the_choice_but_not_the_users_own(large: GgufFacts) -> None:
    demand = Demand(large, limit=LoadLimit(20_480, 1, 1_800_000_000.0))
    held = ContextChooser(demand, PLENTY)
    assert held.choose().tokens == 20_480
    assert "try it again on" in held.choose().reason
    assert held.choose(40_960).tokens == 40_960
    assert held.larger(16_384).tokens == 20_480  # type: ignore[union-attr]
    assert held.larger(20_480) is None


def test_steps_down_halve_the_context_to_the_floor(large: GgufFacts) -> None:
    memory = MemoryFacts(10 * GB)
    choice = choose(large, memory)
    steps = ContextChooser(Demand(large, "f16"), memory).smaller(choice)
    assert [step.tokens for step in steps][:2] == [choice.tokens // 2 // STEP * STEP, choice.tokens // 4 // STEP * STEP]
    assert steps[-1].tokens == MIN_CONTEXT
    needed = [choice.needed, *(step.needed for step in steps)]
    assert needed == sorted(needed, reverse=True)
    assert steps[0].reason.startswith(f"{steps[0].tokens:,} tokens: memory ran out with {choice.tokens:,}.")
    assert ContextChooser(Demand(large, "f16"), memory).smaller(steps[-1]) == ()


def test_steps_down_leave_the_gpu_before_the_context_gets_short(large: GgufFacts) -> None:
    memory = MemoryFacts(64 * GB, devices=(DeviceMemory("CUDA0", 12 * GB),))
    choice = choose(large, memory)
    assert not choice.beside
    steps = ContextChooser(Demand(large, "f16"), memory).smaller(choice)
    taken = [(step.tokens, step.without_gpu, step.fit_target is None) for step in steps]
    on_gpu = [tokens for tokens, without, _ in taken if not without]
    assert on_gpu[-1] == SUFFICIENT_GPU_CONTEXT
    assert taken[len(on_gpu) :] == [(tokens, True, True) for tokens in (16_384, 8192, 4096, 2048)]
    assert steps[len(on_gpu)].reason.endswith(
        f"memory ran out with {choice.tokens:,}; no part of the model fits on the GPU."
    )


def test_a_larger_context_is_offered_if_it_fits(large: GgufFacts) -> None:
    larger = ContextChooser(Demand(large, "f16"), MemoryFacts(64 * GB)).larger(16_384)
    assert larger is not None
    assert larger.tokens == 32_768
    assert (
        larger.reason
        == f"32,768 tokens need about {format_size(larger.needed)} of the 64 GB free after the engine stops."
    )
    most = ContextChooser(Demand(large, "f16"), MemoryFacts(10 * GB)).larger(16_384)
    assert most is not None
    assert 16_384 < most.tokens < 32_768
    assert most.fits
    assert ContextChooser(Demand(large, "f16"), MemoryFacts(8 * GB)).larger(16_384) is None
    assert ContextChooser(Demand(large, "f16"), PLENTY).larger(131_072) is None


def test_a_larger_context_leaves_the_gpu_only_where_nothing_larger_fits_on_it(large: GgufFacts) -> None:
    def offered(gpu: float) -> ContextChoice | None:
        memory = MemoryFacts(32 * GB, devices=(DeviceMemory("CUDA0", round(gpu * GB)),))
        return ContextChooser(Demand(large, "f16"), memory).larger(16_384)

    roomy, narrow = offered(10), offered(7.9)
    assert roomy is not None
    assert narrow is not None
    assert not roomy.beside
    assert narrow.beside
    assert narrow.reason.endswith(narrow.beside)
