"""Receipts in words: what one reply cost at a glance, in a sentence and in full. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kvchat.chat.record.messages import Receipt
from kvchat.session.proof import LEAST_SHARE, NOTHING_TO_MISS, PROVED_SHARE, Source, Verdict
from kvchat.words.wording import (
    FIRST_REPLY,
    READ,
    READ_AGAIN,
    READ_AHEAD,
    REMEMBERED,
    STILL_LOADED,
    brief,
    duration,
    per_second,
    several,
    size,
)

WHERE = {
    Source.AHEAD: READ_AHEAD,
    Source.HOT: STILL_LOADED,
    Source.WARM: REMEMBERED,
    Source.DISK: REMEMBERED,
    Source.COLD: READ_AGAIN,
}
UNUSED = "what was loaded was not used"
_IN_FULL = {  # what the field calls it
    Source.AHEAD: "ahead: prefilled before Send",
    Source.HOT: "hot: it was in the engine’s slot",
    Source.WARM: "warm: restored from memory",
    Source.DISK: "restored from disk, proved by the engine’s own count",
    Source.COLD: "cold: read from the beginning",
}
QUEUED, STARTED = "for another reply", "for the engine to start"
_LEAST_WAIT_MS = 500.0  # nor is a shorter wait
_LEAST_SAVING_MS = 100.0  # less than that is not worth a word


@dataclass(frozen=True)
class ReceiptLine:
    """A receipt in one quiet line; `fault` when it must not look quiet."""

    text: str
    fault: bool = False


class Phase(Enum):
    """What is done for one reply, in this order."""

    LOADING = "Loading"
    READING = "Reading"
    FIRST_TOKEN = "First token"
    WRITING = "Writing"
    SETTLING = "Rounding off"  # settling: the slot is brought to the turn boundary
    SAVING = "Saving"


@dataclass(frozen=True)
class Step:
    """One part of a receipt's timeline."""

    phase: Phase
    ms: float
    before_send: bool = False  # nobody waited for it

    @property
    def words(self) -> str:
        """What it was."""
        return _AHEAD.get(self.phase, self.phase.value) if self.before_send else self.phase.value


_AHEAD = {Phase.LOADING: "Loaded ahead", Phase.READING: READ_AHEAD.capitalize()}


def timeline(receipt: Receipt) -> tuple[Step, ...]:
    """All that was done for a reply, one after the other; what took no time or is not known is left out."""
    writing = 1000 * receipt.predicted_tokens / receipt.tokens_per_second if receipt.tokens_per_second else 0.0
    steps = (
        Step(Phase.LOADING, receipt.restore_ms if receipt.prefetched else 0.0, before_send=True),
        Step(Phase.READING, receipt.read_ahead_ms, before_send=True),
        Step(Phase.LOADING, 0.0 if receipt.prefetched else receipt.restore_ms),
        Step(Phase.READING, receipt.prefill_ms),
        Step(Phase.FIRST_TOKEN, receipt.first_token_ms),
        Step(Phase.WRITING, writing),
        Step(Phase.SETTLING, receipt.settle_ms or 0.0),
        Step(Phase.SAVING, receipt.save_ms or 0.0),
    )
    return tuple(step for step in steps if step.ms > 0)


def where_from(verdict: Verdict, cached: int, prompt: int) -> str:
    """Where a prompt of `prompt` tokens came from, in the word for it; "in part" where most of it had to be read."""
    if verdict.miss_reason == NOTHING_TO_MISS:
        return FIRST_REPLY
    where = WHERE[verdict.source]
    most = PROVED_SHARE if verdict.source is Source.AHEAD else 0.5
    if verdict.source is Source.COLD or cached >= most * prompt:
        return where
    return f"{where} in part" if cached >= LEAST_SHARE * prompt else READ


def where_told(receipt: Receipt) -> str:
    """As `where_from`, of a receipt."""
    verdict = Verdict(receipt.source, receipt.hollow, receipt.miss_reason)
    return where_from(verdict, receipt.cached_tokens, receipt.prompt_tokens)


def receipt_line(receipt: Receipt) -> ReceiptLine:
    """The receipt as it stands under a reply."""
    words = f"{brief(receipt.ttft_ms)} · {where_told(receipt)}"
    if receipt.hollow:
        words = f"{words}: {UNUSED}"
    return ReceiptLine(" · ".join([words, *_waits(receipt)]), fault=receipt.hollow)


def receipt_sentence(receipt: Receipt) -> str:
    """The receipt with its counts, for who wants to know."""
    read = receipt.prompt_tokens - receipt.cached_tokens
    parts = [duration(receipt.ttft_ms)]
    if receipt.hollow:
        parts.append(f"read {several(read, 'token')} again: {UNUSED}")
    elif receipt.source is Source.COLD:
        parts.append(f"read {several(read, 'token')}")
        if receipt.miss_reason:
            parts.append(receipt.miss_reason)
    else:
        parts.append(", ".join([f"read {several(read, 'new token')}", *_had(receipt)]))
        if receipt.saved_ms is not None and receipt.saved_ms >= _LEAST_SAVING_MS:
            parts.append(f"saved about {_rounded(receipt.saved_ms)}")
    return " · ".join([*parts, *_waits(receipt)])


def _had(receipt: Receipt) -> list[str]:
    """What need not be read after Send, and why."""
    ahead, before = receipt.read_ahead_tokens, receipt.cached_tokens - receipt.read_ahead_tokens
    origin = " from disk" if receipt.source is Source.DISK else ""
    still = receipt.source is Source.HOT or (receipt.source is Source.AHEAD and not receipt.restore_ms)
    had = [f"{before:,} {STILL_LOADED}" if still else f"{REMEMBERED} {before:,}{origin}"] if before else []
    return [*had, f"{ahead:,} {READ_AHEAD}"] if ahead else had


def receipt_details(receipt: Receipt) -> tuple[tuple[str, str], ...]:
    """The receipt opened: each line's name and value. Here the field's terms stand beside kvchat's words."""
    read, cached = receipt.prompt_tokens - receipt.cached_tokens, receipt.cached_tokens
    source = f"{where_told(receipt)}; {f'hollow restore: {UNUSED}' if receipt.hollow else _IN_FULL[receipt.source]}"
    speed = f" at {per_second(receipt.tokens_per_second)}" if receipt.tokens_per_second else ""
    lines = [
        ("Time to first token", duration(receipt.ttft_ms)),
        ("  Loading (restore)", _restore(receipt)),
        *([("  Read ahead", _ahead(receipt))] if receipt.read_ahead_tokens else []),
        ("  Reading (prefill)", f"{duration(receipt.prefill_ms)} for {several(read, 'token')}"),
        ("  First token and the rest", duration(receipt.first_token_ms)),
        ("Prompt", f"{several(receipt.prompt_tokens, 'token')}: read {read:,} new, remembered {cached:,}"),
        ("Reply", several(receipt.predicted_tokens, "token") + speed),
        ("Where from", source),
    ]
    if receipt.settle_ms is not None:
        saved = f", saved in {duration(receipt.save_ms)}" if receipt.save_ms is not None else ", not saved"
        lines.append(("After the reply", f"rounded off in {duration(receipt.settle_ms)}{saved}"))
    for words, waited in ((QUEUED, receipt.queue_wait_ms), (STARTED, receipt.engine_wait_ms)):
        if waited >= _LEAST_WAIT_MS:
            lines.append((f"Waited {words} (not counted)", duration(waited)))
    if receipt.saved_ms is not None:
        lines.append(("Time saved (estimate)", duration(receipt.saved_ms)))
    if receipt.miss_reason:
        lines.append(("Why it was read", receipt.miss_reason))
    return tuple(lines)


def _waits(receipt: Receipt) -> list[str]:
    """What is no part of the time to the first token, and was waited for all the same."""
    waits = ((QUEUED, receipt.queue_wait_ms), (STARTED, receipt.engine_wait_ms))
    return [f"waited {brief(waited)} {words}" for words, waited in waits if waited >= _LEAST_WAIT_MS]


def _restore(receipt: Receipt) -> str:
    if not receipt.restore_ms:
        return "nothing to load"
    size_part = f"{size(receipt.restored_bytes)} in " if receipt.restored_bytes else ""
    ahead = " (before you pressed Send, not counted)" if receipt.prefetched else ""
    return f"{size_part}{duration(receipt.restore_ms)}{ahead}"


def _ahead(receipt: Receipt) -> str:
    taken = several(receipt.read_ahead_tokens, "token")
    return f"{taken} in {duration(receipt.read_ahead_ms)} (before you pressed Send, not counted)"


def _rounded(ms: float) -> str:
    """An estimate shows no more digits than it is worth."""
    return f"{ms / 1000:.0f} s" if 10_000 <= ms < 100_000 else duration(ms)
