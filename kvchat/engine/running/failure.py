"""Says in words why an engine died: by how it ended and by its last words (`errors.py`). Pure."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Sequence

from kvchat.engine import embedded, parent_guard
from kvchat.engine.finding.discovery import EngineNotFound
from kvchat.engine.finding.extra_arguments import BadArguments, BadWorkers
from kvchat.engine.finding.probe import EngineTooOld
from kvchat.engine.running.plan import LaunchPlan
from kvchat.engine.running.process import Outcome
from kvchat.engine.speaking import errors
from kvchat.engine.speaking.errors import (
    LOG_ADVICE,
    MEMORY_ADVICE,
    EngineBroken,
    EngineError,
    EngineFailed,
    EngineFailure,
    EngineSilent,
    FailureKind,
    last_error,
    missing_library,
    out_of_memory,
    said_last,
)
from kvchat.errors import KvchatError

_WINDOWS_DLL_NOT_FOUND = 0xC0000135
_WINDOWS_ILLEGAL_INSTRUCTION = 0xC000001D

_FROM_OUTSIDE = {getattr(signal, name, None) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")} - {None}


def explain(outcome: Outcome, *, was_ready: bool = False) -> EngineFailure:
    """Why the process ended, for a process nobody told to stop. `was_ready`: it had been serving before."""
    lines = outcome.last_lines
    failure = _by_start(outcome, lines) or _by_words(outcome, lines, was_ready) or _by_signal(outcome, lines)
    if failure is not None:
        return failure
    return EngineFailure(
        FailureKind.EXITED,
        "The engine stopped by itself",
        said_last(f"It ended with exit code {outcome.code}.", lines),
        LOG_ADVICE,
    )


def timed_out(seconds: float, lines: Sequence[str]) -> EngineFailure:
    """The engine said nothing for so long while it loaded that it was given up."""
    return EngineFailure(
        FailureKind.TIMED_OUT,
        "The engine did not come up",
        said_last(f"It showed no progress for {seconds:.0f} seconds and was stopped.", lines),
        "Is the model on a slow or sleeping disk? Try again, or try a smaller model.",
    )


def ailing(error: EngineError) -> EngineFailure | None:
    """What a failed request says of the process: a reason to start another one, or None."""
    if isinstance(error, EngineSilent):
        return hangs()
    return error.failure if isinstance(error, EngineBroken) else None  # gone: the process says why


def hangs() -> EngineFailure:
    """A ready engine that answers no more."""
    return EngineFailure(
        FailureKind.HANGS, "The engine hung", "It did not answer for too long and was stopped.", LOG_ADVICE
    )


def foreign_server(port: int) -> EngineFailure:
    """Somebody else answered on our port."""
    return EngineFailure(
        FailureKind.PORT_TAKEN,
        "The engine's port was taken",
        f"Another program answers on port {port}.",
        "Start the engine again: another port is chosen each time.",
    )


def cannot_spawn(error: OSError) -> EngineFailure:
    """Not even a process could be made."""
    return EngineFailure(
        FailureKind.EXITED, "The engine could not be started", str(error), "Close some programs and try again."
    )


def bug(error: BaseException) -> EngineFailure:
    """kvchat itself broke while it looked after the engine."""
    return EngineFailure(
        FailureKind.EXITED,
        "kvchat lost track of the engine",
        f"This is a fault in kvchat: {error!r}",
        "Start the engine again, and please report this.",
    )


def given_up(reason: EngineFailure, deaths: int) -> EngineFailure:
    """The same reason, for an engine that is not started again."""
    if deaths < 2:
        return reason
    return dataclasses.replace(reason, detail=f"{reason.detail} It died {deaths} times, so it is left alone.")


def smaller(reason: EngineFailure, plan: LaunchPlan) -> EngineFailure:
    """The same reason, for an engine that is started again with a smaller plan."""
    layers = "" if plan.gpu_layers is None else f" and {plan.gpu_layers} layers on the GPU"
    return dataclasses.replace(reason, advice=f"It is started again with {plan.context_size:,} tokens{layers}.")


def _by_start(outcome: Outcome, lines: Sequence[str]) -> EngineFailure | None:
    """It never really ran."""
    library = missing_library(lines)
    if library is not None or outcome.code == _WINDOWS_DLL_NOT_FOUND:
        return EngineFailure(
            FailureKind.MISSING_LIBRARY,
            "The engine lacks a library",
            library or "A library (DLL) that it needs is not installed.",
            "Install llama-server again, together with the libraries it was built with, or set the engine path in the "
            'settings to "embedded" to use the engine inside kvchat.',
        )
    if outcome.code in (parent_guard.EXIT_NOT_FOUND, parent_guard.EXIT_NOT_EXECUTABLE, embedded.EXIT_NOT_INSTALLED):
        return EngineFailure(
            FailureKind.NOT_FOUND,
            "The engine could not be started",
            last_error(lines) or "Its program is not there or may not be run.",
            "Check the engine path in the settings.",
        )
    if outcome.signal == signal.SIGILL.value or outcome.code == _WINDOWS_ILLEGAL_INSTRUCTION:
        return EngineFailure(
            FailureKind.UNSUPPORTED_CPU,
            "The engine does not fit this processor",
            "It used an instruction this processor does not have.",
            "Install a llama-server built for this machine.",
        )
    return None


def _by_words(outcome: Outcome, lines: Sequence[str], was_ready: bool) -> EngineFailure | None:
    """It said why."""
    if outcome.signal in _FROM_OUTSIDE:
        return None  # it had no time to say anything; what stands in the log is about something else
    return errors.why(lines, was_ready=was_ready)


def _by_signal(outcome: Outcome, lines: Sequence[str]) -> EngineFailure | None:
    """It said nothing that helps."""
    if outcome.signal is None:
        return None
    name = _signal_name(outcome.signal)
    if name == "SIGKILL":
        if outcome.memory_ran_out:
            return out_of_memory("It was killed while the system ended programs for want of memory.")
        return EngineFailure(
            FailureKind.KILLED,
            "The engine was killed",
            "Something outside kvchat ended it at once (SIGKILL). Systems do that when memory runs out.",
            MEMORY_ADVICE,
        )
    if name in ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGTRAP"):
        return EngineFailure(
            FailureKind.CRASHED,
            "The engine crashed",
            said_last(f"It ended with {name}.", lines),
            LOG_ADVICE,
        )
    return EngineFailure(
        FailureKind.KILLED,
        "The engine was killed",
        f"Something outside kvchat ended it ({name}).",
        LOG_ADVICE,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


NOT_PREPARED = EngineFailure(
    FailureKind.EXITED,
    "The engine could not be started",
    "Something unexpected went wrong while kvchat prepared it.",
    "The report says what; try again, or choose another model or engine.",
)


def not_started(error: KvchatError) -> EngineFailure:
    """What kept the engine from being chosen, as a failure."""
    if isinstance(error, EngineFailed):
        return error.failure
    kinds = {
        EngineNotFound: FailureKind.NOT_FOUND,
        EngineTooOld: FailureKind.INCOMPATIBLE,
        BadArguments: FailureKind.INCOMPATIBLE,
        BadWorkers: FailureKind.INCOMPATIBLE,
    }
    kind = next((kind for of, kind in kinds.items() if isinstance(error, of)), FailureKind.BAD_MODEL)
    return EngineFailure(kind, error.title, error.detail, error.advice)


def stopped_on_purpose() -> EngineError:
    """For a turn that was cut off because the user stopped the engine."""
    return EngineError("The engine was stopped", "", "It starts again with your next message.")
