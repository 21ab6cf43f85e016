"""What would make a model fit better, each with its price: proposed to the user, never taken silently."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.library.gguf.kv_cache import KV_TYPES
from kvchat.library.memory.context_size import ContextChoice, ContextChooser
from kvchat.library.memory.machine import MemoryFacts
from kvchat.library.memory.placement import Demand
from kvchat.settings import Settings
from kvchat.words.language import _, number
from kvchat.words.wording import size as size_in_words

SMALLER_KV = "q8_0"
FULL_WINDOW = "--swa-full"
FLASH_ATTENTION = "-fa on"


@dataclass(frozen=True)
class Proposal:
    """A change of settings, what it gains and what it costs."""

    title: str
    gain: str  # a sentence
    price: str  # a sentence
    tokens: int = 0  # by which the context would be longer
    bytes: int = 0  # memory set free at the context there is; negative: taken
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
    demand: Demand
    memory: MemoryFacts
    wanted: int | None  # the user's own context size
    extra: Sequence[str]  # the user's own arguments for the engine
    takes_arguments: bool  # the engine inside kvchat takes none

    def otherwise(
        self, *, kv_type: str | None = None, swa_full: bool = False, wanted: int | None = None
    ) -> ContextChoice:
        """The choice it would be, in part other."""
        kv_type, swa_full = kv_type or self.demand.kv_type, swa_full or FULL_WINDOW in self.extra
        demand = dataclasses.replace(self.demand, kv_type=kv_type, swa_full=swa_full, projector=0)
        return ContextChooser(demand, self.memory).choose(wanted or self.wanted)


def proposals(situation: Situation) -> tuple[Proposal, ...]:
    """What may be proposed, the best first; often nothing."""
    found = (_smaller_kv(situation), _flash_attention(situation), _full_window(situation))
    return tuple(proposal for proposal in found if proposal is not None)


def _smaller_kv(situation: Situation) -> Proposal | None:
    """KV rows of 8.5 bits a value in place of 16 or 32."""
    choice, facts, learned = situation.choice, situation.demand.facts, situation.demand.corrections
    per_block, _bytes = KV_TYPES[SMALLER_KV]
    divides = facts.key_length % per_block == 0 and facts.value_length % per_block == 0
    # llama.cpp: a quantised V cache requires flash attention
    if situation.demand.kv_type not in ("f16", "bf16", "f32") or not divides or not learned.flash_attention:
        return None
    return _bought(
        situation,
        situation.otherwise(kv_type=SMALLER_KV),
        situation.otherwise(kv_type=SMALLER_KV, wanted=choice.tokens),
        Proposal(
            _("Keep the context in less memory ({smaller_kv})", smaller_kv=SMALLER_KV),
            "",
            _("Replies may differ in small ways, and saved chats are read once more."),
            kv_type=SMALLER_KV,
        ),
    )


def _flash_attention(situation: Situation) -> Proposal | None:
    """Where the engine, left to itself, found that it cannot: the buffer it needs instead grows with the context."""
    learned = situation.demand.corrections
    if learned.flash_attention or not situation.takes_arguments or "-fa" in situation.extra:
        return None
    better = dataclasses.replace(learned, flash_attention=True, compute=1.0)
    forced = dataclasses.replace(situation, demand=dataclasses.replace(situation.demand, corrections=better))
    return _bought(
        situation,
        forced.otherwise(),
        forced.otherwise(wanted=situation.choice.tokens),
        Proposal(
            _("Insist on flash attention (-fa on)"),
            "",
            _("The engine found that it does not suit this computer: it may be slow, or not start."),
            engine_argument=FLASH_ATTENTION,
        ),
    )


def _bought(situation: Situation, best: ContextChoice, same: ContextChoice, offer: Proposal) -> Proposal | None:
    """The offer with what it gains; None where memory is plentiful and it would only cost.

    `best`: the choice it leads to; `same`: with it, at the context size there is.
    """
    choice = situation.choice
    tokens, freed = best.tokens - choice.tokens, choice.needed - same.needed
    if tokens > 0:
        gain = _("{tokens} more tokens of context fit into the same memory.", tokens=number(tokens))
    elif best.fits and not choice.fits:
        gain = _("The {tokens} tokens then fit.", tokens=number(best.tokens))
    elif _on_gpu(best) > _on_gpu(choice):
        beside = situation.memory.beside
        gain = _("More of the model fits on {beside} then, which is faster.", beside=beside)
        if best.placement is not None and best.placement.whole:
            gain = _("All of the model fits on {beside} then, which is faster.", beside=beside)
    else:
        return None
    return dataclasses.replace(offer, gain=gain, tokens=tokens, bytes=freed)


def _on_gpu(choice: ContextChoice) -> tuple[int, int]:
    """How much of a model a choice has on the GPU: the more the greater."""
    return (choice.placement.gpu_layers, -choice.placement.cpu_experts) if choice.placement else (0, 0)


def _full_window(situation: Situation) -> Proposal | None:
    """Sliding windows at full length: any point of a conversation can be gone back to. Only where it fits."""
    choice, facts = situation.choice, situation.demand.facts
    if facts.sliding_window is None or facts.is_recurrent or FULL_WINDOW in situation.extra:
        return None
    full = situation.otherwise(swa_full=True)
    if not situation.takes_arguments or not full.fits:
        return None
    taken = situation.otherwise(swa_full=True, wanted=choice.tokens).kv_bytes - choice.kv_bytes
    fewer = choice.tokens - full.tokens
    price = _("It takes {taken} more memory at this context.", taken=size_in_words(taken))
    if fewer > 0:
        price = _(
            "It takes {taken} more memory at this context, and the context would be {fewer} tokens shorter.",
            taken=size_in_words(taken),
            fewer=number(fewer),
        )
    return Proposal(
        _("Keep whole sliding windows (--swa-full)"),
        _("Editing or going back anywhere in a chat needs no reading again."),
        price,
        -fewer,
        -taken,
        engine_argument=FULL_WINDOW,
    )
