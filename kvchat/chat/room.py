"""The engine room as a turn sees it: a ready engine with the facts that go with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from kvchat.chat.options import TemplateOptions
from kvchat.chat.strategy import Finding, Strategy
from kvchat.engine.speaking.interface import Engine, EngineError
from kvchat.kvstore.savepoint import Fingerprint


@dataclass(frozen=True)
class ReadyEngine:
    """An engine that answers, and what a turn must know of it."""

    engine: Engine
    generation: int  # grows with every launched process: another number, an empty slot
    slot_path: Path
    fingerprint: Fingerprint
    context_size: int  # tokens
    kv_bytes_per_token: float
    finding: Finding  # what restoring can do here
    sees: bool = False  # it can be shown pictures
    most_context: int = 0  # tokens it may grow to by being started again; 0: it is as large as it will be

    @property
    def limit(self) -> int:
        """How many tokens a chat may have: what is laid out now may be less."""
        return max(self.context_size, self.most_context)

    def rendering(self, template: TemplateOptions) -> ReadyEngine:
        """The same engine, rendering prompts with these options of the model's chat template."""
        return replace(self, engine=self.engine.with_template(dict(template))) if template else self

    @property
    def can_cut(self) -> bool:
        """Whether a state can be cut back to any prefix."""
        return self.finding.strategy.can_cut

    @property
    def slides(self) -> bool:
        """Whether a restore needs older rows of a sliding window beside the file's."""
        return self.finding.strategy is Strategy.COMPLETE

    @property
    def saves(self) -> bool:
        """Whether saving is of any use."""
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

    def is_ready(self, model: str | None = None, *, sees: bool = False) -> bool:
        """Whether `ready` would answer at once."""
        ...

    async def check_vision(self, model: str | None = None) -> None:
        """Whether that model, or the one in use, can be shown pictures. Raises a KvchatError that says why not."""
        ...

    def recovers(self) -> bool:
        """After a loss: whether an engine is there or coming up by itself."""
        ...

    async def note_restore(self, *, hollow: bool) -> None:
        """A restore in a real turn held, or proved hollow: what restoring can do here may have to be thought over."""
        ...

    async def explain_loss(self, error: EngineError) -> EngineError:
        """After EngineGone: the reason in the supervisor's words, once it knows it."""
        ...
