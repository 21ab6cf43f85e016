"""Where models may already be: kvchat's own folder, folders the user chose, and those of other programs.

Sources: huggingface_hub's environment variables (HF_HUB_CACHE, HF_HOME); llama.cpp's fs_get_cache_directory
(LLAMA_CACHE); lmstudio.ai/docs, "Import Models", and lms's .lmstudio-home-pointer; Ollama's FAQ, "Where are models
stored?"; Jan's data folder, which has moved over the years.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

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
    """The environment that decides where other programs keep their models."""

    environment: Mapping[str, str]
    home: Path
    platform: str  # as sys.platform

    @property
    def cache(self) -> Path:
        if self.platform == "darwin":
            return self.home / "Library" / "Caches"
        if self.platform == "win32":
            return self.variable("LOCALAPPDATA") or self.home / "AppData" / "Local"
        return self.variable("XDG_CACHE_HOME") or self.home / ".cache"

    def variable(self, name: str) -> Path | None:
        value = self.environment.get(name)
        if not value:
            return None
        return self.home / value[2:] if value.startswith("~/") else Path(value)


def this_machine() -> Machine:
    return Machine(os.environ, Path.home(), sys.platform)


def model_folders(own: Path, chosen: Sequence[Path], machine: Machine) -> tuple[ModelFolder, ...]:
    """List all folders to look into; where the same file is met twice, the earlier folder's name for it counts."""
    found = [ModelFolder(Source.KVCHAT, own), *(ModelFolder(Source.CHOSEN, path) for path in chosen)]
    for source, places in _PLACES.items():
        found += [ModelFolder(source, path) for path in places(machine)]
    return tuple(dict.fromkeys(found))


def _lm_studio(machine: Machine) -> Iterator[Path]:
    homes = [machine.home / ".lmstudio", machine.home / ".cache" / "lm-studio"]
    with suppress(OSError, UnicodeDecodeError):
        if pointer := read_plain(machine.home / ".lmstudio-home-pointer", 1_000_000).decode().strip():
            homes.insert(0, Path(pointer))
    for home in homes:
        with suppress(OSError, ValueError, AttributeError):
            moved = read_json(home / "settings.json", 1_000_000).get("downloadsFolder")
            if moved and isinstance(moved, str):
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


# models/manifests/<registry>/<namespace>/<model>/<tag> is JSON with a list of layers; models/blobs/sha256-<hex> are the
# layers (Ollama's server/modelpath.go and docs/faq.md). The blob of the model layer is a GGUF file. Nothing is written.
MODEL = "application/vnd.ollama.image.model"
PROJECTOR = "application/vnd.ollama.image.projector"
_HOME_REGISTRY, _HOME_NAMESPACE = "registry.ollama.ai", "library"  # what Ollama leaves out of a name


class OllamaModel(NamedTuple):
    """A model as a manifest names it."""

    name: str  # as Ollama says it, e.g. "llama3.2:3b"
    blob: Path
    projector: Path | None


def ollama_models(folder: Path) -> Iterator[OllamaModel]:
    """Yield the models of one Ollama folder by name, but not those of senseless manifests. Raises OSError."""
    manifests = folder / "manifests"
    list(manifests.iterdir())  # rglob would be silent about a folder that may not be read
    for path in sorted(manifests.rglob("*")):
        place = path.relative_to(manifests).parts
        if len(place) < 2 or not path.is_file():
            continue
        layers: dict[str, str] = {}
        with suppress(OSError, ValueError, KeyError, TypeError):
            layers = {str(layer["mediaType"]): str(layer["digest"]) for layer in read_json(path)["layers"]}
        blob = _blob(folder, layers.get(MODEL, ""))
        if blob is not None:
            _names[blob] = _name(place)
            yield OllamaModel(_name(place), blob, _blob(folder, layers.get(PROJECTOR, "")))


_names: dict[Path, str | None] = {}  # of the blobs that were looked up, or came by


def name_of_blob(path: Path) -> str | None:
    """Return Ollama's name for a blob, None for a file that is no blob of Ollama's. Reads files once."""
    if path not in _names and path.parent.name == "blobs" and path.name.startswith("sha256"):
        _names[path] = None
        try:
            next((model for model in ollama_models(path.parent.parent) if model.blob == path), None)
        except OSError:
            return None
    return _names.get(path)


def known_name(path: Path) -> str | None:
    return _names.get(path)


def _blob(folder: Path, digest: str) -> Path | None:
    """Return the file of a digest, "sha256:<hex>"; None for anything else."""
    kind, _, number = digest.partition(":")
    if kind != "sha256" or not number.isalnum():
        return None
    older = folder / "blobs" / digest  # before Ollama 0.1.22
    return older if older.exists() else folder / "blobs" / f"sha256-{number}"


def _name(parts: tuple[str, ...]) -> str:
    *where, model, tag = parts
    shown = [part for part, usual in zip(where, (_HOME_REGISTRY, _HOME_NAMESPACE), strict=False) if part != usual]
    return "/".join([*shown, f"{model}:{tag}"])
