"""Vital signs of an engine: its memory, its slot, its speed. For display only."""

from __future__ import annotations

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
_NO_WINDOW: int = getattr(subprocess, "CREATE_NO_WINDOW", 0)  # Windows only: avoids opening a console window
_MIN_MEASURABLE_S = 0.02  # a one-token reply reports a microsecond: no valid rate


@dataclass(frozen=True)
class SlotState:
    busy: bool
    tokens: int
    context_size: int


@dataclass(frozen=True)
class Speed:
    """Averages since the engine started, tokens per second; None before the first token."""

    prefill: float | None
    decode: float | None


@dataclass(frozen=True)
class Vitals:
    """A snapshot of an engine. None: unknown. Sizes in bytes."""

    pid: int | None
    memory: int | None  # resident, with the model's mapped pages
    graphics_memory: int | None
    slot: SlotState | None
    speed: Speed


async def collect_vitals(pid: int | None, client: LlamaServerClient) -> Vitals:
    """Query the engine. Raises nothing: unknown values are None."""
    memory, graphics = await asyncio.to_thread(_process_memory, pid) if pid is not None else (None, None)
    slot, speed = None, Speed(None, None)
    with contextlib.suppress(EngineError):
        slots = parse_slots(await client.get("/slots"))
        if slots := slots if client.exclusive else slots[client.slot : client.slot + 1]:
            busy, tokens = any(slot.busy for slot in slots), sum(slot.tokens for slot in slots)
            slot = SlotState(busy, tokens, max(slot.context_size for slot in slots))
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
    """Average the counters in the response to GET /metrics (Prometheus format)."""
    counters = {name: float(value) for name, value in re.findall(r"^llamacpp:(\w+) ([\d.e+-]+)$", text, re.MULTILINE)}

    def rate(tokens: str, seconds: str) -> float | None:
        passed = counters.get(seconds, 0.0)
        return counters.get(tokens, 0.0) / passed if passed >= _MIN_MEASURABLE_S else None

    return Speed(
        rate("prompt_tokens_total", "prompt_seconds_total"),
        rate("tokens_predicted_total", "tokens_predicted_seconds_total"),
    )


def _process_memory(pid: int) -> tuple[int | None, int | None]:
    """Return a process's RAM and GPU memory, children included: it may be the engine's guard."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        resident = sum(member.memory_info().rss for member in family)
    except psutil.Error:
        return None, None
    pids = [member.pid for member in family]
    nvidia = nvidia_memory(_nvidia_smi("compute-apps=pid,used_memory"), pids)
    told = [size for size in (nvidia, drm_memory(pids)) if size is not None]
    return resident, max(told) if told else None


def nvidia_memory(listing: str, pids: Iterable[int]) -> int | None:
    """Sum the GPU memory in bytes that `nvidia-smi` lists as "pid, MiB" lines. None if it lists none."""
    used = [int(mib) << 20 for pid, mib in re.findall(r"^(\d+), (\d+)\s*$", listing, re.MULTILINE) if int(pid) in pids]
    return sum(used) if used else None


def drm_memory(pids: Iterable[int], proc: Path = Path("/proc")) -> int | None:
    """Sum the GPU memory in bytes as the kernel reports it for AMD's and Intel's drivers.

    A client counts once, however many files it has open (Linux: Documentation/gpu/drm-usage-stats.rst).
    """
    clients: dict[tuple[str, str], int] = {}  # by the card's bus address and client number
    for pid in pids:
        for file in (proc / str(pid) / "fdinfo").glob("*"):
            with contextlib.suppress(OSError):
                fields = dict(re.findall(r"^([\w-]+):\s*(.*)$", file.read_text("utf-8", "replace"), re.MULTILINE))
                if "drm-client-id" not in fields:
                    continue
                sizes = [
                    _parse_bytes(value) for name, value in fields.items() if re.match(r"drm-(memory|total)-vram", name)
                ]
                clients[fields.get("drm-pdev", ""), fields["drm-client-id"]] = max(sizes, default=0)
    return sum(clients.values()) if clients else None


def _parse_bytes(value: str) -> int:
    match = re.match(r"(\d+)\s*(KiB|MiB)?", value)
    return int(match[1]) * {None: 1, "KiB": 1 << 10, "MiB": 1 << 20}[match[2]] if match else 0


def _nvidia_smi(query: str) -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, f"--query-{query}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_NVIDIA_SMI_TIMEOUT_S, check=False, creationflags=_NO_WINDOW
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")
