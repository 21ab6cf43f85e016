"""What fits: how large a context, and how much of the model on the GPUs. Sizes in bytes, contexts in tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from kvchat.library.memory.machine import MemoryFacts
from kvchat.library.memory.placement import Demand, Placement
from kvchat.words.language import _, listed
from kvchat.words.wording import size as size_in_words

COMPUTER = "memory"  # how a bar calls the computer's own memory


@dataclass(frozen=True)
class MemoryBar:
    """One place's memory, in bytes. Without `measured` the parts are estimates from before the load."""

    place: str  # a GPU's name, or COMPUTER
    free: int  # before the load
    margin: int  # of that, what kvchat never plans with
    weights: int
    kv: int
    compute: int
    other: int
    measured: bool = False
    staging: int = 0  # of what is left then, what the store may take at most to keep chats ready

    @property
    def needed(self) -> int:
        """What the model takes here."""
        return self.weights + self.kv + self.compute + self.other

    @property
    def unused(self) -> int:
        """What is left beside the margin and what is staged; 0 where the model needs the margin or more."""
        return max(0, self.free - self.margin - self.needed - self.staging)

    @property
    def in_words(self) -> str:
        """The bar as one line of text."""
        parts = (
            (self.weights, _("weights")),
            (self.kv, _("KV cache")),
            (self.compute, _("buffers")),
            (self.other, _("engine")),
        )
        taken = listed(f"{size_in_words(size)} {what}" for size, what in parts if size)
        left = ((self.staging, _("for staging")), (self.unused, _("unused")), (self.margin, _("left alone")))
        rest = listed(f"{size_in_words(size)} {what}" for size, what in left if size)
        return _("{taken}; {rest}, of {free} free", taken=taken, rest=rest, free=size_in_words(self.free))

    @property
    def fits(self) -> bool:
        """Whether the margin stays untouched."""
        return self.needed <= self.free - self.margin


def given_back(memory: MemoryFacts, bars: tuple[MemoryBar, ...]) -> MemoryFacts:
    """The memory there will be once the model of these bars has gone.

    Weights in the computer's memory are pages of their file, which count as free already.
    """
    taken = {bar.place: bar.needed for bar in bars}
    host = sum(bar.needed - bar.weights for bar in bars if bar.place == COMPUTER)
    devices = tuple(replace(one, free=one.free + taken.get(one.name, 0)) for one in memory.devices)
    return replace(memory, available=memory.available + host, devices=devices)


STEP = 256  # tokens; llama.cpp rounds context sizes to it
MINIMUM = 2048  # tokens; less is of little use for a conversation
MARGIN_SHARE = 0.10  # of free memory, left for everything else
MARGIN_LEAST = 256 * 1024 * 1024  # bytes
ENOUGH_ON_DEVICE = 16_384  # tokens; with that much on the GPU, memory beside it is not worth its slowness


def margin(free: int) -> int:
    """Of so much free memory, what is left for everything else, in bytes."""
    return min(free, round(max(MARGIN_LEAST, MARGIN_SHARE * free)))


class Fitting:
    """A model and the memory there is for it."""

    def __init__(self, demand: Demand, memory: MemoryFacts) -> None:
        self._demand, self._memory = demand, memory
        self._facts = demand.facts
        self._layers = self._facts.block_count + 1
        self.in_memory = Placement(0, self._layers)
        self._on_gpu = Placement(self._layers, self._layers)
        self.bars = lru_cache(maxsize=None)(self._make_bars)  # what each memory would hold
        self.least = min(MINIMUM, self._facts.trained_context)
        self.trained = max(self.least, round_down(self._facts.trained_context))

    def largest(self, most: int) -> tuple[int, Placement]:
        """The largest context up to `most`, at least the least, and where the model goes for it."""
        if not self._memory.devices:
            return self.largest_fitting(most, lambda _: self.in_memory), self.in_memory
        tokens = self.largest_fitting(most, lambda _: self._on_gpu)
        enough = min(most, ENOUGH_ON_DEVICE)
        if tokens < enough or not self.fits(tokens, self._on_gpu):
            tokens = self.largest_fitting(enough, self.best_placement)
        return tokens, self.best_placement(tokens)

    def best_placement(self, tokens: int) -> Placement:
        """As much on the GPUs as fits with that context. A mixture's experts, seldom used, are the first to go."""
        if not self._memory.devices:
            return self.in_memory
        blocks = self._facts.block_count
        ways = [self._on_gpu]
        if any(self._facts.weights.experts):
            ways += [Placement(self._layers, self._layers, cpu_experts) for cpu_experts in range(1, blocks + 1)]
            ways += [Placement(layers, self._layers, blocks) for layers in range(blocks, 0, -1)]
        else:
            ways += [Placement(layers, self._layers) for layers in range(blocks, 0, -1)]
        return next((placement for placement in ways if self.fits(tokens, placement)), self.in_memory)

    def largest_fitting(self, most: int, place: Callable[[int], Placement]) -> int:
        """The largest fitting multiple of STEP up to `most`, or `most` itself; the least when none fits."""
        if self.fits(most, place(most)):
            return most
        fitting, too_much = 0, most // STEP + 1
        while too_much - fitting > 1:
            middle = (fitting + too_much) // 2
            if self.fits(middle * STEP, place(middle * STEP)):
                fitting = middle
            else:
                too_much = middle
        return max(self.least, fitting * STEP)

    def fits(self, tokens: int, placement: Placement) -> bool:
        """Whether every place keeps its margin."""
        *gpus, computer = self.bars(tokens, placement)
        if not gpus:
            return computer.needed <= self.spendable(computer.free)
        if self._memory.devices[0].is_computers:
            return sum(bar.needed for bar in (*gpus, computer)) <= self.spendable(min(gpus[0].free, computer.free))
        return computer.fits and all(bar.needed <= self.spendable(bar.free) for bar in gpus)

    def spendable(self, free: int) -> float:
        """What may be spent where the model computes: the margin is kept, and what did not fit before is not tried."""
        return min(free - margin(free), self._demand.corrections.limit * free)

    def compared(self, tokens: int, placement: Placement) -> tuple[int, int]:
        """What is needed and what is free, in the place or places that decide."""
        *gpus, computer = self.bars(tokens, placement)
        decide = gpus if placement.whole else [*gpus, computer]
        return sum(bar.needed for bar in decide), sum(bar.free for bar in decide)

    def _make_bars(self, tokens: int, placement: Placement) -> tuple[MemoryBar, ...]:
        """One bar for each GPU that takes part and one for the computer's memory.

        llama.cpp spreads layers over GPUs by their free memory: each gets that share, and the compute buffer whole.
        """
        memory, needs = self._memory, self._demand.needs(tokens, placement)
        gpu, host, found = needs.gpu, needs.host, []
        for device in memory.devices if gpu.weights else ():
            share = device.free / memory.device_free
            weights, kv, other = (round(part * share) for part in (gpu.weights, gpu.kv, gpu.other))
            found.append(MemoryBar(device.name, device.free, margin(device.free), weights, kv, gpu.compute, other))
        free, kept = memory.available, margin(memory.available)
        parts = host.weights, host.kv, host.compute, host.other
        return (*found, MemoryBar(COMPUTER, free, kept, *parts, staging=memory.staging_beside(host.total, kept)))


def round_down(tokens: int) -> int:
    """To a whole number of steps."""
    return tokens // STEP * STEP
