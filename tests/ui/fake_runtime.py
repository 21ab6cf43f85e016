"""A runtime without an engine: conversations in memory, and events that a test plays by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

from kvchat.api_service import ApiService, LoadedSlot
from kvchat.chat.context import ContextService, ContextUsage
from kvchat.chat.events import (
    ConversationsChanged,
    EngineChanged,
    EventBus,
    LibraryChanged,
    MessagesChanged,
    ReplyDelta,
    ReplyFinished,
    SettingsChanged,
)
from kvchat.chat.options import NewChat, Preset, store_preset
from kvchat.chat.prepared.documents import FileChanges, PreparedSet, SourceFile
from kvchat.chat.prepared.library import ChatDocuments, Estimate, Library, PreparedStatus, ReadingTask
from kvchat.chat.record import tree
from kvchat.chat.record.database import Database, Draft
from kvchat.chat.record.messages import Attachment, Conversation, Message, MessageState, Receipt, Role
from kvchat.chat.record.tree import RemovedMessages
from kvchat.chat.service import ChatService
from kvchat.chat.turn import turns
from kvchat.chat.turn.forecasts import Forecast, Forecasts
from kvchat.chat.turn.receipts import REPLY_KINDS, DailyReplies, ReplyStatistics
from kvchat.chat.turn_context import TurnContext
from kvchat.engine.api.connection import EngineState, EngineStatus
from kvchat.engine.api.vitals import Vitals
from kvchat.engine.api.wire import Sampling
from kvchat.engine.discovery.engines import Device, EngineEntry, EngineLocation
from kvchat.engine_host.choice import Capacity, ModelJudge
from kvchat.engine_host.host import RESTART_SETTINGS, SwitchingHost
from kvchat.engine_host.model import AnsweringModel
from kvchat.engine_host.setup import EngineSetup, downloaded_engines
from kvchat.engine_host.trial import Trial, TrialStep
from kvchat.errors import KvchatError
from kvchat.gateway.records import RequestRecord
from kvchat.kvstore.savepoint import ConversationUsage, PrunedConversation, PrunePlan, StoreUsage
from kvchat.library.gguf.facts import GgufFacts, read_facts
from kvchat.library.memory.context_size import ContextChoice
from kvchat.library.memory.demand import LoadLimits, MemoryBar, MemoryFacts
from kvchat.library.memory.verdict import Judgement, Proposal
from kvchat.library.model_files import Source as ModelSource
from kvchat.library.model_library import FoundModel, JudgedModel, ModelLibrary, UnreadableFolder
from kvchat.runtime import Runtime
from kvchat.session.host import EngineHost
from kvchat.session.proof import Source
from kvchat.session.restore_cost import BreakEven
from kvchat.session.restore_support import Finding, Strategy
from kvchat.settings import GB, Settings, any_changed
from kvchat.store_service import StoreService, open_store_or_empty
from kvchat.system.concurrency import Worker
from kvchat.system.paths import Paths, resolve_paths
from kvchat.system.secret_store import SecretLocation
from kvchat.text.formatting import READ_AGAIN, TimeRange
from tests.library.gguf_files import LLAMA, write_gguf

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
TODAY = NOW.date()
R = TypeVar("R")


def a_receipt(source: Source = Source.DISK, **changes: object) -> Receipt:
    """A receipt with the numbers of a 5,918-token prompt."""
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
    weights = replace(facts.weights, layers=size)
    facts = replace(facts, size=size, weights=weights, quantisation="Q4_K_M")
    return FoundModel(folder / f"{name}.gguf", f"{name}-Q4_K_M", source, size, facts)


def counted(first_day: date = TODAY) -> ReplyStatistics:
    """Ten replies of each kind on `first_day`."""
    saved = {READ_AGAIN: 0.0}
    return ReplyStatistics(
        tuple(DailyReplies(first_day, kind, 10, saved.get(kind, 90.0), 5.0) for kind in REPLY_KINDS), TODAY
    )


class FakeContext(ContextService):
    """A context as full as the test says."""

    def __init__(self, calls: list[tuple[str, ...]]) -> None:
        self._calls = calls
        self.now: ContextUsage | None = None
        self.summary = asyncio.Event()  # set by a test: the model has written it

    async def usage(
        self, conversation_id: str | None, draft: str = "", attachments: Sequence[Attachment] = ()
    ) -> ContextUsage | None:
        letters = len(draft) + sum(len(attachment.text) for attachment in attachments)
        return replace(self.now, pending=letters // 4) if self.now else None

    async def count_tokens(self, attachment: Attachment) -> tuple[int, bool]:
        return len(attachment.text) // 4, True

    async def check_vision(self, conversation_id: str | None) -> bool:
        return True

    async def drop_middle(self, conversation_id: str) -> int:
        self._calls.append(("drop_middle", conversation_id))
        return 4

    async def summarise(self, conversation_id: str) -> int:
        self._calls.append(("summarise", conversation_id))
        await self.summary.wait()
        return 4


class FakeForecasts(Forecasts):
    """Where a chat is, by what the runtime's slot and store have; how long that takes is what the test says."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime = runtime
        self.ms: dict[str, float] = {}  # by conversation
        self.message: Forecast | None = None  # of whatever is being written
        self.asked: list[list[str]] = []

    async def forecast_chats(self, models: dict[str, str | None]) -> dict[str, Forecast]:
        self.asked.append(list(models))
        waits = {id: TimeRange(ms / 1000, ms / 1000) for id, ms in self.ms.items()}
        return {id: Forecast(self._source(id), 0, waits.get(id)) for id in models}

    async def forecast_message(
        self, conversation_id: str | None, draft: str, attachments: Sequence[Attachment] = ()
    ) -> Forecast | None:
        return self.message

    def _source(self, id: str) -> Source:
        if id == self._runtime.slot and self._runtime.engine.status.state is EngineState.READY:
            return Source.HOT
        return Source.DISK if self._runtime.usage_of(id).save_points else Source.COLD


class FakeDocuments(Library):
    """Prepared documents in memory; what is read waits until the test lets it go on."""

    def __init__(self, chat: FakeChat) -> None:
        self._chat = chat
        self.standing: dict[str, PreparedStatus] = {}
        self.reading: dict[str, ReadingTask] = {}
        self.grounds: dict[str, ChatDocuments] = {}  # by conversation
        self.expected: Estimate | None = None  # of whatever is added
        self.refusal: KvchatError | None = None  # of whatever is read
        self.go_on = asyncio.Event()

    def put(self, name: str, *, tokens: int = 0, **known: object) -> PreparedStatus:
        """Something in the library: read to its end where it has tokens."""
        sources = tuple(SourceFile(f"/docs/{number}.md", f"{number}.md", 1, 1, "") for number in range(3))
        read = ("label", None, "/models/SmolLM2-135M-Instruct.gguf", 32_768) if tokens else ("", None, "", 0)
        one = PreparedSet(f"p{len(self.standing)}", name, (f"/docs/{name}",), sources, *read, tokens, 36_000.0, NOW)
        standing = PreparedStatus(
            one,
            136_000_000 if tokens else 0,
            FileChanges(),
            "" if tokens else "it was not fully processed",
            TimeRange(36, 36),
        )
        self.standing[one.id] = replace(standing, **known)  # type: ignore[arg-type]
        return self.standing[one.id]

    async def names_by_owner(self) -> dict[str, str]:
        return {one.prepared.owner: one.prepared.name for one in self.standing.values()}

    async def statuses(
        self, now: object, usage: Sequence[ConversationUsage], only: PreparedSet | None = None
    ) -> list[PreparedStatus]:
        known = sorted(self.standing.values(), key=lambda one: one.prepared.name)
        return [one for one in known if only is None or one.prepared.id == only.id]

    async def chat_documents(self, conversation_id: str) -> ChatDocuments | None:
        return self.grounds.get(conversation_id)

    async def estimate(self, paths: Sequence[Path], now: object) -> Estimate:
        return self.expected or Estimate(len(paths), 78_000, TimeRange(36, 36))

    def time_left(self, one: PreparedSet) -> TimeRange | None:
        return TimeRange(20, 20)

    async def add(self, paths: Sequence[Path], name: str) -> PreparedSet:
        made = self.put(name).prepared
        self._chat.events.publish(LibraryChanged())
        return made

    async def read(self, one: PreparedSet) -> PreparedSet:
        if self.refusal:
            raise self.refusal
        task = asyncio.ensure_future(self.go_on.wait())
        self.reading[one.id] = ReadingTask(task, 20_000, 78_000)
        self._chat.events.publish(LibraryChanged())
        try:
            await task
            done = replace(one, label="label", tokens=78_000, model="/models/SmolLM2-135M-Instruct.gguf")
            self.standing[one.id] = PreparedStatus(done, 1_800_000_000, FileChanges(), "", TimeRange(36, 36))
        finally:
            del self.reading[one.id]
            self._chat.events.publish(LibraryChanged())
        return done

    async def remove(self, one: PreparedSet) -> None:
        del self.standing[one.id]
        self._chat.events.publish(LibraryChanged())

    async def new_chat(self, one: PreparedSet) -> NewChat:
        return NewChat(one.name)


class FakeChat(ChatService):
    """The real chats on disk, of which no turn asks an engine: a sent message waits until the test plays the reply."""

    def __init__(self, paths: Paths, events: EventBus, host: EngineHost) -> None:
        self.calls: list[tuple[str, ...]] = []
        self._running: dict[str, asyncio.Future[Message | None]] = {}
        self._live: dict[str, Message] = {}  # replies that are coming, by conversation
        self._going_on: set[str] = set()  # replies of which nothing new has come yet
        self.ahead: str | None = None  # is answered, and the others wait
        self.disk = asyncio.Lock()  # held by a test: no conversation begins meanwhile
        self.refuse: KvchatError | None = None  # raised instead of beginning a conversation
        self.counted = ReplyStatistics((), TODAY)
        self._ids = count(1)
        worker = Worker("chats")
        database, store = worker.call(Database, paths.database), open_store_or_empty(paths, Settings())
        parts = {"database": database, "worker": worker, "store": store, "host": host, "events": events}
        super().__init__(TurnContext(**parts, keep_deleted_s=lambda: 7 * 86_400.0))  # type: ignore[arg-type]
        self.context: FakeContext = FakeContext(self.calls)
        self.title_generator.generate = self._name  # type: ignore[method-assign]
        self.library: FakeDocuments = FakeDocuments(self)
        self.slots.blocking_chat = lambda chat: self.ahead if chat != self.ahead else None  # type: ignore[method-assign]
        self.turns.prioritize = lambda chat: self.calls.append(("go_first", chat))  # type: ignore[method-assign]
        self.read_ahead.stop = lambda chat: self.calls.append(("stop reading ahead", chat))  # type: ignore[method-assign]
        self.memory_verifier = SimpleNamespace(verify=self._verify, cancel=lambda chat: None)  # type: ignore[assignment]

    @property
    def answering_chats(self) -> tuple[str, ...]:
        return tuple(self._running)

    def is_answering(self, conversation_id: str) -> bool:
        return conversation_id in self._running

    async def _name(self, conversation_id: str) -> None:
        self.change(conversation_id, title="Named by the model")

    async def _verify(self, conversation_id: str) -> bool:
        self.calls.append(("verify", conversation_id))
        return True

    async def new_conversation(self, system: str | None = None) -> Conversation:
        await self._begun()
        return await super().new_conversation(system)

    async def new_chat(self, system: str | None = None) -> NewChat:
        await self._begun()
        return await super().new_chat(system)

    async def _begun(self) -> None:
        self.calls.append(("new",))
        async with self.disk:
            if self.refuse is not None:
                raise self.refuse

    async def rename(self, conversation_id: str, title: str) -> None:
        self.calls.append(("rename", conversation_id, title))
        await super().rename(conversation_id, title)

    async def use_model(self, conversation_id: str, model: str) -> None:
        self.calls.append(("use_model", conversation_id, model))
        await super().use_model(conversation_id, model)

    async def relocate_model(self, old: str, new: str) -> None:
        self.calls.append(("relocate_model", old, new))
        await super().relocate_model(old, new)

    def select(self, conversation_id: str) -> None:
        self.calls.append(("select", conversation_id))

    def prepare(self, conversation_id: str | None, draft: str, attachments: tuple[Attachment, ...] = ()) -> None:
        self.drafted = conversation_id, draft, attachments

    def send(
        self,
        conversation_id: str,
        text: str,
        sampling: Sampling | None = None,
        *,
        attachments: tuple[Attachment, ...] = (),
        save: bool = True,
        new: NewChat | None = None,
        drafts: Sequence[Draft] = (),
        on_start: Callable[[], None] | None = None,
    ) -> asyncio.Future[Message | None]:
        self.calls.append(("send", conversation_id, text))
        self._do(turns.store_question, conversation_id, text, attachments, new, drafts)
        return self._begin(conversation_id)

    def retry(
        self, conversation_id: str, sampling: Sampling | None = None, *, save: bool = True
    ) -> asyncio.Future[Message | None]:
        self.calls.append(("retry", conversation_id))
        return self._begin(conversation_id)

    def regenerate(self, reply: Message, sampling: Sampling | None = None) -> asyncio.Future[Message | None]:
        self.calls.append(("regenerate", reply.id))
        self._do(lambda database: turns.select_last_question(database, database.path(reply.id)))
        return self._begin(reply.conversation_id)

    def continue_reply(self, reply: Message, sampling: Sampling | None = None) -> asyncio.Future[Message | None]:
        self.calls.append(("go on", reply.id))
        self._do(Database.reopen, reply)
        self._live[reply.conversation_id] = replace(reply, state=MessageState.STREAMING)
        self._going_on.add(reply.id)
        return self._begin(reply.conversation_id)

    def edit(
        self, question: Message, text: str, sampling: Sampling | None = None, *, save: bool = True
    ) -> asyncio.Future[Message | None]:
        self.calls.append(("edit", question.id, text))
        self._do(turns.store_edited_question, question, text)
        return self._begin(question.conversation_id)

    async def edit_reply(self, reply: Message, text: str) -> Message:
        self.calls.append(("edit reply", reply.id, text))
        return await super().edit_reply(reply, text)

    async def switch(self, conversation_id: str, message_id: str) -> None:
        self.calls.append(("switch", message_id))
        await super().switch(conversation_id, message_id)

    async def delete_message(self, message: Message) -> RemovedMessages:
        self.calls.append(("delete message", message.id))
        return await super().delete_message(message)

    def stop(self, conversation_id: str) -> None:
        self.calls.append(("stop", conversation_id))
        if conversation_id in self._running:
            self.finish(conversation_id, None, MessageState.STOPPED)

    # What a test uses to set the stage and to play the engine.

    def _do(self, function: Callable[..., R], *args: object, **kwargs: object) -> R:
        """Return what a function of the database's thread returns, at once."""
        return self.turn_context.worker.call(function, self.turn_context.database, *args, **kwargs)

    @property
    def by_id(self) -> dict[str, Conversation]:
        return {one.id: one for one in self._do(Database.conversations)}

    def said(self, conversation_id: str) -> list[Message]:
        """The messages of the current branch, as the page would get them."""
        return self._do(tree.current_branch, conversation_id)

    def draft(self, conversation_id: str) -> str:
        """The draft on disk; empty without one."""
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
        """One more conversation, the newest."""
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
        """One more message on disk, `below` one of that id or the last one."""
        last = self._do(Database.branch, conversation_id)[-1:]
        parent = (last[0].id if last else None) if below == "" else below
        made = self._do(Database.append, conversation_id, parent, role, content, state, attachments)
        if thinking or receipt:
            made = replace(made, thinking=thinking, receipt=receipt)
            self._do(Database.update_reply, made)
        self.events.publish(MessagesChanged(conversation_id))
        return made

    def say(self, conversation_id: str, text: str = "", thinking: str = "") -> None:
        """Stream a piece of the reply; the first one makes the message, or has the whole of one that goes on."""
        last = self._live.get(conversation_id) or self.write(
            conversation_id, Role.ASSISTANT, "", state=MessageState.STREAMING
        )
        before = (last.content, last.thinking) if last.id in self._going_on else ("", "")
        self._going_on.discard(last.id)
        whole = replace(last, content=last.content + text, thinking=last.thinking + thinking)
        self._live[conversation_id] = whole
        self._do(Database.update_reply, whole)
        self.events.publish(ReplyDelta(conversation_id, last.id, before[0] + text, before[1] + thinking))

    def finish(
        self, conversation_id: str, receipt: Receipt | None, state: MessageState = MessageState.COMPLETE
    ) -> None:
        """End the running reply."""
        future, last = self._running.pop(conversation_id), self._live.pop(conversation_id, None)
        if last is not None:
            last = replace(last, state=state, receipt=receipt)
            self._do(Database.update_reply, last)
            self.events.publish(ReplyFinished(conversation_id, last.id, receipt))
        future.set_result(last)
        self.events.publish(MessagesChanged(conversation_id))

    def _begin(self, conversation_id: str) -> asyncio.Future[Message | None]:
        future: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        self._running[conversation_id] = future
        self.events.publish(MessagesChanged(conversation_id))
        self.events.publish(ConversationsChanged())
        return future


class FakeLibrary(ModelLibrary):
    """Finds what a test has put there; the Hub is a stand-in, or nobody."""

    def __init__(self, paths: Paths) -> None:
        super().__init__(paths, tuple)
        self.there: list[FoundModel] = []
        self.locked: tuple[UnreadableFolder, ...] = ()

    async def find(
        self, judge: Callable[[GgufFacts], Judgement], found: Callable[[JudgedModel], None], in_use: str | None = None
    ) -> tuple[UnreadableFolder, ...]:
        for model in self.there:
            found(JudgedModel(model, judge(model.facts) if model.facts else None))
        return self.locked


class FakeEngines(EngineSetup):
    """Two engines, of which one is too old; a trial of two steps; a key in a variable. What is fetched really is."""

    found = (
        EngineEntry(
            EngineLocation(Path("/usr/bin/llama-server")),
            chosen=False,
            problem=KvchatError("This engine is too old", "It is build 6000."),
        ),
        EngineEntry(
            EngineLocation(),
            chosen=True,
            version="xllamacpp 2026.10.11549",
            devices=(Device("CPU", "AMD EPYC", None, None),),
        ),
    )
    refuse = ""  # why nothing that is typed can be used
    kept: str | None = None

    async def engines(self) -> tuple[EngineEntry, ...]:
        fetched = downloaded_engines(self._engines)
        return *(EngineEntry(engine.location, chosen=False) for engine in fetched), *self.found

    async def test_engine(self, location: EngineLocation, tell: Callable[[TrialStep], None]) -> Trial:
        steps = (TrialStep("Version", str(location)), TrialStep("The engine crashed", "SIGSEGV", KvchatError("x")))
        for step in steps:
            tell(step)
        return Trial(steps)

    async def save_key(self, value: str) -> SecretLocation | None:
        self.kept = value or None
        return SecretLocation.KEYRING if value else None

    async def validation_error(self, name: str, text: str) -> str:
        return self.refuse


class FakeEngine(SwitchingHost):
    """Says what the test has put into it."""

    location = "/usr/bin/llama-server"
    context_reason = "32,768 tokens: what the model was trained for; memory would allow 91,000."
    context_warning = ""
    memory_bars: tuple[MemoryBar, ...] = ()
    memory_proposals: tuple[Proposal, ...] = ()
    log_lines = ("build: 11434", "load_tensors: 30 layers", "main: server is listening")
    status = EngineStatus(EngineState.READY)
    finding = Finding(Strategy.PLAIN, proved=True)
    memory = MemoryFacts(16 * GB)
    larger = ContextChoice(
        65_536,
        "65,536 tokens take about 6.2 GB of the 11.4 GB free on the GPU once the engine has stopped.",
        "", 0, 0, 0, True, (),
    )  # fmt: skip

    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime = runtime

    def is_ready(self, model: str | None = None, *, vision: bool = False) -> bool:
        return False

    async def states_now(self, model: str | None = None) -> None:
        return None

    @property
    def restart_pending(self) -> bool:
        return any_changed(self._runtime.started, self._runtime.settings, RESTART_SETTINGS)

    @property
    def restoring(self) -> str:
        return self.finding.description if self.status.state is EngineState.READY else ""

    @property
    def may_retest(self) -> bool:
        return not self.finding.strategy.saves

    @property
    def context_size(self) -> int | None:
        return 32_768 if self.status.state is EngineState.READY else None

    async def capacity(self) -> Capacity:
        return Capacity(self.memory)

    async def model_judge(self) -> ModelJudge:
        return ModelJudge(self._runtime.settings, await self.capacity(), LoadLimits(self._runtime.paths.load_limits))

    async def larger_context(self) -> ContextChoice | None:
        return self.larger


class FakeModel(AnsweringModel):
    """A model that is a file name, and not there if the test says so."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime = runtime
        self._settings, self._library = lambda: runtime.settings, runtime.models

    @property
    def path(self) -> str | None:
        return self._runtime.loaded or self._runtime.settings.model_path

    @property
    def name(self) -> str | None:
        return Path(self.path).stem if self.path else None

    @property
    def is_missing(self) -> bool:
        return self._runtime.missing


class FakeStore(StoreService):
    """Keeps bytes by conversation."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime = runtime

    async def usage(self) -> StoreUsage:
        entries = tuple(self._runtime.usage_of(id) for id in self._runtime.kept)
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
        """Conversations give up their save points, all of one size, in the order they were kept."""
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
        freed = sum(one.bytes_freed for one in pruned)
        return PrunePlan(tuple(ids), freed, tuple(pruned), left)

    async def prune(self, plan: PrunePlan) -> int:
        self._runtime.calls.append(("prune", plan))
        if self._runtime.refuse is not None:
            raise self._runtime.refuse
        for one in plan.conversations:
            if not one.save_points_left:
                del self._runtime.kept[one.conversation_id]
                continue
            usage = self._runtime.usage_of(one.conversation_id)
            left = usage.bytes - one.bytes_freed
            self._runtime.keep(
                replace(usage, bytes=left, exclusive_bytes=left, shared_bytes=0, save_points=one.save_points_left)
            )
        return plan.bytes_freed

    async def pin(self, conversation_id: str, pinned: bool) -> None:
        self._runtime.calls.append(("pin", conversation_id, pinned))
        self._runtime.keep(replace(self._runtime.usage_of(conversation_id), pinned=pinned))

    async def never_save(self, conversation_id: str, never: bool) -> None:
        self._runtime.calls.append(("never_save", conversation_id, never))
        self._runtime.keep(replace(self._runtime.usage_of(conversation_id), never_save=never))

    async def delete(self, conversation_id: str | None) -> int:
        self._runtime.calls.append(("delete_save_points", conversation_id))
        if conversation_id is None:
            freed = sum(self._runtime.kept.values())
            self._runtime.kept.clear()
            return freed
        return self._runtime.kept.pop(conversation_id, 0)


class FakeApiService(ApiService):
    """An API server without a gateway: a test sets its requests. Its keys and totals are real."""

    active: Sequence[RequestRecord] = ()
    recent: Sequence[RequestRecord] = ()
    loaded_slots: tuple[LoadedSlot, ...] = ()

    def __init__(self, runtime: FakeRuntime) -> None:
        self.paths, self.settings = runtime.paths, lambda: runtime.settings
        self._runtime = runtime
        self.listeners: list[Callable[[], object]] = []

    @property
    def url(self) -> str | None:  # type: ignore[override]
        settings = self._runtime.settings
        return f"http://127.0.0.1:{settings.api_port}" if settings.api_server else None

    def subscribe(self, listener: Callable[[], object]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    async def forget(self, program: str) -> None:
        self._runtime.calls.append(("forget program", program))
        self.totals.forget(program)


class FakeRuntime(Runtime):
    """A runtime whose engine is a word and whose store is a dict."""

    break_even: BreakEven | None = None

    def __init__(self, home: Path, *, model: str | None = "SmolLM2-135M-Instruct") -> None:
        self.paths: Paths = resolve_paths({"KVCHAT_HOME": str(home)})
        self.paths.ensure()
        self.settings = Settings(model_path=f"/models/{model}.gguf" if model else None)
        self.events = EventBus()
        self.models: FakeLibrary = FakeLibrary(self.paths)
        self.loaded: str | None = None  # path of the model in the engine, where it is not the chosen one
        self.missing = False
        self.started = self.settings  # what the engine runs with
        self.slot: str | None = None
        self.kept: dict[str, int] = {}  # bytes by conversation
        self.details: dict[str, ConversationUsage] = {}  # more than the bytes of some of them
        self.calls: list[tuple[object, ...]] = []
        self.refuse: KvchatError | None = None  # raised by the next wish that can fail
        self.vitals: Vitals | None = None
        self.engine: FakeEngine = FakeEngine(self)
        if not model:
            self.engine.status = EngineStatus(EngineState.STOPPED)
        self.chat: FakeChat = FakeChat(self.paths, self.events, self.engine)
        self.chat.forecasts = self.forecasts = FakeForecasts(self)
        self.model: FakeModel = FakeModel(self)
        self.save_points: FakeStore = FakeStore(self)
        self.engines = FakeEngines(self.paths, lambda: self.settings, self.use_engine)
        self.api_server: FakeApiService = FakeApiService(self)

    async def retest_restoring(self) -> None:
        self.calls.append(("retest_restoring",))

    async def increase_context(self, tokens: int) -> None:
        self.calls.append(("increase_context", tokens))

    async def statistics(self) -> ReplyStatistics:
        return self.chat.counted

    async def diagnostics(self) -> str:
        return "kvchat diagnostics"

    async def start_engine(self) -> None:
        self.calls.append(("start",))

    async def stop_engine(self) -> None:
        self.calls.append(("stop",))

    async def restart_engine(self) -> None:
        self.calls.append(("restart",))
        if self.refuse is not None:
            raise self.refuse
        self.started = self.settings
        self.set_engine(EngineState.READY)

    async def use_model(self, path: Path) -> None:
        self.calls.append(("use_model", path))
        if self.refuse is not None:
            raise self.refuse
        self.settings = replace(self.settings, model_path=str(path))
        self.set_engine(EngineState.READY)

    async def engine_vitals(self) -> Vitals | None:
        return self.vitals

    async def load_model(self, path: Path) -> None:
        self.calls.append(("load_model", path))
        if self.refuse is not None:
            raise self.refuse
        self.loaded = str(path)
        self.set_engine(EngineState.READY)

    async def use_engine(self, path: str | None) -> None:
        await self.apply_settings(replace(self.settings, engine_path=path))

    async def apply_settings(self, settings: Settings) -> None:
        self.calls.append(("apply", settings))
        self.settings = settings
        self.events.publish(SettingsChanged())

    def keep(self, usage: ConversationUsage) -> None:
        """Keep that of a conversation."""
        self.kept[usage.conversation_id] = usage.bytes
        self.details[usage.conversation_id] = usage

    def usage_of(self, conversation_id: str) -> ConversationUsage:
        """What is kept of a conversation."""
        known = self.details.get(conversation_id)
        kept = self.kept.get(conversation_id, 0)
        return known or ConversationUsage(conversation_id, kept, 1 if kept else 0, datetime.now(UTC), kept)

    async def close(self) -> None:
        self.calls.append(("close",))

    def set_engine(self, state: EngineState, **more: object) -> None:
        """Move the engine to another state and say so."""
        self.engine.status = EngineStatus(state, **more)  # type: ignore[arg-type]
        self.events.publish(EngineChanged(self.engine.status))
