"""An engine that was not even started, or was stopped: why, in words. What a process died of: see `failure`."""

from __future__ import annotations

from kvchat.engine.finding.discovery import EngineNotFound
from kvchat.engine.finding.extra_arguments import BadArguments, BadWorkers
from kvchat.engine.finding.probe import EngineTooOld
from kvchat.engine.speaking.interface import EngineError
from kvchat.engine.speaking.status import EngineFailure, FailureKind
from kvchat.errors import KvchatError

BUG = EngineFailure(
    FailureKind.EXITED,
    "The engine could not be started",
    "Something unexpected went wrong while kvchat prepared it.",
    "The report says what; try again, or choose another model or engine.",
)


class WorkerGone(KvchatError):
    """A computer that shares the work does not answer."""

    def __init__(self, failure: EngineFailure) -> None:
        super().__init__(failure.title, failure.detail, failure.advice)


def explain(error: KvchatError) -> EngineFailure:
    """What kept the engine from being chosen, as a failure."""
    kinds = {
        EngineNotFound: FailureKind.NOT_FOUND,
        EngineTooOld: FailureKind.INCOMPATIBLE,
        BadArguments: FailureKind.INCOMPATIBLE,
        BadWorkers: FailureKind.INCOMPATIBLE,
        WorkerGone: FailureKind.WORKER_LOST,
    }
    kind = next((kind for of, kind in kinds.items() if isinstance(error, of)), FailureKind.BAD_MODEL)
    return EngineFailure(kind, error.title, error.detail, error.advice)


def raised(failure: EngineFailure) -> EngineError:
    """The failure as an error for whoever waits for the engine."""
    return EngineError(failure.title, failure.detail, failure.advice)


def stopped_on_purpose() -> EngineError:
    """For a turn that was cut off because the user stopped the engine."""
    return EngineError("The engine was stopped", "", "It starts again with your next message.")
