"""The model library: local models, Hugging Face, downloads and the access token."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from kvchat.errors import KvchatError
from kvchat.library.gguf.facts import GgufFacts, NotAModel, Weights, part_name, read_facts
from kvchat.library.gguf.kv_cache import KvLayout, LayerKv
from kvchat.library.gguf.template_options import TemplateWord
from kvchat.library.memory.verdict import Judgement
from kvchat.library.model_files import (
    ModelFile,
    ModelFolder,
    Source,
    identity_of,
    model_files,
    model_folders,
    this_machine,
)
from kvchat.library.remote.downloader import Order
from kvchat.library.remote.downloads import Download, Downloads
from kvchat.library.remote.hub import Hub, HubFile, HubRepository, TokenStore
from kvchat.system.concurrency import in_thread
from kvchat.system.files import read_json, size_of, whole_file
from kvchat.system.paths import Paths, expanded


@dataclass(frozen=True)
class JudgedModel:
    model: FoundModel
    judgement: Judgement | None


class ModelLibrary:
    """Belongs to one event loop. Accesses neither network nor disk until a method is called."""

    def __init__(self, paths: Paths, chosen: Callable[[], Sequence[str]]) -> None:
        self.token = TokenStore(paths.config)
        self.hub = Hub(self.token.value)
        self.downloads = Downloads(paths.models, self.hub, self._tell)
        self._paths = paths
        self._chosen = chosen
        self._listeners: list[Callable[[Download], None]] = []

    def subscribe(self, listener: Callable[[Download], None]) -> Callable[[], None]:
        """Call `listener` on the loop's thread for each download change; return the unsubscriber."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def find(
        self, judge: Callable[[GgufFacts], Judgement], found: Callable[[JudgedModel], None], in_use: str | None = None
    ) -> tuple[UnreadableFolder, ...]:
        """Search for models, reporting each as found; return the unreadable folders. Cancellable.

        `judge` runs in another thread. The model `in_use` is reported wherever its file is.
        """
        loop = asyncio.get_running_loop()

        def look(stop: threading.Event) -> tuple[UnreadableFolder, ...]:
            finder = self._finder(in_use)
            for model in finder.models(stop):
                judgement = judge(model.facts) if model.facts else None
                loop.call_soon_threadsafe(found, JudgedModel(model, judgement))
            return tuple(finder.unreadable)

        return await in_thread(look)

    async def usable(self) -> list[FoundModel]:
        """List the usable models on disk, whether or not they fit. Can be cancelled."""
        return await in_thread(lambda stop: [model for model in self._finder(None).models(stop) if model.facts])

    def download(self, repository: HubRepository, file: HubFile) -> Path:
        """Start downloading a model; return its future path. Raises HubError for an invalid file name."""
        return self.downloads.begin(Order(repository.repository, repository.revision, file))

    def is_here(self, repository: HubRepository, file: HubFile) -> bool:
        """Return True if kvchat downloaded this model. Raises HubError for an invalid file name."""
        return Order(repository.repository, repository.revision, file).is_here(self._paths.models)

    def _finder(self, in_use: str | None) -> ModelFinder:
        folders = list(model_folders(self._paths.models, [*map(expanded, self._chosen())], this_machine()))
        if in_use:
            folders.append(ModelFolder(Source.FILE, Path(in_use)))
        return ModelFinder(folders, self._paths.model_facts)

    def repository_of(self, path: Path) -> str | None:
        """Return the repository of a model, from its path; None if kvchat did not download it."""
        try:
            owner, name, *_, _ = path.relative_to(self._paths.models).parts
        except ValueError:
            return None
        return f"{owner}/{name}"

    def _tell(self, download: Download) -> None:
        for listener in tuple(self._listeners):
            listener(download)

    async def close(self) -> None:
        await self.downloads.close()


READER = 2  # increment when `read_facts` reads the same fields differently
# Facts stored with other fields are read again.
_SHAPE = [str(READER)] + [
    f"{kind.__name__}.{field.name}: {field.type}"
    for kind in (GgufFacts, KvLayout, LayerKv, Weights, TemplateWord)
    for field in dataclasses.fields(kind)
]


class FactsCache:
    """Facts by path, which saves reading hundreds of headers per search. Not thread-safe.

    An entry is valid while size, times and inode of all the model's files are unchanged. The file is disposable.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._entries: dict[str, dict[str, Any]] = {}
        self._used: dict[str, dict[str, Any]] = {}
        self._changed = False
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # missing or damaged
            content = read_json(file)
            models = content["models"].items() if content["fields"] == _SHAPE else ()
            self._entries = {path: entry for path, entry in models if {"stamp", "facts"} <= entry.keys()}

    def facts(self, path: Path, parts: Sequence[Path]) -> GgufFacts:
        """Return the facts of the model at `path` with files `parts`. Raises NotAModel, which is not cached."""
        key, stamp = str(path), _stamps(parts)
        entry = self._entries.get(key)
        if entry is None or stamp is None or entry["stamp"] != stamp:
            facts = read_facts(path)
            entry = {"stamp": stamp, "facts": dataclasses.asdict(facts)}
            self._changed = True
        else:
            facts = _facts_of(entry["facts"])
        self._used[key] = entry
        return facts

    def save(self, *, complete: bool) -> None:
        """Write the file. After a `complete` search, drop models that were not requested."""
        kept = self._used if complete else self._entries | self._used
        if not self._changed and len(kept) == len(self._entries):
            return
        with contextlib.suppress(OSError):  # an optional cache
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with whole_file(self._file) as new:
                new.write_text(json.dumps({"fields": _SHAPE, "models": kept}, default=str), "utf-8")


def _stamps(parts: Sequence[Path]) -> list[list[int]] | None:
    """Return sizes, times and inodes of a model's files; None if one is inaccessible."""
    try:
        stats = [part.stat() for part in parts]
    except OSError:
        return None
    return [[stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino] for stat in stats]


def _facts_of(plain: dict[str, Any]) -> GgufFacts:
    kv, weights = plain["kv"], plain["weights"]
    rebuilt = {
        "path": Path(plain["path"]),
        "kv": KvLayout(tuple(LayerKv(**layer) for layer in kv["layers"]), kv["window"], tuple(kv["notes"])),
        "weights": Weights(**weights | {name: tuple(weights[name]) for name in ("layers", "experts")}),
        "parts": tuple(map(Path, plain["parts"])),
        "template_words": tuple(TemplateWord(word["name"], tuple(word["values"])) for word in plain["template_words"]),
    }
    return GgufFacts(**plain | rebuilt)


@dataclass(frozen=True)
class FoundModel:
    """A model on disk. Unusable without facts; `problem` says why."""

    path: Path
    name: str
    source: Source
    size: int  # bytes of all existing files
    facts: GgufFacts | None = None
    problem: KvchatError | None = None
    projector: Path | None = None  # vision or audio projector

    @property
    def files(self) -> tuple[Path, ...]:
        """All its parts, and its projector unless another model there may use it."""
        part = part_name(self.path.name)
        parts = [self.path.with_name(name) for name in part.all_names] if part else [self.path]
        others = set(self.path.parent.glob("*.gguf")) - {*parts, self.projector}
        return tuple(parts) if others or self.projector is None else (*parts, self.projector)

    @property
    def may_be_deleted(self) -> bool:
        """True in kvchat's and the user's folders: other programs keep their own list."""
        return self.source in (Source.KVCHAT, Source.CHOSEN, Source.FILE)


@dataclass(frozen=True)
class UnreadableFolder:
    path: Path
    reason: str


class ModelFinder:
    """One search of all folders. Blocks until done: use it off the event loop."""

    def __init__(self, folders: Sequence[ModelFolder], cache_file: Path) -> None:
        self.unreadable: list[UnreadableFolder] = []  # complete after the search
        self._folders = folders
        self._cache_file = cache_file

    def models(self, stop: Event) -> Iterator[FoundModel]:
        """Yield each model once despite multiple links, until `stop` is set."""
        cache, seen = FactsCache(self._cache_file), set[tuple[int, int] | None]()
        for folder in self._folders:
            for file in model_files(folder, self._cannot_read, stop):
                if stop.is_set():
                    break
                identity = identity_of(file.path)
                if identity is None or identity not in seen:  # missing files are all reported
                    seen.add(identity)
                    yield _look_at(file, cache)
        cache.save(complete=not stop.is_set())

    def _cannot_read(self, path: Path, error: OSError) -> None:
        self.unreadable.append(UnreadableFolder(path, error.strerror or str(error)))


def _look_at(file: ModelFile, cache: FactsCache) -> FoundModel:
    facts, problem = None, None
    try:
        facts = cache.facts(file.path, file.parts)
    except NotAModel as error:
        problem = error
    size = facts.size if facts else sum(size_of(part) for part in file.parts)
    return FoundModel(file.path, file.name, file.source, size, facts, problem, file.projector)
