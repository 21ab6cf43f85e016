"""What fits: how large a context, and how much of the model on the GPUs. Sizes in bytes, contexts in tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from kvchat.library.memory.bar import MemoryBar
from kvchat.library.memory.bar import bars as memory_bars
from kvchat.library.memory.machine import MemoryFacts
from kvchat.library.memory.placement import Demand, Placement

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
        needs = self._demand.needs(tokens, placement)
        return memory_bars(self._memory, needs.gpu, needs.host, margin)


def round_down(tokens: int) -> int:
    """To a whole number of steps."""
    return tokens // STEP * STEP
