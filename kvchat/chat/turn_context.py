"""Dependencies of every turn."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from kvchat.chat.attachments import picture_attachment
from kvchat.chat.events import Absorbed, ConversationsChanged, Event, EventBus, MessagesChanged, Notice
from kvchat.chat.options import AnswerSettings, ChatOptions, Preset, answer_settings, presets
from kvchat.chat.record.database import Database
from kvchat.chat.record.database_file import StorageFailed
from kvchat.chat.record.messages import NEW_CHAT_ID, Attachment, Message, Role, new_message
from kvchat.engine.api.wire import ENGINE_DEFAULTS, Sampling
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import StoreRefused
from kvchat.kvstore.store import BlockStore
from kvchat.session.allocator import ABSORB_TIMEOUT_S
from kvchat.session.exchange import Exchange
from kvchat.session.host import EngineHost, ReadyEngine
from kvchat.session.restore_cost import PrefillSpeed
from kvchat.session.slot import Priority, Slot
from kvchat.session.slots import Slots
from kvchat.system.concurrency import BackgroundTasks, Worker
from kvchat.text.language import _
from kvchat.text.reasons import Reason
from kvchat.tools.toolbox import Toolbox

P = ParamSpec("P")
R = TypeVar("R")

RETRY_INTERVAL_S = 5.0  # between attempts to write unsaved replies


class ReplyInProgress(KvchatError):
    def __init__(self) -> None:
        super().__init__(
            _("The reply to the last message is still being generated"), "", _("Wait for the reply, or stop it.")
        )


class Embedder(Protocol):
    """Computes embeddings: vectors that are similar for texts of similar meaning. May raise KvchatError."""

    async def identity(self) -> str:
        """Return the id of the embedding model; empty if there is none. Call before `embed`."""
        ...

    async def embed(self, texts: Sequence[str], *, is_query: bool = False) -> Sequence[Sequence[float]]: ...


@dataclass
class TurnContext:
    """Shared by the parts of the chat service. Event-loop thread only."""

    database: Database
    worker: Worker
    store: BlockStore
    host: EngineHost
    events: EventBus
    user_sampling: Callable[[], Sampling] = lambda: ENGINE_DEFAULTS  # from the settings
    model_sampling: Callable[[], Sampling] = lambda: ENGINE_DEFAULTS  # defaults of the model in use
    default_model: Callable[[], str | None] = lambda: None  # path of the model for chats without one
    read_ahead_off_reason: Callable[[], Reason | None] = lambda: None  # why reading ahead is off; None if it is on
    remembered_tools: Callable[[], tuple[str, ...]] = tuple  # selected for the last new chat
    new_chat_tools: Callable[[ChatOptions], str] = lambda options: ""  # to freeze for a new chat, as far as known
    keep_deleted_s: Callable[[], float] = lambda: 0.0  # seconds to keep deleted chats
    embedder: Embedder | None = None
    toolbox: Toolbox = field(default_factory=Toolbox)
    prepare_picture: Callable[[str, bytes], Attachment] = picture_attachment  # the window decodes it
    background: BackgroundTasks = field(default_factory=BackgroundTasks)
    is_answering: Callable[[str], bool] = lambda conversation_id: False
    on_slot_changed: Callable[[], None] = lambda: None  # called when the contents of a slot may have changed

    def __post_init__(self) -> None:
        self.slots = Slots(self.store)
        self.unsaved_replies: dict[str, Message] = {}  # by id: replies that could not be written yet
        self._saving: asyncio.Task[None] | None = None

    async def run(self, function: Callable[Concatenate[Database, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` with the database, on the database's thread."""
        return await self.worker.run(function, self.database, *args, **kwargs)

    def require_no_reply(self, conversation_id: str) -> None:
        """Raise ReplyInProgress if the chat is being answered."""
        if self.is_answering(conversation_id):
            raise ReplyInProgress

    def publish(self, *events: Event) -> None:
        for event in events:
            self.events.publish(event)

    def publish_changes(self, conversation_id: str) -> None:
        self.publish(MessagesChanged(conversation_id), ConversationsChanged())

    def exchange(self, slot: Slot, conversation_id: str) -> Exchange:
        return Exchange(self.slots, slot, self.host, conversation_id, self.events.for_chat(conversation_id))

    def merge_sampling(self, sampling: Sampling | None, options: ChatOptions) -> Sampling:
        """Return the sampling options: those given, else those of the chat, the settings and the model, in this order.

        If the sampling is greedy, those of the model are not used.
        """
        chosen = (sampling or ENGINE_DEFAULTS).with_defaults(options.sampling).with_defaults(self.user_sampling())
        return chosen if chosen.temperature == 0 else chosen.with_defaults(self.model_sampling())

    async def branch(self, conversation_id: str) -> list[Message]:
        return await self.run(Database.branch, conversation_id)

    async def ready_engine(self, model: str | None) -> ReadyEngine | None:
        """Return the engine if it is ready with this model (None: the one in use), without starting it."""
        if not self.host.is_ready(model):
            return None
        try:
            return await self.host.ready(model)
        except KvchatError:
            return None

    async def prefill_speed(self, model: str) -> PrefillSpeed:
        """Return a model's processing speed, measured in this and earlier runs; `model`: its name in fingerprints."""
        speed = self.slots.restore_cost.speed_of(model)
        if not speed.has_earlier_samples:
            speed.add_earlier_samples(await self.run(Database.prefill_timings, model))
        return speed

    async def answer_settings(self, conversation_id: str) -> AnswerSettings:
        chosen = await self.run(answer_settings, conversation_id)
        return chosen if chosen.model else replace(chosen, model=self.default_model())

    async def settings_and_branch(self, conversation_id: str | None) -> tuple[AnswerSettings, list[Message]]:
        """Return a conversation's answer settings and branch; without an id those of a new chat."""
        if conversation_id is not None:
            return await self.answer_settings(conversation_id), await self.branch(conversation_id)
        preset = next((preset for preset in await self.run(presets) if preset.is_default), Preset(""))
        root = replace(new_message(NEW_CHAT_ID, Role.SYSTEM, preset.system), tools=self.new_chat_tools(preset.options))
        system = [root] if preset.system or root.tools else []
        return AnswerSettings(preset.model or self.default_model(), preset.options), system

    async def absorb(self, timeout_s: float = ABSORB_TIMEOUT_S) -> None:
        """Have the store split saved slot files into blocks when nothing more urgent runs, and publish the result."""
        await self.slots.wait_until_quiet(Priority.ABSORB, timeout_s)
        try:
            report = await self.slots.absorb()
        except StoreRefused as refusal:
            self.publish(Notice(refusal.title, refusal.explanation))
            return
        if report.save_points:
            self.publish(Absorbed())
        for reason in report.refused:
            self.publish(Notice(_("The memory of a chat was not saved"), reason.as_sentence))

    def write_reply_later(self, reply: Message) -> None:
        """Keep a reply that could not be written in memory, and retry regularly."""

        async def retry() -> None:
            while self.unsaved_replies:
                await asyncio.sleep(RETRY_INTERVAL_S)
                with contextlib.suppress(StorageFailed):
                    await self.write_replies()

        self.unsaved_replies[reply.id] = reply
        if self._saving is None or self._saving.done():
            self._saving = asyncio.create_task(retry())

    async def write_replies(self) -> None:
        """Write the unsaved replies. On StorageFailed they stay in memory for the next attempt."""
        for id, reply in tuple(self.unsaved_replies.items()):
            await self.run(Database.update_reply, reply)
            self.unsaved_replies.pop(id, None)
            self.publish(MessagesChanged(reply.conversation_id))

    async def close(self) -> None:
        """Write the unsaved replies a last time."""
        if self._saving is not None:
            self._saving.cancel()
        with contextlib.suppress(StorageFailed):
            await self.write_replies()
