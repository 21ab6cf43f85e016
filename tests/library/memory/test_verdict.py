from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvchat.library.gguf.facts import GgufFacts
from kvchat.library.memory.demand import Demand
from kvchat.library.memory.machine import DeviceMemory, MemoryFacts
from kvchat.library.memory.verdict import Verdict, judge, judge_size
from tests.library.gguf_files import llama_8b

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
    assert by_size.reason.startswith("A guess from the size of its files; ")


def test_beside_the_gpu_is_told(large: GgufFacts) -> None:
    memory = MemoryFacts(16 * GB, devices=(DeviceMemory("CUDA0", 4 * GB),))
    assert "beside the GPU" in judge(Demand(large), memory).reason
    assert "beside the GPU" in judge_size(large.size, memory).reason


def test_little_room_for_a_conversation_is_tight(large: GgufFacts) -> None:
    assert judge(Demand(large), MemoryFacts(6_600_000_000)).verdict is Verdict.TIGHT
    by_size = judge_size(large.size, MemoryFacts(6_200_000_000))
    assert by_size.verdict is Verdict.TIGHT
    assert "Little room" in by_size.reason


def test_the_users_own_context_counts(large: GgufFacts) -> None:
    memory = MemoryFacts(16 * GB)
    assert judge(Demand(large), memory, wanted=16_384).verdict is Verdict.FITS
    too_long = judge(Demand(large), memory, wanted=131_072)  # 17 GB of KV cache alone: it was said to fit
    assert too_long.verdict is Verdict.TIGHT
    assert too_long.reason.startswith("131,072 tokens: your own choice. This may not fit")


def test_the_projector_counts(large: GgufFacts) -> None:
    memory = MemoryFacts(7 * GB)
    assert judge(Demand(large), memory).verdict is not Verdict.NO
    seeing = judge(Demand(large, projector=2 * GB), memory)
    assert seeing.verdict is Verdict.TIGHT
    assert seeing.reason.endswith("For pictures there is not enough memory.")


@pytest.mark.parametrize("memory", [MemoryFacts(free * GB) for free in (4, 6, 7, 8, 12, 24)])
def test_what_fits_needs_no_more_than_there_is_all_counted(large: GgufFacts, memory: MemoryFacts) -> None:
    judged = judge(Demand(large), memory)
    needed, free = re.findall(r"([\d.]+) GB", judged.reason)[:2]
    assert float(needed) > large.size / GB, "the weights are counted in what is said"
    assert judged.verdict is Verdict.NO or float(needed) < float(free)
