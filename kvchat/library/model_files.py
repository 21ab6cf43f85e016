"""Search for model files by name. Split files are one model, and projectors belong to their models.

The folders are those of kvchat, of the user's choice, and of other programs, as documented by: huggingface_hub's
environment variables (HF_HUB_CACHE, HF_HOME); llama.cpp's fs_get_cache_directory (LLAMA_CACHE); lmstudio.ai/docs,
"Import Models", and lms's .lmstudio-home-pointer; Ollama's FAQ, "Where are models stored?". Jan's data folder has moved
several times.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from threading import Event

from kvchat.library.gguf.facts import part_name
from kvchat.system.files import read_json, read_regular_file, run_with_timeout
from kvchat.text.language import N_

MAX_FOLDER_DEPTH = 8  # levels of subfolders; the Hugging Face cache needs 4
_QUANTISATION = r"(?:ud[-_.])?(?:iq\d\w*|q\d\w*|t?q\d_\d|bf16|f16|f32|fp16|fp32|mxfp4\w*|nvfp4)"
_TRAILING_QUANTISATION = re.compile(rf"[-_.]{_QUANTISATION}$", re.IGNORECASE)
_PROJECTOR_NOISE = re.compile(rf"mmproj|model|gguf|{_QUANTISATION}|[^a-z0-9]+")
_REVISION_OR_QUANTISATION = re.compile(rf"snapshots|[0-9a-f]{{7,64}}|(?i:{_QUANTISATION})")
_GENERIC_NAMES = frozenset(("model", "ggml-model", "weights", "gguf"))


class Source(Enum):
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
    """A folder that may hold models, or the first file of one model. The path may not exist."""

    source: Source
    path: Path


def model_folders(
    own: Path,
    chosen: Iterable[Path],
    environment: Mapping[str, str] = os.environ,
    home: Path | None = None,
    platform: str = sys.platform,
) -> list[ModelFolder]:
    """List the folders to search. If several hold the same file, the first determines its displayed source and name."""
    home = home or Path.home()

    def variable(name: str) -> Path | None:
        value = environment.get(name)
        if value and value.startswith("~/"):
            return home / value[2:]
        return Path(value) if value else None

    dot_cache = variable("XDG_CACHE_HOME") or home / ".cache"
    if platform == "darwin":
        cache, data = home / "Library" / "Caches", [home / "Library" / "Application Support"]
    elif platform == "win32":
        cache = variable("LOCALAPPDATA") or home / "AppData" / "Local"
        data = [variable("APPDATA") or home / "AppData" / "Roaming"]
    else:
        config = variable("XDG_CONFIG_HOME") or home / ".config"
        cache, data = dot_cache, [variable("XDG_DATA_HOME") or home / ".local" / "share", config]
    jan = [home / "jan", *(folder / "Jan" / "data" for folder in data)]
    ollama = [variable("OLLAMA_MODELS"), home / ".ollama" / "models"]
    if platform == "linux":  # Ollama's service has its own user
        ollama += [Path("/usr/share/ollama/.ollama/models"), Path("/var/lib/ollama/.ollama/models")]
    hf_home = variable("HF_HOME")
    hubs = [variable("HF_HUB_CACHE"), variable("HUGGINGFACE_HUB_CACHE"), hf_home and hf_home / "hub"]
    hubs.append(dot_cache / "huggingface" / "hub")  # in ~/.cache on all systems
    places: dict[Source, Iterable[Path | None]] = {
        Source.KVCHAT: [own],
        Source.CHOSEN: chosen,
        Source.LM_STUDIO: _lm_studio_folders(home),
        Source.HUGGING_FACE: hubs,
        Source.LLAMA_CPP: [variable("LLAMA_CACHE"), cache / "llama.cpp"],
        Source.JAN: [folder / below for folder in jan for below in (Path("llamacpp", "models"), "models")],
        Source.OLLAMA: ollama,
    }
    folders = [ModelFolder(source, path) for source, paths in places.items() for path in paths if path is not None]
    return list(dict.fromkeys(folders))


def _lm_studio_folders(home: Path) -> Iterator[Path]:
    homes = [home / ".lmstudio", home / ".cache" / "lm-studio"]
    with suppress(OSError, UnicodeDecodeError):
        if pointer := read_regular_file(home / ".lmstudio-home-pointer", 1_000_000).decode("utf-8-sig").strip():
            homes.insert(0, Path(pointer))
    for folder in homes:
        with suppress(OSError, ValueError, AttributeError):
            moved = read_json(folder / "settings.json", 1_000_000).get("downloadsFolder")
            if moved and isinstance(moved, str):
                yield Path(moved)
        yield folder / "models"


# Ollama stores a list of layers in models/manifests/<registry>/<namespace>/<model>/<tag>, as JSON, and each layer in
# models/blobs/sha256-<hex> (server/modelpath.go and docs/faq.md in Ollama). The blob of the model layer is a GGUF file.
_MODEL_MEDIA_TYPE = "application/vnd.ollama.image.model"
_PROJECTOR_MEDIA_TYPE = "application/vnd.ollama.image.projector"
_HOME_REGISTRY, _HOME_NAMESPACE = "registry.ollama.ai", "library"  # Ollama omits these in names
_ollama_names: dict[Path, str | None] = {}  # by blob

OnUnreadable = Callable[[Path, OSError], None]


@dataclass(frozen=True)
class ModelFile:
    path: Path  # the first file; of a split model, it may be missing
    parts: tuple[Path, ...]  # the existing files
    source: Source
    name: str
    projector: Path | None = None  # vision or audio projector


def model_files(folder: ModelFolder, on_unreadable: OnUnreadable, stop: Event) -> Iterator[ModelFile]:
    """Yield the models in a folder and its subfolders until `stop` is set. A missing folder has none."""
    if folder.source is Source.FILE:
        return _models_at_path(folder.path)
    if folder.source is Source.OLLAMA:
        return _ollama_models(folder.path, on_unreadable)
    return _models_below(folder, on_unreadable, stop)


def _models_at_path(path: Path) -> Iterator[ModelFile]:
    try:
        names = sorted(file.name for file in path.parent.iterdir() if file.suffix.lower() == ".gguf")
    except OSError:
        return
    if path.name not in names:  # no .gguf suffix, or missing
        if path.is_file():
            yield ModelFile(path, (path,), Source.FILE, name_from_path(path))
        return
    models = _models_in_folder(path.parent, names, Source.FILE)
    yield from (model for model in models if path in (model.path, *model.parts))


def projector_beside(model: Path) -> Path | None:
    """Return the projector in the folder of a model, matched by name, or None. Reads the disk."""
    files = _models_at_path(model)
    if model.parent.name == "blobs":
        files = (file for file in _ollama_models(model.parent.parent) if file.path == model)
    return next((file.projector for file in files), None)


def ollama_name(path: Path) -> str | None:
    """Return the Ollama name of a blob, or None for any other file. The first call for a blob reads the manifests."""
    if path not in _ollama_names and path.parent.name == "blobs" and path.name.startswith("sha256"):
        _ollama_names[path] = None
        list(_ollama_models(path.parent.parent))
    return _ollama_names.get(path)


def _ollama_models(folder: Path, on_unreadable: OnUnreadable = lambda *_: None) -> Iterator[ModelFile]:
    """Yield the models in an Ollama folder, sorted by name. Invalid manifests are skipped."""

    def blob_of(digest: str) -> Path | None:
        kind, _, number = digest.partition(":")
        if kind != "sha256" or not number.isalnum():
            return None
        older = folder / "blobs" / digest  # before Ollama 0.1.22
        return older if older.exists() else folder / "blobs" / f"sha256-{number}"

    manifests = folder / "manifests"
    try:
        list(manifests.iterdir())  # raises if the folder is unreadable; rglob would skip it
        paths = sorted(manifests.rglob("*"))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        on_unreadable(folder, error)
        return
    for path in paths:
        parts = path.relative_to(manifests).parts
        if len(parts) < 2 or not path.is_file():
            continue
        layers: dict[str, str] = {}
        with suppress(OSError, ValueError, KeyError, TypeError):
            layers = {str(layer["mediaType"]): str(layer["digest"]) for layer in read_json(path)["layers"]}
        if blob := blob_of(layers.get(_MODEL_MEDIA_TYPE, "")):
            *where, model, tag = parts
            usual = zip(where, (_HOME_REGISTRY, _HOME_NAMESPACE), strict=False)
            name = "/".join([*(part for part, default in usual if part != default), f"{model}:{tag}"])
            _ollama_names[blob] = name
            yield ModelFile(blob, (blob,), Source.OLLAMA, name, blob_of(layers.get(_PROJECTOR_MEDIA_TYPE, "")))


def _models_below(top: ModelFolder, on_unreadable: OnUnreadable, stop: Event) -> Iterator[ModelFile]:
    """Yield the models in a folder tree. Links to folders are followed, but no folder is visited twice."""

    def report_error(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            on_unreadable(Path(error.filename or top.path), error)

    try:
        run_with_timeout(top.path.stat)
    except OSError as error:
        report_error(error)
        return
    visited: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(top.path, onerror=report_error, followlinks=True):
        current = Path(folder)
        identity = inode_key(current)
        if identity is None or identity in visited or stop.is_set():
            folders.clear()
            continue
        visited.add(identity)
        main_snapshot = ""  # Hugging Face's current snapshot, visited first
        if current.name == "snapshots":
            with suppress(OSError, UnicodeDecodeError):
                main_snapshot = read_regular_file(current.parent / "refs" / "main", 1000).decode("ascii").strip()
        is_deep = len(current.relative_to(top.path).parts) >= MAX_FOLDER_DEPTH
        below = [name for name in folders if not name.startswith(".") and not is_deep]
        folders[:] = sorted(below, key=lambda name: (name != main_snapshot, name))
        names = sorted(name for name in files if name.lower().endswith(".gguf") and not name.startswith("."))
        yield from _models_in_folder(current, names, top.source)


def inode_key(path: Path) -> tuple[int, int] | None:
    """Return the device and inode numbers, which all links to a file share, or None if it is inaccessible."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino)


def _models_in_folder(folder: Path, names: list[str], source: Source) -> Iterator[ModelFile]:
    projectors = [name for name in names if is_projector(name)]
    models: dict[str, list[Path]] = {}  # files by the name of the model's first file
    for name in names:
        if name not in projectors:
            part = part_name(name)
            models.setdefault(part.all_names[0] if part else name, []).append(folder / name)
    for first, parts in models.items():
        projector = match_projector(first, list(models), projectors)
        path = parts[0] if part_name(parts[0].name) is None else folder / first
        yield ModelFile(path, tuple(parts), source, name_from_path(path), folder / projector if projector else None)
    if not models:  # list the projectors themselves
        for name in projectors:
            path = folder / name
            yield ModelFile(path, (path,), source, name_from_path(path))


def match_projector(model: str, models: list[str], projectors: list[str]) -> str | None:
    """Return the projector for a model among the projectors in its folder, matched by name, or None.

    A projector without a model name ("mmproj-F16.gguf") is for all models if they are quantisations of one model.
    """

    def bare(name: str) -> str:
        part = part_name(name)
        return _PROJECTOR_NOISE.sub("", (part.stem if part else name).lower())

    key = bare(model)
    # Prefer F16: projectors are small, and the engine supports it everywhere.
    for projector in sorted(projectors, key=lambda name: ("f16" not in name.lower().replace("bf16", ""), name)):
        named = bare(projector)
        if named == key or (not named and len({bare(other) for other in models}) == 1):
            return projector
        if named and (key.startswith(named) or named.startswith(key)):
            return projector
    return None


def is_projector(name: str) -> bool:
    return "mmproj" in name.lower()


def display_name(path: Path) -> str:
    """Return a model's Ollama name if `ollama_name` has read it before, else a name from the path. Reads no file."""
    return _ollama_names.get(path) or name_from_path(path)


def name_from_path(path: Path) -> str:
    """Return the file name without suffix or, if it is generic such as "model.gguf", the folder name."""
    part = part_name(path.name)
    stem = Path(part.stem).name if part else path.stem
    if _TRAILING_QUANTISATION.sub("", stem).lower() not in _GENERIC_NAMES:
        return stem
    for folder in reversed(path.parent.parts):
        if not _REVISION_OR_QUANTISATION.fullmatch(folder):
            return folder.removeprefix("models--").replace("--", "/") if folder.startswith("models--") else folder
    return stem


def quantisation_in(name: str) -> str:
    """Return the quantisation in a file name, such as "Q4_K_M" or "UD-Q4_K_XL", or ""."""
    match = _TRAILING_QUANTISATION.search(name)
    return match[0][1:].upper() if match else ""
