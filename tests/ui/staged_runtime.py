"""The real runtime over an engine in the test's process, with chats, models and requests that a test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import wraps
from itertools import count
from pathlib import Path
from typing import TypeVar

from kvchat.api_service import ApiService, LoadedSlot
from kvchat.chat.events import (
    ConversationsChanged,
    LibraryChanged,
    MessagesChanged,
)
from kvchat.chat.options import NewChat, Preset, store_preset
from kvchat.chat.prepared.documents import PreparedSet, finish, read_documents
from kvchat.chat.prepared.documents import add as add_documents
from kvchat.chat.record import tree
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import (
    Attachment,
    Conversation,
    Message,
    MessageState,
    Receipt,
    Role,
    new_message,
    receipt_to_json,
)
from kvchat.chat.service import ChatService
from kvchat.chat.turn.receipts import REPLY_KINDS, DailyReplies, ReplyStatistics
from kvchat.engine.api.connection import EngineState, EngineStatus
from kvchat.engine.api.wire import ChatChunk
from kvchat.engine.discovery.engines import Device, EngineEntry, EngineLocation
from kvchat.engine_host.setup import EngineSetup, downloaded_engines
from kvchat.engine_host.trial import EngineTrial, TrialStep
from kvchat.errors import KvchatError
from kvchat.gateway.records import RequestRecord
from kvchat.kvstore.savepoint import ConversationUsage, PrunedConversation, PrunePlan, StoreUsage
from kvchat.library.gguf.facts import GgufFacts, read_facts
from kvchat.library.memory.verdict import Judgement
from kvchat.library.model_files import Source as ModelSource
from kvchat.library.model_library import FoundModel, ModelLibrary, UnreadableFolder
from kvchat.runtime import Runtime
from kvchat.session.proof import Source
from kvchat.session.restore_cost import BreakEven
from kvchat.settings import GB, Settings
from kvchat.store_service import StoreService, open_store_or_empty
from kvchat.system.concurrency import Worker
from kvchat.system.paths import Paths, resolve_paths
from kvchat.system.secret_store import SecretLocation
from kvchat.text.formatting import REPROCESSED
from tests.library.gguf_files import LLAMA, write_gguf
from tests.ui.fake_engine import CONTEXT, FINGERPRINT, FakeEngine

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
TODAY = NOW.date()
R = TypeVar("R")


def a_receipt(source: Source = Source.DISK, **changes: object) -> Receipt:
    """Return a receipt for a prompt of 5,918 tokens."""
    cached = 0 if source is Source.COLD else 5906
    receipt = Receipt(
        ttft_ms=34_600 if source is Source.COLD else 310,
        restore_ms=21 if source is Source.DISK else 0,
        prefill_ms=34_400 if source is Source.COLD else 70,
        first_token_ms=200 if source is Source.COLD else 219,
        prompt_tokens=5918,
        cached_tokens=cached,
        predicted_tokens=412,
        tokens_per_second=41.3,
        source=source,
        restored_bytes=136_000_000 if source is Source.DISK else 0,
        saved_ms=None if source is Source.COLD else 36_200,
    )
    return replace(receipt, **changes)  # type: ignore[arg-type]


_LARGE = LLAMA | {"block_count": 32, "embedding_length": 4096, "attention.head_count": 32, "attention.head_count_kv": 8}


def a_model(folder: Path, name: str, size: int, source: ModelSource = ModelSource.LM_STUDIO) -> FoundModel:
    facts = read_facts(write_gguf(folder / f"{name}.gguf", _LARGE))
    weights = replace(facts.weights, layer_bytes=size)
    facts = replace(facts, size=size, weights=weights, quantisation="Q4_K_M")
    return FoundModel(folder / f"{name}.gguf", f"{name}-Q4_K_M", source, size, facts)


def counted(first_day: date = TODAY) -> ReplyStatistics:
    """Return statistics with ten replies of each kind on `first_day`."""
    saved = {REPROCESSED: 0.0}
    return ReplyStatistics(
        tuple(DailyReplies(first_day, kind, 10, saved.get(kind, 90.0), 5.0) for kind in REPLY_KINDS), TODAY
    )


def spy(
    on: object,
    calls: list[tuple[object, ...]],
    *methods: str,
    name: str = "",
    refuse: Callable[[], KvchatError | None] = lambda: None,
) -> None:
    """Append each call of the methods to `calls`, messages by id; raise the error from `refuse`, if any."""

    async def refused(error: KvchatError) -> None:
        raise error

    def spied(method: str) -> Callable[..., object]:
        real = getattr(on, method)

        @wraps(real)
        def call(*given: object, **more: object) -> object:
            calls.append(
                (name or method, *(argument.id if isinstance(argument, Message) else argument for argument in given))
            )
            return refused(error) if (error := refuse()) else real(*given, **more)

        return call

    for method in methods:
        setattr(on, method, spied(method))


class StagedChat(ChatService):
    """The real chats and turns. `calls` records the window's calls; the test streams the replies."""

    def __init__(self, runtime: StagedRuntime) -> None:
        super().__init__(runtime.chat.turn_context)
        self.calls: list[tuple[object, ...]] = []
        self._server = runtime.engine.server
        self.disk = asyncio.Lock()  # held by a test: no conversation begins meanwhile
        self.refuse: KvchatError | None = None  # raised instead of beginning a conversation
        self.counted = ReplyStatistics((), TODAY)
        self._ids = count(1)
        self._runtime = runtime
        spy(self, self.calls, "send", "retry", "regenerate", "continue_reply", "edit", "edit_reply", "stop", "switch")
        spy(self, self.calls, "delete_message", "rename", "use_model", "relocate_model", "select")
        spy(self.turns, self.calls, "prioritize")
        spy(self.read_ahead, self.calls, "stop", name="stop_reading_ahead")

    async def new_chat(self, system: str | None = None) -> NewChat:
        self.calls.append(("new",))
        async with self.disk:
            if self.refuse is not None:
                raise self.refuse
        return await super().new_chat(system)

    def prepare(self, conversation_id: str | None, draft: str, attachments: tuple[Attachment, ...] = ()) -> None:
        self.drafted = conversation_id, draft, attachments

    # For tests: set up chats and act as the engine.

    def _do(self, function: Callable[..., R], *args: object, **kwargs: object) -> R:
        """Run a function of the database on this thread."""
        return self.turn_context.worker.call(function, self.turn_context.database, *args, **kwargs)

    @property
    def by_id(self) -> dict[str, Conversation]:
        return {conversation.id: conversation for conversation in self._do(Database.conversations)}

    def said(self, conversation_id: str) -> list[Message]:
        """Return the messages of the current branch, as the page gets them."""
        return self._do(tree.current_branch, conversation_id)

    def draft(self, conversation_id: str) -> str:
        """Return the draft on disk; empty without one."""
        rows = self._do(Database.rows, "SELECT text FROM drafts WHERE conversation_id = ?", (conversation_id,))
        return str(rows[0]["text"]) if rows else ""

    def system(self, conversation_id: str) -> str:
        first = self._do(Database.branch, conversation_id)[:1]
        return "".join(message.content for message in first if message.role is Role.SYSTEM)

    def keep(self, preset: Preset) -> Preset:
        return self._do(store_preset, preset)

    def change(self, conversation_id: str, **values: object) -> None:
        """Change columns of a conversation."""
        columns = ", ".join(f"{name} = ?" for name in values)
        statement = f"UPDATE conversations SET {columns} WHERE id = ?"
        self._do(Database.write, statement, (*values.values(), conversation_id))
        self.events.publish(ConversationsChanged())

    def add(self, title: str, *, id: str | None = None) -> Conversation:
        """Add a conversation as the newest."""
        made = self._do(Database.create_conversation, title, id=id or f"c{next(self._ids)}")
        self.events.publish(ConversationsChanged())
        return made

    def write(
        self,
        conversation_id: str,
        role: Role,
        content: str,
        *,
        thinking: str = "",
        state: MessageState = MessageState.COMPLETE,
        receipt: Receipt | None = None,
        attachments: tuple[Attachment, ...] = (),
        below: str | None = "",
    ) -> Message:
        """Store a message, `below` the one with that id or the last one."""
        last = self._do(Database.branch, conversation_id)[-1:]
        parent = (last[0].id if last else None) if below == "" else below
        new = new_message(conversation_id, role, content, parent_id=parent, state=state, attachments=attachments)
        made = self._do(Database.append_message, new)
        if thinking or receipt:
            made = replace(made, thinking=thinking, receipt=receipt)
            self._do(Database.update_reply, made)
        self.events.publish(MessagesChanged(conversation_id))
        return made

    def put(self, name: str, *, tokens: int = 0, model: str = FINGERPRINT.model) -> PreparedSet:
        """Add a prepared set of three documents; if it has tokens, it is completely processed by `model`."""
        folder = self._runtime.paths.data / "documents" / name
        folder.mkdir(parents=True)
        for number in range(3):
            (folder / f"{number}.md").write_text(f"{name} {number}", "utf-8")
        documents = read_documents([folder])
        made = self._do(add_documents, name, [str(folder)], documents)
        if tokens:
            read_by = replace(FINGERPRINT, model=model)
            made = replace(made, label="label", fingerprint=read_by, tokens=tokens, read_ms=36_000.0)
            made = replace(made, model="/models/SmolLM2-135M-Instruct.gguf", context_size=CONTEXT)
            self._do(finish, made, documents)
            self._runtime.kept[made.owner] = 136_000_000
        self.events.publish(LibraryChanged())
        return made

    def set_receipt(self, message: Message, receipt: Receipt) -> None:
        statement = "UPDATE messages SET receipt = ? WHERE id = ?"
        self._do(Database.write, statement, (receipt_to_json(receipt), message.id))
        self.events.publish(MessagesChanged(message.conversation_id))

    def say(self, text: str = "", thinking: str = "") -> None:
        """Stream a piece of the current or next reply."""
        self._server.played.put_nowait(ChatChunk(text, thinking))

    def finish(self) -> None:
        """End the current reply."""
        self._server.played.put_nowait(None)


class StagedModels(ModelLibrary):
    """Finds the models that a test has added; the Hub is a fake server, or unreachable."""

    def __init__(self, paths: Paths) -> None:
        super().__init__(paths, tuple)
        self.there: list[FoundModel] = []
        self.locked: tuple[UnreadableFolder, ...] = ()

    async def find(
        self, judge: Callable[[GgufFacts], Judgement], found: Callable[[FoundModel], None], in_use: str | None = None
    ) -> tuple[UnreadableFolder, ...]:
        for model in self.there:
            found(replace(model, judgement=judge(model.facts)) if model.facts else model)
        return self.locked


class StagedEngines(EngineSetup):
    """Two engines, one too old; a trial of two steps; a key in memory. Downloads are real."""

    found = (
        EngineEntry(
            EngineLocation(Path("/usr/bin/llama-server")),
            is_in_use=False,
            problem=KvchatError("This engine is too old", "It is build 6000."),
        ),
        EngineEntry(
            EngineLocation(),
            is_in_use=True,
            version="xllamacpp 2026.10.11549",
            devices=(Device("CPU", "AMD EPYC", None, None),),
        ),
    )
    refuse = ""  # if set, the reason to reject all input
    kept: str | None = None

    async def list_engines(self) -> tuple[EngineEntry, ...]:
        fetched = downloaded_engines(self._engines)
        return *(EngineEntry(engine.location, is_in_use=False) for engine in fetched), *self.found

    async def test_engine(self, location: EngineLocation, tell: Callable[[TrialStep], None]) -> EngineTrial:
        steps = (TrialStep("Version", str(location)), TrialStep("The engine crashed", "SIGSEGV", KvchatError("x")))
        for step in steps:
            tell(step)
        return EngineTrial(steps)

    async def save_key(self, value: str) -> SecretLocation | None:
        self.kept = value or None
        return SecretLocation.KEYRING if value else None

    async def validation_error(self, name: str, text: str) -> str:
        return self.refuse


class StagedStore(StoreService):
    """Save-point store that has only the number of bytes of each conversation."""

    def __init__(self, runtime: StagedRuntime) -> None:
        real = runtime.save_points
        parts = {"settings": real._settings, "speed": real._speed, "memory_server": real._memory_server}
        super().__init__(paths=runtime.paths, store=real.store, **parts)  # type: ignore[arg-type]
        self._runtime = runtime

    async def usage(self) -> StoreUsage:
        real = (
            chat for chat in (await super().usage()).conversations if chat.conversation_id not in self._runtime.kept
        )
        entries = (*map(self._runtime.usage_of, self._runtime.kept), *real)
        total = sum(self._runtime.kept.values())
        return StoreUsage(
            conversations=entries,
            quota_bytes=self._runtime.settings.quota_bytes or 20 * GB,
            free_bytes=212 * GB,
            free_floor_bytes=2 * GB,
            save_points=sum(entry.save_points for entry in entries),
            logical_bytes=sum(entry.bytes * entry.save_points for entry in entries),
            physical_bytes=total,
            bytes_written=total * 3,
            bytes_written_today=total // 20,
            warm_bytes=total // 8,
            other_bytes=3_000_000,
        )

    async def plan_prune(self, target_bytes: int) -> PrunePlan:
        """Plan to remove save points of equal size, conversation by conversation, in the order they were added."""
        self._runtime.calls.append(("plan_prune", target_bytes))
        left, ids, pruned = sum(self._runtime.kept.values()), [], []
        for usage in map(self._runtime.usage_of, self._runtime.kept):
            each = usage.bytes // max(usage.save_points, 1)
            gone = 0 if usage.pinned else min(max(-(-(left - target_bytes) // max(each, 1)), 0), usage.save_points)
            if gone:
                remaining = usage.save_points - gone
                pruned.append(
                    PrunedConversation(
                        usage.conversation_id, gone, gone * each, remaining, None if remaining else usage.reprocessing
                    )
                )
                ids += [f"{usage.conversation_id}:{i}" for i in range(gone)]
                left -= gone * each
        freed = sum(conversation.bytes_freed for conversation in pruned)
        return PrunePlan(tuple(ids), freed, tuple(pruned), left)

    async def prune(self, plan: PrunePlan) -> int:
        self._runtime.calls.append(("prune", plan))
        if self._runtime.refuse is not None:
            raise self._runtime.refuse
        for pruned in plan.conversations:
            if not pruned.save_points_left:
                del self._runtime.kept[pruned.conversation_id]
                continue
            usage = self._runtime.usage_of(pruned.conversation_id)
            left = usage.bytes - pruned.bytes_freed
            self._runtime.keep(
                replace(usage, bytes=left, exclusive_bytes=left, shared_bytes=0, save_points=pruned.save_points_left)
            )
        return plan.bytes_freed

    async def set_pinned(self, conversation_id: str, pinned: bool) -> None:
        self._runtime.calls.append(("pin", conversation_id, pinned))
        self._runtime.keep(replace(self._runtime.usage_of(conversation_id), pinned=pinned))

    async def set_never_save(self, conversation_id: str, never: bool) -> None:
        self._runtime.calls.append(("never_save", conversation_id, never))
        self._runtime.keep(replace(self._runtime.usage_of(conversation_id), never_save=never))

    async def delete(self, conversation_id: str | None) -> int:
        self._runtime.calls.append(("delete_save_points", conversation_id))
        if conversation_id is None:
            freed = sum(self._runtime.kept.values())
            self._runtime.kept.clear()
            return freed
        return self._runtime.kept.pop(conversation_id, 0)


class StagedApiService(ApiService):
    """API server that is never opened: the test sets its requests. Keys and totals are real."""

    active_requests: Sequence[RequestRecord] = ()
    recent_requests: Sequence[RequestRecord] = ()
    loaded_slots: tuple[LoadedSlot, ...] = ()

    def __init__(self, runtime: StagedRuntime) -> None:
        vars(self).update(vars(runtime.api_server))
        self.listeners: list[Callable[[], object]] = []
        spy(self, runtime.calls, "forget")

    @property
    def url(self) -> str | None:  # type: ignore[override]
        return f"http://127.0.0.1:{self.settings().api_port}" if self.settings().api_server else None

    def subscribe(self, listener: Callable[[], object]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)


class StagedRuntime(Runtime):
    """The real runtime over an engine in this process. `calls` records the window's calls."""

    break_even: BreakEven | None = None  # type: ignore[assignment]

    def __init__(self, home: Path, *, model: str | None = "SmolLM2-135M-Instruct") -> None:
        paths = resolve_paths({"KVCHAT_HOME": str(home)})
        paths.ensure()
        settings = Settings(model_path=f"/models/{model}.gguf" if model else None, read_ahead="never")
        worker, store = Worker("chats"), open_store_or_empty(paths, Settings())
        database = worker.call(Database, paths.database)
        parts = {"database": database, "worker": worker, "store": store, "host": FakeEngine}
        super().__init__(paths=paths, settings=settings, **parts)  # type: ignore[arg-type]
        self.engine: FakeEngine
        self.kept: dict[str, int] = {}  # bytes by conversation
        self.details: dict[str, ConversationUsage] = {}  # more than the bytes of some of them
        self.calls: list[tuple[object, ...]] = self.engine.calls
        self.refuse: KvchatError | None = None  # raised by the next action that can fail
        if not model:
            self.engine.status = EngineStatus(EngineState.STOPPED)
        self.models: StagedModels = StagedModels(self.paths)
        self.model._library = self.models
        self.chat: StagedChat = StagedChat(self)
        self.save_points: StagedStore = StagedStore(self)
        self.engines = StagedEngines(
            paths=paths, settings=lambda: self.settings, use_engine=self.use_engine, notify=self._notify
        )
        self.api_server: StagedApiService = StagedApiService(self)
        spy(self, self.calls, "retest_restoring", "increase_context", "start_engine", "stop_engine", "apply_settings")
        spy(self, self.calls, "restart_engine", "use_model", "load_model", refuse=lambda: self.refuse)
        spy(self, self.calls, "close")

    async def statistics(self) -> ReplyStatistics:
        return self.chat.counted

    def keep(self, usage: ConversationUsage) -> None:
        """Set a conversation's usage in the store."""
        self.kept[usage.conversation_id] = usage.bytes
        self.details[usage.conversation_id] = usage

    def usage_of(self, conversation_id: str) -> ConversationUsage:
        """Return a conversation's usage in the store."""
        known = self.details.get(conversation_id)
        kept = self.kept.get(conversation_id, 0)
        return known or ConversationUsage(conversation_id, kept, 1 if kept else 0, datetime.now(UTC), kept)

    def set_engine(self, state: EngineState, **more: object) -> None:
        """Change the engine's state and publish it."""
        self.engine.set(state, **more)
