"""The engine host as a session sees it: a ready engine with the facts that go with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from kvchat.engine.speaking.client import LlamaServerClient
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.session.restore_support import Finding, Strategy

TemplateOptions = tuple[tuple[str, bool | str], ...]  # of the model's chat template: name and value
MOST_LETTERS_A_TOKEN = 64  # on average, in a text however odd; English has 4 to 5
RESERVE_SHARE, RESERVE_MOST = 8, 2048  # of the context, one in so many tokens is kept for the reply; at most so many


@dataclass(frozen=True)
class ReadyEngine:
    """An engine that answers, and what a session must know of it."""

    engine: LlamaServerClient
    generation: int  # grows with every launched process: another number, an empty slot
    slot_path: Path
    fingerprint: Fingerprint
    context_size: int  # tokens
    kv_bytes_per_token: float
    finding: Finding  # what restoring can do here
    window: int = 0  # tokens that the model's sliding window reaches back; 0: it has none
    sees: bool = False  # it can be shown pictures
    most_context: int = 0  # tokens it may grow to by being started again; 0: it is as large as it will be
    slots: tuple[int, ...] = (0,)  # the numbers of those that kvchat uses; `engine` speaks to the first
    model_name: str = ""  # for the screen; empty: not known

    @property
    def limit(self) -> int:
        return max(self.context_size, self.most_context)

    def cannot_hold(self, letters: int) -> bool:
        """True if so much text has too many tokens, which is known without counting them."""
        return letters > MOST_LETTERS_A_TOKEN * self.limit

    def reserve(self, max_tokens: int | None) -> int:
        """Return how many tokens to keep free for a reply that may have so many."""
        return min(max_tokens or RESERVE_MOST, self.limit // RESERVE_SHARE)

    def too_small(self, tokens: int) -> bool:
        """True if it has no room for so many tokens, and may have more."""
        return self.context_size < min(tokens, self.limit)

    def on_slot(self, place: int) -> ReadyEngine:
        """Return the same engine, speaking to another of its slots: the first is 0, whatever its number."""
        return replace(self, engine=self.engine.on_slot(self.slots[place]))

    def rendering(self, template: TemplateOptions) -> ReadyEngine:
        return replace(self, engine=self.engine.with_template(dict(template))) if template else self

    @property
    def can_cut(self) -> bool:
        return self.finding.strategy.can_cut

    @property
    def window_to_complete(self) -> int:
        """Tokens of the sliding window that lacks a row in saved files; 0 for other models."""
        return self.window if self.finding.strategy in (Strategy.COMPLETE, Strategy.LONG) else 0

    def remembers(self, tokens: int) -> bool:
        """True if a chat of so many tokens can be restored."""
        return self.saves and not (self.finding.strategy is Strategy.LONG and tokens <= self.window)

    @property
    def saves(self) -> bool:
        return self.finding.strategy.saves


class EngineHost(Protocol):
    """Where ready engines come from."""

    async def ready(self, model: str | None = None, *, sees: bool = False, tokens: int = 0) -> ReadyEngine:
        """Wait until an engine is ready, with this model if one is named, starting or changing it if need be.

        `sees`: one that can be shown pictures. `tokens`: one with room for so many, as far as it can have it; what was
        in the slot of a smaller one is gone.

        Call it between turns. Raises KvchatError when there will be none.
        """
        ...

    def is_ready(self, model: str | None = None, *, sees: bool = False) -> bool: ...

    async def check_vision(self, model: str | None = None) -> None:
        """Raise a KvchatError that says why that model, or the one in use, can be shown no pictures."""
        ...

    def recovers(self) -> bool:
        """After a loss: True if an engine is there or coming up by itself."""
        ...

    async def note_restore(self, *, hollow: bool) -> None:
        """Learn from a restore in a real turn, which held or proved hollow."""
        ...
