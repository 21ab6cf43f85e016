import re
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.library.gguf.facts import GgufFacts, read_facts
from kvchat.library.memory.context_size import ContextChooser
from kvchat.library.memory.demand import Demand, DeviceMemory, MemoryFacts
from kvchat.library.memory.verdict import CurrentLoad, Proposal, Verdict, judge, judge_size, proposals
from kvchat.settings import GB, Settings
from tests.library.gguf_files import LLAMA, write_gguf


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
def test_verdict_by_header_and_by_size(large: GgufFacts, memory: MemoryFacts, expected: Verdict) -> None:
    by_header, by_size = judge(Demand(large), memory), judge_size(large.size, memory)
    assert by_header.verdict is by_size.verdict is expected
    assert "GB" in by_header.reason
    assert by_size.reason.startswith("Estimated from the file size; ")
    if expected is Verdict.TIGHT:
        assert "outside the GPU" in by_header.reason
        assert "outside the GPU" in by_size.reason


def test_short_context_is_tight(large: GgufFacts) -> None:
    assert judge(Demand(large), MemoryFacts(6_600_000_000)).verdict is Verdict.TIGHT
    by_size = judge_size(large.size, MemoryFacts(6_200_000_000))
    assert by_size.verdict is Verdict.TIGHT
    assert "Little memory" in by_size.reason


def test_users_context_and_projector_count(large: GgufFacts) -> None:
    memory = MemoryFacts(16 * GB)
    assert judge(Demand(large), memory, requested=16_384).verdict is Verdict.FITS
    too_long = judge(Demand(large), memory, requested=131_072)  # 17 GB of KV cache alone: it was said to fit
    assert too_long.verdict is Verdict.TIGHT
    assert too_long.reason.startswith("131,072 tokens: set by you. This may not fit")
    seeing = judge(Demand(large, projector=2 * GB), MemoryFacts(7 * GB))
    assert seeing.verdict is Verdict.TIGHT
    assert seeing.reason.endswith("There is not enough memory for images.")


@pytest.mark.parametrize("memory", [MemoryFacts(free * GB) for free in (4, 6, 7, 8, 12, 24)])
def test_reason_counts_everything(large: GgufFacts, memory: MemoryFacts) -> None:
    judged = judge(Demand(large), memory)
    needed, free = re.findall(r"([\d.]+) GB", judged.reason)[:2]
    assert float(needed) > large.size / GB, "the weights are counted in what is said"
    assert judged.verdict is Verdict.NO or float(needed) < float(free)


def load(facts: GgufFacts, memory: MemoryFacts | int, kv_type: str = "f16", wanted: int | None = None) -> CurrentLoad:
    memory = MemoryFacts(memory) if isinstance(memory, int) else memory
    choice = ContextChooser(Demand(facts, kv_type), memory).choose(wanted)
    return CurrentLoad(choice, Demand(facts, kv_type), memory, wanted, (), takes_arguments=True)


@pytest.fixture
def sliding(tmp_path: Path) -> GgufFacts:
    fields = LLAMA | {"attention.sliding_window": 512, "context_length": 65_536, "attention.key_length": 64}
    return read_facts(write_gguf(tmp_path / "m.gguf", fields | {"attention.value_length": 64}, architecture="gemma3"))


def test_smaller_kv_type_adds_context(large: GgufFacts) -> None:
    current = load(large, 10 * GB)
    (proposal,) = proposals(current)
    assert proposal.tokens > 0.7 * current.choice.tokens
    assert proposal.bytes == pytest.approx(current.choice.kv_bytes * 15 / 32, rel=0.01)
    assert proposal.benefit == f"Adds {proposal.tokens:,} tokens of context without using more memory."
    assert "reprocessed once" in proposal.drawback
    assert proposal.apply_to(Settings(engine_arguments="-t 2")) == Settings(engine_arguments="-t 2", kv_type="q8_0")


def test_smaller_kv_type_makes_it_fit(large: GgufFacts) -> None:
    current = load(large, 10 * GB, wanted=40_960)
    assert not current.choice.fits
    (proposal,) = proposals(current)
    assert (proposal.tokens, proposal.benefit) == (0, "A context of 40,960 tokens then fits.")
    current = load(large, MemoryFacts(64 * GB, devices=(DeviceMemory("CUDA0", 8 * GB),)), wanted=32_768)
    assert current.choice.fits
    assert current.choice.offload_note
    (proposal,) = proposals(current)
    assert proposal.benefit == "The whole model then fits on the GPU, which is faster."


def test_no_proposal_without_a_gain(large: GgufFacts, tmp_path: Path) -> None:
    small = read_facts(write_gguf(tmp_path / "small.gguf", LLAMA | {"embedding_length": 128}))
    assert proposals(load(large, 100 * GB)) == (), "memory is plentiful"
    assert proposals(load(large, 10 * GB, kv_type="q8_0")) == ()
    assert proposals(load(replace(large, key_length=80), 10 * GB)) == ()
    assert proposals(load(small, 10 * GB)) == ()


def test_full_windows_are_proposed_if_they_fit(sliding: GgufFacts) -> None:
    def full_window(load: CurrentLoad) -> list[Proposal]:
        return [proposal for proposal in proposals(load) if proposal.engine_argument]

    current = load(sliding, 2 * GB)
    (proposal,) = full_window(current)
    row = 2 * 2 * 64 * 2
    assert (proposal.tokens, proposal.bytes) == (0, -4 * row * (65_536 - 1024))
    assert proposal.drawback == "This uses 132 MB more memory at this context length."
    assert not full_window(replace(current, extra_arguments=("--swa-full",)))
    assert not full_window(replace(current, takes_arguments=False))
