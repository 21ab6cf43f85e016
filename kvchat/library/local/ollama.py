"""Reads which models Ollama keeps: manifests that name blobs. Nothing there is ever written.

models/manifests/<registry>/<namespace>/<model>/<tag> is JSON with a list of layers; models/blobs/sha256-<hex> are the
layers (Ollama's server/modelpath.go and docs/faq.md). The blob of the model layer is a GGUF file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvchat.system.files import read_json

MODEL = "application/vnd.ollama.image.model"
PROJECTOR = "application/vnd.ollama.image.projector"
_HOME_REGISTRY, _HOME_NAMESPACE = "registry.ollama.ai", "library"  # what Ollama leaves out of a name


@dataclass(frozen=True)
class OllamaModel:
    """A model as a manifest names it."""

    name: str  # as Ollama says it, e.g. "llama3.2:3b"
    blob: Path
    projector: Path | None


def ollama_models(folder: Path) -> Iterator[OllamaModel]:
    """The models of one Ollama folder, by name. Manifests that make no sense are passed over. Raises OSError."""
    manifests = folder / "manifests"
    list(manifests.iterdir())  # rglob would be silent about a folder that may not be read
    for path in sorted(manifests.rglob("*")):
        place = path.relative_to(manifests).parts
        if len(place) < 2 or not path.is_file():
            continue
        layers = _layers(path)
        blob = _blob(folder, layers.get(MODEL, ""))
        if blob is not None:
            _names[blob] = _name(place)
            yield OllamaModel(_name(place), blob, _blob(folder, layers.get(PROJECTOR, "")))


_names: dict[Path, str | None] = {}  # of the blobs that were looked up, or came by


def name_of_blob(path: Path) -> str | None:
    """Ollama's name for a blob, None for a file that is no blob of Ollama's. Reads files once."""
    if path not in _names and path.parent.name == "blobs" and path.name.startswith("sha256"):
        _names[path] = None
        try:
            next((model for model in ollama_models(path.parent.parent) if model.blob == path), None)
        except OSError:
            return None
    return _names.get(path)


def known_name(path: Path) -> str | None:
    """As `name_of_blob`, without reading: None as well for a blob that nobody has looked up."""
    return _names.get(path)


def _layers(manifest: Path) -> dict[str, str]:
    """The digest of each layer by its media type."""
    try:
        content: Any = read_json(manifest)
        return {str(layer["mediaType"]): str(layer["digest"]) for layer in content["layers"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _blob(folder: Path, digest: str) -> Path | None:
    """The file of a digest, "sha256:<hex>"; None for what is no digest."""
    kind, _, number = digest.partition(":")
    if kind != "sha256" or not number.isalnum():
        return None
    older = folder / "blobs" / digest  # before Ollama 0.1.22
    return older if older.exists() else folder / "blobs" / f"sha256-{number}"


def _name(parts: tuple[str, ...]) -> str:
    """The name a manifest's place stands for."""
    *where, model, tag = parts
    shown = [part for part, usual in zip(where, (_HOME_REGISTRY, _HOME_NAMESPACE), strict=False) if part != usual]
    return "/".join([*shown, f"{model}:{tag}"])
