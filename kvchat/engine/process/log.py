"""The engine's log: its last lines in memory, a bounded file on disk, and the memory allocations in it.

llama.cpp logs allocations (`llama_kv_cache: CUDA0 KV buffer size = 512.00 MiB`) with `--verbosity 4` and higher.
"""

import codecs
import contextlib
import os
import queue
import re
import shlex
import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO

from kvchat.system.concurrency import SHUTDOWN_TIMEOUT_S
from kvchat.system.files import replace_file

_START_MARKER = "kvchat starts "  # beginning of the line before the output of each process
_LINE_END = re.compile(r"\r\n|\n|\r")
# O_NONBLOCK: opening the log must not wait if the user has replaced it by a pipe.
_OPEN_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NONBLOCK", 0)
_MAX_LINE_CHARS = 4_000  # longer lines are cut
_MAX_QUEUED_LINES = 5_000  # waiting for the disk; more are dropped


class EngineLog:
    """The last lines of the engine's output, in memory and in a file of limited size."""

    def __init__(self, path: Path | None = None, *, lines: int = 2_000, file_bytes: int = 2_000_000) -> None:
        """`path`: the log file, which is renamed to `<name>.1` when it has reached `file_bytes`."""
        self._lines: deque[str] = deque(maxlen=lines)
        self._file = _LogFile(path, file_bytes) if path is not None else None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial_line = ""
        self._in_quotation = False  # the last line quoted a request, which may continue
        self.bytes_seen = 0  # also counts progress dots, which have no line end

    @property
    def lines(self) -> tuple[str, ...]:
        """The last lines, newest last. The last one may be incomplete."""
        rest = self._strip_request(self._partial_line)
        return (*self._lines, rest) if rest else tuple(self._lines)

    @property
    def since_start(self) -> tuple[str, ...]:
        """The lines of the current process or, if none runs, the previous one. Older lines may have been dropped."""
        lines = self.lines
        starts = [number for number, line in enumerate(lines) if line.startswith(_START_MARKER)]
        return lines[starts[-1] + 1 :] if starts else lines

    def note_start(self, command: Sequence[str]) -> None:
        self.note(_START_MARKER + shlex.join(command))

    def feed(self, data: bytes) -> None:
        """Add a chunk of output; it may end within a line or character."""
        self.bytes_seen += len(data)
        *finished, self._partial_line = _LINE_END.split(self._partial_line + self._decoder.decode(data))
        for line in finished:
            self._add(line)
        self._partial_line = self._partial_line[:_MAX_LINE_CHARS]

    def note(self, line: str) -> None:
        self.end_line()
        self._add(line)

    def end_line(self) -> None:
        rest, self._partial_line = self._partial_line + self._decoder.decode(b"", final=True), ""
        self._decoder.reset()
        if rest:
            self._add(rest)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _add(self, line: str) -> None:
        if line.startswith(_START_MARKER):
            self._in_quotation = False
        stripped = self._strip_request(line[:_MAX_LINE_CHARS])
        self._in_quotation = self._in_quotation or _REQUEST_QUOTE.search(line) is not None
        if stripped is not None:
            self._lines.append(stripped)
            if self._file is not None:
                self._file.add(stripped)

    def _strip_request(self, line: str) -> str | None:
        """Remove the text of a request from a line; None if the whole line is part of a quoted request."""
        if match := _REQUEST_QUOTE.search(line):
            return f"{line[: match.end()]}…"
        return line if not self._in_quotation or _LEVEL_PREFIX.match(line) or _CRASH_OUTPUT.match(line) else None


class _LogFile:
    """Writes lines in a separate thread, so that a hung disk blocks neither the window nor the engine."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path, self._max_bytes = path, max_bytes
        self._lines: queue.Queue[str | None] = queue.Queue(_MAX_QUEUED_LINES)
        self._thread: threading.Thread | None = None

    def add(self, line: str) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="engine log", daemon=True)
            self._thread.start()
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(line)

    def close(self) -> None:
        if (thread := self._thread) is not None:
            with contextlib.suppress(queue.Full):
                self._lines.put(None, timeout=SHUTDOWN_TIMEOUT_S)
                self._thread = None
            thread.join(SHUTDOWN_TIMEOUT_S)

    def _run(self) -> None:
        file: BinaryIO | None = None
        while (line := self._lines.get()) is not None:
            with contextlib.suppress(OSError):  # the engine must run without a log, too
                if file is None:
                    self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                    file = os.fdopen(os.open(self._path, _OPEN_FLAGS, 0o600), "ab", buffering=0)
                file.write(line.encode("utf-8", "replace") + b"\n")
                if file.tell() >= self._max_bytes:
                    full, file = file, None
                    full.close()
                    replace_file(self._path, self._path.with_name(self._path.name + ".1"))
        if file is not None:
            file.close()


# After these words llama.cpp logs text from requests (tools/server, common, llama-grammar.cpp).
_REQUEST_QUOTE = re.compile(
    r"got (?:another )?exception: |error (?:parsing|printing) grammar: |after accepting piece: |not as expected: "
    r"|(?:downloading image from|loading image from local file|Responses tool type) '|\bwhat\(\): "
    r"|Failed to (?:apply|convert|format|initialize|parse|render)[\w ]*: "
)
# Lines without a log level that are never part of a request, such as the reason for a crash.
_CRASH_OUTPUT = re.compile(
    r"kvchat|terminate called|[\w./\\:-]+\.(?:c|h|m|cc|cu|cpp|hpp)\w*:\d+: |(?:CUDA|ROCm|MUSA|HIP|SYCL) error|ggml_"
)
# "0.00.296.764 E ": minutes, seconds, milliseconds, microseconds and level (llama.cpp's common/log.cpp).
_LEVEL_PREFIX = re.compile(r"^(?:\d+\.)+\d+ ([DIWE]) ")
_ERROR_WORDS = re.compile(r"\berror\b|\bfailed\b|GGML_ASSERT|GGML_ABORT|terminate called", re.IGNORECASE)


class Level(IntEnum):
    DETAIL = 0
    INFO = 1
    WARNING = 2
    ERROR = 3


def filter_by_level(lines: Iterable[str], minimum: Level) -> list[str]:
    """Return the lines that have at least the `minimum` level.

    A line without a level is an error if it has a word such as "failed", else it has the level of the line before.
    """
    level, filtered = Level.INFO, []
    for line in lines:
        match = _LEVEL_PREFIX.match(line)
        level = Level("DIWE".index(match[1])) if match else level
        if level >= minimum or (not match and _ERROR_WORDS.search(line)):
            filtered.append(line)
    return filtered


MIB = 1024 * 1024
_PURPOSES = {  # purposes of llama.cpp's buffers, by their names in the log
    "model": "weights",
    "KV": "kv",
    "RS": "kv",  # recurrent state
    "state": "kv",
    "compute": "compute",
    "output": "compute",
}
_BUFFER = re.compile(
    r":\s+(?P<place>\S+) (?:DSV4 \S+ )? *(?P<what>model|KV|RS|state|compute|output) buffer size += +(?P<mib>[\d.]+) MiB"
)
_OFFLOADED = re.compile(r"load_tensors: offloaded (?P<layers>\d+)/(?P<all>\d+) layers to GPU")
_CPU_EXPERTS = re.compile(r"fit_impl: +- (?P<place>\S+) .*: +\d+ layers \( *(?P<experts>\d+) overflowing\)")  # --fit
_HOST_DEVICE = re.compile(r"CPU|.*_Host|BLAS", re.IGNORECASE)  # CPU_Mapped, CPU_REPACK, CUDA_Host


@dataclass(frozen=True)
class Placement:
    """Number of a model's layers on GPUs. The output counts as one layer, as in the engine's log."""

    gpu_layers: int
    all_layers: int
    cpu_experts: int = 0  # GPU layers whose experts are in the computer's memory

    @property
    def is_fully_on_gpu(self) -> bool:
        return self.gpu_layers == self.all_layers and self.cpu_experts == 0


@dataclass(frozen=True)
class Allocations:
    buffers: tuple[tuple[str, str, int], ...]  # place ("CPU_Mapped", "CUDA0", …), purpose, bytes
    placement: Placement | None  # None: CPU only, or not reported

    def bytes_on(self, gpu: str | None) -> Counter[str]:
        """Return the bytes of "weights", "kv" and "compute" on a GPU or, for None, in the computer's memory."""
        # A GPU's buffers are named after it, as in "CUDA0", "MTL0_Mapped" and "RPC0[den:50052]".
        pattern = _HOST_DEVICE if gpu is None else re.compile(rf"{re.escape(gpu)}([_\[].*)?\Z")
        totals = Counter[str]()
        for place, purpose, size in self.buffers:
            if pattern.match(place):
                totals[purpose] += size
        return totals


def read_allocations(lines: Iterable[str]) -> Allocations | None:
    """Parse the allocations in the log of one process; None if it has none."""
    buffers: list[tuple[str, str, int]] = []
    placement = None
    experts: dict[str, int] = {}  # layers by GPU; --fit logs several attempts, of which the last counts
    for line in lines:
        if match := _BUFFER.search(line):
            buffers.append((match["place"], _PURPOSES[match["what"]], round(float(match["mib"]) * MIB)))
        elif match := _CPU_EXPERTS.search(line):
            experts[match["place"]] = int(match["experts"])
        elif match := _OFFLOADED.search(line):
            placement = Placement(int(match["layers"]), int(match["all"]), sum(experts.values()))
    if any(place == "CPU_Mapped" for place, *_ in buffers):
        # Repacked weights also have a mapped copy, which is not used any more: do not count both.
        buffers = [buffer for buffer in buffers if buffer[0] != "CPU_REPACK"]
    return Allocations(tuple(buffers), placement) if buffers else None
