"""Verdict on a model for this machine: fits, tight, no; and proposals for settings that would help."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from kvchat.library.gguf.kv_cache import KV_TYPES
from kvchat.library.memory.context_size import ContextChoice, ContextChooser, partial_offload_note
from kvchat.library.memory.demand import ENGINE_BYTES, Demand, MemoryFacts, usable_bytes
from kvchat.settings import Settings
from kvchat.text.formatting import format_size
from kvchat.text.language import N_, _, format_number, join_sentences

COMFORTABLE = 8192  # tokens; with less, a long chat soon loses its beginning
OVERHEAD_SHARE = 0.15  # of the weights, for buffers and a KV cache of some thousand tokens, if only the size is known


class Verdict(Enum):
    FITS = N_("fits")
    TIGHT = N_("tight")
    NO = N_("no")


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    reason: str


def judge(demand: Demand, memory: MemoryFacts, requested: int | None = None) -> Judgement:
    """Judge a model with a known header by the context size kvchat would choose, or by the user's own.

    The projector in `demand` is loaded too when there are images.
    """
    chooser = ContextChooser(demand, memory)
    choice = chooser.choose()
    blind = ContextChooser(replace(demand, projector=0), memory).choose() if not choice.fits else choice
    if not choice.fits and blind.fits:
        return Judgement(
            Verdict.TIGHT, _("{reason} There is not enough memory for images.", reason=blind.full_explanation)
        )
    if not choice.fits:
        return Judgement(Verdict.NO, choice.full_explanation)
    if requested is not None and not (own := chooser.choose(requested)).fits:
        return Judgement(
            Verdict.TIGHT,
            _("{tokens} tokens: set by you. {warning}", tokens=format_number(own.tokens), warning=own.warning),
        )
    if choice.offload_note or choice.tokens < min(demand.facts.trained_context, COMFORTABLE):
        return Judgement(Verdict.TIGHT, choice.full_explanation)
    return Judgement(Verdict.FITS, choice.full_explanation)


def judge_size(size: int, memory: MemoryFacts) -> Judgement:
    """Judge a model only by its file size in bytes; the reason says that it is a guess."""
    needed = round(size * (1 + OVERHEAD_SHARE)) + ENGINE_BYTES
    free = memory.device_free if memory.devices else memory.available
    where = _("free on {beside}", beside=memory.device_names) if memory.devices else _("free")
    guess = _("Estimated from the file size; {free} is {where}.", free=format_size(free), where=where)
    if needed <= usable_bytes(free):
        return Judgement(Verdict.FITS, guess)
    if memory.devices and needed <= usable_bytes(free + memory.available):
        return Judgement(Verdict.TIGHT, join_sentences(guess, partial_offload_note(memory)))
    if not memory.devices and size + ENGINE_BYTES <= usable_bytes(free):
        return Judgement(Verdict.TIGHT, _("{guess} Little memory is left for the context.", guess=guess))
    return Judgement(Verdict.NO, guess)


SMALLER_KV = "q8_0"
FULL_WINDOW = "--swa-full"


@dataclass(frozen=True)
class Proposal:
    title: str
    benefit: str  # a sentence
    drawback: str  # a sentence
    tokens: int = 0  # context tokens gained
    bytes: int = 0  # memory freed at the current context; negative: used
    kv_type: str | None = None  # value for the setting `kv_type`; None: set `engine_argument` instead
    engine_argument: str | None = None  # to add to the engine's extra arguments

    def apply_to(self, settings: Settings) -> Settings:
        if self.kv_type is not None:
            return replace(settings, kv_type=self.kv_type)
        arguments = f"{settings.engine_arguments} {self.engine_argument}".strip()
        return replace(settings, engine_arguments=arguments)


@dataclass(frozen=True)
class CurrentLoad:
    choice: ContextChoice
    demand: Demand
    memory: MemoryFacts
    requested_tokens: int | None  # the user's context size
    extra_arguments: Sequence[str]  # the user's engine arguments
    takes_arguments: bool  # the built-in engine takes none

    def choice_with(
        self, *, kv_type: str | None = None, swa_full: bool = False, requested: int | None = None
    ) -> ContextChoice:
        kv_type, swa_full = kv_type or self.demand.kv_type, swa_full or FULL_WINDOW in self.extra_arguments
        demand = replace(self.demand, kv_type=kv_type, swa_full=swa_full, projector=0)
        return ContextChooser(demand, self.memory).choose(requested or self.requested_tokens)


def proposals(load: CurrentLoad) -> tuple[Proposal, ...]:
    return tuple(filter(None, (_smaller_kv(load), _full_window(load))))


def _smaller_kv(load: CurrentLoad) -> Proposal | None:
    """Propose 8.5 bits per KV value instead of 16 or 32, unless memory is plentiful."""
    choice, facts = load.choice, load.demand.facts
    per_block, _bytes = KV_TYPES[SMALLER_KV]
    divides = facts.key_length % per_block == 0 and facts.value_length % per_block == 0
    if load.demand.kv_type not in ("f16", "bf16", "f32") or not divides:
        return None
    best = load.choice_with(kv_type=SMALLER_KV)
    tokens = best.tokens - choice.tokens
    if tokens > 0:
        gain = _("Adds {tokens} tokens of context without using more memory.", tokens=format_number(tokens))
    elif best.fits and not choice.fits:
        gain = _("A context of {tokens} tokens then fits.", tokens=format_number(best.tokens))
    elif choice.offload_note and not best.offload_note:
        gain = _("The whole model then fits on {beside}, which is faster.", beside=load.memory.device_names)
    else:
        return None
    return Proposal(
        _("Lower the KV cache precision ({smaller_kv})", smaller_kv=SMALLER_KV),
        gain,
        _("Replies may differ slightly, and saved chats are reprocessed once."),
        tokens,
        choice.needed - load.choice_with(kv_type=SMALLER_KV, requested=choice.tokens).needed,
        kv_type=SMALLER_KV,
    )


def _full_window(load: CurrentLoad) -> Proposal | None:
    """Propose full-length sliding windows, which let a chat go back to any point, if they fit."""
    choice, facts = load.choice, load.demand.facts
    if not facts.kv.window or facts.kv.is_recurrent or FULL_WINDOW in load.extra_arguments:
        return None
    full = load.choice_with(swa_full=True)
    if not load.takes_arguments or not full.fits:
        return None
    taken = load.choice_with(swa_full=True, requested=choice.tokens).kv_bytes - choice.kv_bytes
    fewer = choice.tokens - full.tokens
    price = _("This uses {taken} more memory at this context length.", taken=format_size(taken))
    if fewer > 0:
        text = N_("This uses {taken} more memory at this context length and shortens the context by {fewer} tokens.")
        price = _(text, taken=format_size(taken), fewer=format_number(fewer))
    return Proposal(
        _("Keep the full sliding-window cache (--swa-full)"),
        _("You can edit a chat or go back to any point without reprocessing."),
        price,
        -fewer,
        -taken,
        engine_argument=FULL_WINDOW,
    )
