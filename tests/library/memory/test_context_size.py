from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.engine.process.log import Placement
from kvchat.library.gguf.facts import GgufFacts, read_facts
from kvchat.library.memory.context_size import (
    CONTEXT_STEP,
    MIN_CONTEXT,
    SUFFICIENT_GPU_CONTEXT,
    ContextChoice,
    ContextChooser,
    round_down_to_step,
    slots_for,
)
from kvchat.library.memory.demand import DeviceMemory, LoadLimit, MemoryFacts, ModelDemand, margin_bytes
from kvchat.settings import GB
from kvchat.text.formatting import format_size
from tests.library.gguf_files import LLAMA, write_gguf

PLENTY = MemoryFacts(500 * GB)


def choose(facts: GgufFacts, memory: MemoryFacts, kv_type: str = "f16", wanted: int | None = None) -> ContextChoice:
    return ContextChooser(ModelDemand(facts, kv_type), memory).choose(wanted)


def with_gpus(computer: float, *gpus: float, kind: str = "CUDA") -> MemoryFacts:
    devices = tuple(DeviceMemory(f"{kind}{number}", round(free * GB)) for number, free in enumerate(gpus))
    return MemoryFacts(round(computer * GB), devices=devices)


def test_trained_context_is_chosen_if_it_fits(smollm2: Path) -> None:
    choice = choose(read_facts(smollm2), MemoryFacts(14_200_000_000))
    assert (choice.tokens, choice.fits, choice.warning) == (8192, True, "")
    assert choice.full_explanation == (
        "8,192 tokens: the full context length of this model. "
        "With this context, the model needs about 446 MB of the 14.2 GB free; 1.4 GB stays reserved."
    )


def test_slots_are_used_if_they_barely_shorten_the_context(large: GgufFacts, tmp_path: Path) -> None:
    assert slots_for(ModelDemand(large), MemoryFacts(10 * GB), 4) == 4, "full attention needs nothing"
    fields = LLAMA | {"attention.sliding_window": 4096, "attention.sliding_window_pattern": 2}
    slides = ModelDemand(read_facts(write_gguf(tmp_path / "slides.gguf", fields)))
    assert slots_for(slides, PLENTY, 4) == 4
    tight = next(MemoryFacts(size) for size in range(0, GB, 1 << 18) if choose(slides.facts, MemoryFacts(size)).fits)
    assert slots_for(slides, tight, 4) == 1
    reason = ContextChooser(replace(slides, slots=2), PLENTY).choose().reason
    assert reason.endswith("Up to 2 parallel chats share this context.")


def test_largest_context_that_fits(large: GgufFacts) -> None:
    choice = choose(large, MemoryFacts(10 * GB))
    assert choice.tokens % CONTEXT_STEP == 0
    assert MIN_CONTEXT < choice.tokens < 131_072
    assert choice.needed <= 9 * GB < choose(large, MemoryFacts(10 * GB), wanted=choice.tokens + CONTEXT_STEP).needed
    assert choice.reason.startswith(f"{choice.tokens:,} tokens: the most that fits in memory; ")
    assert "supports 131,072" in choice.reason
    assert choose(large, MemoryFacts(10 * GB), "q8_0").tokens > 1.7 * choice.tokens
    assert "allowed by the system" in choose(large, MemoryFacts(10 * GB, is_limited=True)).memory_note
    sizes = [choose(large, MemoryFacts(n * GB // 4)).tokens for n in range(0, 120)]
    assert sizes == sorted(sizes), "more memory never means less context"
    assert (sizes[0], sizes[-1]) == (MIN_CONTEXT, 131_072)
    least = choose(large, MemoryFacts(4 * GB))
    assert (least.tokens, least.fits) == (MIN_CONTEXT, False)
    assert "may not fit" in least.reason
    assert "Only 3.6 GB of the 4 GB free can be used" in least.reason


@pytest.mark.parametrize(
    ("tokens", "free", "warning"),
    [(4000, 500 * GB, ""), (200_000, 500 * GB, "trained for 131,072"), (100_000, 8 * GB, "This may not fit")],
)
def test_users_choice_is_honored_with_a_warning(large: GgufFacts, tokens: int, free: int, warning: str) -> None:
    choice = choose(large, MemoryFacts(free), wanted=tokens)
    assert (choice.tokens, bool(choice.warning)) == (tokens, bool(warning))
    assert "set by you" in choice.reason
    assert warning in choice.warning


def test_gpu_with_room_decides_alone_and_a_tiny_one_is_not_used(large: GgufFacts) -> None:
    choice = choose(large, with_gpus(64, 12))
    assert SUFFICIENT_GPU_CONTEXT <= choice.tokens < 131_072
    assert "12 GB free on the GPU" in choice.memory_note
    together = choose(large, with_gpus(4, 4))
    assert together.fits
    assert MIN_CONTEXT < together.tokens < SUFFICIENT_GPU_CONTEXT
    assert together.offload_note
    unused = choose(large, with_gpus(64, 0.25))
    assert unused.offload_note == "No part of the model fits on the GPU."
    assert (unused.memory_uses[0].needed, unused.memory_uses[1].kv) == (0, unused.kv_bytes)


def test_small_gpu_gets_part_of_the_model(large: GgufFacts) -> None:
    choice = choose(large, with_gpus(64, 6))
    assert (choice.tokens, choice.fits) == (SUFFICIENT_GPU_CONTEXT, True)
    assert choice.offload_note == "Part of the model runs outside the GPU, which is slower."
    assert choice.fit_target == margin_bytes(6 * GB) // 2
    gpu, memory = choice.memory_uses
    assert gpu.unused == pytest.approx(0, abs=10), "the engine's own distribution is not known yet"
    assert gpu.margin == margin_bytes(6 * GB)
    assert memory.weights > 295_000_000
    assert sum(bar.kv for bar in choice.memory_uses) == choice.kv_bytes == 131_072 * SUFFICIENT_GPU_CONTEXT
    for placement, expected in (
        (Placement(33, 33), ""),
        (Placement(20, 33), "20 of 33 layers fit on the GPU."),
        (Placement(33, 33, 12), "The experts of 12 layers do not fit on the GPU."),
    ):
        assert choice.with_placement(placement, "the GPU").offload_note == expected
    assert choice.with_placement(None, "the GPU") == choice


def test_shared_gpu_memory_counts_once(large: GgufFacts) -> None:
    choice = choose(large, with_gpus(8, 11, kind="MTL"))
    assert choice.tokens < choose(large, with_gpus(8, 11)).tokens
    assert sum(bar.needed for bar in choice.memory_uses) <= 8 * GB - margin_bytes(8 * GB)


def test_staging_uses_only_what_the_model_leaves(large: GgufFacts) -> None:
    full = MemoryFacts(7 * GB, total=32 * GB).with_staging(disposable=5 * GB, capacity=16 * GB)
    choice, roomy = choose(large, full), choose(large, MemoryFacts(12 * GB))
    assert (choice.tokens, choice.fits) == (roomy.tokens, True)
    assert choice.tokens > choose(large, MemoryFacts(7 * GB)).tokens
    (bar,) = choose(large, full, wanted=2048).memory_uses
    assert bar.staging > GB
    assert bar.needed + bar.staging + bar.margin + bar.unused == bar.free == 12 * GB
    assert " for cached chats, " in bar.summary


def test_load_limit_bounds_the_choice_but_not_the_users_own(large: GgufFacts) -> None:
    chooser = ContextChooser(ModelDemand(large, limit=LoadLimit(20_480, 1, 1_800_000_000.0)), PLENTY)
    assert chooser.choose().tokens == 20_480
    assert "try it again on" in chooser.choose().reason
    assert chooser.choose(40_960).tokens == 40_960
    assert chooser.larger_choice(16_384).tokens == 20_480  # type: ignore[union-attr]
    assert chooser.larger_choice(20_480) is None


def test_smaller_choices_halve_the_context_but_leave_the_gpu_before_it_gets_short(large: GgufFacts) -> None:
    chooser = ContextChooser(ModelDemand(large), MemoryFacts(10 * GB))
    choice = chooser.choose()
    steps = chooser.smaller_choices(choice)
    assert [step.tokens for step in steps][:2] == list(
        map(round_down_to_step, (choice.tokens // 2, choice.tokens // 4))
    )
    assert steps[-1].tokens == MIN_CONTEXT
    needed = [choice.needed, *(step.needed for step in steps)]
    assert needed == sorted(needed, reverse=True)
    assert steps[0].reason.startswith(f"{steps[0].tokens:,} tokens: not enough memory for {choice.tokens:,} tokens.")
    assert chooser.smaller_choices(steps[-1]) == ()
    chooser = ContextChooser(ModelDemand(large), with_gpus(64, 12))
    choice = chooser.choose()
    assert not choice.offload_note
    steps = chooser.smaller_choices(choice)
    first = next(index for index, step in enumerate(steps) if step.without_gpu)
    assert steps[first - 1].tokens == SUFFICIENT_GPU_CONTEXT
    assert [step.tokens for step in steps[first:]] == [16_384, 8192, 4096, 2048]
    assert all(step.without_gpu and step.fit_target is None for step in steps[first:])
    why = f"not enough memory for {choice.tokens:,} tokens. No part of the model fits on the GPU."
    assert steps[first].reason.endswith(why)


def test_larger_context_is_offered_if_it_fits(large: GgufFacts) -> None:
    def larger(memory: MemoryFacts, tokens: int = 16_384) -> ContextChoice | None:
        return ContextChooser(ModelDemand(large), memory).larger_choice(tokens)

    roomy, tight = larger(MemoryFacts(64 * GB)), larger(MemoryFacts(10 * GB))
    assert roomy is not None
    assert tight is not None
    needed = f"needs about {format_size(roomy.needed)}. Once the engine has stopped, 64 GB is free."
    assert (roomy.tokens, roomy.reason) == (32_768, f"A context of 32,768 tokens {needed}")
    assert 16_384 < tight.tokens < 32_768
    assert tight.fits
    assert larger(MemoryFacts(8 * GB)) is larger(PLENTY, 131_072) is None
    on_gpu, beside = larger(with_gpus(32, 10)), larger(with_gpus(32, 7.9))
    assert on_gpu is not None
    assert beside is not None
    assert not on_gpu.offload_note, "it leaves the GPU only if nothing larger fits there"
    assert beside.offload_note
    assert beside.reason.endswith(beside.offload_note)
