"""Context sizes as they are chosen for a model."""

from __future__ import annotations

from kvchat.library.gguf.facts import GgufFacts
from kvchat.library.memory.context_size import ContextChoice, ContextChooser
from kvchat.library.memory.corrections import NOTHING_LEARNED, Corrections
from kvchat.library.memory.machine import MemoryFacts
from kvchat.library.memory.placement import Demand


def choose(
    facts: GgufFacts,
    memory: MemoryFacts,
    kv_type: str = "f16",
    wanted: int | None = None,
    corrections: Corrections = NOTHING_LEARNED,
) -> ContextChoice:
    """The context size for a model in this memory."""
    return ContextChooser(Demand(facts, kv_type, corrections=corrections), memory).choose(wanted)
