"""How speaking to an engine can fail."""

from __future__ import annotations

from kvchat.engine.speaking.status import EngineFailure
from kvchat.errors import KvchatError


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
