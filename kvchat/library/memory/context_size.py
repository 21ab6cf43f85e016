"""Chooses context size and offload: as much as the model was trained for and memory holds, and says why in words.

kvchat alone decides this; the engine's own `--fit` is off, so that what is shown is what is done.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvchat.library.memory.fitting import ENOUGH_ON_DEVICE, STEP, Fitting, MemoryBar, margin, round_down
from kvchat.library.memory.machine import MemoryFacts
from kvchat.library.memory.placement import Demand, Placement
from kvchat.words.language import _, number, sentences
from kvchat.words.wording import day
from kvchat.words.wording import size as size_in_words


@dataclass(frozen=True)
class ContextChoice:
    """A context size with its offload, and why. Sizes in bytes."""

    tokens: int
    reason: str  # a plain sentence
    share: str  # another: what the model takes of what there is
    kv_bytes: int  # estimated size of the KV cache
    needed: int  # estimated memory for everything: weights, KV cache, buffers
    free: int  # what it is compared with
    fits: bool
    bars: tuple[MemoryBar, ...]
    placement: Placement | None = None  # None: there is no GPU
    warning: str = ""  # one sentence, when the user's own choice is unwise
    by_user: bool = False  # the user's own size

    @property
    def in_full(self) -> str:
        """Why that size, and what the model takes with it."""
        return sentences(self.reason, self.share)

    @property
    def beside_gpu(self) -> bool:
        """Whether there is a GPU and part of the model runs beside it."""
        return self.placement is not None and not self.placement.whole


LEAST_BEGINNING, CHEAP = 8192, 512 * 1024 * 1024  # tokens; bytes of KV cache, laid out within about a second
WORTHWHILE_PART = 8  # a context is raised by an eighth, or not at all


def slots_for(demand: Demand, memory: MemoryFacts, wanted: int) -> int:
    """How many chats to have side by side: as many as are `wanted`, as long as that costs the context but a trifle.

    With full attention a slot takes no memory, with sliding windows or recurrent state one more window or state.
    """
    alone = ContextChooser(demand, memory).choose().tokens
    for slots in range(wanted, 1, -1):
        beside = ContextChooser(replace(demand, slots=slots), memory).choose()
        if beside.fits and beside.tokens >= alone - alone // WORTHWHILE_PART:
            return slots
    return 1


class ContextChooser:
    """For a model as it is to be run, and the memory there is. Raises ValueError for an unknown KV type."""

    def __init__(self, demand: Demand, memory: MemoryFacts) -> None:
        self._fit = Fitting(demand, memory)
        self._demand, self._memory, self._facts = demand, memory, demand.facts

    def choose(self, wanted: int | None = None) -> ContextChoice:
        """The context size to launch the engine with. A `wanted` one is honoured, with a warning where it is unwise."""
        return self._automatic() if wanted is None else self._honour(wanted)

    def smaller(self, choice: ContextChoice) -> tuple[ContextChoice, ...]:
        """What to try, in this order, when a load with `choice` ran out of memory, down to a floor."""
        return tuple(self._stepped_down(tokens, placement, choice) for tokens, placement in self._steps_below(choice))

    def begin_with(self, most: ContextChoice, needed: int) -> ContextChoice:
        """How much of the context in `most` to lay out at first for chats of `needed` tokens; the rest follows later.

        An engine fills its whole KV cache with zeros before it is ready: 8 GB took 17 s on two cores, 1 GB 1.2 s
        (measured). So it begins with one and a half times what is needed, in powers of two. All of it is laid out at
        once where that is quick, on a GPU or up to CHEAP bytes, and where the user chose the size.
        """
        size = max(LEAST_BEGINNING, 1 << (3 * needed // 2 - 1).bit_length())
        original = self._facts.original_context
        if original and most.tokens > original:
            size = max(size, original + STEP)  # beyond it keys are of another kind, and stay of that kind
        on_gpu = most.placement is not None and most.placement.whole
        if most.by_user or on_gpu or most.kv_bytes <= CHEAP or size >= most.tokens:
            return most
        reason = _(
            "{reason} {size} are laid out so far, so that it is ready soon; it grows with your chats.",
            reason=most.reason,
            size=number(size),
        )
        return self._choice(size, most.placement or self._fit.in_memory, reason)

    def larger(self, tokens: int, placement: Placement | None) -> ContextChoice | None:
        """What to offer whose context of `tokens` is full: the largest that fits, up to twice as much.

        `placement` is where the model is now; with less of it on the GPU only where nothing larger fits otherwise. None
        where nothing worth a restart fits.
        """
        most, worthwhile = min(2 * tokens, self._fit.trained), tokens + tokens // WORTHWHILE_PART
        stays = placement if placement and self._memory.devices else self._fit.in_memory  # the GPU may be gone
        for place in (lambda _: stays, self._fit.best_placement):
            larger = self._fit.largest_fitting(most, place)
            where = place(larger)
            if larger >= worthwhile and self._fit.fits(larger, where):
                needed, free = self._fit.compared(larger, where)
                slower = (
                    " " + _("Then {in_words}: slower.", in_words=where.in_words(self._memory.beside))
                    if where != stays
                    else ""
                )
                reason = _(
                    "{larger} tokens take about {needed} of the {free} {place} once the engine has stopped.{slower}",
                    larger=number(larger),
                    needed=size_in_words(needed),
                    free=size_in_words(free),
                    place=self._place(where),
                    slower=slower,
                )
                return self._choice(larger, where, reason)
        return None

    def _automatic(self) -> ContextChoice:
        """The size kvchat chooses."""
        tokens, placement = self._fit.largest(self._fit.trained)
        if not self._fit.fits(tokens, placement):
            needed = size_in_words(self._fit.compared(tokens, placement)[0])
            reason = _(
                "{tokens} tokens: the least that is of use, though even this may not fit. "
                "With the chat the model takes about {needed}, and {sparable}.",
                tokens=number(tokens),
                needed=needed,
                sparable=self._sparable(placement),
            )
        elif self._memory.devices and not placement.whole:
            length = _("a good length") if tokens >= min(self._fit.trained, ENOUGH_ON_DEVICE) else _("what fits")
            reason = _(
                "{tokens} tokens: {length} where {in_words}.{ran_out}",
                tokens=number(tokens),
                length=length,
                in_words=placement.in_words(self._memory.beside),
                ran_out=self._ran_out(placement),
            )
        elif tokens >= self._fit.trained:
            reason = _("{tokens} tokens: all this model was trained for.", tokens=number(tokens))
        else:
            trained = self._facts.trained_context
            reason = _(
                "{tokens} tokens: what fits into memory; the model was trained for {trained}.{ran_out}",
                tokens=number(tokens),
                trained=number(trained),
                ran_out=self._ran_out(placement),
            )
        return self._choice(tokens, placement, reason)

    def _honour(self, wanted: int) -> ContextChoice:
        """The user's own size, at least one step, with a warning where it is unwise."""
        tokens = max(STEP, wanted)
        placement = self._fit.best_placement(tokens)
        reason = _("{tokens} tokens: your own choice.", tokens=number(tokens))
        warning = ""
        if not self._fit.fits(tokens, placement):
            needed = size_in_words(self._fit.compared(tokens, placement)[0])
            spare = self._sparable(placement)
            warning = _(
                "This may not fit: with the chat the model takes about {needed}, and {spare}.",
                needed=needed,
                spare=spare,
            )
        elif tokens > self._facts.trained_context:
            trained = self._facts.trained_context
            # b11434 caps the slot at the trained context, and allocates the rest in vain
            warning = _(
                "The model was trained for {trained} tokens: newer engines stop there, older ones get lost.",
                trained=number(trained),
            )
        return replace(self._choice(tokens, placement, reason), warning=warning, by_user=True)

    def _stepped_down(self, tokens: int, placement: Placement, before: ContextChoice) -> ContextChoice:
        """A smaller choice after `before` did not fit."""
        more = (
            number(before.tokens)
            if tokens < before.tokens
            else _("more of the model on {beside}", beside=self._memory.beside)
        )
        less = f"; {placement.in_words(self._memory.beside)}" if self._memory.devices and not placement.whole else ""
        reason = _(
            "{tokens} tokens: memory ran out with {more}{less}.",
            tokens=number(tokens),
            more=more,
            less=less,
        )
        return self._choice(tokens, placement, reason)

    def _steps_below(self, choice: ContextChoice) -> list[tuple[int, Placement]]:
        """Half the context again and again; with a GPU, from ENOUGH_ON_DEVICE on, less of the model on it first."""
        steps: list[tuple[int, Placement]] = []
        tokens, placement = choice.tokens, choice.placement or self._fit.in_memory

        def halve_down_to(floor: int) -> None:
            nonlocal tokens
            while tokens > floor:
                tokens = max(floor, round_down(tokens // 2))
                steps.append((tokens, placement))

        if placement.gpu_layers:
            halve_down_to(min(ENOUGH_ON_DEVICE, self._fit.trained))
            for quarters in (3, 2, 1, 0):
                placement = replace(placement, gpu_layers=placement.gpu_layers * quarters // (quarters + 1))
                steps.append((tokens, placement))
        halve_down_to(self._fit.least)
        return steps

    def _place(self, placement: Placement) -> str:
        """How a sentence about free memory ends."""
        if placement.gpu_layers == 0:
            return _("allowed here") if self._memory.limited else _("free")
        if placement.whole:
            return _("free on {beside}", beside=self._memory.beside)
        return _("free, {beside} included", beside=self._memory.beside)

    def _sparable(self, placement: Placement) -> str:
        """How much can be spared, as the end of a sentence."""
        free = self._fit.compared(self._fit.least, placement)[1]
        spare = size_in_words(max(0.0, self._fit.spendable(free)))
        return _(
            "only {spare} of the {free} {place} can be spared",
            spare=spare,
            free=size_in_words(free),
            place=self._place(placement),
        )

    def _share(self, tokens: int, placement: Placement) -> str:
        """What the model takes of what there is with a chat of that length, as a sentence."""
        needed, free = self._fit.compared(tokens, placement)
        return _(
            "With a chat of that length the model takes about {needed} of the {free} "
            "{place}; {margin} of it is left alone.",
            needed=size_in_words(needed),
            free=size_in_words(free),
            place=self._place(placement),
            margin=size_in_words(margin(free)),
        )

    def _shared(self) -> str:
        """A sentence where several chats lie side by side; else nothing."""
        slots = self._demand.slots
        if slots == 1:
            return ""
        return _("Up to {slots} chats share it side by side: each may use what the others leave.", slots=slots)

    def _ran_out(self, placement: Placement) -> str:
        """Another sentence where it is a load that ran out of memory that bounds the choice; else nothing."""
        free, learned = self._fit.compared(self._fit.least, placement)[1], self._demand.corrections
        if learned.limit * free >= free - margin(free):
            return ""
        return " " + _(
            "More ran out of memory when it was tried; it is tried again from {until} on.", until=day(learned.until)
        )

    def _choice(self, tokens: int, placement: Placement, reason: str) -> ContextChoice:
        found = self._fit.bars(tokens, placement)
        needed, free = self._fit.compared(tokens, placement)
        return ContextChoice(
            tokens=tokens,
            reason=sentences(reason, self._shared()),
            share=self._share(tokens, placement) if self._fit.fits(tokens, placement) else "",
            kv_bytes=sum(bar.kv for bar in found),
            needed=needed,
            free=free,
            fits=self._fit.fits(tokens, placement),
            bars=found,
            placement=placement if self._memory.devices else None,
        )
