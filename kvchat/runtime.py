"""The parts without Qt, made and joined: what the app, `ask` and `bench` have in common."""

from __future__ import annotations

from pathlib import Path

from kvchat.chat.events import EventBus
from kvchat.chat.service import ChatService
from kvchat.engine.status import EngineStatus
from kvchat.kvstore.savepoint import StoreUsage
from kvchat.paths import Paths
from kvchat.settings import Settings


class Runtime:
    """A running kvchat without its window. Made by `open_runtime`, ended by `close`."""

    paths: Paths
    settings: Settings
    events: EventBus
    chat: ChatService

    @property
    def engine_status(self) -> EngineStatus:
        """What the engine is doing."""
        raise NotImplementedError

    @property
    def model_name(self) -> str | None:
        """The model's name for the screen, None without a model."""
        raise NotImplementedError

    @property
    def context_size(self) -> int | None:
        """The context size in tokens, None before the engine is ready."""
        raise NotImplementedError

    @property
    def context_reason(self) -> str:
        """Why that context size, in words."""
        raise NotImplementedError

    @property
    def slot_conversation(self) -> str | None:
        """The conversation whose state is in the slot right now, if any: the one that is hot."""
        raise NotImplementedError

    def engine_log(self) -> list[str]:
        """The engine's own output, newest last, bounded."""
        raise NotImplementedError

    async def start_engine(self) -> None:
        """Start the engine with the model from the settings; returns at once, `EngineChanged` tells the rest."""
        raise NotImplementedError

    async def stop_engine(self) -> None:
        """Save what is unsaved, then stop the engine."""
        raise NotImplementedError

    async def restart_engine(self) -> None:
        """Stop, then start."""
        raise NotImplementedError

    async def use_model(self, path: Path) -> None:
        """Check that it is a GGUF, remember it in the settings and restart the engine with it. Raises KvchatError."""
        raise NotImplementedError

    async def apply_settings(self, settings: Settings) -> None:
        """Store the settings and put them into force; the engine restarts if it has to."""
        raise NotImplementedError

    async def store_usage(self) -> StoreUsage:
        """What the save points cost on disk."""
        raise NotImplementedError

    async def delete_save_points(self, conversation_id: str | None) -> int:
        """Delete one conversation's save points, or all; returns the bytes freed."""
        raise NotImplementedError

    async def close(self) -> None:
        """Finish the running save, stop the engine, close the database."""
        raise NotImplementedError
