"""What would make a model fit better, each with its price: proposed to the user, never taken silently."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.library.context_size import ContextChoice, choose_context_size
from kvchat.library.corrections import Corrections
from kvchat.library.gguf_facts import GgufFacts
from kvchat.library.kv_cache import KV_TYPES
from kvchat.library.memory import MemoryFacts
from kvchat.settings import Settings
from kvchat.wording import size as size_in_words

WORTHWHILE = 64_000_000  # bytes; less is not worth anybody's attention
SMALLER_KV = "q8_0"
FULL_WINDOW = "--swa-full"
FLASH_ATTENTION = "-fa on"


@dataclass(frozen=True)
class Proposal:
    """A change of settings, what it gains and what it costs."""

    title: str
    gain: str  # a sentence
    price: str  # a sentence
    tokens: int  # by which the context would be longer
    bytes: int  # memory set free at the context there is; negative: taken
    kv_type: str | None = None  # the setting to change, or …
    engine_argument: str | None = None  # … what to add to the engine's extra arguments

    def taken(self, settings: Settings) -> Settings:
        """The settings with this proposal in force."""
        if self.kv_type is not None:
            return dataclasses.replace(settings, kv_type=self.kv_type)
        arguments = f"{settings.engine_arguments} {self.engine_argument}".strip()
        return dataclasses.replace(settings, engine_arguments=arguments)


@dataclass(frozen=True)
class Situation:
    """What proposals are made for: a choice, and everything it was made from."""

    choice: ContextChoice
    facts: GgufFacts
    memory: MemoryFacts
    kv_type: str
    corrections: Corrections
    wanted: int | None  # the user's own context size
    extra: Sequence[str]  # the user's own arguments for the engine
    takes_arguments: bool  # the engine inside kvchat takes none

    def otherwise(
        self, *, kv_type: str | None = None, swa_full: bool = False, wanted: int | None = None
    ) -> ContextChoice:
        """The choice it would be, in part other."""
        return choose_context_size(
            self.facts,
            self.memory,
            kv_type or self.kv_type,
            wanted or self.wanted,
            corrections=self.corrections,
            swa_full=swa_full or FULL_WINDOW in self.extra,
        )


def proposals(situation: Situation) -> tuple[Proposal, ...]:
    """What may be proposed, the best first; often nothing."""
    found = (_smaller_kv(situation), _flash_attention(situation), _full_window(situation))
    return tuple(proposal for proposal in found if proposal is not None)


def _smaller_kv(situation: Situation) -> Proposal | None:
    """KV rows of 8.5 bits a value in place of 16 or 32."""
    choice, facts = situation.choice, situation.facts
    per_block, _ = KV_TYPES[SMALLER_KV]
    divides = facts.key_length % per_block == 0 and facts.value_length % per_block == 0
    # llama.cpp: a quantised V cache requires flash attention
    if situation.kv_type not in ("f16", "bf16", "f32") or not divides or not situation.corrections.flash_attention:
        return None
    tokens = situation.otherwise(kv_type=SMALLER_KV).tokens - choice.tokens
    freed = choice.kv_bytes - situation.otherwise(kv_type=SMALLER_KV, wanted=choice.tokens).kv_bytes
    if freed < WORTHWHILE and tokens <= 0:
        return None
    return Proposal(
        f"Keep the context in less memory ({SMALLER_KV})",
        f"{_more(tokens)} fit into the same memory." if tokens > 0 else f"It sets {size_in_words(freed)} free.",
        "Replies may differ in small ways, and saved conversations are read once more.",
        tokens,
        freed,
        kv_type=SMALLER_KV,
    )


def _flash_attention(situation: Situation) -> Proposal | None:
    """Where the engine, left to itself, found that it cannot: the buffer it needs instead grows with the context."""
    if situation.corrections.flash_attention or not situation.takes_arguments or "-fa" in situation.extra:
        return None
    better = dataclasses.replace(situation.corrections, flash_attention=True, compute=1.0)
    forced = dataclasses.replace(situation, corrections=better)
    tokens = forced.otherwise().tokens - situation.choice.tokens
    freed = situation.choice.needed - forced.otherwise(wanted=situation.choice.tokens).needed
    if freed < WORTHWHILE and tokens <= 0:
        return None
    return Proposal(
        "Insist on flash attention (-fa on)",
        f"{_more(tokens)} fit into the same memory." if tokens > 0 else f"It sets {size_in_words(freed)} free.",
        "The engine found that it does not suit this computer: it may be slow, or not start.",
        tokens,
        freed,
        engine_argument=FLASH_ATTENTION,
    )


def _full_window(situation: Situation) -> Proposal | None:
    """Sliding windows at full length: any point of a conversation can be gone back to. Only where it fits."""
    choice, facts = situation.choice, situation.facts
    if facts.sliding_window is None or facts.is_recurrent or FULL_WINDOW in situation.extra:
        return None
    full = situation.otherwise(swa_full=True)
    if not situation.takes_arguments or not full.fits:
        return None
    taken = situation.otherwise(swa_full=True, wanted=choice.tokens).kv_bytes - choice.kv_bytes
    fewer = choice.tokens - full.tokens
    shorter = f", and the context would be {fewer:,} tokens shorter" if fewer > 0 else ""
    return Proposal(
        "Keep whole sliding windows (--swa-full)",
        "Editing or going back anywhere in a conversation needs no reading again.",
        f"It takes {size_in_words(taken)} more memory at this context{shorter}.",
        -fewer,
        -taken,
        engine_argument=FULL_WINDOW,
    )


def _more(tokens: int) -> str:
    return f"{tokens:,} more tokens of context"
