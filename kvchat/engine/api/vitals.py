"""The engine's memory use, slot and speed, for display."""

import asyncio
import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from kvchat.engine.api.client import LlamaServerClient
from kvchat.engine.api.errors import EngineError
from kvchat.system.files import parse_json

_NVIDIA_SMI_TIMEOUT_S = 5.0
_NO_WINDOW: int = getattr(subprocess, "CREATE_NO_WINDOW", 0)  # for Windows
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}
_MIN_MEASURABLE_S = 0.02  # llama-server reports a microsecond for a reply of one token


@dataclass(frozen=True)
class SlotState:
    busy: bool
    tokens: int
    context_size: int


@dataclass(frozen=True)
class Speed:
    """Average tokens per second since the engine started; None before the first token."""

    prefill: float | None
    decode: float | None


@dataclass(frozen=True)
class Vitals:
    """An engine's memory use, slot and speed. Sizes are in bytes; unknown values are None."""

    pid: int | None
    memory: int | None  # resident memory, which includes the loaded pages of the model's file
    graphics_memory: int | None
    slot: SlotState | None
    speed: Speed


async def collect_vitals(pid: int | None, client: LlamaServerClient) -> Vitals:
    """Query the engine and the process `pid`. Errors leave the values unknown."""
    memory, graphics = await asyncio.to_thread(_process_memory, pid) if pid is not None else (None, None)
    slot, speed = None, Speed(None, None)
    with contextlib.suppress(EngineError):
        slots = parse_slots(await client.get("/slots"))
        if slots := slots if client.exclusive else slots[client.slot : client.slot + 1]:
            is_busy, tokens = any(slot.busy for slot in slots), sum(slot.tokens for slot in slots)
            slot = SlotState(is_busy, tokens, max(slot.context_size for slot in slots))
        speed = parse_metrics((await client.get("/metrics")).decode("utf-8", "replace"))
    return Vitals(pid, memory, graphics, slot, speed)


def parse_slots(body: bytes) -> tuple[SlotState, ...]:
    try:
        return tuple(
            SlotState(bool(slot["is_processing"]), int(slot.get("n_prompt_tokens", 0)), int(slot["n_ctx"]))
            for slot in parse_json(body)
        )
    except (ValueError, LookupError, TypeError, OverflowError):
        return ()


def parse_metrics(text: str) -> Speed:
    """Compute averages from the counters in the response of /metrics (Prometheus format)."""
    counters = {name: float(value) for name, value in re.findall(r"^llamacpp:(\w+) ([\d.e+-]+)$", text, re.MULTILINE)}

    def rate(tokens: str, kind: str) -> float | None:
        seconds = counters.get(f"{kind}_seconds_total", 0.0)
        return counters.get(f"{tokens}_total", 0.0) / seconds if seconds >= _MIN_MEASURABLE_S else None

    return Speed(rate("prompt_tokens", "prompt"), rate("tokens_predicted", "tokens_predicted"))


def _process_memory(pid: int) -> tuple[int | None, int | None]:
    """Return the RAM and GPU memory of a process and its children; the process may be the engine's guard."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        resident = sum(member.memory_info().rss for member in family)
    except psutil.Error:
        return None, None
    pids, listing = [member.pid for member in family], ""
    if program := shutil.which("nvidia-smi"):
        command = [program, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                command, capture_output=True, timeout=_NVIDIA_SMI_TIMEOUT_S, check=False, creationflags=_NO_WINDOW
            )
            listing = done.stdout.decode("utf-8", "replace")
    reported = [size for size in (nvidia_memory(listing, pids), drm_memory(pids)) if size is not None]
    return resident, max(reported, default=None)


def nvidia_memory(listing: str, pids: Iterable[int]) -> int | None:
    """Sum the GPU memory that `nvidia-smi` lists for these processes as "pid, MiB", in bytes; None if it lists none."""
    used = [int(mib) << 20 for pid, mib in re.findall(r"^(\d+), (\d+)\s*$", listing, re.MULTILINE) if int(pid) in pids]
    return sum(used) if used else None


def drm_memory(pids: Iterable[int], proc: Path = Path("/proc")) -> int | None:
    """Sum the memory of AMD and Intel GPUs in bytes (Linux: Documentation/gpu/drm-usage-stats.rst); None if unknown."""
    clients: dict[tuple[str, str], int] = {}  # bytes by bus address and client id: descriptors may share a client
    for pid in pids:
        for file in (proc / str(pid) / "fdinfo").glob("*"):
            with contextlib.suppress(OSError):
                text = file.read_text("utf-8", "replace")
                fields = dict(re.findall(r"^([\w-]+):\s*(.*)$", text, re.MULTILINE))
                if "drm-client-id" in fields:
                    sizes = re.findall(r"^drm-(?:memory|total)-vram[\w-]*:\s*(\d+)\s*(KiB|MiB)?", text, re.MULTILINE)
                    key = fields.get("drm-pdev", ""), fields["drm-client-id"]
                    clients[key] = max((int(size) * _UNITS[unit] for size, unit in sizes), default=0)
    return sum(clients.values()) if clients else None
