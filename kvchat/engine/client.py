"""Speaks HTTP to a llama-server: one request, one typed answer. Foreign errors are translated here, once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from kvchat.engine.wire import ChatChunk, ChatMessage, Sampling, ServerFacts, SlotRestore, SlotSave
from kvchat.errors import KvchatError


class EngineError(KvchatError):
    """Something went wrong between kvchat and its engine."""


class EngineGone(EngineError):
    """The connection could not be made or broke off: the engine died, hangs or was stopped."""


class EngineRefused(EngineError):
    """The engine answered with an error status."""

    def __init__(self, status: int, message: str, kind: str = "") -> None:
        super().__init__("The engine refused the request", message)
        self.status = status
        self.message = message
        self.kind = kind  # llama-server's error type, e.g. "exceed_context_size_error"


class Engine(Protocol):
    """A ready llama-server as a turn sees it. Every method raises EngineGone or EngineRefused."""

    async def facts(self) -> ServerFacts:
        """GET /props."""
        ...

    async def prompt_tokens(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """The token ids a chat request with these messages is going to send: /apply-template, then /tokenize."""
        ...

    def chat(self, messages: Sequence[ChatMessage], sampling: Sampling) -> AsyncIterator[ChatChunk]:
        """POST /v1/chat/completions, streamed, pinned to slot 0, with progress and timings. Closing it drops the request."""
        ...

    async def prefill(self, tokens: Sequence[int]) -> None:
        """POST /completion with n_predict 0: make the slot hold exactly these tokens."""
        ...

    async def save_slot(self, filename: str) -> SlotSave:
        """POST /slots/0?action=save."""
        ...

    async def restore_slot(self, filename: str) -> SlotRestore:
        """POST /slots/0?action=restore."""
        ...

    async def erase_slot(self) -> None:
        """POST /slots/0?action=erase."""
        ...
