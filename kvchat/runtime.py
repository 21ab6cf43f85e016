"""The runtime, shared by the window and the commands: creates and connects all components except Qt's."""

import asyncio
import dataclasses
import platform
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path

from kvchat import __version__
from kvchat.api_service import ApiService
from kvchat.chat.attachments import document_from_bytes
from kvchat.chat.deletion import purge_abandoned, purge_orphans
from kvchat.chat.events import ConversationsChanged, EngineChanged, EventBus, Notice, SettingsChanged
from kvchat.chat.record.database import INTERRUPT_ABANDONED, Database
from kvchat.chat.record.recovery import DailyBackups
from kvchat.chat.service import ChatService
from kvchat.chat.turn.receipts import ReplyStatistics, read_statistics
from kvchat.chat.turn_context import TurnContext
from kvchat.engine.api.connection import DOWN_STATES, EngineState, EngineStatus
from kvchat.engine.api.vitals import Vitals
from kvchat.engine.process.log import EngineLog
from kvchat.engine_host.embedding import EmbeddingEngine
from kvchat.engine_host.host import SwitchingEngineHost
from kvchat.engine_host.idle_stop import IdleStop
from kvchat.engine_host.model import CurrentModel
from kvchat.engine_host.setup import EngineSetup
from kvchat.kvstore.savepoint import StoreRefused
from kvchat.kvstore.store import BlockStore
from kvchat.library.gguf.facts import read_facts
from kvchat.library.memory.demand import on_battery
from kvchat.library.model_files import ollama_name
from kvchat.library.model_library import ModelLibrary
from kvchat.library.remote.downloads import Download, describe_outcome
from kvchat.session.exchange import restore_newest
from kvchat.session.restore_cost import BreakEven
from kvchat.session.restore_support import FindingStore
from kvchat.session.slots import PendingSave
from kvchat.settings import Settings, any_changed, save_settings
from kvchat.store_service import BOUND_SETTINGS, StoreService, apply_bounds, open_store_or_empty
from kvchat.system.concurrency import BackgroundTasks, Worker
from kvchat.system.migrations import drop_old_copies
from kvchat.system.paths import Paths
from kvchat.text.formatting import format_rate, format_size
from kvchat.text.language import _
from kvchat.text.reasons import Reason, ReasonCode
from kvchat.text.safe_text import redact
from kvchat.tools.built_in.source import BuiltInTools
from kvchat.tools.mcp.manager import ServerManager
from kvchat.tools.toolbox import Toolbox
from kvchat.transfer.service import TransferService

_MAX_LOG_LINES = 200  # in a diagnostic report
SAVE_TIMEOUT_S = 15.0  # an engine that writes nothing for this long counts as hung


class Runtime:
    """All of kvchat except the window. Created by `open_runtime`, ended by `close`."""

    def __init__(
        self,
        *,
        paths: Paths,
        settings: Settings,
        database: Database,
        worker: Worker,
        store: BlockStore,
        host: type[SwitchingEngineHost] = SwitchingEngineHost,
    ) -> None:
        self.paths, self.settings, self.events = paths, settings, EventBus()
        self._worker, self._database, self._store = worker, database, store
        self._log = EngineLog(paths.engine_log)
        self._stop_requests = 0
        self._loaded_model: str | None = None  # path of a chat's model that the engine runs instead of the default
        self._closed = False
        self._storing_settings = asyncio.Lock()
        self._background = BackgroundTasks()
        self._backups = DailyBackups(paths.database, self._notify)

        self.engine = host(
            paths=paths,
            settings=self._engine_settings,
            store=store,
            findings=FindingStore(paths.restore_findings, self._notify),
            log=self._log,
            choose_model=self._switch_model,
            publish=self._engine_changed,
            notify=self._notify,
            expected_tokens=lambda: self.chat.context.tokens_needed(self._engine_settings().model_path),
            restore_newest=lambda engine: restore_newest(self.chat.slots, engine, self.events.for_chat),
        )
        self.models = ModelLibrary(paths, lambda: self.settings.model_folders)
        self.mcp_servers = ServerManager(paths)

        self.models.downloads.subscribe(self._download_changed)
        self.model = CurrentModel(
            settings=lambda: self.settings, host=self.engine, library=self.models, engine_settings=self._engine_settings
        )
        self.built_in_tools = BuiltInTools(
            settings=lambda: self.settings,
            search_chats=lambda query: self.chat.finder.titles_and_excerpts(query),
            look_up=lambda chat, query: self.chat.lookup.find(chat, query),
            read_text=lambda name, data, format: document_from_bytes(name, data, format).text,
        )
        self._embedding_engine = EmbeddingEngine(lambda: self.settings, self.models.embedding_models)
        turn_context = TurnContext(
            database=database,
            worker=worker,
            store=store,
            host=self.engine,
            events=self.events,
            user_sampling=self.model.user_sampling,
            default_model=lambda: None if self.settings.engine_url else self.settings.model_path,
            model_sampling=self.model.loaded_model_sampling,
            keep_deleted_s=lambda: self.settings.keep_deleted_s,
            read_ahead_off_reason=self._prefill_blocker,
            remembered_tools=lambda: self.settings.new_chat_tools,
            embedder=self._embedding_engine,
            toolbox=Toolbox(lambda: (self.built_in_tools, *self.mcp_servers.sources)),
        )
        self.chat = ChatService(turn_context)
        self.save_points = StoreService(
            paths=paths,
            store=store,
            settings=lambda: self.settings,
            speed=turn_context.prefill_speed,
            memory_server=self.engine.memory_server,
        )
        self.engines = EngineSetup(
            paths=paths, settings=lambda: self.settings, use_engine=self.use_engine, notify=self._notify
        )
        self.transfer = TransferService(
            paths=paths,
            database=database,
            worker=worker,
            events=self.events,
            store=store,
            test_memory=self.chat.memory_verifier.test,
        )
        self.api_server = ApiService(
            paths=paths,
            settings=lambda: self.settings,
            slots=self.chat.slots,
            host=self.engine,
            model=self.model,
            models=self.models,
            notify=self._notify,
            absorb=turn_context.absorb,
        )
        self._idle_stop = IdleStop(
            minutes=lambda: self.settings.idle_minutes,
            chat=self.chat,
            host=self.engine,
            api_idle_s=lambda: self.api_server.idle_s,
        )

    def cancel_saving(self) -> None:
        self.chat.slots.save_progress.cancel()

    async def increase_context(self, tokens: int) -> None:
        await self.apply_settings(dataclasses.replace(self.settings, context_size=tokens))
        await self.restart_engine()

    @property
    def break_even(self) -> BreakEven | None:
        """Prompt length in tokens from which restoring is faster than processing; None until measured."""
        return self.engine.break_even(self.chat.slots.restore_cost)

    async def statistics(self) -> ReplyStatistics:
        return await asyncio.to_thread(read_statistics, self.paths.database)

    async def engine_vitals(self) -> Vitals | None:
        """Return the engine's memory use, slot and speed, or None.

        The slot's token count includes restored tokens, which build 11434 of llama-server does not count.
        """
        vitals, engine = await self.engine.vitals(), self.engine.inspected_engine
        if vitals is None or vitals.slot is None or engine is None:
            return vitals
        contents = [slot.known_contents(engine) for slot in self.chat.slots.all_slots]
        held_tokens = sum(len(content.tokens) for content in contents if content)
        return dataclasses.replace(
            vitals, slot=dataclasses.replace(vitals.slot, tokens=max(vitals.slot.tokens, held_tokens))
        )

    async def diagnostics(self) -> str:
        """Return a text for bug reports with the engine, settings and log, but without personal data."""
        status, choice = self.engine.status, self.engine.choice
        rows = [("kvchat", f"{__version__}, Python {platform.python_version()}"), ("system", platform.platform())]
        state = status.state.value
        if status.restart_attempt:
            state += f", restarted {status.restart_attempt} times"
        if status.failure:
            state += f": {status.failure.title}. {status.failure.detail}"
        rows.append(("engine", state))
        if choice is not None:
            facts = choice.facts
            model = f"{facts.name}: {facts.architecture}, {facts.quantisation}, {format_size(facts.size)}"
            rows += [("", str(choice.location)), ("model", model), ("context", choice.context.reason)]
        if (vitals := await self.engine_vitals()) is not None:
            if vitals.memory is not None:
                graphics = vitals.graphics_memory
                more = "" if graphics is None else f", graphics memory {format_size(graphics)}"
                rows.append(("memory", format_size(vitals.memory) + more))
            if (slot := vitals.slot) is not None:
                rows.append(("slot", f"{slot.tokens} of {slot.context_size} tokens{', busy' if slot.busy else ''}"))
            rates = (("prefill", vitals.speed.prefill), ("decode", vitals.speed.decode))
            if speeds := [f"{name} {format_rate(rate)}" for name, rate in rates if rate is not None]:
                rows.append(("speed", ", ".join(speeds)))
        default, settings = dataclasses.asdict(Settings()), dataclasses.asdict(self.settings)
        changed = [f"{name}: {value!r}" for name, value in settings.items() if value != default[name]]
        parts = ["\n".join(f"{label:<10}{text}" for label, text in rows)]
        for heading, lines in (
            ("Changed settings", changed),
            ("Last lines of the engine log", self._log.lines[-_MAX_LOG_LINES:]),
        ):
            parts.append("\n".join([heading, *(f"  {line}" for line in lines or ["(none)"])]))
        return redact("\n\n".join(parts) + "\n", self.engine.secrets)

    async def start(self) -> None:
        """Start everything that the settings enable for the window: engine, chat titles, API server and backups."""
        if problem := self.save_points.problem:
            self._notify(problem.title, problem.explanation)
        self._backups.start()
        self._background.start(self._load_blob_names())
        self.chat.recently_deleted.start()
        # The window opens with the newest chat, so start with its model if it still exists.
        newest = next(iter(await self.chat.conversations()), None)
        if newest is not None and newest.model and await asyncio.to_thread(Path(newest.model).exists):
            self._switch_model(newest.model)
        if self.model.is_configured:
            await (self.start_engine() if self.settings.engine_start == "app" else self.engine.unload())
        self._background.start(self.api_server.follow_settings())
        self._background.start(self._idle_stop.run())
        self.chat.title_generator.enable(lambda: self.settings.model_titles)

    async def start_serving(self) -> None:
        """Start the engine for `kvchat serve` and wait until it is ready. Raises KvchatError."""
        self.chat.recently_deleted.start()
        async with self.chat.slots.exclusive():
            await self.engine.ready()
        self._background.start(self._idle_stop.run())

    async def start_engine(self) -> None:
        self._background.start(self.engine.start())

    async def stop_engine(self) -> None:
        """Stop all replies, finish saving and stop the engine, even if it hangs. New requests wait meanwhile."""
        self._stop_requests += 1
        self.chat.stop_all()
        with self.api_server.stopped(), self.chat.slots.paused() as left:
            await self._wait_until_idle(left)
            await self.engine.stop()

    async def restart_engine(self) -> None:
        stops = self._stop_requests + 1
        await self.stop_engine()
        if self._stop_requests == stops:
            await self.start_engine()

    async def retest_restoring(self) -> None:
        await self.engine.forget_finding()
        await self.restart_engine()

    async def use_model(self, path: Path) -> None:
        """Make a GGUF file the default model for new chats. The engine keeps its current model. Raises KvchatError."""
        await asyncio.to_thread(read_facts, path)
        await asyncio.to_thread(ollama_name, path)
        self._loaded_model = self.model.path
        await self.apply_settings(dataclasses.replace(self.settings, model_path=str(path)))

    async def load_model(self, path: Path) -> None:
        """Load a GGUF file into the engine. The default model for new chats stays. Raises KvchatError."""
        await asyncio.to_thread(read_facts, path)
        self._switch_model(str(path))
        if self.engine.status.state in DOWN_STATES:
            await self.start_engine()
        elif self.engine.restart_pending:
            await self.restart_engine()

    async def use_engine(self, path: str | None) -> None:
        """Switch to another engine immediately or, during a reply, at the next engine start."""
        await self.apply_settings(dataclasses.replace(self.settings, engine_path=path))
        if self.model.is_configured and self.chat.idle_s and self.api_server.idle_s:
            await self.restart_engine()

    async def use_server(self, url: str | None) -> None:
        """Use the paired computer or llama-server at this address, or kvchat's own engine if None.

        During a reply, this takes effect at the next engine start.
        """
        await self.apply_settings(dataclasses.replace(self.settings, engine_url=url))
        if self.chat.idle_s and self.api_server.idle_s:
            await self.restart_engine()

    async def locate_model(self, missing: str, path: Path) -> None:
        """Replace the path of a missing model by `path` in all chats. Raises KvchatError."""
        if missing == self.settings.model_path:
            await self.use_model(path)
        if missing == self.model.path or self.engine.status.state in DOWN_STATES:
            await self.load_model(path)
        else:
            await asyncio.to_thread(read_facts, path)
        await self.chat.relocate_model(missing, str(path))

    async def apply_settings(self, settings: Settings) -> None:
        """Apply and save the settings. If saving fails, they still apply until exit, and SettingsNotSaved is raised."""
        before, self.settings = self.settings, settings
        self.events.publish(SettingsChanged())
        async with self._storing_settings:  # after concurrent changes, the file has the current settings
            try:
                await asyncio.to_thread(save_settings, self.paths.settings_file, self.settings)
            finally:
                if any_changed(before, settings, BOUND_SETTINGS):
                    await self.save_points.apply_limits(self.settings)
                self.chat.recently_deleted.schedule_purge()
                await self.api_server.settings_changed(before, settings)

    async def close(self) -> None:
        """Stop replies, finish saving, stop the engine and close the database. May be called again."""
        if self._closed:
            return
        self._closed = True
        save_progress = self.chat.slots.save_progress
        self._idle_stop.end()
        self.chat.close()  # before the servers, whose end would be stored as the result of a running call
        await asyncio.gather(self.models.downloads.close(), self.engines.close(), self.mcp_servers.close())
        await save_progress.finish_or_cancel(self.api_server.close(), SAVE_TIMEOUT_S)

        async def idle() -> None:
            await self.chat.wait_until_idle()
            await self.api_server.wait_until_idle()

        await self._wait_until_idle(idle())
        await asyncio.gather(self.engine.close(), self._embedding_engine.close())
        await save_progress.finish_or_cancel(self.chat.wait_until_idle(), SAVE_TIMEOUT_S)
        await self._background.wait_until_idle()
        await self.chat.turn_context.close()
        await self._backups.close()
        await save_progress.finish_or_cancel(
            asyncio.to_thread(self._store.close, save_progress.cancelled.is_set), SAVE_TIMEOUT_S
        )
        await asyncio.to_thread(self._log.close)
        await self._worker.run(self._database.close)
        self._worker.close()

    @property
    def pending_save(self) -> PendingSave | None:
        return self.chat.slots.save_progress.pending_save()

    async def _wait_until_idle(self, idle: Awaitable[None]) -> None:
        if not await self.chat.slots.save_progress.wait_until_done(idle, SAVE_TIMEOUT_S):
            self._notify(
                _("The engine is not responding"), _("kvchat stopped the engine. Chat memory being saved was lost.")
            )

    def _prefill_blocker(self) -> Reason | None:
        if self.settings.read_ahead != "auto":
            return None if self.settings.read_ahead == "always" else Reason(ReasonCode.READ_AHEAD_OFF)
        if self.settings.engine_url:
            engine = self.engine.inspected_engine
            return None if engine and engine.keeps_memory else Reason(ReasonCode.FOREIGN_ENGINE)
        return Reason(ReasonCode.ON_BATTERY) if on_battery() else None

    async def _load_blob_names(self) -> None:
        models = {chat.model for chat in await self.chat.conversations() if chat.model}
        if any([await asyncio.to_thread(ollama_name, Path(model)) for model in models]):
            self.events.publish(ConversationsChanged())

    def _switch_model(self, model: str) -> None:
        """Run the engine with the model of a chat. The default model for new chats stays."""
        self._loaded_model = model
        self.events.publish(SettingsChanged())

    def _engine_settings(self) -> Settings:
        return dataclasses.replace(self.settings, model_path=self._loaded_model or self.settings.model_path)

    def _download_changed(self, download: Download) -> None:
        if outcome := describe_outcome(download):
            self._notify(*outcome)

    def _notify(self, title: str, detail: str) -> None:
        self.events.publish(Notice(title, detail))

    def _engine_changed(self, status: EngineStatus) -> None:
        self.events.publish(EngineChanged(status))
        if status.state is EngineState.READY:
            self.chat.on_engine_ready()


async def open_runtime(paths: Paths, settings: Settings) -> Runtime:
    """Open the database and the store. The process must own the data folder. Raises KvchatError."""
    await asyncio.to_thread(paths.ensure)
    worker = Worker("database")
    database = await worker.run(Database, paths.database)
    try:
        await worker.run(database.check)
        await worker.run(database.write, INTERRUPT_ABANDONED, ())
        await worker.run(purge_abandoned, database, settings.keep_deleted_s)
    except BaseException:
        await worker.run(database.close)
        raise
    await asyncio.to_thread(drop_old_copies, paths.database)
    store = await asyncio.to_thread(open_store_or_empty, paths, settings)
    if store.problem is None:
        with suppress(StoreRefused):  # retried at the next start
            await worker.run(purge_orphans, store, database)
            await asyncio.to_thread(apply_bounds, paths, settings, store)  # delete what has become too old
    if settings.model_path:
        await asyncio.to_thread(ollama_name, Path(settings.model_path))
    runtime = Runtime(paths=paths, settings=settings, database=database, worker=worker, store=store)
    await runtime.mcp_servers.load()
    return runtime
