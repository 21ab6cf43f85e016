"""What an engine's own words say of why it ended, or why it will not answer again. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from kvchat.engine.speaking.status import EngineFailure, FailureKind

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

# llama.cpp's "0.00.026.668 E " (time, level) and the module column before the function's name.
_PREFIX = re.compile(r"^(\d+\.)+\d+ [A-Z] (?:(?:srv|cmn|slt|cli|que|res|hf)\s+\S+:?\s+)?")

MEMORY_ADVICE = "Choose a smaller context or a smaller model, or close other programs that use much memory."
LOG_ADVICE = "The engine's log says more. If it happens again, try another model or another llama-server version."


def why(lines: Sequence[str], *, was_ready: bool) -> EngineFailure | None:
    """Why it ended, if it said so. The order counts: a model that finds no memory also "failed to load"."""
    dying: tuple[_Rule, ...] = (
        (_OUT_OF_MEMORY, out_of_memory),
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


def worker_gone(text: str) -> EngineFailure | None:
    """That a computer which shares the work does not answer, if it is this that an engine said; else None."""
    line = _find(_WORKER_GONE, text.splitlines())
    return _worker_gone(line) if line else None


def broken(status: int, message: str) -> EngineFailure | None:
    """Why an engine that answers with this error will not answer otherwise again; None for an ordinary refusal."""
    if _GPU_LOST.search(message):
        return _gpu_lost(message)
    if status == 500 and _CANNOT_COMPUTE.search(message):
        return EngineFailure(FailureKind.CRASHED, "The engine can no longer compute", f"It said: {message}", LOG_ADVICE)
    return None


def missing_library(lines: Sequence[str]) -> str | None:
    """The line that names a library it lacks."""
    return _find(_MISSING_LIBRARY, lines)


def out_of_memory(line: str) -> EngineFailure:
    """Memory ran out, which `line` says."""
    return EngineFailure(FailureKind.OUT_OF_MEMORY, "The engine ran out of memory", line, MEMORY_ADVICE)


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
    return EngineFailure(FailureKind.CRASHED, "The engine crashed", line, LOG_ADVICE)


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
        "This precision does not work here",
        line,
        "The model is fine. Set the precision in the settings to exact (f16), or use an engine with flash attention.",
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


def last_error(lines: Sequence[str]) -> str:
    """The last line of level E, or simply the last line."""
    errors = [line for line in lines if re.match(r"^(\d+\.)+\d+ E ", line) or "error" in line.lower()]
    meant = errors or [line for line in lines if line.strip()]
    return _clean(meant[-1]) if meant else ""


def _clean(line: str) -> str:
    return _PREFIX.sub("", line).strip()


def said_last(sentence: str, lines: Sequence[str]) -> str:
    """The sentence, and what was said last."""
    line = last_error(lines)
    return f"{sentence} It said last: {line}" if line else sentence
