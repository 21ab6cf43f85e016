"""The launch plan: everything that decides how an engine is started, and its translation for each kind of engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LaunchPlan:
    """How one engine process is to be started. The API key is no part of it: it travels in the environment."""

    model: Path
    context_size: int  # tokens
    slot_path: Path  # the folder slot files are saved to and restored from
    port: int = 0  # 0: the supervisor chooses a free one at each launch
    host: str = "127.0.0.1"
    kv_type_k: str = "f16"
    kv_type_v: str = "f16"
    batch_size: int = 512  # tokens; small, because a dropped connection stops a prefill only between batches
    cache_ram_mib: int = 0  # the engine's own RAM cache of evicted prompts; the save-point store does that job
    threads: int | None = None  # None: the engine's default
