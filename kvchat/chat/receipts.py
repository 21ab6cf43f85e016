"""Receipts in words: what one reply cost, in one line and in full. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from kvchat.chat.messages import Receipt, Source
from kvchat.wording import duration, size

WHERE = {Source.HOT: "still hot", Source.WARM: "from memory", Source.DISK: "from disk"}
IN_FULL = {
    Source.HOT: "hot: it was still in the slot",
    Source.WARM: "warm: restored from memory",
    Source.DISK: "restored from disk, proved by the engine’s own count",
    Source.COLD: "cold: read from the beginning",
}
LEAST_SAVING_MS = 100.0  # less than that is not worth a word


@dataclass(frozen=True)
class ReceiptLine:
    """A receipt in one quiet line; `fault` when it must not look quiet."""

    text: str
    fault: bool = False


def receipt_line(receipt: Receipt) -> ReceiptLine:
    """The receipt as it stands under a reply."""
    read = receipt.prompt_tokens - receipt.cached_tokens
    parts = [duration(receipt.ttft_ms)]
    if receipt.hollow:
        parts.append(f"hollow restore: {read:,} of {receipt.prompt_tokens:,} tokens read again")
    elif receipt.source is Source.COLD:
        parts.append(f"{read:,} tokens read")
        if receipt.miss_reason:
            parts.append(receipt.miss_reason)
    else:
        parts.append(f"{receipt.cached_tokens:,} of {receipt.prompt_tokens:,} tokens {WHERE[receipt.source]}")
        if receipt.saved_ms is not None and receipt.saved_ms >= LEAST_SAVING_MS:
            parts.append(f"saved about {_rounded(receipt.saved_ms)}")
    return ReceiptLine(" · ".join(parts), fault=receipt.hollow)


def receipt_details(receipt: Receipt) -> tuple[tuple[str, str], ...]:
    """The receipt opened: each line's name and value."""
    read = receipt.prompt_tokens - receipt.cached_tokens
    source = "hollow restore: loaded, but the engine did not use it" if receipt.hollow else IN_FULL[receipt.source]
    lines = [
        ("Time to first token", duration(receipt.ttft_ms)),
        ("  Restore", _restore(receipt)),
        ("  Prefill", f"{duration(receipt.prefill_ms)} for {read:,} tokens"),
        ("  First token and the rest", duration(receipt.first_token_ms)),
        ("Prompt", f"{receipt.prompt_tokens:,} tokens, {receipt.cached_tokens:,} of them cached"),
        ("Reply", f"{receipt.predicted_tokens:,} tokens at {receipt.tokens_per_second:.1f} tok/s"),
        ("Source", source),
    ]
    if receipt.saved_ms is not None:
        lines.append(("Time saved (estimate)", duration(receipt.saved_ms)))
    if receipt.miss_reason:
        lines.append(("Why it missed", receipt.miss_reason))
    return tuple(lines)


def _restore(receipt: Receipt) -> str:
    if not receipt.restore_ms:
        return "nothing to restore"
    size_part = f"{size(receipt.restored_bytes)} in " if receipt.restored_bytes else ""
    ahead = " (before you pressed Send, not counted)" if receipt.restored_ahead else ""
    return f"{size_part}{duration(receipt.restore_ms)}{ahead}"


def _rounded(ms: float) -> str:
    """An estimate shows no more digits than it is worth."""
    return f"{ms / 1000:.0f} s" if 10_000 <= ms < 100_000 else duration(ms)
