import pytest

from kvchat.library.gguf.facts import GgufFacts
from kvchat.library.memory.demand import DeviceMemory, MemoryFacts, ModelDemand
from kvchat.library.memory.verdict import Verdict, judge, judge_size
from kvchat.settings import GB


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (MemoryFacts(16 * GB), Verdict.FITS),
        (MemoryFacts(16 * GB, devices=(DeviceMemory("CUDA0", 12 * GB),)), Verdict.FITS),
        (MemoryFacts(16 * GB, devices=(DeviceMemory("CUDA0", 4 * GB),)), Verdict.TIGHT),
        (MemoryFacts(1 * GB, devices=(DeviceMemory("CUDA0", 2 * GB),)), Verdict.NO),
    ],
)
def test_verdict_by_header_and_by_size(large: GgufFacts, memory: MemoryFacts, expected: Verdict) -> None:
    by_header, by_size = judge(ModelDemand(large), memory), judge_size(large.size, memory)
    assert by_header.verdict is by_size.verdict is expected
    assert "GB" in by_header.reason
    assert by_size.reason.startswith("Estimated from the file size; ")
    if expected is Verdict.TIGHT:
        assert "outside the GPU" in by_header.reason
        assert "outside the GPU" in by_size.reason


def test_short_context_is_tight(large: GgufFacts) -> None:
    assert judge(ModelDemand(large), MemoryFacts(6_600_000_000)).verdict is Verdict.TIGHT
    by_size = judge_size(large.size, MemoryFacts(6_200_000_000))
    assert by_size.verdict is Verdict.TIGHT
    assert "Little memory" in by_size.reason


def test_users_context_and_projector_count(large: GgufFacts) -> None:
    memory = MemoryFacts(16 * GB)
    assert judge(ModelDemand(large), memory, requested=16_384).verdict is Verdict.FITS
    too_long = judge(ModelDemand(large), memory, requested=131_072)  # 17 GB of KV cache alone: it was said to fit
    assert too_long.verdict is Verdict.TIGHT
    assert too_long.reason.startswith("131,072 tokens: set by you. This may not fit")
    seeing = judge(ModelDemand(large, projector_bytes=2 * GB), MemoryFacts(7 * GB))
    assert seeing.verdict is Verdict.TIGHT
    assert seeing.reason.endswith("There is not enough memory for images.")
