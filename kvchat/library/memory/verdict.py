"""Whether a model can run on this machine, in one word: fits, tight, no."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from kvchat.library.memory.context_size import ContextChooser
from kvchat.library.memory.fitting import margin
from kvchat.library.memory.machine import MemoryFacts
from kvchat.library.memory.placement import ENGINE_BYTES, Demand
from kvchat.words.language import N_, _, number, sentences
from kvchat.words.wording import size as size_in_words

COMFORTABLE = 8192  # tokens; with less, a long conversation soon loses its beginning
OVERHEAD_SHARE = 0.15  # of the weights, for a KV cache of some thousand tokens and buffers, where only a size is known


class Verdict(Enum):
    """The value is the word on the screen."""

    FITS = N_("fits")
    TIGHT = N_("tight")
    NO = N_("no")


@dataclass(frozen=True)
class Judgement:
    """A verdict and why, in a sentence or two."""

    verdict: Verdict
    reason: str


def judge(demand: Demand, memory: MemoryFacts, wanted: int | None = None) -> Judgement:
    """A model whose header is known: by the context size that would be chosen for it, or by the user's own.

    The projector in `demand` is loaded as well when there are pictures to see.
    """
    chooser = ContextChooser(demand, memory)
    choice = chooser.choose()
    blind = ContextChooser(replace(demand, projector=0), memory).choose() if not choice.fits else choice
    if not choice.fits and blind.fits:
        return Judgement(Verdict.TIGHT, _("{reason} For pictures there is not enough memory.", reason=blind.in_full))
    if not choice.fits:
        return Judgement(Verdict.NO, choice.in_full)
    if wanted is not None and not (own := chooser.choose(wanted)).fits:
        return Judgement(
            Verdict.TIGHT,
            _("{tokens} tokens: your own choice. {warning}", tokens=number(own.tokens), warning=own.warning),
        )
    if choice.beside_gpu:
        return Judgement(Verdict.TIGHT, sentences(choice.in_full, _partly(memory)))
    if choice.tokens < min(demand.facts.trained_context, COMFORTABLE):
        return Judgement(Verdict.TIGHT, choice.in_full)
    return Judgement(Verdict.FITS, choice.in_full)


def judge_size(size: int, memory: MemoryFacts) -> Judgement:
    """A model of which only the size of its files is known, in bytes: a guess, and said to be one."""
    needed = round(size * (1 + OVERHEAD_SHARE)) + ENGINE_BYTES
    free = memory.device_free if memory.devices else memory.available
    where = _("free on {beside}", beside=memory.beside) if memory.devices else _("free")
    guess = _("A guess from the size of its files; {free} is {where}.", free=size_in_words(free), where=where)
    if needed <= _spendable(free):
        return Judgement(Verdict.FITS, guess)
    if memory.devices and needed <= _spendable(free + memory.available):
        return Judgement(Verdict.TIGHT, sentences(guess, _partly(memory)))
    if not memory.devices and size + ENGINE_BYTES <= _spendable(free):
        return Judgement(Verdict.TIGHT, _("{guess} Little room is left for a chat.", guess=guess))
    return Judgement(Verdict.NO, guess)


def _spendable(free: int) -> int:
    """What may be spent, a margin kept."""
    return free - margin(free)


def _partly(memory: MemoryFacts) -> str:
    return _("Part of it runs beside {beside}, which is slower.", beside=memory.beside)
