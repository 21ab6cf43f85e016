"""The models there are and those that can be had: finder, Hugging Face, downloads and token, joined."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Event
from typing import Any

from kvchat.errors import KvchatError
from kvchat.library.gguf.facts import GgufFacts, NotAModel, part_name, read_facts
from kvchat.library.memory.verdict import Judgement
from kvchat.library.model_files import ModelFile, identity_of, model_files
from kvchat.library.places import ModelFolder, Source, model_folders, this_machine
from kvchat.library.remote.downloader import Order
from kvchat.library.remote.downloads import Download, Downloads
from kvchat.library.remote.hub import Hub, HubFile, HubRepository, TokenStore
from kvchat.system.concurrency import in_thread
from kvchat.system.files import read_json, size_of, whole_file
from kvchat.system.paths import Paths, expanded


@dataclass(frozen=True)
class JudgedModel:
    """A model on disk and whether it fits; no judgement of one that cannot be used."""

    model: FoundModel
    judgement: Judgement | None


class ModelLibrary:
    """Belongs to one event loop. Asks nothing of the network and of no disk until a method is called."""

    def __init__(self, paths: Paths, chosen: Callable[[], Sequence[str]]) -> None:
        self.token = TokenStore(paths.config)
        self.hub = Hub(self.token.value)
        self.downloads = Downloads(paths.models, self.hub, self._tell)
        self._paths = paths
        self._chosen = chosen
        self._listeners: list[Callable[[Download], None]] = []

    def subscribe(self, listener: Callable[[Download], None]) -> Callable[[], None]:
        """Hear of every change of a download, on the loop's thread; call what is returned to stop."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def find(
        self, judge: Callable[[GgufFacts], Judgement], found: Callable[[JudgedModel], None], in_use: str | None = None
    ) -> tuple[UnreadableFolder, ...]:
        """Look for models, telling each as it is found; returns the folders that may not be read. Can be cancelled.

        `judge` is called in another thread. The model `in_use` is told of wherever its file lies.
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
        """The models on disk that can be used, however they fit. Can be cancelled."""
        return await in_thread(lambda stop: [model for model in self._finder(None).models(stop) if model.facts])

    def download(self, repository: HubRepository, file: HubFile) -> Path:
        """Begin to fetch a model; returns where it will be. Raises HubError for an impossible file name."""
        return self.downloads.begin(Order(repository.repository, repository.revision, file))

    def is_here(self, repository: HubRepository, file: HubFile) -> bool:
        """Whether kvchat has fetched that model already. Raises HubError for an impossible file name."""
        return Order(repository.repository, repository.revision, file).is_here(self._paths.models)

    def _finder(self, in_use: str | None) -> ModelFinder:
        folders = list(model_folders(self._paths.models, [*map(expanded, self._chosen())], this_machine()))
        if in_use:
            folders.append(ModelFolder(Source.FILE, Path(in_use)))
        return ModelFinder(folders, self._paths.model_facts)

    def repository_of(self, path: Path) -> str | None:
        """The repository a model was fetched from, told by where it lies; None for one that kvchat did not fetch."""
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


READER = 1  # raise it when `read_facts` reads the same fields in another way
Stamp = list[list[int]]


class FactsCache:
    """The facts by path, so that hundreds of headers are not read at every look. Not for several threads at once.

    An entry counts as long as size, times and inode of all the model's files are the same. The file may be deleted.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._entries = _load(file)
        self._used: dict[str, dict[str, Any]] = {}
        self._changed = False

    def facts(self, path: Path, parts: Sequence[Path]) -> GgufFacts:
        """The facts of the model at `path`, whose files are `parts`. Raises NotAModel, which is not remembered."""
        key, stamp = str(path), _stamps(parts)
        entry = self._entries.get(key)
        if entry is None or stamp is None or entry["stamp"] != stamp:
            plain = json.dumps(dataclasses.asdict(read_facts(path)), default=str)  # paths as text
            entry = {"stamp": stamp, "facts": json.loads(plain)}
            self._changed = True
        self._used[key] = entry
        facts = _rebuilt(GgufFacts, entry["facts"])
        assert isinstance(facts, GgufFacts)
        return facts

    def save(self, *, complete: bool) -> None:
        """Write the file. After a `complete` look, models that were not asked for are forgotten."""
        kept = self._used if complete else self._entries | self._used
        if not self._changed and len(kept) == len(self._entries):
            return
        with contextlib.suppress(OSError):  # it only saves time
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with whole_file(self._file) as new:
                new.write_text(json.dumps({"fields": list(_shape(GgufFacts)), "models": kept}), "utf-8")


def _load(file: Path) -> dict[str, dict[str, Any]]:
    """The entries of the file; none where it is missing, damaged, or of a version with other facts."""
    try:
        content = read_json(file)
        if content["fields"] != list(_shape(GgufFacts)):
            return {}
        return {path: entry for path, entry in content["models"].items() if {"stamp", "facts"} <= entry.keys()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _stamps(parts: Sequence[Path]) -> Stamp | None:
    """What changes when a file is replaced, written to, or made readable; None where one cannot be looked at."""
    try:
        found = [part.stat() for part in parts]
    except OSError:
        return None
    return [[one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_ino] for one in found]


@cache
def _shape(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass and of those in it, with their types: facts of another shape are read anew."""
    lines: list[str] = [f"read by {READER}"]
    for name, hint in typing.get_type_hints(kind).items():
        lines.append(f"{kind.__name__}.{name}: {hint}")
        for nested in typing.get_args(hint) or (hint,):
            if isinstance(nested, type) and dataclasses.is_dataclass(nested):
                lines += _shape(nested)
    return tuple(lines)


def _rebuilt(hint: Any, value: Any) -> Any:
    """A value of the type `hint` from what JSON has made of it."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, dict):
        made = next(kind for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind))
        hints = _hints(made)
        return made(**{name: _rebuilt(hints[name], entry) for name, entry in value.items()})
    if isinstance(value, list):
        listed = next(kind for kind in kinds if typing.get_origin(kind) is tuple)
        return tuple(_rebuilt(typing.get_args(listed)[0], entry) for entry in value)
    return Path(value) if Path in kinds and value is not None else value


_hints = cache(typing.get_type_hints)


@dataclass(frozen=True)
class FoundModel:
    """A model on disk. Without facts it cannot be used, and `problem` says why."""

    path: Path
    name: str
    source: Source
    size: int  # bytes of all its files that are there
    facts: GgufFacts | None = None
    problem: KvchatError | None = None
    projector: Path | None = None  # gives it sight or hearing

    @property
    def files(self) -> tuple[Path, ...]:
        """Its own files: all parts, and what it sees with unless another model lies there that may see with it."""
        part = part_name(self.path.name)
        parts = [self.path.with_name(name) for name in part.all_names] if part else [self.path]
        others = set(self.path.parent.glob("*.gguf")) - {*parts, self.projector}
        return tuple(parts) if others or self.projector is None else (*parts, self.projector)

    @property
    def may_be_deleted(self) -> bool:
        """Whether it lies in kvchat's folders or the user's, and not in another program's, which keeps a list."""
        return self.source in (Source.KVCHAT, Source.CHOSEN, Source.FILE)


@dataclass(frozen=True)
class UnreadableFolder:
    """A folder that is there and may not be looked into."""

    path: Path
    reason: str


class ModelFinder:
    """One look at all folders. Blocks for as long as it takes: use it off the event loop."""

    def __init__(self, folders: Sequence[ModelFolder], cache_file: Path) -> None:
        self.unreadable: list[UnreadableFolder] = []  # known when the look is over
        self._folders = folders
        self._cache_file = cache_file
        self._seen: set[tuple[int, int]] = set()

    def models(self, stop: Event) -> Iterator[FoundModel]:
        """Each model once, whatever links lead to it, until `stop` is set."""
        cache = FactsCache(self._cache_file)
        for folder in self._folders:
            for file in model_files(folder, self._cannot_read, stop):
                if stop.is_set():
                    break
                if not self._met_before(file):
                    yield _look_at(file, cache)
        cache.save(complete=not stop.is_set())

    def _met_before(self, file: ModelFile) -> bool:
        identity = identity_of(file.path)
        known = identity in self._seen
        self._seen |= {identity} if identity else set()  # one that is missing is told as such
        return known

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
