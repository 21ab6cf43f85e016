from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.library.gguf.facts import GgufFacts, read_facts
from kvchat.library.memory.context_size import ContextChoice, ContextChooser
from kvchat.library.memory.demand import Demand
from kvchat.library.memory.machine import DeviceMemory, MemoryFacts
from kvchat.library.memory.verdict import Proposal, Situation, proposals
from kvchat.settings import Settings
from tests.library.gguf_files import LLAMA, llama_8b, write_gguf

GB = 1_000_000_000


def choose(facts: GgufFacts, memory: MemoryFacts, kv_type: str = "f16", wanted: int | None = None) -> ContextChoice:
    return ContextChooser(Demand(facts, kv_type), memory).choose(wanted)


def situation(facts: GgufFacts, free: int, kv_type: str = "f16") -> Situation:
    memory = MemoryFacts(free)
    choice = choose(facts, memory, kv_type)
    return Situation(choice, Demand(facts, kv_type), memory, None, (), takes_arguments=True)


@pytest.fixture
def large(tmp_path: Path) -> GgufFacts:
    return llama_8b(tmp_path)


@pytest.fixture
def sliding(tmp_path: Path) -> GgufFacts:
    fields = LLAMA | {"attention.sliding_window": 512, "context_length": 65_536, "attention.key_length": 64}
    return read_facts(write_gguf(tmp_path / "m.gguf", fields | {"attention.value_length": 64}, architecture="gemma3"))


def only(found: tuple[Proposal, ...]) -> Proposal:
    (proposal,) = found
    return proposal


def test_a_smaller_kv_type_and_its_price(large: GgufFacts) -> None:
    here = situation(large, 10 * GB)
    proposal = only(proposals(here))
    assert proposal.tokens > 0.7 * here.choice.tokens
    assert proposal.bytes == pytest.approx(here.choice.kv_bytes * 15 / 32, rel=0.01)
    assert proposal.gain == f"{proposal.tokens:,} more tokens of context fit into the same memory."
    assert "read once more" in proposal.price
    assert proposal.taken(Settings(engine_arguments="-t 2")) == Settings(engine_arguments="-t 2", kv_type="q8_0")


def test_where_memory_is_plentiful_it_would_only_cost(large: GgufFacts) -> None:
    assert proposals(situation(large, 100 * GB)) == ()


def test_a_wish_that_does_not_fit_may_fit_with_it(large: GgufFacts) -> None:
    memory = MemoryFacts(10 * GB)
    choice = choose(large, memory, "f16", 40_960)
    assert not choice.fits
    here = Situation(choice, Demand(large), memory, 40_960, (), takes_arguments=True)
    proposal = only(proposals(here))
    assert (proposal.tokens, proposal.gain) == (0, "The 40,960 tokens then fit.")


def test_all_of_the_model_on_the_gpu_is_worth_it(large: GgufFacts) -> None:
    memory = MemoryFacts(64 * GB, devices=(DeviceMemory("CUDA0", 8 * GB),))
    choice = choose(large, memory, "f16", 32_768)
    assert choice.fits
    assert choice.beside
    here = Situation(choice, Demand(large), memory, 32_768, (), takes_arguments=True)
    assert only(proposals(here)).gain == "All of the model fits on the GPU then, which is faster."


def test_nothing_is_proposed_that_is_in_force_or_impossible(large: GgufFacts, tmp_path: Path) -> None:
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
    assert proposal.price == "It takes 132 MB more memory at this context."
    assert not [found for found in proposals(replace(here, extra=("--swa-full",))) if found.engine_argument]
    assert not [found for found in proposals(replace(here, takes_arguments=False)) if found.engine_argument]
