"""Chooses the context size: as much as the model was trained for and memory holds, and says why in words."""

from __future__ import annotations

from dataclasses import dataclass

from kvchat.library.gguf_facts import GgufFacts
from kvchat.library.memory import MICRO_BATCH, MemoryFacts, kv_bytes, kv_estimate
from kvchat.wording import size as size_in_words

STEP = 256  # tokens; llama.cpp rounds context sizes to it
MINIMUM = 2048  # tokens; less is of little use for a conversation
MARGIN_SHARE = 0.10  # of free memory, left for everything else
MARGIN_LEAST = 256 * 1024 * 1024  # bytes
ENGINE_BYTES = 128 * 1024 * 1024  # the engine's program, its HTTP threads and small buffers
ENOUGH_ON_DEVICE = 16_384  # tokens; with that much on the GPU, memory beside it is not worth its slowness


@dataclass(frozen=True)
class ContextChoice:
    """A context size and why. Sizes in bytes."""

    tokens: int
    reason: str  # two plain sentences
    kv_bytes: int  # estimated size of the KV cache
    needed: int  # estimated memory for everything: weights, KV cache, buffers
    free: int  # what it is compared with
    fits: bool
    warning: str = ""  # one sentence, when the user's own wish is unwise


@dataclass(frozen=True)
class _Budget:
    """The memory a choice is made against."""

    free: int
    place: str  # how it ends a sentence: "free", "free on the GPU"

    @property
    def spendable(self) -> float:
        """What may be spent, a margin kept."""
        return max(0.0, self.free - max(MARGIN_LEAST, MARGIN_SHARE * self.free))

    @property
    def in_words(self) -> str:
        """How much can be spared, as the end of a sentence."""
        return f"only {size_in_words(self.spendable)} of the {size_in_words(self.free)} {self.place} can be spared"


def choose_context_size(
    facts: GgufFacts, memory: MemoryFacts, kv_type: str = "f16", wanted: int | None = None
) -> ContextChoice:
    """The context size to launch the engine with. A `wanted` size is honoured, with a warning where it is unwise.

    Raises ValueError for an unknown KV type.
    """
    budget = _budget(facts, memory, kv_type)
    if wanted is not None:
        return _honour(facts, budget, kv_type, wanted)
    least = _least(facts)
    trained = max(least, _round_down(facts.trained_context))
    fitting = _largest_fitting(facts, budget, kv_type, trained)
    tokens = max(least, fitting)
    if fitting < least and not _fits(facts, budget, kv_type, least):
        needed = size_in_words(memory_needed(facts, least, kv_type))
        reason = (
            f"{least:,} tokens: the least that is of use, though even this may not fit. "
            f"The model with its KV cache takes about {needed}, and {budget.in_words}."
        )
    elif tokens >= trained:
        reason = f"{tokens:,} tokens: all this model was trained for. {_share(facts, budget, kv_type, tokens)}"
    else:
        reason = (
            f"{tokens:,} tokens: what fits into memory; the model was trained for {facts.trained_context:,}. "
            f"{_share(facts, budget, kv_type, tokens)}"
        )
    return _choice(facts, budget, kv_type, tokens, reason)


def memory_needed(facts: GgufFacts, tokens: int, kv_type: str = "f16") -> int:
    """Bytes for weights, KV cache, compute buffers and the engine itself: an estimate, erring on the high side."""
    return facts.size + kv_bytes(facts, tokens, kv_type, kv_type) + compute_bytes(facts, tokens) + ENGINE_BYTES


def compute_bytes(facts: GgufFacts, tokens: int) -> int:
    """Bytes allowed for llama.cpp's compute buffers: a micro-batch of logits, activations and attention mask."""
    activations = MICRO_BATCH * (facts.vocabulary_size + 16 * facts.embedding_length) * 4
    mask = MICRO_BATCH * tokens * 6  # f32 and f16 copies
    return activations + mask


def _budget(facts: GgufFacts, memory: MemoryFacts, kv_type: str) -> _Budget:
    """The GPU alone where a good context fits there, else all memory there is."""
    if not memory.devices:
        return _Budget(memory.available, "allowed here" if memory.limited else "free")
    on_device = _Budget(memory.device_free, "free on the GPU" if len(memory.devices) == 1 else "free on the GPUs")
    if _fits(facts, on_device, kv_type, min(facts.trained_context, ENOUGH_ON_DEVICE)):
        return on_device
    return _Budget(memory.available + memory.device_free, "free, the GPU's included")


def _least(facts: GgufFacts) -> int:
    return min(MINIMUM, facts.trained_context)


def _round_down(tokens: int) -> int:
    return tokens // STEP * STEP


def _fits(facts: GgufFacts, budget: _Budget, kv_type: str, tokens: int) -> bool:
    return memory_needed(facts, tokens, kv_type) <= budget.spendable


def _largest_fitting(facts: GgufFacts, budget: _Budget, kv_type: str, most: int) -> int:
    """The largest fitting multiple of STEP up to `most`, or `most` itself; 0 when none fits. By bisection."""
    if _fits(facts, budget, kv_type, most):
        return most
    fitting, too_much = 0, most // STEP + 1
    while too_much - fitting > 1:
        middle = (fitting + too_much) // 2
        if _fits(facts, budget, kv_type, middle * STEP):
            fitting = middle
        else:
            too_much = middle
    return fitting * STEP


def _honour(facts: GgufFacts, budget: _Budget, kv_type: str, wanted: int) -> ContextChoice:
    """The user's own size, at least one step, with a warning where it is unwise."""
    tokens = max(STEP, wanted)
    reason = f"{tokens:,} tokens: your own choice. {_share(facts, budget, kv_type, tokens)}"
    warning = ""
    if not _fits(facts, budget, kv_type, tokens):
        needed = size_in_words(memory_needed(facts, tokens, kv_type))
        warning = f"This may not fit: the model with its KV cache takes about {needed}, and {budget.in_words}."
    elif tokens > facts.trained_context:
        warning = f"The model was trained for {facts.trained_context:,} tokens and may lose the thread beyond them."
    return _choice(facts, budget, kv_type, tokens, reason, warning)


def _share(facts: GgufFacts, budget: _Budget, kv_type: str, tokens: int) -> str:
    """What the KV cache takes of what there is, as a sentence; "at most" where the estimate is an upper bound."""
    hedge = "" if kv_estimate(facts, tokens, kv_type, kv_type).exact else "at most "
    size = size_in_words(kv_bytes(facts, tokens, kv_type, kv_type))
    return f"Its KV cache takes {hedge}{size} of the {size_in_words(budget.free)} {budget.place}."


def _choice(
    facts: GgufFacts, budget: _Budget, kv_type: str, tokens: int, reason: str, warning: str = ""
) -> ContextChoice:
    return ContextChoice(
        tokens=tokens,
        reason=reason,
        kv_bytes=kv_bytes(facts, tokens, kv_type, kv_type),
        needed=memory_needed(facts, tokens, kv_type),
        free=budget.free,
        fits=_fits(facts, budget, kv_type, tokens),
        warning=warning,
    )
