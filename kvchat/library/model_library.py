"""The model library: local models, Hugging Face, downloads and the access token."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvchat.errors import KvchatError
from kvchat.library.gguf.facts import EmbeddingModel, GgufFacts, part_name, read_facts
from kvchat.library.gguf.parser import NotAModel
from kvchat.library.memory.verdict import Judgement
from kvchat.library.model_files import ModelFolder, Source, inode_key, model_files, model_folders
from kvchat.library.remote.downloader import DownloadOrder
from kvchat.library.remote.downloads import Downloads
from kvchat.library.remote.hub import Hub, HubFile, HubRepository, TokenStore
from kvchat.system.concurrency import in_thread
from kvchat.system.files import file_size
from kvchat.system.paths import Paths, expand_user


@dataclass(frozen=True)
class FoundModel:
    """A model on disk. Without `facts` it cannot be used, and `problem` says why."""

    path: Path
    name: str
    source: Source
    size: int  # bytes of all existing files
    facts: GgufFacts | None = None
    problem: KvchatError | None = None
    projector: Path | None = None  # vision or audio projector
    judgement: Judgement | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """All parts of the model, and its projector unless another model in the folder may use it."""
        part = part_name(self.path.name)
        parts = [self.path.with_name(name) for name in part.all_names] if part else [self.path]
        others = set(self.path.parent.glob("*.gguf")) - {*parts, self.projector}
        return tuple(parts) if others or self.projector is None else (*parts, self.projector)

    @property
    def can_delete(self) -> bool:
        """True for models in kvchat's or the user's folders.

        Another program would still list a model that was deleted from its folder.
        """
        return self.source in (Source.KVCHAT, Source.CHOSEN, Source.FILE)


@dataclass(frozen=True)
class UnreadableFolder:
    path: Path
    reason: str


class ModelLibrary:
    """Finds and downloads models. Use it on one event loop; creating it accesses neither network nor disk."""

    def __init__(self, paths: Paths, user_folders: Callable[[], Sequence[str]]) -> None:
        self.token = TokenStore(paths.config)
        self.hub = Hub(self.token.value)
        self.downloads = Downloads(paths.models, self.hub)
        self._paths, self._user_folders = paths, user_folders

    async def find(
        self, judge: Callable[[GgufFacts], Judgement], on_found: Callable[[FoundModel], None], in_use: str | None = None
    ) -> tuple[UnreadableFolder, ...]:
        """Search for models and call `on_found` for each; return the unreadable folders. May be cancelled.

        `judge` runs in another thread. The model `in_use` is found even outside the folders.
        """
        loop = asyncio.get_running_loop()
        unreadable: list[UnreadableFolder] = []

        def search(stop: threading.Event) -> None:
            folders = self._folders()
            if in_use:
                folders.append(ModelFolder(Source.FILE, Path(in_use)))
            for model in find_models(folders, stop, unreadable):
                judged = replace(model, judgement=judge(model.facts)) if model.facts else model
                loop.call_soon_threadsafe(on_found, judged)

        await in_thread(search)
        return tuple(unreadable)

    async def usable_models(self) -> list[FoundModel]:
        """List all models on disk that can be loaded, including those too large for the memory. May be cancelled."""
        return await in_thread(lambda stop: [model for model in find_models(self._folders(), stop, []) if model.facts])

    async def embedding_models(self) -> list[FoundModel]:
        found = in_thread(lambda stop: [*find_models(self._folders(), stop, [])])
        return [model for model in await found if isinstance(model.problem, EmbeddingModel)]

    def download(self, repository: HubRepository, file: HubFile) -> Path:
        """Start downloading a model and return the path it will have. Raises HubError for an invalid file name."""
        return self.downloads.start(DownloadOrder(repository.repository, repository.revision, file))

    def is_downloaded(self, repository: HubRepository, file: HubFile) -> bool:
        """Return True if kvchat has downloaded this model. Raises HubError for an invalid file name."""
        return DownloadOrder(repository.repository, repository.revision, file).is_downloaded(self._paths.models)

    def _folders(self) -> list[ModelFolder]:
        return model_folders(self._paths.models, map(expand_user, self._user_folders()))

    def repository_of(self, path: Path) -> str | None:
        """Return the repository that a model was downloaded from, by its path; None for other models."""
        try:
            owner, name, *_, _ = path.relative_to(self._paths.models).parts
        except ValueError:
            return None
        return f"{owner}/{name}"


def find_models(
    folders: Iterable[ModelFolder], stop: threading.Event, unreadable: list[UnreadableFolder]
) -> Iterator[FoundModel]:
    """Yield each model once, despite links, until `stop` is set. Add unreadable folders to `unreadable`."""

    def add_unreadable(path: Path, error: OSError) -> None:
        unreadable.append(UnreadableFolder(path, error.strerror or str(error)))

    visited = set[tuple[int, int] | None]()
    for file in (file for folder in folders for file in model_files(folder, add_unreadable, stop)):
        if stop.is_set():
            return
        identity = inode_key(file.path)
        if identity is not None and identity in visited:  # None is a missing file: report each one
            continue
        visited.add(identity)
        facts, problem = None, None
        try:
            facts = read_facts(file.path)
        except NotAModel as error:
            problem = error
        size = facts.size if facts else sum(file_size(part) for part in file.parts)
        yield FoundModel(file.path, file.name, file.source, size, facts, problem, file.projector)
