"""What the window says of receipts, shares and dates. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from kvchat.chat.messages import Receipt, Source
from kvchat.wording import duration, size

_PROVED_SHARE = 0.5  # a restore counts as proved when at least this share of the prompt came from the cache


def size_of(count: int, whole: int) -> str:
    """As in "3.1 of 20 GB": both in the unit of the second, unless the first would vanish in it."""
    few, all_ = size(count), size(whole)
    same_unit = few.split()[-1] == all_.split()[-1]
    return f"{few.split()[0] if same_unit else few} of {all_}"


def since(moment: datetime, now: datetime) -> str:
    """How long ago, in the coarse words a person would use."""
    days = (now.date() - moment.date()).days
    if days == 0:
        minutes = int((now - moment).total_seconds() // 60)
        if minutes < 1:
            return "just now"
        return f"{minutes} min ago" if minutes < 60 else f"{minutes // 60} h ago"
    if days == 1:
        return "yesterday"
    return f"{days} days ago" if days < 14 else moment.strftime("%d %b %Y")


def proved(cached_tokens: int, prompt_tokens: int) -> bool:
    """Whether the engine's own count shows that the restored state was used."""
    return prompt_tokens > 0 and cached_tokens >= _PROVED_SHARE * prompt_tokens


@dataclass(frozen=True)
class ReceiptLine:
    """A receipt in one quiet line; `fault` when it must not look quiet."""

    text: str
    fault: bool = False


def receipt_line(r: Receipt) -> ReceiptLine:
    """The receipt under a reply, in one line."""
    parts = [duration(r.ttft_ms)]
    if r.hollow:
        parts.append(f"hollow restore: {r.prompt_tokens - r.cached_tokens:,} of {r.prompt_tokens:,} tokens read again")
        return ReceiptLine(" · ".join(parts), fault=True)
    where = {Source.HOT: "still hot", Source.WARM: "from memory", Source.DISK: "from disk"}
    if r.source is Source.COLD:
        parts.append(f"{r.prompt_tokens - r.cached_tokens:,} tokens read")
        if r.miss_reason:
            parts.append(r.miss_reason)
    else:
        parts.append(f"{r.cached_tokens:,} of {r.prompt_tokens:,} tokens {where[r.source]}")
        if r.saved_ms is not None and r.saved_ms >= 100:
            parts.append(f"saved about {_estimate(r.saved_ms)}")
    return ReceiptLine(" · ".join(parts))


def _estimate(ms: float) -> str:
    """An estimate pretends to no more than two digits."""
    return f"{ms / 1000:.0f} s" if 10_000 <= ms < 100_000 else f"{ms / 1000:.1f} s" if ms < 10_000 else duration(ms)


def receipt_details(r: Receipt) -> tuple[tuple[str, str], ...]:
    """The receipt's lines when opened: what, and how much."""
    ahead = " (before you pressed Send, not counted)" if r.restored_ahead else ""
    restore = f"{duration(r.restore_ms)}{ahead}" if r.restore_ms > 0 else "nothing to restore"
    if r.restored_bytes and r.restore_ms > 0:
        restore = f"{size(r.restored_bytes)} in {restore}"
    sources = {
        Source.HOT: "hot: it was still in the slot",
        Source.WARM: "warm: restored from memory",
        Source.DISK: "restored from disk, proved by the engine’s own count",
        Source.COLD: "cold: read from the beginning",
    }
    lines = [
        ("Time to first token", duration(r.ttft_ms)),
        ("  Restore", restore),
        ("  Prefill", f"{duration(r.prefill_ms)} for {r.prompt_tokens - r.cached_tokens:,} tokens"),
        ("  First token and the rest", duration(r.first_token_ms)),
        ("Prompt", f"{r.prompt_tokens:,} tokens, {r.cached_tokens:,} of them cached"),
        ("Reply", f"{r.predicted_tokens:,} tokens at {r.tokens_per_second:.1f} tok/s"),
        ("Source", "hollow restore: loaded, but the engine did not use it" if r.hollow else sources[r.source]),
    ]
    if r.saved_ms is not None:
        lines.append(("Time saved (estimate)", duration(r.saved_ms)))
    if r.miss_reason:
        lines.append(("Why it missed", r.miss_reason))
    return tuple(lines)
