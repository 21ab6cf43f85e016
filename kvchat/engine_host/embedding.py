"""Vectors of texts, computed by a second small engine on the CPU that runs only while it is used."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from kvchat.engine.api.errors import EngineFailed, EngineRefused, FailureKind
from kvchat.engine.discovery.engines import usable_engine
from kvchat.engine.process.plan import LaunchPlan
from kvchat.engine.process.supervisor import EngineSupervisor
from kvchat.errors import KvchatError
from kvchat.library.gguf.facts import EmbeddingModel, file_identity
from kvchat.library.model_library import FoundModel
from kvchat.settings import Settings
from kvchat.text.language import _

MAX_MODEL_BYTES = 1_000_000_000  # larger ones take the memory of the chat model
IDLE_S = 120.0  # then the engine stops
MAX_CHARS = 2000  # of a text; the rest is left out
_CONTEXT_SIZE = 1024  # tokens
# What the models' publishers put before passages and queries.
_PREFIXES = {
    "nomic": ("search_document: ", "search_query: "),
    "e5": ("passage: ", "query: "),
    "gemma": ("title: none | text: ", "task: search result | query: "),
    "qwen3": (
        "",
        "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: ",
    ),
}


class EmbeddingEngine:
    """Uses the smallest embedding model on disk that works. Event-loop thread only."""

    def __init__(
        self, settings: Callable[[], Settings], find_models: Callable[[], Awaitable[Sequence[FoundModel]]]
    ) -> None:
        self._settings, self._find_models = settings, find_models
        self._model: FoundModel | None = None
        self._identity = ""
        self._broken: set[str] = set()  # identities of models that cannot be used
        self._supervisor: EngineSupervisor | None = None
        self._lock = asyncio.Lock()
        self._stopping: asyncio.Task[None] | None = None

    async def identity(self) -> str:
        """Return the id of the model; empty if there is none. Only vectors of the same model can be compared."""
        is_running = self._supervisor is not None
        if not is_running and (self._model is None or await _file_identity(self._model) != self._identity):
            usable = [model for model in await self._find_models() if 0 < model.size <= MAX_MODEL_BYTES]
            self._identity, self._model = "", None
            for model in sorted(usable, key=lambda model: model.size):
                if (identity := await _file_identity(model)) not in ("", *self._broken):
                    self._identity, self._model = identity, model
                    break
        return self._identity

    async def embed(self, texts: Sequence[str], *, is_query: bool = False) -> list[list[float]]:
        """Return a vector for each text, starting the engine if needed. Raises KvchatError."""
        async with self._lock:
            if self._stopping is not None:
                self._stopping.cancel()
            try:
                return await self._embed(texts, is_query=is_query)
            finally:
                self._stopping = asyncio.create_task(self._stop_when_idle())

    async def _embed(self, texts: Sequence[str], *, is_query: bool) -> list[list[float]]:
        if (model := self._model) is None:  # deleted after `identity` returned it
            raise KvchatError(_("The model file is missing"))
        assert isinstance(model.problem, EmbeddingModel)
        if self._supervisor is None:
            probe = await asyncio.to_thread(usable_engine, self._settings().engine_path)
            size = min(model.problem.trained_context, _CONTEXT_SIZE)
            plan = LaunchPlan(
                model.path,
                size,
                Path(),
                batch_size=size,
                without_gpu=True,
                embeds=True,
                known_options=probe.options,
            )
            self._supervisor = EngineSupervisor()
            await self._supervisor.start(probe.location, iter([plan]))
        try:
            client = await self._supervisor.ready()
        except EngineFailed as error:
            if error.failure.kind in (FailureKind.BAD_MODEL, FailureKind.CRASHED):
                await self._set_aside()
            raise
        name = f"{model.problem.architecture} {model.path.name.lower()}"
        prefix = next((found[is_query] for key, found in _PREFIXES.items() if key in name), "")
        inputs = [prefix + text[:MAX_CHARS] for text in texts]
        while True:
            try:
                return await client.embed(inputs)
            except EngineRefused as refusal:  # a text has more tokens than the model takes
                if refusal.status == 200:  # invalid vectors
                    await self._set_aside()
                if refusal.status == 200 or max(map(len, inputs)) < len(prefix) + MAX_CHARS // 16:
                    raise
                inputs = [text[: max(map(len, inputs)) * 3 // 4] for text in inputs]

    async def _set_aside(self) -> None:
        """Use another model from now on."""
        self._broken.add(self._identity)
        self._model = None
        await self._stop()

    async def _stop_when_idle(self) -> None:
        await asyncio.sleep(IDLE_S)
        async with self._lock:
            await self._stop()

    async def _stop(self) -> None:
        if self._supervisor is not None:
            await self._supervisor.close()  # `close` waits for it again if it interrupts `_stop_when_idle`
            self._supervisor = None

    async def close(self) -> None:
        if self._stopping is not None:
            self._stopping.cancel()
        await self._stop()


async def _file_identity(model: FoundModel) -> str:
    """Return an empty string if the file cannot be read."""
    try:
        return await asyncio.to_thread(file_identity, model.path)
    except OSError:
        return ""
