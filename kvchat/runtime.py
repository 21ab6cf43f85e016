"""The parts without Qt, made and joined: what the app, `ask` and `bench` have in common."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import shutil
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

from kvchat.chat.database import Database
from kvchat.chat.events import EngineChanged, EventBus, Notice, SettingsChanged
from kvchat.chat.findings import Findings
from kvchat.chat.messages import Conversation
from kvchat.chat.organiser import deleted_ids, purge_left_behind
from kvchat.chat.rates import BreakEven
from kvchat.chat.service import ChatService
from kvchat.chat.worker import Worker
from kvchat.diagnostics import Facts, report
from kvchat.engine.log import EngineLog
from kvchat.engine.status import EngineState, EngineStatus
from kvchat.engine.supervisor import EngineSupervisor
from kvchat.engine.vitals import Vitals
from kvchat.engine.wire import ENGINE_DEFAULTS, Sampling
from kvchat.errors import KvchatError
from kvchat.keeping.desk import KeepingDesk
from kvchat.kvstore.block_store import BlockStore
from kvchat.kvstore.budget import default_quota
from kvchat.kvstore.savepoint import PrunePlan, StoreUsage
from kvchat.kvstore.speed import RebuildSpeed
from kvchat.kvstore.store import Bounds
from kvchat.library.context_size import STEP
from kvchat.library.corrections import CorrectionBook
from kvchat.library.downloads import Download, DownloadState
from kvchat.library.gguf_facts import GgufFacts, read_facts
from kvchat.library.kv_cache import kv_bytes
from kvchat.library.memory import MemoryFacts, available_memory
from kvchat.library.memory_bar import MemoryBar, given_back
from kvchat.library.model_files import display_name
from kvchat.library.model_library import ModelLibrary
from kvchat.library.ollama import name_of_blob
from kvchat.library.proposals import Proposal
from kvchat.library.sampling_defaults import recommended_sampling
from kvchat.library.template_options import TemplateOption, known_options
from kvchat.paths import Paths
from kvchat.redaction import this_person
from kvchat.rooms.attached import AttachedRoom
from kvchat.rooms.both import EngineRooms
from kvchat.rooms.choice import free_memory
from kvchat.rooms.desk import EngineDesk, server_key
from kvchat.rooms.memory import EngineMemory
from kvchat.rooms.rest import EngineRest
from kvchat.rooms.supervised import SupervisedRoom
from kvchat.settings import Settings, save_settings

MOST_WARM, WARM_SHARE = 2_000_000_000, 8  # bytes; an eighth of the free memory
SAVE_PATIENCE_S = 15.0  # a save takes seconds at most; who takes longer hangs
# These need another engine process.
RESTART_SETTINGS = (
    "model_path",
    "engine_path",
    "engine_url",
    "engine_arguments",
    "rpc_workers",
    "context_size",
    "kv_type",
)

BOUND_SETTINGS = ("quota_bytes", "free_floor_bytes", "max_age_days")  # these have the store look for what must go


class Runtime:
    """A running kvchat without its window. Made by `open_runtime`, ended by `close`."""

    def __init__(self, paths: Paths, settings: Settings, database: Database, worker: Worker, store: BlockStore):
        self.paths = paths
        self.settings = settings
        self._chosen_model = settings.model_path  # the user's, to begin with next time; a conversation may use another
        self.events = EventBus()
        self._worker = worker
        self._database = database
        self._store = store
        self._log = EngineLog(paths.engine_log)
        self.room = self._make_rooms()
        self.chat = ChatService(
            database, worker, store, self.room, self.events, self._sampling, self._new_model, self._defaults
        )
        self.models = ModelLibrary(paths, lambda: self.settings.model_folders)
        self.models.subscribe(self._download_changed)
        self.engines = EngineDesk(paths, lambda: self.settings)
        self.keeping = KeepingDesk(paths, database, worker, self.events)
        self._rest = EngineRest(lambda: self.settings.idle_minutes, self.chat, self.room)
        self._closed = False
        self._storing_settings = asyncio.Lock()
        self._background: set[asyncio.Task[None]] = set()

    @property
    def engine_status(self) -> EngineStatus:
        """What the engine is doing."""
        return self.room.status

    @property
    def model_name(self) -> str | None:
        """The model's name for the screen, None without a model."""
        if self.settings.engine_url:
            server = self.room.attached.server
            return display_name(Path(server.model_path)) if server and server.model_path else "the server’s model"
        if not self.settings.model_path:
            return None
        return self.name_of(self.settings.model_path)

    def name_of(self, model: str) -> str:
        """The name of the model at this path, for the screen."""
        return name_of_blob(Path(model)) or display_name(Path(model))

    def model_name_in(self, conversation: Conversation | None) -> str | None:
        """The name of the model that answers in a conversation, None without one."""
        if self.settings.engine_url or conversation is None or conversation.model is None:
            return self.model_name
        return self.name_of(conversation.model)

    @property
    def has_model(self) -> bool:
        """Whether there is something to chat with: a model was chosen, or the user runs a server."""
        return bool(self.settings.model_path or self.settings.engine_url)

    @property
    def model_missing(self) -> bool:
        """Whether the engine could not start because the model's file is gone."""
        path, failed = self.settings.model_path, self.engine_status.state is EngineState.FAILED
        return failed and path is not None and not Path(path).exists()

    @property
    def repository_of_model(self) -> str | None:
        """Where on Hugging Face the model came from, if kvchat fetched it from there."""
        return self.models.repository_of(Path(self.settings.model_path)) if self.settings.model_path else None

    @property
    def context_size(self) -> int | None:
        """The context size in tokens, None before the engine is ready."""
        if self.engine_status.state is not EngineState.READY:
            return None
        return self.room.context_size or (self.room.choice.context.tokens if self.room.choice else None)

    @property
    def larger_context(self) -> int | None:
        """The next larger context size that the model was trained for; None where there is none, or it is not ours."""
        choice, now = self.room.choice, self.context_size
        if choice is None or now is None or self.settings.engine_url:
            return None
        larger = min(2 * now, choice.facts.trained_context // STEP * STEP)
        return larger if larger > now else None

    async def raise_context(self) -> None:
        """Choose the next larger context size and start the engine with it; save points stay good."""
        larger = self.larger_context
        if larger is not None:
            await self.apply_settings(dataclasses.replace(self.settings, context_size=larger))
            await self.restart_engine()

    @property
    def restoring(self) -> str:
        """What restoring can do with the engine and the model that run, in words; empty before that is known."""
        return self.room.finding.words if self.room.finding else ""

    @property
    def context_reason(self) -> str:
        """Why that context size, in words; empty before an engine was chosen."""
        return self.room.choice.context.reason if self.room.choice else ""

    @property
    def memory_bars(self) -> tuple[MemoryBar, ...]:
        """What the model takes of each memory: measured once the engine is ready, estimated while it loads."""
        return self.room.memory_bars

    @property
    def memory_proposals(self) -> tuple[Proposal, ...]:
        """What would make the model fit better, each with its price; empty before an engine was chosen."""
        choice, started = self.room.choice, self.room.started_with
        return choice.proposals(started.context_size) if choice and started else ()

    @property
    def context_warning(self) -> str:
        """What is unwise about the user's own context size, in words; empty where nothing is."""
        return self.room.choice.context.warning if self.room.choice else ""

    @property
    def break_even(self) -> BreakEven | None:
        """From how many tokens on restoring pays here; None until an engine has read and restored something."""
        choice, context_size = self.room.choice, self.context_size
        if choice is None or context_size is None:
            return None
        plan = choice.plan
        return self.chat.slot.rates.break_even(
            lambda tokens: kv_bytes(choice.facts, tokens, plan.kv_type_k, plan.kv_type_v), context_size
        )

    @property
    def restart_pending(self) -> bool:
        """Whether the engine that runs (or failed) was started with other settings than those in force."""
        started = self.room.started_with
        if started is None or self.engine_status.state in (EngineState.STOPPED, EngineState.RESTING):
            return False
        return _differ(started, self.settings, RESTART_SETTINGS)

    @property
    def slot_conversation(self) -> str | None:
        """The conversation whose state is in the engine's slot right now."""
        return self.chat.slot.holds() if self.engine_status.state is EngineState.READY else None

    def engine_log(self) -> list[str]:
        """The engine's own output, newest last, bounded."""
        return list(self._log.lines)

    @property
    def engine_location(self) -> str:
        """Where the engine that runs, or ran last, is; empty before one was chosen."""
        return self.room.location

    async def engine_vitals(self) -> Vitals | None:
        """How the engine is doing at this moment; None without a ready one."""
        return await self.room.vitals()

    async def diagnostics(self) -> str:
        """What somebody who helps needs to know, as text to copy, with nothing private in it."""
        vitals = await self.room.vitals()
        facts = Facts(self.settings, self.engine_status, self.room.choice, vitals, self._log.lines)
        return report(facts, this_person(), self.room.secrets)

    async def begin(self) -> None:
        """For an app that stays: start the engine now or with the first message, and let it rest when nobody uses it.

        The settings say which and when.
        """
        await self._take_newest_model()
        if self.has_model:
            await (self.start_engine() if self.settings.engine_start == "app" else self.room.rest())
        self._spawn(self._rest.run())

    async def start_engine(self) -> None:
        """Start the engine with the model from the settings; returns at once, `EngineChanged` tells the rest."""
        self._spawn(self.room.start())

    async def stop_engine(self) -> None:
        """Stop every reply, finish what is being saved, then stop the engine, a hanging one too."""
        self.chat.stop_all()
        await self._come_to_rest()
        await self.room.stop()

    async def restart_engine(self) -> None:
        """Stop, then start."""
        await self.stop_engine()
        await self.start_engine()

    async def use_model(self, path: Path) -> None:
        """Check that it is a GGUF, remember it in the settings and run the engine with it. Raises KvchatError."""
        await asyncio.to_thread(read_facts, path)
        self._chosen_model = str(path)
        await self.apply_settings(dataclasses.replace(self.settings, model_path=str(path)))
        if self.engine_status.state in (EngineState.STOPPED, EngineState.RESTING, EngineState.FAILED):
            await self.start_engine()
        elif self.restart_pending:
            await self.restart_engine()

    async def locate_model(self, missing: str, path: Path) -> None:
        """The model that was missing is here now: its conversations go on with it. Raises KvchatError."""
        if missing == self.settings.model_path:
            await self.use_model(path)
        else:
            await asyncio.to_thread(read_facts, path)
        await self.chat.relocate_model(missing, str(path))

    async def free_memory(self) -> MemoryFacts:
        """The memory a model could use: what is free, and what the running one would give back.

        Asks the engine for its devices, which takes a moment.
        """
        memory = await asyncio.to_thread(free_memory, self.settings)
        choice = self.room.choice
        if choice is None or self.engine_status.state is not EngineState.READY:
            return memory
        return given_back(memory, choice.context.bars)

    async def apply_settings(self, settings: Settings) -> None:
        """Put the settings into force and store them. Raises SettingsNotSaved: they are in force all the same.

        Those in RESTART_SETTINGS wait for the engine's next start; see `restart_pending`.
        """
        before, self.settings = self.settings, settings
        if settings.model_path != before.model_path:
            self._chosen_model = settings.model_path
        self.events.publish(SettingsChanged())
        async with self._storing_settings:  # two changes at once: what is written last is what is in force
            try:
                stored = dataclasses.replace(self.settings, model_path=self._chosen_model)
                await asyncio.to_thread(save_settings, self.paths.settings_file, stored)
            finally:
                if _differ(before, settings, BOUND_SETTINGS):
                    await asyncio.to_thread(self._store.set_bounds, store_bounds(self.paths, self.settings))

    async def store_usage(self) -> StoreUsage:
        """What the save points cost on disk."""
        return await asyncio.to_thread(self._store.usage)

    async def measure_rebuild(self) -> RebuildSpeed | None:
        """How fast the largest save point is rebuilt from its blocks; None without one."""
        return await asyncio.to_thread(self._store.measure_rebuild)

    async def delete_save_points(self, conversation_id: str | None) -> int:
        """Delete one conversation's save points, or all; returns the bytes freed."""
        if conversation_id is None:
            return await asyncio.to_thread(self._store.delete_all)
        return await asyncio.to_thread(self._store.delete_conversation, conversation_id)

    async def plan_prune(self, target_bytes: int) -> PrunePlan:
        """What pruning the store to a size would remove, and what that would cost. Removes nothing."""
        return await asyncio.to_thread(self._store.plan_prune, target_bytes)

    async def prune(self, plan: PrunePlan) -> int:
        """Carry a plan out; returns the bytes freed."""
        return await asyncio.to_thread(self._store.prune, plan)

    async def pin(self, conversation_id: str, pinned: bool) -> None:
        """Never prune a conversation's save points, or allow it again."""
        await asyncio.to_thread(self._store.pin, conversation_id, pinned)

    async def never_save(self, conversation_id: str, never: bool) -> None:
        """Never save a conversation, or allow it again."""
        await asyncio.to_thread(self._store.never_save, conversation_id, never)

    async def close(self) -> None:
        """Stop what is being said, finish the running save, stop the engine, close the database. Again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._rest.end()
        await self.models.close()
        self.chat.close()
        await self._come_to_rest()
        await self.room.close()
        await self.chat.idle()
        if self._background:
            await asyncio.wait(self._background)
        await asyncio.to_thread(self._store.close)
        await self._worker.run(self._database.close)
        self._worker.close()

    async def _come_to_rest(self) -> None:
        """Wait for turns and saves to end, but not for an engine that hangs: stopping it ends them too."""
        try:
            async with asyncio.timeout(SAVE_PATIENCE_S):
                await self.chat.idle()
        except TimeoutError:
            self.events.publish(Notice("The engine does not answer", "It is stopped; what it was saving is not kept."))

    def _download_changed(self, download: Download) -> None:
        name = download.order.file.name
        if download.state is DownloadState.DONE:
            self.events.publish(Notice(f"{name} is downloaded", "It is among the models now."))
        elif download.state is DownloadState.FAILED and download.error is not None:
            error = download.error
            self.events.publish(Notice(f"{name} could not be downloaded", f"{error.title}. {error.detail}"))

    def _make_rooms(self) -> EngineRooms:
        generations, folder = itertools.count(1), self._store.staging_folder()
        findings = Findings(self._database, self._worker, self.events)
        own = SupervisedRoom(
            lambda: self.settings,
            folder,
            EngineSupervisor(log=self._log, generations=generations),
            findings,
            EngineMemory(CorrectionBook(self.paths.memory_corrections), self._notify),
            lambda status: self._engine_changed(status) if self.room.is_current(own) else None,
        )
        attached = AttachedRoom(
            lambda: self.settings,
            folder,
            generations,
            findings,
            server_key(self.paths),
            lambda status: self._engine_changed(status) if self.room.is_current(attached) else None,
        )
        return EngineRooms(lambda: self.settings, self._take_model, own, attached)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _new_model(self) -> str | None:
        """What answers in a conversation that has no model yet; a server of the user's is not remembered."""
        return None if self.settings.engine_url else self.settings.model_path

    async def _take_newest_model(self) -> None:
        """The conversation on show at the start is the newest: begin with its model, if that is still there."""
        newest = next(iter(await self.chat.conversations()), None)
        if newest is None or newest.model is None:
            return
        path = Path(newest.model)
        if await asyncio.to_thread(path.exists):
            self._take_model(newest.model)

    def _take_model(self, model: str) -> None:
        """A conversation's model is in use now. That is no wish of the user's for the next start: not stored."""
        self.settings = dataclasses.replace(self.settings, model_path=model)
        self.events.publish(SettingsChanged())

    def _defaults(self) -> Sampling:
        """How the model that runs wants its replies drawn; of a server of the user's, it is the server's to say."""
        return recommended_sampling(self.room.choice.facts) if self.room.choice else ENGINE_DEFAULTS

    async def default_sampling(self, model: str | None) -> Sampling:
        """How replies are drawn with a model where nothing else is wished."""
        facts = await self._facts_of(model)
        return self._sampling().over(recommended_sampling(facts) if facts else ENGINE_DEFAULTS)

    async def template_options(self, model: str | None) -> tuple[TemplateOption, ...]:
        """What can be chosen of a model's chat template; nothing of a model that cannot be read."""
        facts = await self._facts_of(model)
        return known_options(facts.template_words) if facts else ()

    async def _facts_of(self, model: str | None) -> GgufFacts | None:
        if model is None or self.settings.engine_url:
            return None
        try:
            return await asyncio.to_thread(read_facts, Path(model))
        except KvchatError:
            return None

    def _sampling(self) -> Sampling:
        return Sampling(self.settings.max_tokens, self.settings.temperature, self.settings.seed)

    def _notify(self, title: str, detail: str) -> None:
        self.events.publish(Notice(title, detail))

    def _engine_changed(self, status: EngineStatus) -> None:
        self.events.publish(EngineChanged(status))
        if status.state is EngineState.READY:
            self.chat.engine_ready()


async def open_runtime(paths: Paths, settings: Settings) -> Runtime:
    """Open the database and the store. Raises KvchatError when the folders or the database cannot be used."""
    await asyncio.to_thread(paths.ensure)
    worker = Worker("database")
    database = await worker.run(Database, paths.database)
    await worker.run(database.mark_interrupted)
    await worker.run(purge_left_behind, database)
    bounds = store_bounds(paths, settings)
    store = await asyncio.to_thread(BlockStore, paths.save_points, bounds, warm_budget())
    kept = [usage.conversation_id for usage in (await asyncio.to_thread(store.usage)).conversations]
    # Read after that: what another process began and saved in between is known then.
    known = {conversation.id for conversation in await worker.run(database.conversations)}
    known |= await worker.run(deleted_ids, database)
    for stranger in set(kept) - known:  # another process may have saved one just after its deletion
        await asyncio.to_thread(store.delete_conversation, stranger)
    await asyncio.to_thread(store.set_bounds, bounds)  # what has grown too old since the last run goes
    return Runtime(paths, settings, database, worker, store)


def _differ(one: Settings, other: Settings, names: Iterable[str]) -> bool:
    return any(getattr(one, name) != getattr(other, name) for name in names)


def store_bounds(paths: Paths, settings: Settings) -> Bounds:
    """What the save points may take."""
    quota = settings.quota_bytes
    if quota is None:
        quota = default_quota(shutil.disk_usage(paths.cache).total)
    return Bounds(quota, settings.free_floor_bytes, settings.max_age_days)


def warm_budget() -> int:
    """Bytes of memory for slot files that stay warm: a small share of what is free, or none."""
    return min(MOST_WARM, available_memory().available // WARM_SHARE)
