"""Finds the models on this machine and what there is to know about each: headers only, remembered between looks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from kvchat.errors import KvchatError
from kvchat.library.gguf.facts import GgufFacts, NotAModel
from kvchat.library.local.facts_cache import FactsCache
from kvchat.library.local.files import ModelFile, model_files
from kvchat.library.local.folders import ModelFolder, Source
from kvchat.system.files import size_of


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
        """Whether another path has led to this file already."""
        try:
            found = file.path.stat()
        except OSError:
            return False  # missing: told as such
        identity = (found.st_dev, found.st_ino)
        known = identity in self._seen
        self._seen.add(identity)
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
