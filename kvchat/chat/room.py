"""The engine room as a turn sees it: a ready engine with the facts that go with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvchat.engine.client import Engine, EngineError
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
    slides: (
        bool  # whether some layers attend through a sliding window: then a restore needs older rows beside the file's
    )
    can_cut: bool  # whether a state can be cut back to any prefix: plain attention, not SWA, hybrid or recurrent


class EngineRoom(Protocol):
    """Where ready engines come from."""

    async def ready(self) -> ReadyEngine:
        """Wait until an engine is ready, starting one if need be. Raises KvchatError when there will be none."""
        ...

    def is_ready(self) -> bool:
        """Whether `ready` would answer at once."""
        ...

    async def explain_loss(self, error: EngineError) -> EngineError:
        """After EngineGone: the reason in the supervisor's words, once it knows it."""
        ...
