"""What an engine is doing, and in which words it failed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class EngineState(Enum):
    """The life of an engine process."""

    STOPPED = "stopped"
    RESTING = "resting"  # none runs, to save memory; the next message starts one
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"
    FAILED = "failed"


DOWN = (EngineState.STOPPED, EngineState.RESTING, EngineState.FAILED)  # none runs, nor will by itself


class FailureKind(Enum):
    """Why an engine died or did not come up."""

    OUT_OF_MEMORY = "out of memory"
    BAD_MODEL = "bad model"
    PORT_TAKEN = "port taken"
    MISSING_LIBRARY = "missing library"
    NOT_FOUND = "not found"
    INCOMPATIBLE = "incompatible"  # the engine does not know an option kvchat needs
    UNSUPPORTED_CPU = "unsupported cpu"
    KILLED = "killed"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    HANGS = "hangs"  # it was ready and answers no more
    GPU_LOST = "gpu lost"
    WORKER_LOST = "worker lost"  # a computer that shares the work
    EXITED = "exited"


@dataclass(frozen=True)
class EngineFailure:
    """An engine's failure in words: one title line, what happened, what to do next."""

    kind: FailureKind
    title: str
    detail: str
    advice: str


@dataclass(frozen=True)
class EngineStatus:
    """A snapshot of the engine, for the strip and the tray."""

    state: EngineState
    failure: EngineFailure | None = None  # set when FAILED, and while restarting after a death
    restart_attempt: int = 0  # 0 when the engine was started on purpose; n for the n-th automatic restart
    checking: bool = False  # while LOADING: the engine answers, and whether restoring works with it is being tried out
    stop_rung: str | None = None  # after a stop: which rung of the ladder did it ("asked", "terminated", "killed")
