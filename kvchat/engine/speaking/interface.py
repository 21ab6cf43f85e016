"""The engine's small interface: what a turn needs of a ready llama-server, and how that can fail."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Protocol

from kvchat.engine.speaking.status import EngineFailure
from kvchat.engine.speaking.wire import (
    ChatChunk,
    ChatMessage,
    PromptProgress,
    Sampling,
    ServerFacts,
    SlotRestore,
    SlotSave,
    Timings,
)
from kvchat.errors import KvchatError


class SlotRows:
    """How many leading tokens of a slot have the rows they had when it was saved or restored last.

    An engine never changes a row: it keeps those it says it took from its cache (`cache_n`), and computes the others
    anew. Of a request that has not said it yet, nothing is known.
    """

    def __init__(self) -> None:
        self.alone = True  # nobody else sends requests to this engine; if others may, nothing is ever known
        self.kept = 0

    def mark(self, tokens: int) -> None:
        """The slot holds so many tokens, just saved or restored."""
        self.kept = tokens if self.alone else 0

    def asked(self) -> int:
        """A request begins, or the slot is to hold something else; what was known until now."""
        before, self.kept = self.kept, 0
        return before

    def answered(self, before: int, cached: int) -> None:
        """A request took so many tokens from the cache; `before` is what `asked` answered."""
        self.kept = min(before, cached)


class EngineError(KvchatError):
    """Something went wrong between kvchat and its engine."""


class EngineGone(EngineError):
    """The connection could not be made or broke off: the engine died, hangs or was stopped."""


class EngineSilent(EngineGone):
    """The engine took a request and then said nothing for too long."""


class EngineBroken(EngineGone):
    """The engine answers, and says what only another process can heal: it is as good as gone."""

    def __init__(self, failure: EngineFailure) -> None:
        super().__init__(failure.title, failure.detail, failure.advice)
        self.failure = failure


class EngineRefused(EngineError):
    """The engine answered with an error status."""

    def __init__(self, status: int, message: str, kind: str = "") -> None:
        super().__init__("The engine refused the request", message)
        self.status = status
        self.message = message
        self.kind = kind  # llama-server's error type, e.g. "exceed_context_size_error"


class NotOurEngine(EngineError):
    """The server that answers is not the one we started."""


class Engine(Protocol):
    """A ready llama-server as a turn sees it. Every method raises EngineGone or EngineRefused."""

    rows: SlotRows

    async def facts(self) -> ServerFacts:
        """GET /props."""
        ...

    def with_template(self, options: Mapping[str, bool | str]) -> Engine:
        """The same engine, which renders and answers with these options of the chat template."""
        ...

    def with_projector(self, projector: str, marker: str) -> Engine:
        """The same engine, which is known to see pictures through that projector."""
        ...

    async def check_schema(self, schema: str) -> None:
        """Whether a reply can follow this JSON schema, without touching the slot. Raises EngineRefused if not."""
        ...

    async def prompt_tokens(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """The token ids a chat request with these messages is going to send: /apply-template, then /tokenize."""
        ...

    async def count_tokens(self, text: str) -> int:
        """How many tokens a text has, by itself: /tokenize."""
        ...

    def chat(self, messages: Sequence[ChatMessage], sampling: Sampling) -> AsyncGenerator[ChatChunk, None]:
        """POST /v1/chat/completions, streamed, pinned to one slot, with progress and timings.

        Closing it drops the request: wrap it in `contextlib.aclosing`.
        """
        ...

    async def prefill(
        self, tokens: Sequence[int], progress: Callable[[PromptProgress], None] = lambda progress: None
    ) -> Timings:
        """POST /completion with n_predict 0: make the slot hold exactly these tokens; what that took."""
        ...

    async def save_slot(self, filename: str) -> SlotSave:
        """POST /slots/N?action=save, N being the slot that all requests are pinned to."""
        ...

    async def restore_slot(self, filename: str) -> SlotRestore:
        """POST /slots/N?action=restore."""
        ...

    async def erase_slot(self) -> None:
        """POST /slots/N?action=erase."""
        ...
