"""A memory bar: what a model takes of one place's free memory, part by part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvchat.library.memory.machine import MemoryFacts
from kvchat.library.memory.placement import Need
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
        parts = ((self.weights, "weights"), (self.kv, "KV cache"), (self.compute, "buffers"), (self.other, "engine"))
        taken = ", ".join(f"{size_in_words(size)} {what}" for size, what in parts if size)
        left = ((self.staging, "for staging"), (self.unused, "unused"), (self.margin, "left alone"))
        rest = ", ".join(f"{size_in_words(size)} {what}" for size, what in left if size)
        return f"{taken}; {rest}, of {size_in_words(self.free)} free"

    @property
    def fits(self) -> bool:
        """Whether the margin stays untouched."""
        return self.needed <= self.free - self.margin


def bars(memory: MemoryFacts, gpu: Need, host: Need, margin_of: Callable[[int], int]) -> tuple[MemoryBar, ...]:
    """One bar for each GPU that takes part and one for the computer's memory.

    llama.cpp spreads layers over GPUs by their free memory, so each gets that share; the compute buffer each has whole.
    """
    found = []
    for device in memory.devices if gpu.weights else ():
        share = device.free / memory.device_free
        found.append(
            MemoryBar(
                device.name,
                device.free,
                margin_of(device.free),
                round(gpu.weights * share),
                round(gpu.kv * share),
                gpu.compute,
                round(gpu.other * share),
            )
        )
    free, margin = memory.available, margin_of(memory.available)
    staging = memory.staging_beside(host.total, margin)
    parts = host.weights, host.kv, host.compute, host.other
    return (*found, MemoryBar(COMPUTER, free, margin, *parts, staging=staging))


def given_back(memory: MemoryFacts, bars: tuple[MemoryBar, ...]) -> MemoryFacts:
    """The memory there will be once the model of these bars has gone.

    Weights in the computer's memory are pages of their file, which count as free already.
    """
    taken = {bar.place: bar.needed for bar in bars}
    host = sum(bar.needed - bar.weights for bar in bars if bar.place == COMPUTER)
    devices = tuple(replace(one, free=one.free + taken.get(one.name, 0)) for one in memory.devices)
    return replace(memory, available=memory.available + host, devices=devices)
