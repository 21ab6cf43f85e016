"""Where models may already be: kvchat's own folder, folders the user chose, and those of other programs.

Sources: huggingface_hub's environment variables (HF_HUB_CACHE, HF_HOME); llama.cpp's fs_get_cache_directory
(LLAMA_CACHE); lmstudio.ai/docs, "Import Models", and lms's .lmstudio-home-pointer; Ollama's FAQ, "Where are models
stored?"; Jan's data folder, which has moved over the years.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kvchat.system.files import read_json, read_plain
from kvchat.words.language import N_


class Source(Enum):
    """Whose folder a model lies in; the value is its name on the screen."""

    KVCHAT = "kvchat"
    CHOSEN = N_("your folder")
    LM_STUDIO = "LM Studio"
    HUGGING_FACE = "Hugging Face cache"
    LLAMA_CPP = "llama.cpp cache"
    JAN = "Jan"
    OLLAMA = "Ollama"
    FILE = N_("your file")


@dataclass(frozen=True)
class ModelFolder:
    """A folder that may hold models, or a single model's first file. It need not exist."""

    source: Source
    path: Path


@dataclass(frozen=True)
class Machine:
    """What decides where other programs keep their models."""

    environment: Mapping[str, str]
    home: Path
    platform: str  # as sys.platform

    @property
    def cache(self) -> Path:
        """The user's folder for caches."""
        if self.platform == "darwin":
            return self.home / "Library" / "Caches"
        if self.platform == "win32":
            return self.variable("LOCALAPPDATA") or self.home / "AppData" / "Local"
        return self.variable("XDG_CACHE_HOME") or self.home / ".cache"

    def variable(self, name: str) -> Path | None:
        """The folder an environment variable names, None where it is unset or empty."""
        value = self.environment.get(name)
        if not value:
            return None
        return self.home / value[2:] if value.startswith("~/") else Path(value)


def this_machine() -> Machine:
    """The machine this process runs on."""
    return Machine(os.environ, Path.home(), sys.platform)


def model_folders(own: Path, chosen: Sequence[Path], machine: Machine) -> tuple[ModelFolder, ...]:
    """All folders to look into; where the same file is met twice, the earlier folder's name for it counts."""
    found = [ModelFolder(Source.KVCHAT, own), *(ModelFolder(Source.CHOSEN, path) for path in chosen)]
    for source, places in _PLACES.items():
        found += [ModelFolder(source, path) for path in places(machine)]
    return tuple(dict.fromkeys(found))


def _lm_studio(machine: Machine) -> Iterator[Path]:
    homes = [machine.home / ".lmstudio", machine.home / ".cache" / "lm-studio"]
    pointer = _text(machine.home / ".lmstudio-home-pointer").strip()
    if pointer:
        homes.insert(0, Path(pointer))
    for home in homes:
        moved = _json_entry(home / "settings.json", "downloadsFolder")
        if moved:
            yield Path(moved)
        yield home / "models"


def _hugging_face(machine: Machine) -> Iterator[Path]:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if path := machine.variable(name):
            yield path
    if home := machine.variable("HF_HOME"):
        yield home / "hub"
    # The library keeps to ~/.cache on every system.
    yield (machine.variable("XDG_CACHE_HOME") or machine.home / ".cache") / "huggingface" / "hub"


def _llama_cpp(machine: Machine) -> Iterator[Path]:
    if path := machine.variable("LLAMA_CACHE"):
        yield path
    yield machine.cache / "llama.cpp"


def _jan(machine: Machine) -> Iterator[Path]:
    homes = [machine.home / "jan"]
    if machine.platform == "darwin":
        homes.append(machine.home / "Library" / "Application Support" / "Jan" / "data")
    elif machine.platform == "win32":
        homes.append((machine.variable("APPDATA") or machine.home / "AppData" / "Roaming") / "Jan" / "data")
    else:
        homes.append((machine.variable("XDG_DATA_HOME") or machine.home / ".local" / "share") / "Jan" / "data")
        homes.append((machine.variable("XDG_CONFIG_HOME") or machine.home / ".config") / "Jan" / "data")
    for home in homes:
        yield home / "llamacpp" / "models"
        yield home / "models"


def _ollama(machine: Machine) -> Iterator[Path]:
    if path := machine.variable("OLLAMA_MODELS"):
        yield path
    yield machine.home / ".ollama" / "models"
    if machine.platform == "linux":  # as a service it has a user of its own
        yield Path("/usr/share/ollama/.ollama/models")
        yield Path("/var/lib/ollama/.ollama/models")


_PLACES = {
    Source.LM_STUDIO: _lm_studio,
    Source.HUGGING_FACE: _hugging_face,
    Source.LLAMA_CPP: _llama_cpp,
    Source.JAN: _jan,
    Source.OLLAMA: _ollama,
}


def _text(path: Path) -> str:
    try:
        return read_plain(path, 1_000_000).decode()
    except (OSError, UnicodeDecodeError):
        return ""


def _json_entry(path: Path, name: str) -> str:
    """A text entry of another program's JSON file; empty where there is none."""
    try:
        entry = read_json(path, 1_000_000).get(name)
    except (OSError, ValueError, AttributeError):
        return ""
    return entry if isinstance(entry, str) else ""
