"""Usage and model name in an answer, as the receipt has them.

The engine counts as cached whatever it finds in its slot, including what kvchat processed there for this very request,
and some builds name the model by the path of its file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvchat.gateway.dialects.conversion import Json


@dataclass(frozen=True)
class Usage:
    """The prompt tokens that kvchat itself processed for one request, and the model that answered it."""

    model: str = ""  # the name that clients know it by; empty: what the engine says stays
    read: int = 0  # prompt tokens that kvchat processed in the slot before it passed the request on
    read_ms: float = 0.0  # and how long that took

    def reused(self, cached: Any) -> int:
        """Return how many of the tokens that the engine found in its slot were there before the request."""
        return max(0, int(cached or 0) - self.read)

    def correct(self, answer: Json) -> bool:
        """Correct an answer or an event of a stream in place; True if that changed anything."""
        parts = [answer, *(part for part in map(answer.get, ("message", "response")) if isinstance(part, dict))]
        changed = [self._correct(part) for part in parts]
        return any(changed)

    def _correct(self, part: Json) -> bool:
        changed = bool(self.model) and isinstance(part.get("model"), str) and part["model"] != self.model
        if changed:
            part["model"] = self.model
        if not self.read:
            return changed
        told = {
            name: part[name] for name in ("usage", "timings", "prompt_progress") if isinstance(part.get(name), dict)
        }
        for counts in told.values():
            self._correct_counts(counts)
        return changed or bool(told)

    def _correct_counts(self, counts: Json) -> None:
        if "cache_read_input_tokens" in counts:  # Anthropic's: what was reused is not among the input
            cached = int(counts["cache_read_input_tokens"] or 0)
            counts["cache_read_input_tokens"] = self.reused(cached)
            counts["input_tokens"] = int(counts.get("input_tokens") or 0) + cached - self.reused(cached)
        for name in ("prompt_tokens_details", "input_tokens_details"):
            if isinstance(details := counts.get(name), dict) and "cached_tokens" in details:
                details["cached_tokens"] = self.reused(details["cached_tokens"])
        if "cache_n" in counts:  # llama-server's timings
            reused, ms = self.reused(counts["cache_n"]), self.read_ms + float(counts.get("prompt_ms") or 0.0)
            processed = int(counts.get("prompt_n") or 0) + int(counts["cache_n"] or 0) - reused
            counts |= {"cache_n": reused, "prompt_n": processed, "prompt_ms": ms}
            counts |= {
                "prompt_per_token_ms": ms / max(1, processed),
                "prompt_per_second": 1e3 * processed / max(1.0, ms),
            }
        if "cache" in counts:  # and its progress
            counts["cache"] = self.reused(counts["cache"])
