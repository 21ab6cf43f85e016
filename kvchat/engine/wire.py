"""The values that travel between kvchat and llama-server, as named types. No I/O.

Field names follow llama.cpp's server README (tools/server/README.md).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PromptProgress:
    """Prefill progress: tokens in all, tokens taken from the cache, tokens done so far (cached ones included)."""

    total: int
    cache: int
    processed: int
    time_ms: float


@dataclass(frozen=True)
class Timings:
    """The engine's own account of a request. Context used = cache_n + prompt_n + predicted_n (tokens)."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float

    @property
    def prompt_tokens(self) -> int:
        """The whole prompt's length in tokens, cached part included."""
        return self.cache_n + self.prompt_n

    @property
    def tokens_per_second(self) -> float:
        """Decode speed; 0 before the second token."""
        return 1000.0 * self.predicted_n / self.predicted_ms if self.predicted_ms > 1.0 else 0.0


@dataclass(frozen=True)
class ChatChunk:
    """One event of a streamed reply. Any field may be empty."""

    text: str = ""
    thinking: str = ""
    progress: PromptProgress | None = None
    timings: Timings | None = None
    finish_reason: str | None = None


@dataclass(frozen=True)
class ChatMessage:
    """A message as the engine's chat template takes it."""

    role: str  # "system", "user" or "assistant"
    content: str
    thinking: str = ""  # sent back as reasoning_content, so that templates which keep it render the same prompt


@dataclass(frozen=True)
class Sampling:
    """How a reply is drawn. None leaves the engine's default."""

    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None


ENGINE_DEFAULTS = Sampling()


@dataclass(frozen=True)
class SlotSave:
    """The engine's answer to a save."""

    n_saved: int  # tokens
    n_written: int  # bytes
    save_ms: float


@dataclass(frozen=True)
class SlotRestore:
    """The engine's answer to a restore. It proves nothing: only the next request's cache_n does."""

    n_restored: int  # tokens
    n_read: int  # bytes
    restore_ms: float


@dataclass(frozen=True)
class ServerFacts:
    """What /props tells about a loaded engine."""

    context_size: int  # tokens, as the engine set it
    model_path: str
    build: str
    total_slots: int
