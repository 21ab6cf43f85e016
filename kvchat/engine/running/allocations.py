"""What memory an engine took, read from what it logs while it loads. Pure.

The lines are llama.cpp's own (`llama_kv_cache: CUDA0 KV buffer size = 512.00 MiB`). llama-server shows them from
`--verbosity 4` on (common/log.cpp, common_log_get_verbosity).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

MIB = 1024 * 1024


class Purpose(Enum):
    """What a buffer holds."""

    WEIGHTS = "weights"
    KV = "kv"  # recurrent state included
    COMPUTE = "compute"


_PURPOSES = {
    "model": Purpose.WEIGHTS,
    "KV": Purpose.KV,
    "RS": Purpose.KV,
    "state": Purpose.KV,
    "compute": Purpose.COMPUTE,
    "output": Purpose.COMPUTE,
}
_BUFFER = re.compile(
    r":\s+(?P<place>\S+) (?:DSV4 \S+ )? *(?P<what>model|KV|RS|state|compute|output) buffer size += +(?P<mib>[\d.]+) MiB"
)
_CONTEXT = re.compile(r"llama_context: n_ctx += (?P<tokens>\d+)")
_NO_FLASH_ATTENTION = re.compile(r"Flash Attention (not supported|was auto), set to disabled")
_HOST_PLACE = re.compile(r"CPU|.*_Host|BLAS", re.IGNORECASE)  # CPU_Mapped, CPU_REPACK; CUDA_Host is the computer's too


@dataclass(frozen=True)
class Buffer:
    """One buffer as the engine reported it."""

    place: str  # "CPU", "CPU_Mapped", "CUDA0", "CUDA_Host", …
    purpose: Purpose
    bytes: int  # to a hundredth of a MiB

    @property
    def on_host(self) -> bool:
        """Whether it is in the computer's own memory."""
        return _HOST_PLACE.match(self.place) is not None


@dataclass(frozen=True)
class Allocations:
    """What an engine reported while it loaded."""

    buffers: tuple[Buffer, ...]
    context_size: int | None  # tokens
    flash_attention_refused: bool  # it was left to the engine, and the engine could not

    def bytes(self, purpose: Purpose, *, on_host: bool | None = None) -> int:
        """What is taken for a purpose, everywhere or in the computer's memory or on GPUs alone."""
        return sum(
            buffer.bytes
            for buffer in self.buffers
            if buffer.purpose is purpose and (on_host is None or buffer.on_host == on_host)
        )

    def on(self, place: str, purpose: Purpose) -> int:
        """What is taken for a purpose on one GPU, under its own name or as in "MTL0_Mapped" and "RPC0[den:50052]"."""
        own = re.compile(rf"{re.escape(place)}([_\[].*)?")
        return sum(b.bytes for b in self.buffers if b.purpose is purpose and own.fullmatch(b.place))


def read_allocations(lines: Iterable[str]) -> Allocations | None:
    """The allocations in one engine's log; None where it reports none."""
    buffers: list[Buffer] = []
    context_size = None
    refused = False
    for line in lines:
        if match := _BUFFER.search(line):
            size = round(float(match["mib"]) * MIB)
            buffers.append(Buffer(match["place"], _PURPOSES[match["what"]], size))
        elif match := _CONTEXT.search(line):
            context_size = int(match["tokens"])
        elif _NO_FLASH_ATTENTION.search(line):
            refused = True
    return Allocations(_counted_once(buffers), context_size, refused) if buffers else None


def _counted_once(buffers: list[Buffer]) -> tuple[Buffer, ...]:
    """Without the copies of mapped weights repacked for the processor: what they copy is not looked at again."""
    mapped = any(buffer.place == "CPU_Mapped" for buffer in buffers)
    return tuple(buffer for buffer in buffers if not (mapped and buffer.place == "CPU_REPACK"))
