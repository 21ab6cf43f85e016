"""The user's settings: one JSON file, read tolerantly, written whole."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GB = 1_000_000_000


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
    """The settings in `path`; defaults for what is missing, unknown or of the wrong type.

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
    """The entries of `raw` that are settings and have a setting's type."""
    types: dict[str, tuple[type, ...]] = {
        "model_path": (str,),
        "engine_path": (str,),
        "context_size": (int,),
        "kv_type": (str,),
        "quota_bytes": (int,),
        "free_floor_bytes": (int,),
        "theme": (str,),
        "temperature": (float, int),
        "max_tokens": (int,),
        "seed": (int,),
    }
    return {k: v for k, v in raw.items() if k in types and isinstance(v, types[k]) and not isinstance(v, bool)}
