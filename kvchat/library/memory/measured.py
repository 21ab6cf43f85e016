"""Compares what an engine reported after a load with what was estimated before it, and learns from the difference."""

from __future__ import annotations

import dataclasses

from kvchat.engine.running.allocations import Allocations, Purpose
from kvchat.library.gguf.kv_cache import padded
from kvchat.library.memory.bar import COMPUTER, MemoryBar
from kvchat.library.memory.context_size import ContextChoice
from kvchat.library.memory.corrections import Corrections, factor


def measured_bars(estimated: tuple[MemoryBar, ...], actual: Allocations) -> tuple[MemoryBar, ...]:
    """The bars with the engine's own figures. What the engine does not tell of, itself, stays estimated."""
    return tuple(
        dataclasses.replace(
            bar,
            weights=_weights(bar, actual, beside_gpu=len(estimated) > 1),
            kv=_taken(actual, bar.place, Purpose.KV),
            compute=_taken(actual, bar.place, Purpose.COMPUTE),
            measured=True,
        )
        for bar in estimated
    )


def learn(choice: ContextChoice, used: Corrections, actual: Allocations | None) -> Corrections:
    """What the sizes that an engine reported (None: none) teach. `used`: the corrections `choice` was made with."""
    if actual is None or actual.context_size != padded(choice.tokens):  # the engine, or the user, had other ideas
        return used
    measured = measured_bars(choice.bars, actual)
    computing = slice(-1) if len(measured) > 1 else slice(None)  # the GPUs, or the computer where there is none

    def found(part: str, where: slice, used_factor: float) -> float:
        before = sum(getattr(bar, part) for bar in choice.bars[where])
        return factor(sum(getattr(bar, part) for bar in measured[where]), before / used_factor)

    learned = dataclasses.replace(
        used, weights=found("weights", computing, used.weights), kv=found("kv", slice(None), used.kv)
    )
    if actual.flash_attention_refused and used.flash_attention:  # the estimate of the compute buffer was another one
        return dataclasses.replace(learned, flash_attention=False)
    return dataclasses.replace(learned, compute=found("compute", computing, used.compute))


def learn_share(choice: ContextChoice, used: Corrections, ran_out_at: float | None) -> Corrections:
    """What it teaches that a load succeeded with `choice`.

    `ran_out_at`: when a larger one ran out of memory just before, in seconds since 1970; None if none did.
    """
    taken = share_taken(choice)
    if ran_out_at is not None:
        return used.after_running_out(taken, ran_out_at)
    return used.after_more_did_fit() if taken > used.share else used


def _weights(bar: MemoryBar, actual: Allocations, *, beside_gpu: bool) -> int:
    """Beside a GPU the engine reports all the file it mapped, of which the GPU's layers need not stay in memory."""
    taken = _taken(actual, bar.place, Purpose.WEIGHTS)
    return min(taken, bar.weights) if bar.place == COMPUTER and beside_gpu else taken


def _taken(actual: Allocations, place: str, purpose: Purpose) -> int:
    return actual.bytes(purpose, on_host=True) if place == COMPUTER else actual.on(place, purpose)


def share_taken(choice: ContextChoice) -> float:
    """The largest share of free memory that a choice takes of a place where the model computes."""
    *gpus, computer = choice.bars
    return max((bar.needed / bar.free if bar.free else 1.0) for bar in gpus or [computer])
