"""Interface of the engine host to sessions: a ready engine and facts about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from kvchat.engine.api.client import LlamaServerClient
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.session.restore_support import RestoreFinding, Strategy

TemplateOptions = tuple[tuple[str, bool | str], ...]  # chat template options: name and value
MAX_CHARS_PER_TOKEN = 64  # upper bound of the average; English has 4 to 5
RESERVE_SHARE, MAX_RESERVE = 8, 2048  # fraction of the context (1/n) reserved for the reply; maximum tokens


@dataclass(frozen=True)
class ReadyEngine:
    engine: LlamaServerClient
    generation: int  # increases with each launch: a new number means an empty slot
    slot_path: Path
    fingerprint: Fingerprint
    context_size: int  # tokens
    kv_bytes_per_token: float
    finding: RestoreFinding  # restore capabilities
    window: int = 0  # the model's sliding window in tokens; 0: none
    has_vision: bool = False  # accepts images
    has_tools: bool = False  # the chat template renders tools
    max_context: int = 0  # tokens it may grow to after a restart; 0: cannot grow
    slots: tuple[int, ...] = (0,)  # numbers of the slots kvchat uses; `engine` uses the first
    model_name: str = ""  # for display; empty: unknown
    other_models: tuple[str, ...] = ()  # names of the models that another kvchat can switch to
    keeps_memory: bool = False  # another kvchat, which restores and saves by itself
    kv_fixed_bytes: int = 0  # at most, of the recurrent state and the sliding windows

    @property
    def limit(self) -> int:
        return max(self.context_size, self.max_context)

    def surely_exceeds_limit(self, characters: int) -> bool:
        """True if a text of this many characters certainly has too many tokens for the context."""
        return characters > MAX_CHARS_PER_TOKEN * self.limit

    def reserve(self, max_tokens: int | None) -> int:
        """Return how many tokens to keep free for a reply of up to `max_tokens`."""
        return min(max_tokens or MAX_RESERVE, self.limit // RESERVE_SHARE)

    def must_grow_for(self, tokens: int) -> bool:
        """True if the context is too small for `tokens` and can be enlarged."""
        return self.context_size < min(tokens, self.limit)

    def for_slot(self, index: int) -> ReadyEngine:
        """Return the same engine bound to another slot; `index`: position in `slots`."""
        return replace(self, engine=self.engine.for_slot(self.slots[index]))

    def with_template(self, template: TemplateOptions) -> ReadyEngine:
        return replace(self, engine=self.engine.with_template(dict(template))) if template else self

    @property
    def can_cut(self) -> bool:
        return self.finding.strategy.can_cut

    @property
    def window_to_complete(self) -> int:
        """Size of the sliding window in tokens if saved slot files lack one of its rows, else 0."""
        return self.window if self.finding.strategy in (Strategy.COMPLETE, Strategy.LONG) else 0

    def can_save(self, tokens: int) -> bool:
        return self.supports_saving and not (self.finding.strategy is Strategy.LONG and tokens <= self.window)

    @property
    def supports_saving(self) -> bool:
        return self.finding.strategy.supports_saving


class EngineHost(Protocol):
    async def ready(self, model: str | None = None, *, needs_vision: bool = False, tokens: int = 0) -> ReadyEngine:
        """Wait for a ready engine, starting it or switching to `model` if needed.

        `needs_vision`: it must accept images. `tokens`: the context it should have, as far as possible; enlarging the
        context empties the slots. Call this between turns. Raises KvchatError if no engine can be started.
        """
        ...

    async def memory_server(self) -> LlamaServerClient | None:
        """Return the client of another kvchat that keeps the chats' memory, or None if none is used.

        Raises EngineGone if it is away.
        """
        ...

    async def has_pairing(self) -> bool:
        """True if another kvchat may keep memory of the chats, even if it is not in use."""
        ...

    def is_ready(self, model: str | None = None, *, needs_vision: bool = False) -> bool: ...

    async def check_vision(self, model: str | None = None) -> None:
        """Raise a KvchatError with the reason if the model (default: the one in use) does not support images."""
        ...

    def can_recover(self) -> bool:
        """True if an engine is running or restarting after a loss."""
        ...

    async def note_restore(self, *, was_used: bool) -> None:
        """Record whether the engine used what it restored, which changes how later restores are done."""
        ...
