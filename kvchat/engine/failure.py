"""Reads from an engine's outcome and its last words why it died, and says so in words. Pure."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Callable, Sequence

from kvchat.engine import embedded, leash
from kvchat.engine.interface import EngineBroken, EngineError, EngineSilent
from kvchat.engine.outcome import Outcome
from kvchat.engine.plan import LaunchPlan
from kvchat.engine.status import EngineFailure, FailureKind

_WINDOWS_DLL_NOT_FOUND = 0xC0000135
_WINDOWS_ILLEGAL_INSTRUCTION = 0xC000001D

_OUT_OF_MEMORY = re.compile(
    r"failed to allocate|unable to allocate|cudaMalloc failed|std::bad_alloc|out of (device )?memory"
    r"|ErrorOutOf(Device|Host)Memory|Insufficient Memory|Cannot allocate memory|alloc_tensor_range: failed",
    re.IGNORECASE,
)
_PORT_TAKEN = re.compile(r"couldn't bind HTTP server socket|Address already in use", re.IGNORECASE)
_MISSING_LIBRARY = re.compile(r"error while loading shared libraries|Library not loaded|cannot open shared object file")
_BAD_ARGUMENT = re.compile(r"invalid argument:|unknown argument|error while handling argument", re.IGNORECASE)
_BAD_MODEL = re.compile(
    r"invalid magic|unknown model architecture|missing tensor|error loading model|failed to load model"
    r"|corrupted or incomplete|gguf_init_from_\w+: failed",
    re.IGNORECASE,
)
_NO_FLASH_ATTENTION = re.compile(r"V cache.* requires flash[_ ]att", re.IGNORECASE)  # src/llama-context.cpp
# What the backends say when the driver was reset or the card is gone (ggml-cuda, -vulkan, -metal, -sycl).
_GPU_LOST = re.compile(
    r"(CUDA|ROCm|MUSA|HIP) error|DeviceLost|device lost|GPU is lost|fallen off the bus|unspecified launch failure"
    r"|command buffer \d+ failed|SYCL error",
    re.IGNORECASE,
)
# llama-server goes on after this, and no request will succeed again (tools/server/server-context.cpp).
_CANNOT_COMPUTE = re.compile(r"compute error", re.IGNORECASE)
# ggml_abort begins with the place in its source; the backtrace below it names ggml_abort, and no reason.
_ASSERTION = re.compile(r"GGML_ASSERT|\.(c|cc|cpp|cu|cuh|h|hpp|m|mm):\d+: |terminate called", re.IGNORECASE)
_WORKER_GONE = re.compile(r"ggml-rpc\S*: (?:Failed to connect to (?P<worker>\S+)|Remote RPC server)", re.IGNORECASE)

_Rule = tuple[re.Pattern[str], Callable[[str], EngineFailure]]
_FROM_OUTSIDE = {getattr(signal, name, None) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")} - {None}

# llama.cpp's "0.00.026.668 E " (time, level) and the module column before the function's name.
_PREFIX = re.compile(r"^(\d+\.)+\d+ [A-Z] (?:(?:srv|cmn|slt|cli|que|res|hf)\s+\S+:?\s+)?")

_MEMORY_ADVICE = "Choose a smaller context or a smaller model, or close other programs that use much memory."
_LOG_ADVICE = "The engine's log says more. If it happens again, try another model or another llama-server version."


def explain(outcome: Outcome, *, was_ready: bool = False) -> EngineFailure:
    """Why the process ended, for a process nobody told to stop. `was_ready`: it had been serving before."""
    lines = outcome.last_lines
    failure = _by_start(outcome, lines) or _by_words(outcome, lines, was_ready) or _by_signal(outcome, lines)
    if failure is not None:
        return failure
    return EngineFailure(
        FailureKind.EXITED,
        "The engine stopped by itself",
        _with_line(f"It ended with exit code {outcome.code}.", _last_error(lines)),
        _LOG_ADVICE,
    )


def worker_gone(text: str) -> EngineFailure | None:
    """That a computer which shares the work does not answer, if it is this that an engine said; else None."""
    line = _find(_WORKER_GONE, text.splitlines())
    return _worker_gone(line) if line else None


def timed_out(seconds: float, lines: Sequence[str]) -> EngineFailure:
    """The engine said nothing for so long while it loaded that it was given up."""
    return EngineFailure(
        FailureKind.TIMED_OUT,
        "The engine did not come up",
        _with_line(f"It showed no progress for {seconds:.0f} seconds and was stopped.", _last_error(lines)),
        "Is the model on a slow or sleeping disk? Try again, or try a smaller model.",
    )


def ailing(error: EngineError) -> EngineFailure | None:
    """What a failed request says of the process: a reason to start another one, or None."""
    if isinstance(error, EngineSilent):
        return hangs()
    return error.failure if isinstance(error, EngineBroken) else None  # gone: the process says why


def broken(status: int, message: str) -> EngineFailure | None:
    """Why an engine that answers with this error will not answer otherwise again; None for an ordinary refusal."""
    if _GPU_LOST.search(message):
        return _gpu_lost(message)
    if status == 500 and _CANNOT_COMPUTE.search(message):
        return EngineFailure(
            FailureKind.CRASHED, "The engine can no longer compute", f"It said: {message}", _LOG_ADVICE
        )
    return None


def hangs() -> EngineFailure:
    """A ready engine that answers no more."""
    return EngineFailure(
        FailureKind.HANGS, "The engine hung", "It did not answer for too long and was stopped.", _LOG_ADVICE
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
    library = _find(_MISSING_LIBRARY, lines)
    if library is not None or outcome.code == _WINDOWS_DLL_NOT_FOUND:
        return EngineFailure(
            FailureKind.MISSING_LIBRARY,
            "The engine lacks a library",
            library or "A library (DLL) that it needs is not installed.",
            "Install llama-server again, together with the libraries it was built with, or set the engine path in the "
            'settings to "embedded" to use the engine inside kvchat.',
        )
    if outcome.code in (leash.EXIT_NOT_FOUND, leash.EXIT_NOT_EXECUTABLE, embedded.EXIT_NOT_INSTALLED):
        return EngineFailure(
            FailureKind.NOT_FOUND,
            "The engine could not be started",
            _last_error(lines) or "Its program is not there or may not be run.",
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
    """It said why. The order counts: a model that finds no memory also "failed to load"."""
    if outcome.signal in _FROM_OUTSIDE:
        return None  # it had no time to say anything; what stands in the log is about something else
    dying: tuple[_Rule, ...] = (
        (_OUT_OF_MEMORY, _out_of_memory),
        (_GPU_LOST, _gpu_lost),
        (_WORKER_GONE, _worker_gone),
        (_ASSERTION, _assertion),
    )
    starting: tuple[_Rule, ...] = (
        (_PORT_TAKEN, _port_taken),
        (_BAD_ARGUMENT, _bad_argument),
        (_NO_FLASH_ATTENTION, _no_flash_attention),
        (_BAD_MODEL, _bad_model),
    )
    for pattern, failure in dying if was_ready else dying + starting:
        line = _find(pattern, lines)
        if line is not None:
            return failure(line)
    return None


def _by_signal(outcome: Outcome, lines: Sequence[str]) -> EngineFailure | None:
    """It said nothing that helps."""
    if outcome.signal is None:
        return None
    name = _signal_name(outcome.signal)
    if name == "SIGKILL":
        if outcome.memory_ran_out:
            return _out_of_memory("It was killed while the system ended programs for want of memory.")
        return EngineFailure(
            FailureKind.KILLED,
            "The engine was killed",
            "Something outside kvchat ended it at once (SIGKILL). Systems do that when memory runs out.",
            _MEMORY_ADVICE,
        )
    if name in ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGTRAP"):
        return EngineFailure(
            FailureKind.CRASHED,
            "The engine crashed",
            _with_line(f"It ended with {name}.", _last_error(lines)),
            _LOG_ADVICE,
        )
    return EngineFailure(
        FailureKind.KILLED, "The engine was killed", f"Something outside kvchat ended it ({name}).", _LOG_ADVICE
    )


def _out_of_memory(line: str) -> EngineFailure:
    return EngineFailure(FailureKind.OUT_OF_MEMORY, "The engine ran out of memory", line, _MEMORY_ADVICE)


def _gpu_lost(line: str) -> EngineFailure:
    return EngineFailure(
        FailureKind.GPU_LOST,
        "The graphics card stopped working for the engine",
        line,
        "This happens when its driver is reset or updated, or after sleep. If it goes on, restart the computer.",
    )


def _worker_gone(line: str) -> EngineFailure:
    match = _WORKER_GONE.search(line)
    worker = match["worker"] if match else None
    return EngineFailure(
        FailureKind.WORKER_LOST,
        "Another computer does not answer",
        f"No rpc-server answers at {worker}." if worker else "The rpc-server of another computer has stopped.",
        "Start rpc-server there and check the network, or take that computer out of the list in the settings.",
    )


def _port_taken(line: str) -> EngineFailure:
    advice = "Start the engine again: another port is chosen each time."
    return EngineFailure(FailureKind.PORT_TAKEN, "The engine's port was taken", line, advice)


def _assertion(line: str) -> EngineFailure:
    return EngineFailure(FailureKind.CRASHED, "The engine crashed", line, _LOG_ADVICE)


def _bad_argument(line: str) -> EngineFailure:
    return EngineFailure(
        FailureKind.INCOMPATIBLE,
        "This engine does not fit kvchat",
        line,
        'Install a newer llama-server, or set the engine path in the settings to "embedded" to use kvchat\'s own.',
    )


def _no_flash_attention(line: str) -> EngineFailure:
    return EngineFailure(
        FailureKind.INCOMPATIBLE,
        "This KV type does not work here",
        line,
        'The model is fine. Set the KV type in the settings to "f16", or use an engine with flash attention.',
    )


def _bad_model(line: str) -> EngineFailure:
    if re.search("unknown model architecture", line, re.IGNORECASE):
        advice = "This engine does not know this kind of model yet: update the engine, or choose another model."
    else:
        advice = "Choose another model, or download this one again: the file may be damaged or incomplete."
    return EngineFailure(FailureKind.BAD_MODEL, "The model cannot be loaded", line, advice)


def _find(pattern: re.Pattern[str], lines: Sequence[str]) -> str | None:
    """The first line that fits: later ones repeat it in vaguer words."""
    return next((_clean(line) for line in lines if pattern.search(line)), None)


def _last_error(lines: Sequence[str]) -> str:
    """The last line of level E, or simply the last line."""
    errors = [line for line in lines if re.match(r"^(\d+\.)+\d+ E ", line) or "error" in line.lower()]
    meant = errors or [line for line in lines if line.strip()]
    return _clean(meant[-1]) if meant else ""


def _clean(line: str) -> str:
    return _PREFIX.sub("", line).strip()


def _with_line(sentence: str, line: str) -> str:
    return f"{sentence} It said last: {line}" if line else sentence


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
