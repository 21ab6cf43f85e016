"""Verdict on whether a model fits on this computer."""

from dataclasses import dataclass, replace
from enum import Enum

from kvchat.library.memory.context_size import ContextChooser, partial_offload_note
from kvchat.library.memory.demand import ENGINE_BYTES, MemoryFacts, ModelDemand, usable_bytes
from kvchat.text.formatting import format_size
from kvchat.text.language import N_, _, format_number, join_sentences

COMFORTABLE_CONTEXT = 8192  # tokens; in a shorter one, a long chat soon loses its beginning
OVERHEAD_SHARE = 0.15  # share of the file size, for buffers and a KV cache of some thousand tokens


class Verdict(Enum):
    FITS = N_("fits")
    TIGHT = N_("tight")
    NO = N_("does not fit")


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    reason: str


def judge(demand: ModelDemand, memory: MemoryFacts, requested: int | None = None) -> Judgement:
    """Judge a model by the context size that kvchat would choose, and by the user's own if there is one.

    The projector in `demand` counts. If the model fits only without it, the verdict is TIGHT.
    """
    chooser = ContextChooser(demand, memory)
    choice = chooser.choose()
    blind = ContextChooser(replace(demand, projector_bytes=0), memory).choose() if not choice.fits else choice
    if not choice.fits and blind.fits:
        no_images = _("There is not enough memory for images.")
        return Judgement(Verdict.TIGHT, join_sentences(blind.full_explanation, no_images))
    if not choice.fits:
        return Judgement(Verdict.NO, choice.full_explanation)
    if requested is not None and not (own := chooser.choose(requested)).fits:
        return Judgement(
            Verdict.TIGHT,
            _("{tokens} tokens: set by you. {warning}", tokens=format_number(own.tokens), warning=own.warning),
        )
    if choice.offload_note or choice.tokens < min(demand.facts.trained_context, COMFORTABLE_CONTEXT):
        return Judgement(Verdict.TIGHT, choice.full_explanation)
    return Judgement(Verdict.FITS, choice.full_explanation)


def judge_size(size: int, memory: MemoryFacts) -> Judgement:
    """Judge a model by its file size alone, in bytes. The reason says that this is an estimate."""
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
