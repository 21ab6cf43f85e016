from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.library.gguf.facts import GgufFacts, read_facts
from kvchat.library.memory.context_size import ContextChoice, ContextChooser
from kvchat.library.memory.demand import Demand, DeviceMemory, MemoryFacts
from kvchat.library.memory.verdict import CurrentLoad, Verdict, judge, judge_size, proposals
from kvchat.settings import Settings
from tests.library.gguf_files import LLAMA, llama_8b, write_gguf

GB = 1_000_000_000


@pytest.fixture
def large(tmp_path: Path) -> GgufFacts:
    return llama_8b(tmp_path)


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (MemoryFacts(16 * GB), Verdict.FITS),
        (MemoryFacts(4 * GB), Verdict.NO),
        (MemoryFacts(16 * GB, devices=(DeviceMemory("CUDA0", 12 * GB),)), Verdict.FITS),
        (MemoryFacts(16 * GB, devices=(DeviceMemory("CUDA0", 4 * GB),)), Verdict.TIGHT),
        (MemoryFacts(1 * GB, devices=(DeviceMemory("CUDA0", 2 * GB),)), Verdict.NO),
    ],
)
def test_by_header_and_by_size(large: GgufFacts, memory: MemoryFacts, expected: Verdict) -> None:
    by_header, by_size = judge(Demand(large), memory), judge_size(large.size, memory)
    assert by_header.verdict is by_size.verdict is expected
    assert "GB" in by_header.reason
    assert by_size.reason.startswith("Estimated from the file size; ")
    if expected is Verdict.TIGHT:
        assert "outside the GPU" in by_header.reason
        assert "outside the GPU" in by_size.reason


def test_little_room_for_a_conversation_is_tight(large: GgufFacts) -> None:
    assert judge(Demand(large), MemoryFacts(6_600_000_000)).verdict is Verdict.TIGHT
    by_size = judge_size(large.size, MemoryFacts(6_200_000_000))
    assert by_size.verdict is Verdict.TIGHT
    assert "Little memory" in by_size.reason


def test_the_users_own_context_and_the_projector_count(large: GgufFacts) -> None:
    memory = MemoryFacts(16 * GB)
    assert judge(Demand(large), memory, wanted=16_384).verdict is Verdict.FITS
    too_long = judge(Demand(large), memory, wanted=131_072)  # 17 GB of KV cache alone: it was said to fit
    assert too_long.verdict is Verdict.TIGHT
    assert too_long.reason.startswith("131,072 tokens: set by you. This may not fit")
    seeing = judge(Demand(large, projector=2 * GB), MemoryFacts(7 * GB))
    assert seeing.verdict is Verdict.TIGHT
    assert seeing.reason.endswith("There is not enough memory for images.")


@pytest.mark.parametrize("memory", [MemoryFacts(free * GB) for free in (4, 6, 7, 8, 12, 24)])
def test_what_fits_needs_no_more_than_there_is_all_counted(large: GgufFacts, memory: MemoryFacts) -> None:
    judged = judge(Demand(large), memory)
    needed, free = re.findall(r"([\d.]+) GB", judged.reason)[:2]
    assert float(needed) > large.size / GB, "the weights are counted in what is said"
    assert judged.verdict is Verdict.NO or float(needed) < float(free)


def choose(facts: GgufFacts, memory: MemoryFacts, kv_type: str = "f16", wanted: int | None = None) -> ContextChoice:
    return ContextChooser(Demand(facts, kv_type), memory).choose(wanted)


def situation(facts: GgufFacts, free: int, kv_type: str = "f16") -> CurrentLoad:
    memory = MemoryFacts(free)
    choice = choose(facts, memory, kv_type)
    return CurrentLoad(choice, Demand(facts, kv_type), memory, None, (), takes_arguments=True)


@pytest.fixture
def sliding(tmp_path: Path) -> GgufFacts:
    fields = LLAMA | {"attention.sliding_window": 512, "context_length": 65_536, "attention.key_length": 64}
    return read_facts(write_gguf(tmp_path / "m.gguf", fields | {"attention.value_length": 64}, architecture="gemma3"))


def test_a_smaller_kv_type_and_its_price(large: GgufFacts) -> None:
    here = situation(large, 10 * GB)
    (proposal,) = proposals(here)
    assert proposal.tokens > 0.7 * here.choice.tokens
    assert proposal.bytes == pytest.approx(here.choice.kv_bytes * 15 / 32, rel=0.01)
    assert proposal.gain == f"Adds {proposal.tokens:,} tokens of context without using more memory."
    assert "reprocessed once" in proposal.price
    assert proposal.apply_to(Settings(engine_arguments="-t 2")) == Settings(engine_arguments="-t 2", kv_type="q8_0")


def test_a_wish_that_does_not_fit_may_fit_with_it(large: GgufFacts) -> None:
    memory = MemoryFacts(10 * GB)
    choice = choose(large, memory, "f16", 40_960)
    assert not choice.fits
    here = CurrentLoad(choice, Demand(large), memory, 40_960, (), takes_arguments=True)
    (proposal,) = proposals(here)
    assert (proposal.tokens, proposal.gain) == (0, "A context of 40,960 tokens then fits.")


def test_all_of_the_model_on_the_gpu_is_worth_it(large: GgufFacts) -> None:
    memory = MemoryFacts(64 * GB, devices=(DeviceMemory("CUDA0", 8 * GB),))
    choice = choose(large, memory, "f16", 32_768)
    assert choice.fits
    assert choice.beside
    here = CurrentLoad(choice, Demand(large), memory, 32_768, (), takes_arguments=True)
    (proposal,) = proposals(here)
    assert proposal.gain == "The whole model then fits on the GPU, which is faster."


def test_nothing_is_proposed_that_is_in_force_or_impossible(large: GgufFacts, tmp_path: Path) -> None:
    assert proposals(situation(large, 100 * GB)) == (), "memory is plentiful"
    assert proposals(situation(large, 10 * GB, kv_type="q8_0")) == ()
    assert proposals(situation(replace(large, key_length=80), 10 * GB)) == ()
    small = read_facts(write_gguf(tmp_path / "small.gguf", LLAMA | {"embedding_length": 128}))
    assert proposals(situation(small, 10 * GB)) == ()


def test_whole_windows_are_proposed_where_they_fit(sliding: GgufFacts) -> None:
    here = situation(sliding, 2 * GB)
    proposal = next(found for found in proposals(here) if found.engine_argument)
    row = 2 * 2 * 64 * 2
    assert proposal.bytes == -4 * row * (65_536 - 1024)
    assert proposal.tokens == 0
    assert proposal.price == "This uses 132 MB more memory at this context length."
    assert not [found for found in proposals(replace(here, extra=("--swa-full",))) if found.engine_argument]
    assert not [found for found in proposals(replace(here, takes_arguments=False)) if found.engine_argument]
