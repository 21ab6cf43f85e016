"""One turn: restore, stream, bring the slot to the turn boundary, save; again after the results of tool calls."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

from kvchat.chat.events import (
    MessagesChanged,
    Notice,
    ReplyFinished,
    TurnFailed,
)
from kvchat.chat.options import OutputFormatRejected
from kvchat.chat.record.database import ConversationGone, Database
from kvchat.chat.record.database_file import StorageFailed
from kvchat.chat.record.messages import (
    UNFINISHED_STATES,
    Attachment,
    Message,
    MessageState,
    Role,
    ends_with_reply,
    needs_vision,
    prompt_messages,
    receipt_to_json,
)
from kvchat.chat.turn.reply import EchoFilter, ReplyWriter
from kvchat.chat.turn_context import TurnContext
from kvchat.engine.api.errors import AccessRefused, EngineError, EngineRefused
from kvchat.engine.api.wire import ENGINE_DEFAULTS, Sampling
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import Tokens, is_imported
from kvchat.session.events import RequestSent, SaveSkipped, SessionEvent
from kvchat.session.exchange import Exchange, PromptRequest
from kvchat.session.lease import reason_for_save_failure
from kvchat.session.prefill import Settling
from kvchat.session.slot import Slot
from kvchat.system.concurrency import InterruptibleTask
from kvchat.text.language import _, format_number

R = TypeVar("R")
MAX_ROUNDS = 20  # of tool calls in one turn
CallExecutor = Callable[[Message], Coroutine[Any, Any, tuple[Message, bool]]]  # ToolCalls.run


@dataclass(frozen=True)
class TurnStart:
    question_id: str  # of the user's message, or of a tool's result
    unfinished: Message | None = None  # the reply to continue; None: a new reply
    calls_of: Message | None = None  # a reply whose tool calls to execute first


@dataclass(eq=False)
class Turn:
    """The answer to one question, in one or more rounds: a reply with tool calls is followed by their results.

    Its prompt is the branch up to that question, even if more messages are sent meanwhile.
    """

    turn_context: TurnContext
    conversation_id: str
    store_question: Callable[[Database], TurnStart]  # stores it with `text` and `attachments`
    sampling: Sampling | None = None  # for this reply only
    should_save: bool = True  # False: neither settle nor save
    text: str | None = None
    attachments: tuple[Attachment, ...] = ()
    creates_chat: bool = False
    edits: Message | None = None  # the question that it replaces
    quotes: tuple[Attachment, ...] = ()  # passages to store with the question, set before `store_question` is called
    on_start: Callable[[], None] | None = None  # called as the turn begins; None: the chat must be idle
    start: TurnStart | None = None  # set before `run`
    is_answered: bool = False  # the turn may still be saving
    is_stopped: bool = False  # by the user
    is_queued: bool = False  # another reply comes first
    _reply: ReplyWriter | None = None
    _queued_s: float = 0.0
    _chosen_sampling: Sampling = ENGINE_DEFAULTS
    _sent_at: float = field(default_factory=time.perf_counter)
    _waiting: InterruptibleTask = field(default_factory=InterruptibleTask)  # for tools, other chats or a slot
    _answering: InterruptibleTask = field(default_factory=InterruptibleTask)
    _calls: asyncio.Task[tuple[Message, bool]] | None = None  # executes the last reply's tool calls
    _has_tools: bool = False
    _rounds: int = 0
    _invalid_rounds: int = 0  # in a row, whose calls were all invalid
    _exchange: Exchange = field(init=False)  # set with the slot

    def __post_init__(self) -> None:
        self._notify = self.turn_context.events.for_chat(self.conversation_id)
        self.settling = Settling(self._notify)

    def stop(self) -> None:
        self.is_stopped = True
        self._waiting.interrupt()
        self._answering.interrupt()
        if self._calls is not None:
            self._calls.cancel()

    @property
    def is_answering(self) -> bool:
        return self._answering.task is not None or self.has_calls

    @property
    def has_calls(self) -> bool:
        """True while tool calls run, or until `finish_calls` has their results."""
        return self._calls is not None

    async def run_until_stopped(self, coroutine: Coroutine[Any, Any, R]) -> R | None:
        """Run a coroutine; return None if the user stopped the turn before its end."""
        return await self._waiting.run(coroutine)

    def execute_calls(self, reply: Message, execute: CallExecutor) -> None:
        """Start executing a reply's tool calls."""
        self._calls = asyncio.create_task(execute(reply))

    async def finish_calls(self) -> bool:
        """Wait for the tool calls; return True if the model should continue. Raises StorageFailed."""
        assert self._calls is not None
        await asyncio.wait([self._calls])
        calls, self._calls = self._calls, None
        if calls.cancelled():
            return False
        last, all_invalid = calls.result()
        if self.is_stopped:
            return False
        self.start = TurnStart(last.id)
        self._rounds, self._invalid_rounds = self._rounds + 1, self._invalid_rounds + 1 if all_invalid else 0
        if self._rounds < MAX_ROUNDS and self._invalid_rounds <= 1:
            self._reply, self.settling, self._queued_s = None, Settling(self._notify), 0.0
            self._sent_at = time.perf_counter()
            return True
        title = _("The model called tools {count} times in a row", count=format_number(self._rounds))
        if self._invalid_rounds > 1:
            title = _("The model called tools with invalid arguments")
        advice = _("Choose “Try again” to continue, or write a message.")
        self.turn_context.publish(Notice(title, advice, self.conversation_id))
        return False

    async def run(self, on_reply: Callable[[Message | None], None], execute: CallExecutor) -> None:
        """Answer, then settle and save. Publishes KvchatErrors, raises none.

        If the reply calls tools, their execution begins when the reply is complete. Otherwise `on_reply` is called with
        the reply or None.
        """
        turn_context, slots = self.turn_context, self.turn_context.slots
        async with contextlib.AsyncExitStack() as stack:

            async def acquire() -> Slot:
                return await stack.enter_async_context(slots.acquire(self.conversation_id, await self._prompt()))

            slot = None if self.is_stopped else await self.run_until_stopped(acquire())
            if slot is None:
                self.is_answered = True
                on_reply(None)
                return
            self._exchange = Exchange(slots, slot, turn_context.host, self.conversation_id, self._on_event)
            self._exchange.saves = self.should_save
            self._queued_s = time.perf_counter() - self._sent_at if self.is_queued else 0.0
            reply: Message | None = None
            try:
                reply = await self._answer()
            except KvchatError as error:
                turn_context.publish(TurnFailed(self.conversation_id, error))
                if self._reply is None or self._reply.message.id not in turn_context.unsaved_replies:
                    try:
                        await self._close_reply(MessageState.INTERRUPTED)
                    except StorageFailed as failed:
                        turn_context.publish(Notice(failed.title, failed.explanation))
            finally:
                if reply is not None and reply.calls and not self.is_stopped:
                    self.execute_calls(reply, execute)
                else:
                    self.is_answered = True
                    on_reply(reply)
            if reply is not None and self.should_save:
                with slots.settling(slot, self.settling.supersede, self.settling.hurry):
                    await self._settle(reply)

    async def _prompt(self) -> Tokens:
        """Return the prompt's token ids if a slot of another owner may hold most of them, else an empty tuple."""
        turn_context = self.turn_context
        if not self.start or len(turn_context.slots.all_slots) == 1 or turn_context.slots.slot_of(self.conversation_id):
            return ()
        with contextlib.suppress(KvchatError):  # the next engine request or chat read reports it
            chosen = await turn_context.answer_settings(self.conversation_id)
            messages = prompt_messages(await turn_context.run(Database.path, self.start.question_id))
            if messages and not needs_vision(messages) and turn_context.host.is_ready(chosen.model):
                engine = (await turn_context.host.ready(chosen.model)).with_template(chosen.options.template)
                return () if engine.keeps_memory else await engine.engine.prompt_tokens(messages)
        return ()

    async def _answer(self) -> Message | None:
        if self.is_stopped:
            return None
        try:
            async with self._exchange.explaining_losses():
                message = await self._answering.run(self._stream())
        except EngineRefused as refusal:
            if (self._chosen_sampling.grammar or self._chosen_sampling.json_schema) and "grammar" in refusal.message:
                raise OutputFormatRejected(refusal.message) from refusal
            if refusal.status == HTTPStatus.UNAUTHORIZED:
                raise AccessRefused from refusal
            advice = _("Try again. If it happens every time, the model's chat template may not suit this chat.")
            raise EngineError(_("The engine rejected the chat"), refusal.message, advice) from refusal
        return message if message is not None else await self._close_reply(MessageState.STOPPED)

    async def _stream(self) -> Message | None:
        assert self.start is not None
        turn_context, exchange, unfinished = self.turn_context, self._exchange, self.start.unfinished
        path = await turn_context.run(Database.path, unfinished.id if unfinished else self.start.question_id)
        messages = prompt_messages(path, continues_reply=unfinished is not None)
        if not messages:
            raise ConversationGone
        self._has_tools = bool(messages[0].tools)
        if (message := unfinished) is not None:
            await turn_context.run(Database.reopen, message)
        else:
            id, parent_id = self.conversation_id, self.start.question_id
            message = await turn_context.run(Database.append, id, parent_id, Role.ASSISTANT, "", MessageState.STREAMING)
        self._reply = reply = ReplyWriter(message, self._sent_at, turn_context)
        reply.queue_wait_s = self._queued_s
        turn_context.publish(MessagesChanged(self.conversation_id))
        reply.earlier_tokens = next((message.receipt.prompt_tokens for message in reversed(path) if message.receipt), 0)
        chosen = await turn_context.answer_settings(self.conversation_id)

        def choose_sampling() -> Sampling:  # tokens of earlier requests count towards the limit
            sampling = turn_context.merge_sampling(self.sampling, chosen.options)
            if sampling.max_tokens is not None and reply.predicted_tokens:
                sampling = replace(sampling, max_tokens=max(1, sampling.max_tokens - reply.predicted_tokens))
            self._chosen_sampling = sampling
            return sampling

        async def stream(request: PromptRequest) -> None:
            last = request.messages[-1]
            echo = EchoFilter(last.content, last.thinking) if last.role == Role.ASSISTANT.value else None
            try:
                await exchange.answer(request, lambda chunk: reply.add_chunk(echo.strip(chunk) if echo else chunk))
            finally:
                reply.add_step(exchange.result)

        has_system = self.should_save and path[0].role is Role.SYSTEM
        system = path[0].id if has_system else ""
        request = PromptRequest(messages, choose_sampling, chosen.model, chosen.options.template, system)
        async with reply.periodic_flush():
            await stream(request)
            while exchange.has_outgrown_context and exchange.result:
                reply.drop_calls()  # the next request begins them again
                written = reply.snapshot(MessageState.STREAMING)
                path = [*(message for message in path if message.id != written.id), written]
                messages = prompt_messages(path, continues_reply=True)
                if self.should_save:
                    await exchange.save_what_fits(messages, written.id)
                await stream(replace(request, messages=messages, system=""))
        limited = exchange.finish_reason == "length"
        return await self._close_reply(MessageState.LIMITED if limited else MessageState.COMPLETE)

    def _on_event(self, event: SessionEvent) -> None:
        if self._reply is not None:
            loaded = event.loaded if isinstance(event, RequestSent) else None
            self._reply.on_request_sent(loaded, self._exchange.engine_wait_s)
            engine = self._exchange.engine
            if loaded is not None and self._has_tools and engine is not None and not engine.has_tools:
                title, detail = _("This model cannot call tools"), _("Its chat template does not support tools.")
                self.turn_context.publish(Notice(title, detail, self.conversation_id))
        self._notify(event)

    async def _close_reply(self, state: MessageState) -> Message | None:
        reply, turn_context, exchange = self._reply, self.turn_context, self._exchange
        if reply is None:
            return None
        is_cut_call = not reply.has_text and state in (MessageState.STOPPED, MessageState.INTERRUPTED)
        if is_cut_call or (reply.is_empty and state is not MessageState.COMPLETE):
            if reply.original.state is MessageState.STREAMING:
                await turn_context.run(Database.remove_empty_reply, reply.message)
            else:  # continued reply
                await turn_context.run(Database.update_reply, reply.original)
            turn_context.publish(MessagesChanged(self.conversation_id))
            return None
        receipt = None
        if (engine := exchange.engine) is not None:
            model = engine.fingerprint.model
            receipt = reply.receipt(model, (await turn_context.prefill_speed(model)).ms_per_token)
        if receipt is not None and engine is not None:
            imported = exchange.lease is not None and is_imported(exchange.lease.slot.audience)
            imported = imported and receipt.cached_tokens > 0
            receipt = replace(receipt, model_name=engine.model_name, imported=imported)
        try:
            message = await reply.finish(state, receipt)
        except StorageFailed:
            turn_context.write_reply_later(reply.message)
            raise
        turn_context.publish(ReplyFinished(self.conversation_id, message.id, receipt))
        if receipt is not None and exchange.is_context_full and engine is not None:  # always report truncation
            detail = _(
                "All {tokens} tokens are in use. Choose a larger context length, or continue in a shorter branch.",
                tokens=format_number(engine.context_size),
            )
            turn_context.publish(Notice(_("The reply was cut off: the context is full"), detail, self.conversation_id))
        return message

    async def _settle(self, reply: Message) -> None:
        turn_context, lease, settling = self.turn_context, self._exchange.lease, self.settling
        if lease is not None and lease.engine.keeps_memory:
            return
        try:
            path = await turn_context.run(Database.path, reply.id)
            if lease is not None and ends_with_reply(path):
                open_history = (
                    prompt_messages(path, continues_reply=True) if path[-1].state in UNFINISHED_STATES else ()
                )
                async with self._exchange.explaining_losses():
                    boundary = partial(lease.turn_boundary, prompt_messages(path))
                    await settling.run(lease, boundary, reply.id, open_history)
            if reply.receipt is not None and settling.settle_ms:
                receipt = replace(reply.receipt, settle_ms=settling.settle_ms, save_ms=settling.save_ms or None)
                with contextlib.suppress(StorageFailed):  # the reply itself is stored
                    statement = "UPDATE messages SET receipt = ? WHERE id = ?"
                    await turn_context.run(Database.write, statement, (receipt_to_json(receipt), reply.id))
                    turn_context.publish(MessagesChanged(self.conversation_id))
        except KvchatError as error:
            turn_context.publish(SaveSkipped(reason_for_save_failure(error), conversation_id=self.conversation_id))
