"""A short list of models to begin with, by the memory they want.

Repositories known to exist in 2025, not checked against the Hub since: there was no network where this was written.
Sizes are rounded; a repository's files are listed anew before one is fetched, and one that is gone is told as such.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvchat.library.memory.machine import MemoryFacts
from kvchat.library.memory.verdict import Verdict, judge_size

GB = 1_000_000_000


@dataclass(frozen=True)
class Suggestion:
    """A model worth trying. Size in bytes, rounded."""

    memory_gb: int  # of the GPU it is meant for; 0: for a computer without one
    repository: str
    quantisation: str
    size: int
    why: str  # one sentence


SUGGESTIONS = (
    Suggestion(0, "unsloth/Qwen3-4B-Instruct-2507-GGUF", "Q4_K_M", 2_500_000_000, "Small, and good for its size."),
    Suggestion(0, "bartowski/Llama-3.2-3B-Instruct-GGUF", "Q4_K_M", 2_020_000_000, "Quicker still; plain English."),
    Suggestion(
        0,
        "unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF",
        "Q4_K_M",
        18_600_000_000,
        "For 32 GB of memory: large, yet only 3 billion weights work on each word.",
    ),
    Suggestion(
        8, "ggml-org/Qwen3-8B-GGUF", "Q4_K_M", 5_030_000_000, "An all-rounder that can think before it answers."
    ),
    Suggestion(
        8, "ggml-org/gemma-3-4b-it-GGUF", "Q4_K_M", 2_490_000_000, "Many languages; leaves room for long chats."
    ),
    Suggestion(12, "ggml-org/gemma-3-12b-it-GGUF", "Q4_K_M", 7_300_000_000, "Writes well, in many languages."),
    Suggestion(12, "Qwen/Qwen3-14B-GGUF", "Q4_K_M", 9_000_000_000, "Stronger at reasoning and code."),
    Suggestion(16, "ggml-org/gpt-oss-20b-GGUF", "MXFP4", 12_100_000_000, "Reasons well, and quickly for its size."),
    Suggestion(
        16,
        "bartowski/mistralai_Mistral-Small-3.2-24B-Instruct-2506-GGUF",
        "IQ4_XS",
        12_800_000_000,
        "A careful writer; shorter chats, for it fills the memory.",
    ),
    Suggestion(24, "ggml-org/gemma-3-27b-it-GGUF", "Q4_K_M", 16_500_000_000, "The best writer of this list."),
    Suggestion(24, "Qwen/Qwen3-32B-GGUF", "Q4_K_M", 19_800_000_000, "The strongest at reasoning and code."),
)
_TIERS = {one.memory_gb for one in SUGGESTIONS}


def tier_for(memory: MemoryFacts) -> int:
    """The GPU size, in GB, whose suggestions suit this machine; 0 where there is no GPU of 8 GB.

    Some of a GPU's memory is always taken, so that an 8 GB one has 7 GB free.
    """
    return max((tier for tier in _TIERS if tier * 0.85 * GB <= memory.device_free), default=0)


def suggestions_for(memory: MemoryFacts) -> tuple[Suggestion, ...]:
    """The models worth trying on this machine: those of its tier that can run at all."""
    tier = tier_for(memory)
    return tuple(
        one for one in SUGGESTIONS if one.memory_gb == tier and judge_size(one.size, memory).verdict is not Verdict.NO
    )
