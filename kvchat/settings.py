"""The user's settings: one JSON file, read tolerantly, written whole."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GB = 1_000_000_000
KV_TYPE_NAMES = frozenset(("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"))
THEMES = frozenset(("system", "light", "dark"))
HIGHEST_TEMPERATURE = 5.0  # beyond it a model says nothing but noise


@dataclass(frozen=True)
class Settings:
    """What the user chose. None means "kvchat decides"."""

    model_path: str | None = None
    engine_path: str | None = None
    context_size: int | None = None  # tokens
    kv_type: str = "f16"
    quota_bytes: int | None = None  # default: 20 GB or 10 % of the disk, whichever is less
    free_floor_bytes: int = 2 * GB  # below this much free disk space nothing is saved
    theme: str = "system"  # system, light or dark
    temperature: float | None = None  # sampling; None: the engine's default
    max_tokens: int | None = None  # the longest reply, in tokens; None: as long as the model goes on
    seed: int | None = None


def load_settings(path: Path) -> Settings:
    """The settings in `path`; defaults for what is missing, unknown, of the wrong type or out of range.

    A file that is not JSON is set aside as `settings.json.bad` so that nothing the user wrote is lost.
    """
    try:
        raw = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return Settings()
    except (OSError, UnicodeDecodeError, ValueError):
        with contextlib.suppress(OSError):
            path.replace(path.with_suffix(".json.bad"))
        return Settings()
    return Settings(**_known_fields(raw)) if isinstance(raw, dict) else Settings()


def save_settings(path: Path, settings: Settings) -> None:
    """Write the settings under a temporary name, then rename: a crash leaves the old file. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_suffix(".json.new")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(dataclasses.asdict(settings), file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _known_fields(raw: dict[str, Any]) -> dict[str, Any]:
    """The entries of `raw` that are settings, have a setting's type and a value that makes sense."""
    return {k: v for k, v in raw.items() if k in _MAKES_SENSE and _MAKES_SENSE[k](v)}


def _whole(least: int, most: float = math.inf) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_temperature(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= HIGHEST_TEMPERATURE


_MAKES_SENSE: dict[str, Callable[[Any], bool]] = {
    "model_path": _is_path,
    "engine_path": _is_path,
    "context_size": _whole(1),
    "kv_type": lambda value: isinstance(value, str) and value in KV_TYPE_NAMES,
    "quota_bytes": _whole(1),
    "free_floor_bytes": _whole(0),
    "theme": lambda value: isinstance(value, str) and value in THEMES,
    "temperature": _is_temperature,
    "max_tokens": _whole(1),
    "seed": _whole(-1, 2**32 - 1),  # llama.cpp's uint32_t; -1 is a random one
}
