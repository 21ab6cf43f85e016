"""Engine failures, and their diagnosis from the engine's messages. No I/O."""

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from kvchat.errors import KvchatError
from kvchat.text.language import N_, _, join_sentences
from kvchat.text.reasons import Reason

# llama-server's errors (tools/server/server-context.cpp and server-common.cpp of b11434).
TOO_LONG, CROWDED_OUT = "exceed_context_size_error", "Context size has been exceeded"
_SERVER_ERROR = 500  # HTTP
LOSS_DETECTION_S = 10.0  # longest time until the supervisor notices that the process died


class FailureKind(Enum):
    OUT_OF_MEMORY = "out of memory"
    BAD_MODEL = "bad model"
    MODEL_MISSING = "model missing"
    PORT_TAKEN = "port taken"
    MISSING_LIBRARY = "missing library"
    NOT_FOUND = "not found"
    INCOMPATIBLE = "incompatible"  # the engine lacks an option kvchat needs
    UNSUPPORTED_CPU = "unsupported cpu"
    KILLED = "killed"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    HANGS = "hangs"  # stopped responding after ready
    GPU_LOST = "gpu lost"
    AWAY = "away"  # a paired computer is off, asleep or out of reach
    UNPAIRED = "unpaired"  # a paired computer has removed this one, or its certificate has changed
    WORKER_LOST = "worker lost"  # an RPC server
    EXITED = "exited"


@dataclass(frozen=True)
class EngineFailure:
    kind: FailureKind
    title: str
    detail: str
    advice: str


# Failures that no request can have caused.
_EXTERNAL_CAUSES = (FailureKind.KILLED, FailureKind.GPU_LOST, FailureKind.WORKER_LOST)


class EngineLifetime:
    """The time from an engine's readiness to its end, and the reason for the end.

    Each EngineGone refers to a lifetime, which explains the loss even after another engine has started.
    """

    def __init__(self) -> None:
        self.failure: EngineFailure | None = None  # None if stopped on purpose
        self.responded_at: float | None = None  # time.monotonic() of the last request that its compute loop answered
        self._ended = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []

    @property
    def crashed(self) -> bool:
        """True if the engine failed in a way that a request or a restored state may have caused."""
        return self.failure is not None and self.failure.kind not in _EXTERNAL_CAUSES

    def end(self, failure: EngineFailure | None) -> None:
        """Record the end and call its listeners. A second end is ignored."""
        if not self._ended.is_set():
            self.failure = failure
            self._ended.set()
            for listener in self._listeners:
                listener()

    def on_end(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the lifetime ends, or at once if it has ended."""
        if self._ended.is_set():
            listener()
        else:
            self._listeners.append(listener)

    async def wait_for_end(self) -> bool:
        """Wait up to LOSS_DETECTION_S for the end. Return True if the lifetime has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOSS_DETECTION_S):
                await self._ended.wait()
        return self._ended.is_set()


class EngineUnusable(KvchatError):
    """The configured engine or server cannot be used with the current settings."""


class EngineError(KvchatError):
    restore_fault: Reason | None = None  # set if an unverified restored state may have caused the error


class EngineGone(EngineError):
    """The connection failed or was lost, because the engine died, hangs or was stopped."""

    def __init__(self, title: str, detail: str = "", advice: str = "", lifetime: EngineLifetime | None = None) -> None:
        super().__init__(title, detail, advice)
        self.lifetime = lifetime

    async def explain(self) -> EngineError:
        """Return the reason why the engine ended, or this error if the engine still runs. May wait for its end."""
        if self.lifetime is None or not await self.lifetime.wait_for_end():
            return self
        if self.lifetime.failure is None:  # stopped by the user
            return EngineError(_("The engine was stopped"), "", _("The engine restarts with your next message."))
        return EngineFailed(self.lifetime.failure)


class EngineUnreachable(EngineGone):
    """No connection could be opened."""

    timed_out = False  # else the connection was refused at once


class EngineSilent(EngineGone):
    """The engine accepted a request but did not respond in time."""


class CertificateChanged(EngineGone):
    """The server's certificate is not the pinned one. The API key was not sent."""

    def __init__(self, lifetime: EngineLifetime) -> None:
        super().__init__(
            _("The other computer’s certificate has changed"),
            _("It may be another computer that pretends to be yours, so kvchat sends it nothing."),
            _("If you reinstalled kvchat there, pair the computers again in Settings, Engine."),
            lifetime,
        )


class EngineRefused(EngineError):
    def __init__(self, status: int, message: str, kind: str = "") -> None:
        super().__init__(_("The engine refused the request"), message)
        self.status = status
        self.message = message
        self.kind = kind  # llama-server's error type

    @property
    def too_long(self) -> bool:
        """True if the prompt alone is longer than the context."""
        return self.kind == TOO_LONG

    @property
    def crowded_out(self) -> bool:
        """True if the requests in progress together needed more than the context."""
        return CROWDED_OUT in self.message

    @property
    def is_engine_fault(self) -> bool:
        """True if the engine or the contents of its slot are at fault, not the request."""
        return self.status >= _SERVER_ERROR and not self.crowded_out


class AccessRefused(EngineError):
    """The key of a server or a paired computer is not valid anymore."""

    def __init__(self) -> None:
        super().__init__(
            _("Access was refused"),
            _(
                "The other computer has removed this one from its paired devices, "
                "or the server expects another API key."
            ),
            _("Pair the computers again, or check the server API key, in Settings, Engine."),
        )


class ForeignServer(EngineError):
    """Another server is listening at the engine's address."""


class EngineFailed(EngineError):
    def __init__(self, reason: EngineFailure) -> None:
        super().__init__(reason.title, reason.detail, reason.advice)
        self.failure = reason


class EngineBroken(EngineFailed, EngineGone):
    """The engine responds but must be restarted, so callers handle this like EngineGone."""

    def __init__(self, reason: EngineFailure, lifetime: EngineLifetime) -> None:
        super().__init__(reason)
        self.lifetime = lifetime


MEMORY_ADVICE = N_(
    "Choose a smaller context length or a smaller model, or close other programs that use a lot of memory."
)
LOG_ADVICE = N_(
    "See the engine log for details. If it happens again, try another model or another llama-server version."
)

# The beginning of llama.cpp's log lines: "0.00.026.668 E " (time and level), then the module.
_PREFIX = re.compile(r"^(\d+\.)+\d+ [A-Z] (?:(?:srv|cmn|slt|cli|que|res|hf)\s+\S+:?\s+)?")
MISSING_LIBRARY = re.compile(r"error while loading shared libraries|Library not loaded|cannot open shared object file")
# After this error llama-server keeps running, but every later request fails (tools/server/server-context.cpp).
_CANNOT_COMPUTE = re.compile(r"compute error", re.IGNORECASE)
_WORKER_GONE = re.compile(r"ggml-rpc\S*: (?:Failed to connect to (?P<worker>\S+)|Remote RPC server)", re.IGNORECASE)


@dataclass(frozen=True)
class _Rule:
    """A kind of failure, with the pattern of the log lines that report it."""

    pattern: str
    kind: FailureKind
    title: str
    advice: str

    def failure(self, detail: str) -> EngineFailure:
        return EngineFailure(self.kind, _(self.title), detail, _(self.advice))

    def find(self, lines: Sequence[str]) -> EngineFailure | None:
        line = find_line(re.compile(self.pattern, re.IGNORECASE), lines)
        if line is not None and self is WORKER_LOST and (match := _WORKER_GONE.search(line)):
            return lost_workers([match["worker"]] if match["worker"] else ())
        return None if line is None else self.failure(line)


OUT_OF_MEMORY = _Rule(
    r"failed to allocate|unable to allocate|cudaMalloc failed|std::bad_alloc|out of (device )?memory"
    r"|ErrorOutOf(Device|Host)Memory|Insufficient Memory|Cannot allocate memory|alloc_tensor_range: failed",
    FailureKind.OUT_OF_MEMORY,
    N_("The engine ran out of memory"),
    MEMORY_ADVICE,
)
_GPU_LOST = _Rule(  # backend errors after a driver reset or loss of the card: ggml-cuda, -vulkan, …
    r"(CUDA|ROCm|MUSA|HIP) error|DeviceLost|device lost|GPU is lost|fallen off the bus|unspecified launch failure"
    r"|command buffer \d+ failed|SYCL error",
    FailureKind.GPU_LOST,
    N_("The engine lost access to the GPU"),
    N_(
        "This can happen when the GPU driver is reset or updated, or after sleep. If it continues, "
        "restart the computer."
    ),
)
WORKER_LOST = _Rule(
    _WORKER_GONE.pattern,
    FailureKind.WORKER_LOST,
    N_("An RPC server is not responding"),
    N_(
        "Start rpc-server on that computer and check the network, or remove the server from RPC "
        "servers in the settings."
    ),
)


def lost_workers(workers: Iterable[str]) -> EngineFailure:
    """Return the failure of an engine whose RPC servers (`host:port`) do not respond; none if it is not known which."""
    text = N_("There is no response from the RPC server {worker}.")
    silent = join_sentences(*(_(text, worker=worker) for worker in workers))
    return WORKER_LOST.failure(silent or _("An RPC server has stopped."))


_RUNTIME_RULES = (
    OUT_OF_MEMORY,
    _GPU_LOST,
    WORKER_LOST,
    # ggml_abort first logs its source location; the backtrace after it names only ggml_abort itself.
    _Rule(
        r"GGML_ASSERT|\.(c|cc|cpp|cu|cuh|h|hpp|m|mm):\d+: |terminate called",
        FailureKind.CRASHED,
        N_("The engine crashed"),
        LOG_ADVICE,
    ),
)
PORT_TAKEN = _Rule(
    r"couldn't bind HTTP server socket|Address already in use",
    FailureKind.PORT_TAKEN,
    N_("The engine's port is already in use"),
    N_("Start the engine again; kvchat chooses a new port each time."),
)
_STARTUP_RULES = (
    PORT_TAKEN,
    _Rule(
        r"invalid argument:|unknown argument|error while handling argument",
        FailureKind.INCOMPATIBLE,
        N_("This engine is not compatible with kvchat"),
        N_(
            'Install a newer llama-server, or set the engine path in the settings to "embedded" to '
            "use the embedded engine."
        ),
    ),
    _Rule(
        r"V cache.* requires flash[_ ]att",  # src/llama-context.cpp
        FailureKind.INCOMPATIBLE,
        N_("This KV cache precision is not supported"),
        N_("Set the KV cache precision in the settings to Exact (f16), or use an engine with flash attention."),
    ),
    _Rule(
        r"doesn't contain MTP layers|failed to load draft model",
        FailureKind.INCOMPATIBLE,
        N_("The engine's extra arguments are invalid"),
        N_("Correct the extra arguments in the settings, or clear them."),
    ),
    _Rule(
        r"unknown model architecture",
        FailureKind.BAD_MODEL,
        N_("The model cannot be loaded"),
        N_("This engine does not support this type of model yet. Update the engine, or choose another model."),
    ),
    _Rule(
        r"invalid magic|missing tensor|error loading model|failed to load model|corrupted or incomplete"
        r"|gguf_init_from_\w+: failed",
        FailureKind.BAD_MODEL,
        N_("The model cannot be loaded"),
        N_("The file may be damaged or incomplete. Download it again, or choose another model."),
    ),
)


def diagnose(lines: Sequence[str], *, was_ready: bool) -> EngineFailure | None:
    """Return the reason that the engine logged for its exit, or None."""
    # In this order, because an engine that is out of memory also logs "failed to load model".
    rules = _RUNTIME_RULES if was_ready else _RUNTIME_RULES + _STARTUP_RULES
    return next(filter(None, (rule.find(lines) for rule in rules)), None)


def fatal_failure(status: int, message: str) -> EngineFailure | None:
    """Return the failure if this error response means that the engine must be restarted, else None."""
    if failure := _GPU_LOST.find([message]):
        return failure
    if status == _SERVER_ERROR and _CANNOT_COMPUTE.search(message):
        title, detail = _("The engine can no longer process requests"), _("It reported: {message}", message=message)
        return EngineFailure(FailureKind.CRASHED, title, detail, _(LOG_ADVICE))
    return None


def find_line(pattern: re.Pattern[str], lines: Sequence[str]) -> str | None:
    """Return the first line that matches, without its log prefix, or None. Later matches tend to be less specific."""
    return next((_PREFIX.sub("", line).strip() for line in lines if pattern.search(line)), None)


def last_error(lines: Sequence[str]) -> str:
    """Return the last error line, or else the last line that is not blank."""
    errors = [line for line in lines if re.match(r"^(\d+\.)+\d+ E ", line) or "error" in line.lower()]
    candidates = errors or [line for line in lines if line.strip()]
    return _PREFIX.sub("", candidates[-1]).strip() if candidates else ""


def with_last_output(sentence: str, lines: Sequence[str]) -> str:
    line = last_error(lines)
    return _("{sentence} Last output: {line}", sentence=sentence, line=line) if line else sentence
