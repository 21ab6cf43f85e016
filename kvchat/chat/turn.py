"""The turn: restore, stream, settle at the turn boundary, save. The same for the window, `ask` and `bench`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from kvchat.chat.context import reply_reserve
from kvchat.chat.continuation import Echo
from kvchat.chat.database import ConversationGone
from kvchat.chat.database_file import StorageFailed
from kvchat.chat.events import (
    MessagesChanged,
    Notice,
    ReplyFinished,
    RestoreFailed,
    SaveSkipped,
    TurnFailed,
    WaitingForEngine,
)
from kvchat.chat.growing import making_room, outgrown, save_what_fits, too_small
from kvchat.chat.interruption import Interruption
from kvchat.chat.messages import Message, MessageState, Receipt, Role
from kvchat.chat.opening import Beginning
from kvchat.chat.options import FormatRefused
from kvchat.chat.presets import manner_of
from kvchat.chat.prompt import ConversationTooLong, needs_vision, prompt_messages
from kvchat.chat.receipts import NOTHING_TO_MISS
from kvchat.chat.reply import Draft, ReplyWriter
from kvchat.chat.restorer import DIED_OVER_RESTORE
from kvchat.chat.room import ReadyEngine
from kvchat.chat.settling import Settling
from kvchat.chat.shared_prompt import save_where_shared
from kvchat.chat.slot_state import Loaded, Verdict
from kvchat.chat.turn_parts import TurnParts
from kvchat.engine.speaking.interface import EngineError, EngineGone, EngineRefused
from kvchat.engine.speaking.wire import ENGINE_DEFAULTS, ChatMessage, Sampling, Timings
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import Tokens

DIED_OVER_SAVE = "the engine died while it saved the system prompt"


class Turn:
    """The answer to one question. It reads the path to that question, whatever else is said meanwhile."""

    def __init__(self, parts: TurnParts, conversation_id: str, sampling: Sampling | None, *, keep: bool = True) -> None:
        """The beginning is set before `run`. With `keep` false the turn ends after the reply, unsettled and unsaved.

        That is for measuring.
        """
        self.conversation_id = conversation_id
        self.beginning: Beginning | None = None
        self.answered = False  # the reply is over; the turn may still be saving
        self._answering = Interruption()
        self._settling = Settling(parts, conversation_id)
        self._stopped = False
        self.behind_another = (
            False  # another reply comes first: another conversation's, or in this one another process's
        )
        self._sent_at = time.perf_counter()
        self._queued_s = 0.0
        self._sampling = sampling  # wishes for this reply alone
        self._drawn = ENGINE_DEFAULTS
        self._keeps = keep
        self._parts = parts
        self._reply: ReplyWriter | None = None
        self._engine: ReadyEngine | None = None
        self._prompt: Tokens = ()
        self._sees = False  # the model is shown pictures
        self._loaded = Loaded(0, None, miss_reason=None)
        self._first: tuple[Verdict, Loaded] | None = None  # of a reply that went on in a larger context

    def stop(self) -> None:
        """End the reply now, or before it begins; what has come of it is kept."""
        self._stopped = True
        self._answering.interrupt()

    def supersede(self) -> None:
        """The conversation's next message makes settling pointless; a save that has begun goes on."""
        self._settling.supersede()

    @property
    def stopped(self) -> bool:
        """Whether the reply was to end."""
        return self._stopped

    @property
    def answering(self) -> bool:
        """Whether the reply is being made right now."""
        return self._answering.task is not None

    async def run(self, done: Callable[[Message | None], None]) -> None:
        """Answer, call `done` with the reply (None if there is none), then settle and save.

        Never raises a KvchatError: what went wrong is told as TurnFailed or SaveSkipped.
        """
        async with self._parts.slot.lock:
            self._queued_s = time.perf_counter() - self._sent_at if self.behind_another else 0.0
            reply: Message | None = None
            try:
                reply = await self._answer()
            except KvchatError as error:
                self._parts.events.publish(TurnFailed(self.conversation_id, error))
                await self._close_interrupted()
            finally:
                self.answered = True
                done(reply)
            if reply is not None and self._engine is not None and self._keeps:
                await self._settling.run(self._engine, reply)

    async def _answer(self) -> Message | None:
        """The reply, whole or as far as Stop let it come."""
        if self._stopped:
            return None
        try:
            message = await self._answering.run(self._stream())
        except EngineGone as loss:
            self._parts.slot.forget()
            raise await self._parts.host.explain_loss(loss) from loss
        except EngineRefused as refusal:
            raise self._in_words(refusal) from refusal
        return message if message is not None else await self._close_reply(MessageState.STOPPED)

    async def _stream(self) -> Message | None:
        """From the stored question to the whole reply on disk."""
        assert self.beginning is not None
        unfinished = self.beginning.unfinished
        path = await self._parts.path(unfinished.id if unfinished else self.beginning.question_id)
        messages = prompt_messages(path, going_on=unfinished is not None)
        if not messages:
            raise ConversationGone
        self._sees = needs_vision(messages)
        reply = await self._open_reply(self.beginning)
        try:
            await self._say(messages, reply)
        except EngineGone as loss:
            if not reply.draft.empty or not await self._recovers(loss):
                raise
            reply.draft = Draft()
            await self._say(messages, reply)  # nothing was said yet: the next engine says it
        while (engine := self._engine) and (timings := reply.draft.timings) and outgrown(engine, reply.draft):
            await self._say_on(engine, timings, path, reply)
        limited = reply.draft.finish_reason == "length"
        return await self._close_reply(MessageState.LIMITED if limited else MessageState.COMPLETE)

    async def _say(self, messages: list[ChatMessage], reply: ReplyWriter) -> None:
        engine = await self._prepare(messages, reply)
        self._parts.slot.note_request(engine, self.conversation_id, self._prompt, self._loaded)
        last = messages[-1]
        echo = Echo(last.content, last.thinking) if last.role == Role.ASSISTANT.value else None
        drawn, said = self._drawn, reply.predicted_before
        if drawn.max_tokens is not None and said:
            drawn = replace(drawn, max_tokens=max(1, drawn.max_tokens - said))
        await reply.consume(engine.engine.chat(messages, drawn), self._loaded, echo)

    async def _say_on(self, engine: ReadyEngine, timings: Timings, path: list[Message], reply: ReplyWriter) -> None:
        """Go on with the reply in a larger context."""
        proved = await self._prove(reply, timings), self._loaded
        self._first = self._first or proved
        written = reply.draft.written_into(reply.before, MessageState.STREAMING)
        messages = prompt_messages([*(one for one in path if one.id != written.id), written], going_on=True)
        if self._keeps:
            await save_what_fits(self._parts, engine, written, messages)
        reply.goes_on()
        await self._say(messages, reply)

    async def _recovers(self, loss: EngineGone) -> bool:
        """Whether another engine is coming up, now that this one is lost."""
        self._parts.slot.forget()
        await self._parts.host.explain_loss(loss)
        return self._parts.host.recovers()

    async def _open_reply(self, beginning: Beginning) -> ReplyWriter:
        parts, message = self._parts, beginning.unfinished
        if message is not None:
            await parts.worker.run(parts.database.reopen, message)
        else:
            where = self.conversation_id, beginning.question_id
            message = await parts.worker.run(parts.database.append, *where, Role.ASSISTANT, "", MessageState.STREAMING)
        self._reply = ReplyWriter(message, self._sent_at, parts.database, parts.worker, parts.events)
        self._reply.queue_wait_s = self._queued_s
        parts.events.publish(MessagesChanged(self.conversation_id))
        return self._reply

    async def _prepare(self, messages: list[ChatMessage], reply: ReplyWriter) -> ReadyEngine:
        """A ready engine whose slot holds the best state for these messages."""
        engine = await self._ready()
        self._prompt = await engine.engine.prompt_tokens(messages)
        wanted = len(self._prompt) + reply_reserve(engine.limit, self._drawn.max_tokens)
        if too_small(engine, wanted):
            with making_room(self._parts, self.conversation_id, wanted):
                engine = await self._ready(wanted)
        if len(self._prompt) >= engine.context_size:
            raise ConversationTooLong(len(self._prompt), engine.limit)
        try:
            self._loaded = await self._parts.slot.load(engine, self.conversation_id, self._prompt)
            reply.note_load(self._loaded)
            if not any(message.role == Role.ASSISTANT.value for message in messages):
                self._loaded = replace(self._loaded, miss_reason=NOTHING_TO_MISS)  # there was nothing to miss
        except EngineGone as loss:  # over a bad file: the next engine does it the ordinary way
            engine = await self._next_engine(loss)
            self._parts.events.publish(RestoreFailed(self.conversation_id, DIED_OVER_RESTORE))
            self._loaded = Loaded(0, None, miss_reason=DIED_OVER_RESTORE)
            return engine
        try:
            if self._keeps and engine.saves and not engine.can_cut and not self._loaded.expected_cached:
                reply.read_ahead = await save_where_shared(self._parts, engine, messages, self._prompt, reply)
        except EngineGone as loss:
            engine = await self._next_engine(loss)
            self._parts.events.publish(SaveSkipped(self.conversation_id, DIED_OVER_SAVE))
        return engine

    async def _next_engine(self, loss: EngineGone) -> ReadyEngine:
        """The engine after the one that died over a save point: that must not cost the reply."""
        self._parts.slot.forget()
        await self._parts.host.explain_loss(loss)
        return await self._ready()

    async def _ready(self, tokens: int = 0) -> ReadyEngine:
        parts = self._parts
        manner = await parts.worker.run(manner_of, parts.database, self.conversation_id)
        if not parts.host.is_ready(manner.model, sees=self._sees):
            parts.events.publish(WaitingForEngine(self.conversation_id))
        asked_at = time.perf_counter()
        engine = await parts.host.ready(manner.model, sees=self._sees, tokens=tokens)
        self._engine = engine.rendering(manner.options.template)
        self._drawn = parts.drawn(self._sampling, manner.options)
        if self._reply:
            self._reply.engine_wait_s += time.perf_counter() - asked_at
        return self._engine

    async def _close_reply(self, state: MessageState) -> Message | None:
        """Put the reply on disk for good as it is now; what added nothing and did not complete is taken back."""
        reply, parts = self._reply, self._parts
        if reply is None:
            return None
        self._note_slot(reply)
        if reply.draft.empty and state is not MessageState.COMPLETE:
            if reply.before.state is MessageState.STREAMING:
                await parts.worker.run(parts.database.remove_leaf, reply.message)
            else:  # it was to go on
                await parts.worker.run(parts.database.update_reply, reply.before)
            parts.events.publish(MessagesChanged(self.conversation_id))
            return None
        receipt = await self._receipt(reply)
        message = await reply.finish(state, receipt)
        parts.events.publish(ReplyFinished(self.conversation_id, message.id, receipt))
        self._tell_if_cut(reply, receipt)
        return message

    def _tell_if_cut(self, reply: ReplyWriter, receipt: Receipt | None) -> None:
        """A reply that ended because the context was full is never passed off as a whole one."""
        if receipt is None or self._engine is None or reply.draft.finish_reason != "length":
            return
        limit, used = self._engine.context_size, reply.draft.context_used
        if used >= limit - 1:  # the engine keeps one back
            words = f"All {limit:,} tokens of it are taken. Choose a larger one, or go on in a shorter branch."
            self._parts.events.publish(Notice("The reply was cut off: the context is full", words))

    async def _close_interrupted(self) -> None:
        """After a failure: what came is kept if the disk lets us; why it does not was told already."""
        try:
            await self._close_reply(MessageState.INTERRUPTED)
        except StorageFailed as error:
            self._parts.events.publish(Notice(error.title, f"{error.detail} {error.advice}"))

    def _note_slot(self, reply: ReplyWriter) -> None:
        """The slot holds what was read of the prompt, and a reply whose tokens only the engine knows."""
        if self._engine and reply.draft.prompt_done:
            known = self._prompt[: reply.draft.prompt_done]
            self._parts.slot.note(self._engine, self.conversation_id, known)

    async def _receipt(self, reply: ReplyWriter) -> Receipt | None:
        if (timings := reply.draft.timings) is None or self._engine is None:
            return None
        parts, model = self._parts, self._engine.fingerprint.model
        last = await self._prove(reply, timings), self._loaded
        verdict, loaded = self._first or last
        rate = await parts.worker.run(parts.database.prefill_ms_per_token, model)
        parts.slot.recall_prefill(rate)
        return reply.receipt(loaded, verdict, model, rate)

    async def _prove(self, reply: ReplyWriter, timings: Timings) -> Verdict:
        """What the engine's numbers say of what was loaded for the request that has just ended."""
        for read in filter(None, (reply.read_ahead, timings)):
            self._parts.slot.learn_prefill(read.prompt_n, read.prompt_ms)
        return await self._parts.prove(self.conversation_id, self._loaded, reply.cached_tokens, timings.prompt_tokens)

    def _in_words(self, refusal: EngineRefused) -> KvchatError:
        if (self._drawn.grammar or self._drawn.json_schema) and "grammar" in refusal.message:
            return FormatRefused(refusal.message)
        if refusal.kind == "exceed_context_size_error" and self._engine:
            return ConversationTooLong(len(self._prompt), self._engine.limit)
        return EngineError(
            "The engine would not answer",
            refusal.message,
            "Try again. If it happens every time, the model's chat template may not suit this chat.",
        )
