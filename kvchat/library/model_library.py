"""The models there are and those that can be had: finder, Hugging Face, downloads and token, joined."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvchat.library.gguf.facts import GgufFacts
from kvchat.library.local.finder import FoundModel, ModelFinder, UnreadableFolder
from kvchat.library.local.folders import ModelFolder, Source, model_folders, this_machine
from kvchat.library.memory.verdict import Judgement
from kvchat.library.remote.downloads import Download, Downloads
from kvchat.library.remote.hub import Hub, HubFile, HubRepository
from kvchat.library.remote.hub_download import Order
from kvchat.library.remote.hub_token import TokenStore
from kvchat.system.concurrency import in_thread
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
        """Stop the downloads; what has arrived is kept."""
        await self.downloads.close()
