"""Explains why an engine died, from its exit and its last output (`errors.py`). Pure."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Sequence
from pathlib import Path

from kvchat.engine import embedded, parent_guard
from kvchat.engine.api import errors
from kvchat.engine.api.errors import (
    LOG_ADVICE,
    MEMORY_ADVICE,
    MISSING_LIBRARY,
    OUT_OF_MEMORY,
    EngineFailed,
    EngineFailure,
    FailureKind,
    find_line,
    last_error,
    with_last_output,
)
from kvchat.engine.discovery.arguments import BadArguments, BadWorkers
from kvchat.engine.discovery.engines import EngineNotFound, EngineTooOld
from kvchat.engine.process.child import ProcessExit
from kvchat.engine.process.external import BadAddress
from kvchat.engine.process.plan import LaunchPlan
from kvchat.errors import KvchatError
from kvchat.text.language import _, format_number, join_sentences

_WINDOWS_DLL_NOT_FOUND = 0xC0000135
_WINDOWS_ILLEGAL_INSTRUCTION = 0xC000001D

_EXTERNAL_SIGNALS = {getattr(signal, name, None) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")} - {None}


def explain_exit(outcome: ProcessExit, *, was_ready: bool = False) -> EngineFailure:
    """Explain why a process ended unasked. `was_ready`: it had been serving before."""
    lines = outcome.last_lines
    failure = _startup_failure(outcome, lines)
    if failure is None and outcome.signal not in _EXTERNAL_SIGNALS:  # a killed engine logs no reason
        failure = errors.diagnose(lines, was_ready=was_ready)
    return (
        failure
        or _signal_failure(outcome, lines)
        or EngineFailure(
            FailureKind.EXITED,
            _("The engine stopped unexpectedly"),
            with_last_output(_("It exited with code {code}.", code=outcome.code), lines),
            _(LOG_ADVICE),
        )
    )


def timed_out(seconds: float, lines: Sequence[str]) -> EngineFailure:
    return EngineFailure(
        FailureKind.TIMED_OUT,
        _("The engine did not start"),
        with_last_output(
            _("It showed no progress for {seconds} seconds and was stopped.", seconds=f"{seconds:.0f}"), lines
        ),
        _("The model may be on a slow or sleeping disk. Try again, or try a smaller model."),
    )


def hangs() -> EngineFailure:
    return EngineFailure(
        FailureKind.HANGS,
        _("The engine stopped responding"),
        _("It did not respond for too long and was stopped."),
        _(LOG_ADVICE),
    )


def foreign_server(port: int) -> EngineFailure:
    return EngineFailure(
        FailureKind.PORT_TAKEN,
        _("The engine's port is already in use"),
        _("Another program is using port {port}.", port=port),
        _("Start the engine again; kvchat chooses a new port each time."),
    )


def model_missing(path: Path) -> EngineFailure:
    title, advice = _("The model file is missing"), _("The file may have been moved. Choose the model again.")
    return EngineFailure(FailureKind.MODEL_MISSING, title, str(path), advice)


def cannot_spawn(error: OSError) -> EngineFailure:
    return EngineFailure(
        FailureKind.EXITED, _("The engine could not be started"), str(error), _("Close some programs and try again.")
    )


def internal_error(error: BaseException) -> EngineFailure:
    return EngineFailure(
        FailureKind.EXITED,
        _("kvchat lost track of the engine"),
        _("This is a bug in kvchat: {error}", error=repr(error)),
        _("Start the engine again, and please report this bug."),
    )


def retries_exhausted(reason: EngineFailure, deaths: int) -> EngineFailure:
    if deaths < 2:
        return reason
    left_alone = _("It stopped {deaths} times, so kvchat does not restart it again.", deaths=deaths)
    return dataclasses.replace(reason, detail=join_sentences(reason.detail, left_alone))


def retrying_smaller(reason: EngineFailure, plan: LaunchPlan) -> EngineFailure:
    tokens = format_number(plan.context_size)
    advice = _("kvchat is restarting it with a context length of {tokens} tokens.", tokens=tokens)
    if plan.without_gpu:
        advice = _(
            "kvchat is restarting it with a context length of {tokens} tokens and {layers} layers on the GPU.",
            tokens=tokens,
            layers=0,
        )
    return dataclasses.replace(reason, advice=advice)


def _startup_failure(outcome: ProcessExit, lines: Sequence[str]) -> EngineFailure | None:
    library = find_line(MISSING_LIBRARY, lines)
    if library is not None or outcome.code == _WINDOWS_DLL_NOT_FOUND:
        return EngineFailure(
            FailureKind.MISSING_LIBRARY,
            _("The engine is missing a library"),
            library or _("A required library (DLL) is not installed."),
            _(
                "Reinstall llama-server with the libraries it was built with, or set the engine path "
                'in the settings to "embedded" to use the embedded engine.'
            ),
        )
    if outcome.code in (parent_guard.EXIT_NOT_FOUND, parent_guard.EXIT_NOT_EXECUTABLE, embedded.EXIT_NOT_INSTALLED):
        return EngineFailure(
            FailureKind.NOT_FOUND,
            _("The engine could not be started"),
            last_error(lines) or _("The program is missing or not executable."),
            _("Check the engine path in the settings."),
        )
    if outcome.signal == signal.SIGILL.value or outcome.code == _WINDOWS_ILLEGAL_INSTRUCTION:
        return EngineFailure(
            FailureKind.UNSUPPORTED_CPU,
            _("The engine does not support this CPU"),
            _("It used an instruction that this CPU does not support."),
            _("Install a llama-server built for this machine."),
        )
    return None


def _signal_failure(outcome: ProcessExit, lines: Sequence[str]) -> EngineFailure | None:
    if outcome.signal is None:
        return None
    try:
        name = signal.Signals(outcome.signal).name
    except ValueError:
        name = _("signal {number}", number=outcome.signal)
    if name == "SIGKILL":
        if outcome.out_of_memory:
            return OUT_OF_MEMORY.failure(_("The system killed it because memory ran out."))
        return EngineFailure(
            FailureKind.KILLED,
            _("The engine was killed"),
            _("It was killed from outside kvchat (SIGKILL). The system does this when memory runs out."),
            _(MEMORY_ADVICE),
        )
    if name in ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGTRAP"):
        return EngineFailure(
            FailureKind.CRASHED,
            _("The engine crashed"),
            with_last_output(_("It was terminated by {name}.", name=name), lines),
            _(LOG_ADVICE),
        )
    return EngineFailure(
        FailureKind.KILLED,
        _("The engine was killed"),
        _("It was terminated from outside kvchat ({name}).", name=name),
        _(LOG_ADVICE),
    )


def preparation_failure() -> EngineFailure:
    return EngineFailure(
        FailureKind.EXITED,
        _("The engine could not be started"),
        _("An unexpected error occurred while kvchat prepared to start it."),
        _("See the report for details. Try again, or choose another model or engine."),
    )


def start_failure(error: KvchatError) -> EngineFailure:
    if isinstance(error, EngineFailed):
        return error.failure
    kinds = {
        EngineNotFound: FailureKind.NOT_FOUND,
        BadAddress: FailureKind.NOT_FOUND,
        EngineTooOld: FailureKind.INCOMPATIBLE,
        BadArguments: FailureKind.INCOMPATIBLE,
        BadWorkers: FailureKind.INCOMPATIBLE,
    }
    kind = next((kind for of, kind in kinds.items() if isinstance(error, of)), FailureKind.BAD_MODEL)
    return EngineFailure(kind, error.title, error.detail, error.advice)
