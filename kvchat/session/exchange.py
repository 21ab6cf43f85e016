"""One request to the engine: get an engine ready, load the slot, send, prove, retry after a loss.

Settling and saving follow in kvchat.session.prefill.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from kvchat.engine.api.errors import EngineError, EngineGone, EngineRefused
from kvchat.engine.api.pictures import FIRST_PICTURE_ID
from kvchat.engine.api.wire import (
    ENGINE_DEFAULTS,
    ChatChunk,
    ChatMessage,
    PromptProgress,
    Sampling,
    ServerMemory,
    Timings,
)
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import RestoreMiss, SavePoint, Tier, Tokens
from kvchat.session.events import (
    EventHandler,
    IncreasingContext,
    RequestSent,
    RestoreFailed,
    SaveSkipped,
    WaitingForEngine,
    ignore_event,
)
from kvchat.session.host import EngineHost, ReadyEngine, TemplateOptions
from kvchat.session.lease import Lease
from kvchat.session.prefill import save_system_prompt
from kvchat.session.proof import NOTHING_LOADED, LoadedState, LoadResult, PrefilledAhead, RestoreRecord, judge_load
from kvchat.session.slot import Slot
from kvchat.session.slots import Slots
from kvchat.text.language import _, format_number
from kvchat.text.reasons import Reason, ReasonCode

CHARS_PER_TOKEN = 4  # rough estimate
_SERVER_REASONS = frozenset(code for code in ReasonCode if "{" not in (code.general or code.sentence))
_UNSAVED_TAIL = 64  # tokens at the end of a full context: settling needs room

R = TypeVar("R")
ChunkHandler = Callable[[ChatChunk], bool | None]  # True: stop


class PromptTooLong(KvchatError):
    def __init__(self, prompt_tokens: int, context_size: int) -> None:
        sizes = {"prompt_tokens": format_number(prompt_tokens), "context_size": format_number(context_size)}
        super().__init__(
            _("This chat no longer fits the model's context"),
            _("It has {prompt_tokens} tokens, but the context length is {context_size}.", **sizes),
            _("Start a new chat, or increase the context length in Settings if the model and memory allow it."),
        )
        self.prompt_tokens, self.context_size = prompt_tokens, context_size


@dataclass(frozen=True)
class PromptRequest:
    messages: Sequence[ChatMessage]
    sampling: Callable[[], Sampling] = lambda: ENGINE_DEFAULTS  # called when ready: it may depend on the model
    model: str | None = None  # path; None: the one in use
    template: TemplateOptions = ()
    system: str = ""  # label of the system prompt's save point; empty: it is not saved by itself

    @property
    def needs_vision(self) -> bool:
        return any(message.pictures for message in self.messages)


async def restore_newest(slots: Slots, engine: ReadyEngine, notify: Callable[[str], EventHandler]) -> None:
    """Restore the newest save point, if its file is in memory, before anybody uses a new engine. Raises EngineGone.

    `notify`: returns an owner's event handler.
    """
    if len(slots.all_slots) not in (1, len(engine.slots)) or any(slot.claimed_tokens for slot in slots.all_slots):
        return  # the slots will be renumbered, or a request has not noticed yet that its engine is gone
    newest, window = slots.store.restorer.find_newest, engine.window_to_complete
    plan = await asyncio.to_thread(newest, engine.fingerprint, window)
    if plan is None or not engine.can_save(plan.tokens_used):
        return
    if not engine.has_vision and min(plan.save_point.tokens) <= FIRST_PICTURE_ID:
        return  # the engine would reject a good state
    owner = plan.save_point.conversation_id
    slot = slots.slot_of(owner) or slots.all_slots[0]
    slot.claimed_tokens = plan.tokens_used
    try:
        outcome = await Lease(slots, slot, engine, owner, notify(owner)).restore(plan)
        if isinstance(outcome, RestoreMiss):
            notify(owner)(RestoreFailed(outcome.reason))
    finally:
        slot.mark_released()


class Exchange:
    """One owner's requests, in sequence, in a slot the owner holds. May be cancelled at any point.

    `answer` sends a chat's request. Other senders, such as the gateway, call `attempt`, `load` and `prove`.
    However a request ends, the slot's known contents never exceed its real ones.
    """

    def __init__(
        self, slots: Slots, slot: Slot, host: EngineHost, owner: str, notify: EventHandler = ignore_event
    ) -> None:
        self._slots, self._slot, self._host, self._owner, self._notify = slots, slot, host, owner, notify
        self.saves = True  # False: another kvchat is asked not to save the requests
        self.crowded_out = False  # others used the context that the last answer needed
        self._reserve = 0  # tokens reserved after it was crowded out before
        self.engine_wait_s = 0.0  # spent waiting for an engine to start
        self.lease: Lease | None = None  # None until an engine is ready
        # State of the last request:
        self.prompt: Tokens = ()
        self.loaded = NOTHING_LOADED
        self.timings: Timings | None = None  # cached tokens exclude what this exchange processed itself
        self.result: LoadResult | None = None  # once the engine has counted
        self.finish_reason: str | None = None
        self._prefilled: Timings | None = None
        self._has_output = False
        self._is_restore_cleared = False  # the same request crashed the engine before without a restored state
        self._first_reply: Reason | None = None  # the miss reason of a chat's first reply
        self._skip_reason: Reason | None = None  # why nothing is restored: the last restore killed the engine

    @property
    def engine(self) -> ReadyEngine | None:
        return self.lease.engine if self.lease else None

    async def answer(self, request: PromptRequest, on_chunk: ChunkHandler) -> None:
        """Prepare the slot and send; `on_chunk` gets the chunks, and the progress before them.

        If the context runs out because other slots use it, a started answer ends as if it had filled the context.
        Raises PromptTooLong and the errors of `attempt`.
        """
        self._has_output = self.crowded_out = False
        try:
            await self.attempt(lambda: self._answer(request, on_chunk), lambda: self._has_output)
        except EngineRefused as refusal:
            if not (self._has_output and self._reserve_more(refusal)):
                raise
            self.crowded_out = True

    async def attempt(
        self, send: Callable[[], Awaitable[R]], has_begun: Callable[[], bool], *, resend: bool = True
    ) -> R:
        """Call `send`; retry if it fails before the answer has `has_begun` and a retry may help.

        If a restored state may be the cause, the retry restores nothing; if the context was full, it reserves more.
        After any other loss it retries once, and only with `resend`: the request itself may have crashed the engine.
        Raises EngineGone, EngineRefused, and KvchatError if no engine starts.
        """
        self._skip_reason, self._is_restore_cleared, lost = None, False, False
        while True:
            try:
                return await send()
            except (EngineGone, EngineRefused) as loss:
                if has_begun():
                    raise
                if isinstance(loss, EngineGone):
                    await self._explain_loss(loss)
                elif self._reserve_more(loss):
                    continue
                if loss.restore_fault and not self._skip_reason:  # retry: the faulty state was set aside
                    self._notify(RestoreFailed(loss.restore_fault))
                    self._skip_reason = loss.restore_fault
                elif lost or not (resend and isinstance(loss, EngineGone) and self._host.can_recover()):
                    raise
                lifetime = loss.lifetime if isinstance(loss, EngineGone) else None
                crashed = lifetime is not None and lifetime.crashed  # without a known outside cause
                lost, self._is_restore_cleared = True, crashed and not loss.restore_fault

    def _reserve_more(self, refusal: EngineRefused) -> bool:
        """Reserve more tokens if other slots took too much of the context; False if that was not the cause."""
        if not refusal.crowded_out or self._reserve > self._leased.engine.context_size:
            return False
        self._slot.mark_empty()
        self._reserve = 2 * self._leased.engine.reserve(None) + 2 * self._reserve
        return True

    async def load(self, prompt: Tokens, reserve: int) -> None:
        """Load the state that leaves the fewest tokens to process; keep `reserve` tokens free. Raises EngineGone."""
        self.prompt = prompt
        self.loaded = await self._leased.load(prompt, max(reserve, self._reserve), skip_reason=self._skip_reason)
        if self._is_restore_cleared:
            self._slot.unproved_point = None

    async def prepare(self, request: PromptRequest) -> Lease:
        """Get an engine ready and load the best state into its slot. Raises like `answer`."""
        self.loaded, self._prefilled, self.timings, self.result = NOTHING_LOADED, None, None, None
        lease = await self.lease_slot(request)
        length = sum(len(message.content) for message in request.messages)
        if lease.engine.surely_exceeds_limit(length):  # counting 60 MB took 4 GB and minutes
            raise PromptTooLong(length // CHARS_PER_TOKEN, lease.engine.limit)
        is_first = not any(message.role == "assistant" for message in request.messages)
        self._first_reply = Reason(ReasonCode.FIRST_REPLY) if is_first and not self._skip_reason else None
        if lease.engine.keeps_memory:
            self.prompt = ()
            return lease
        self.prompt = await lease.engine.engine.prompt_tokens(request.messages)
        needed = len(self.prompt) + lease.engine.reserve(request.sampling().max_tokens)
        if lease.engine.must_grow_for(needed):
            lease = await self.lease_with_room(request, needed)
        if len(self.prompt) >= lease.engine.context_size:
            raise PromptTooLong(len(self.prompt), lease.engine.limit)
        await self.load(self.prompt, needed - len(self.prompt))
        if self._first_reply:
            self.loaded = replace(self.loaded, miss_reason=self._first_reply)
        return lease

    async def ask(self, request: PromptRequest, on_chunk: ChunkHandler) -> None:
        """Send a prepared request, then prove what was loaded for it. Raises like `answer`."""
        lease, self.finish_reason = self._leased, None
        lease.note_contents(self.prompt[: self.loaded.expected_cached], loaded=self.loaded)
        self._notify(RequestSent(self.loaded))
        timings: Timings | None = None
        done: int | None = None
        try:
            stream = lease.engine.engine.chat(request.messages, request.sampling())
            async with lease.guarding_restore(), contextlib.aclosing(stream) as chunks:
                async for chunk in chunks:
                    if chunk.memory:
                        self._note_server_memory(chunk.memory)
                        continue
                    timings, done = chunk.timings or timings, chunk.progress.processed if chunk.progress else done
                    if chunk.timings:
                        used = chunk.timings.prompt_tokens + chunk.timings.predicted_n
                        self._slots.note_growth(lease.slot, lease.engine, used)
                    if self._forward_chunk(chunk, on_chunk):
                        break
        except EngineRefused as refusal:
            if refusal.too_long:
                raise PromptTooLong(len(self.prompt), lease.engine.limit) from refusal
            raise
        finally:
            self._note_contents(timings.prompt_tokens if timings else done, answer_has_begun=timings is not None)
            if timings and self.timings:
                for measured in filter(None, (self._prefilled, timings)):
                    self._slots.restore_cost.speed.learn(measured.prompt_n, measured.prompt_ms, measured.cache_n)
                await self.prove(self.timings)

    async def prove(self, timings: Timings) -> LoadResult:
        if self._leased.engine.keeps_memory:
            verdict = judge_load(self.loaded, timings.cache_n, timings.prompt_tokens)
        else:
            verdict = await self._leased.prove(self.loaded, timings.cache_n, timings.prompt_tokens)
        self.result = LoadResult(self.loaded, timings, verdict)
        if self.loaded.restore and not self._leased.engine.keeps_memory:
            await self._host.note_restore(was_used=not verdict.hollow)
        return self.result

    def _note_server_memory(self, memory: ServerMemory) -> None:
        """Record what a server that keeps the memory itself has loaded for the request."""
        lease, restore = self._leased, None
        if memory.source in (Tier.WARM.value, Tier.DISK.value):
            point = SavePoint("", lease.owner, lease.engine.fingerprint, (), memory.restored_bytes)
            restore = RestoreRecord(
                point, memory.found, Tier(memory.source), memory.restored_bytes, memory.restore_ms, time.perf_counter()
            )
        miss = Reason(ReasonCode(memory.miss)) if memory.miss in _SERVER_REASONS else None
        ahead = PrefilledAhead(memory.ahead, memory.ahead_ms)
        self.loaded = LoadedState(memory.found, restore, self._first_reply or miss, ahead)
        self._notify(RequestSent(self.loaded))

    async def lease_slot(self, request: PromptRequest, tokens: int = 0) -> Lease:
        """Wait for a ready engine, with a context for `tokens` if possible, and lease the slot. Raises KvchatError."""
        slots, slot, model, needs_vision = self._slots, self._slot, request.model, request.needs_vision
        is_ready, asked_at, engine = self._host.is_ready(model, needs_vision=needs_vision), time.perf_counter(), None
        if not is_ready:
            self._notify(WaitingForEngine())
        elif not tokens:
            engine = await self._host.ready(model, needs_vision=needs_vision)
        if engine is not None and len(engine.slots) == len(slots.all_slots) and slot in slots.all_slots:
            slots.match_engine(engine, slot)
        else:
            async with slots.exclusive(slot):  # change the engine only while its other slots are idle
                engine = await self._host.ready(model, needs_vision=needs_vision, tokens=tokens)
                slots.match_engine(engine, slot)
        self.engine_wait_s += time.perf_counter() - asked_at
        if engine.keeps_memory:  # it does not know what was chosen for the chat while it was not in use
            is_never_saved = slots.store.inventory.is_never_saved
            if not self.saves or await asyncio.to_thread(is_never_saved, self._owner):
                engine = replace(engine, engine=engine.engine.without_saving())
        self.lease = Lease(slots, slot, engine.with_template(request.template), self._owner, self._notify)
        return self.lease

    async def lease_with_room(self, request: PromptRequest, tokens: int) -> Lease:
        """Like `lease_slot`, but first restart an engine whose context is too small, which empties its slots."""
        self._notify(IncreasingContext(tokens))
        try:
            return await self.lease_slot(request, tokens)
        finally:
            self._notify(IncreasingContext(tokens, is_finished=True))

    @property
    def has_outgrown_context(self) -> bool:
        """True if the last answer filled the context and can continue in a larger one, or without other slots."""
        engine = self.engine
        can_grow = engine is not None and engine.must_grow_for(engine.context_size + 1)
        return self.crowded_out or (can_grow and self.is_context_full)

    @property
    def is_context_full(self) -> bool:
        if self.engine is None or self.timings is None or self.finish_reason != "length":
            return False
        used = self.timings.prompt_tokens + self.timings.predicted_n
        return used >= self.engine.context_size - 1  # the engine reserves one

    async def save_what_fits(self, messages: Sequence[ChatMessage], label: str) -> None:
        """Save the messages that a full context holds, so that a larger one need not reprocess them."""
        lease = self._leased
        if lease.saving_enabled and lease.engine.can_cut and not self.crowded_out:
            known_tokens = (await lease.engine.engine.prompt_tokens(messages))[
                : lease.engine.context_size - _UNSAVED_TAIL
            ]
            await lease.settle(known_tokens)
            await lease.save(known_tokens, label=label, notify=False)

    @contextlib.asynccontextmanager
    async def explaining_losses(self) -> AsyncIterator[None]:
        try:
            yield
        except EngineGone as loss:
            raise await self._explain_loss(loss) from loss

    @property
    def _leased(self) -> Lease:
        assert self.lease is not None, "prepare comes first"
        return self.lease

    async def _answer(self, request: PromptRequest, on_chunk: ChunkHandler) -> None:
        lease = await self.prepare(request)
        if request.system and not self.loaded.expected_cached:

            def progress(so_far: PromptProgress) -> None:
                on_chunk(ChatChunk(progress=replace(so_far, total=len(self.prompt))))

            try:
                self._prefilled = await save_system_prompt(
                    lease, request.system, request.messages, self.prompt, progress
                )
            except EngineGone as loss:
                await self._explain_loss(loss)
                await self.lease_slot(request)
                self._notify(SaveSkipped(Reason(ReasonCode.DIED_OVER_SAVE)))
        await self.ask(request, on_chunk)

    async def _explain_loss(self, loss: EngineGone) -> EngineError:
        self._slot.forget()
        return await loss.explain()

    def _forward_chunk(self, chunk: ChatChunk, on_chunk: ChunkHandler) -> bool:
        """Forward a chunk; return True if `on_chunk` ends the reply.

        Its counts exclude the tokens that this session processed itself.
        """
        if own := self._prefilled:  # exclude tokens this session processed itself
            timings, progress = chunk.timings, chunk.progress
            if timings:
                cached, ms = min(timings.cache_n, own.cache_n), own.prompt_ms + timings.prompt_ms
                timings = replace(timings, cache_n=cached, prompt_n=timings.prompt_tokens - cached, prompt_ms=ms)
            if progress:
                progress = replace(progress, cache=min(progress.cache, own.cache_n))
            chunk = replace(chunk, timings=timings, progress=progress)
        self.timings = chunk.timings or self.timings
        self.finish_reason = chunk.finish_reason or self.finish_reason
        if not self._has_output and chunk.has_output:
            self._has_output = True
            self._slot.is_streaming = True
            self._slots.notify_change()
        return bool(on_chunk(chunk))

    def _note_contents(self, processed_tokens: int | None, *, answer_has_begun: bool) -> None:
        """Record that the slot holds `processed_tokens` of the prompt, and more once the answer has begun.

        If the engine has reported no progress (None), it may have processed any number of tokens beyond those loaded. A
        state that can be cut is then cut back to those; any other is useless.
        """
        lease = self._leased
        if processed_tokens is not None and (
            answer_has_begun or lease.engine.can_cut or processed_tokens > self.loaded.expected_cached
        ):
            lease.note_contents(self.prompt[:processed_tokens])
        elif not lease.engine.can_cut:
            lease.slot.forget()
