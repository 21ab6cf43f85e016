"""Run a program's request in its slot: load a state, prefill, forward, stream the reply, check the reuse."""

import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from kvchat.engine.api import wire
from kvchat.engine.api.pictures import FIRST_PICTURE_ID
from kvchat.engine.api.response import EngineResponse
from kvchat.engine.api.wire import Timings
from kvchat.gateway.crashes import Crashes
from kvchat.gateway.dialects.replies import ResponseParser, UsageCorrection
from kvchat.gateway.dialects.request import Dialect, refusal
from kvchat.gateway.pending_request import MustRestart, PendingRequest, shared_tokens
from kvchat.gateway.records import RequestRecord, Stage, headers_of, is_lost
from kvchat.gateway.rewriting import PromptRewriter
from kvchat.kvstore.savepoint import SHARED_AUDIENCE, Tokens, common_prefix, device_of, program_of
from kvchat.session.exchange import Exchange, PromptRequest
from kvchat.session.prefill import TARGET_STEP_MS, is_worth_saving, prefill_ahead, tail_size
from kvchat.session.proof import LoadedState, Source
from kvchat.session.restore_cost import MIN_GAIN, PrefillSample
from kvchat.system.concurrency import run_in_thread_if_large, shielded
from kvchat.text.reasons import Reason, ReasonCode

MIN_HEAD = 64  # tokens; fewer are not worth saving
MIN_STEPPED = 256  # tokens; fewer are processed by the request itself
IDLE_STEP_MS = 2000.0  # target time of a step while the window is not in use: small steps are slower
_STREAM_HEADERS = {"content-type": "text/event-stream", "cache-control": "no-cache"}
PROVED_FIELDS = ("cached", "prompt")  # receipt fields known only at the end of the answer


@dataclass
class Forwarder:
    pending: PendingRequest
    request: PromptRequest
    exchange: Exchange
    set_stage: Callable[[RequestRecord, Stage], None]
    rewriter: PromptRewriter
    crashes: Crashes
    recent_heads: deque[tuple[str, Tokens, bool]]  # owner, prompt head, True if it has its own key

    async def run(self) -> ResponseParser | None:
        """Answer the request; return the parsed response, or None if the engine refused the request.

        A request that may have crashed the engine is not sent again. Raises EngineError and MustRestart.
        """
        async with self.exchange.explaining_losses():
            return await self.exchange.attempt(self._answer, lambda: self.pending.response.has_answer, resend=False)

    async def _answer(self) -> ResponseParser | None:
        self.lease = await self.exchange.lease_slot(self.request)
        self.crashes.watch(self.lease.engine.engine.lifetime)
        pending, request = self.pending, self.pending.request
        if pending.engine_generation != self.lease.engine.generation:
            await pending.render(self.lease.engine)
            self.lease.slots.set_prompt(self.lease.slot, pending.prompt.ids)
        if pending.record.found_tokens is None:  # else it is a retry
            await self.rewriter.compare(pending, self.lease)
        reserve = self.lease.engine.reserve(request.max_tokens)
        if self.lease.engine.must_grow_for(len(pending.prompt.ids) + reserve):
            self.lease = await self.exchange.lease_with_room(self.request, len(pending.prompt.ids) + reserve)
        if self._is_restorable:
            self.set_stage(pending.record, Stage.LOADING)
            await self.lease.wait_for_pending_saves(pending.prompt.ids)
            await self.exchange.load(pending.prompt.ids, self.lease.engine.reserve(request.max_tokens))
            self._record_found()
        elif request.needs_several_slots:
            await self.lease.erase_all()
        else:
            await self.lease.take_over_slot()
        stepped = self._is_restorable and await self._process_in_steps()
        if self._is_restorable and not stepped:
            loaded = self.exchange.loaded
            self.lease.note_contents(pending.prompt.ids[: loaded.expected_cached], loaded=loaded)
        if self._engine_picks_slot and not request.needs_several_slots:
            await self.lease.isolate_slot(pending.prompt.ids)
        return await self._forward(in_steps=stepped)

    @property
    def _is_restorable(self) -> bool:
        """True for a single prompt of known tokens that fits the context. Only such prompts are restored and saved."""
        is_single = not self.pending.request.needs_several_slots
        return is_single and 0 < len(self.pending.prompt.ids) < self.lease.engine.context_size

    @property
    def _engine_picks_slot(self) -> bool:
        """True for Anthropic requests, for which the engine picks the slot with the longest matching prefix."""
        return self.pending.request.dialect is Dialect.MESSAGES and len(self.lease.slots.all_slots) > 1

    def _record_found(self) -> None:
        record, ids, loaded = self.pending.record, self.pending.prompt.ids, self.exchange.loaded
        if is_lost(loaded.miss_reason) and not record.is_known_prompt:  # another chat's was lost
            self.exchange.loaded = loaded = replace(loaded, miss_reason=Reason(ReasonCode.NOTHING_ALIKE))
        if record.found_tokens is not None:  # a retry: tokens it processed itself were not found
            return
        record.prompt_tokens, record.found_tokens = len(ids), loaded.expected_cached
        record.ahead_tokens, record.ahead_ms = loaded.prefilled_ahead.tokens, loaded.prefilled_ahead.ms
        unrestored = Source.COLD if _is_small_match(loaded.expected_cached, len(ids)) else Source.HOT
        record.source = loaded.restore.tier.value if loaded.restore else unrestored.value
        if loaded.restore:
            point = loaded.restore.save_point
            record.restore_ms, record.restored_bytes = loaded.restore.ms, loaded.restore.bytes
            speed = self.lease.slots.restore_cost.speed
            if speed.ms_per_token is None and point.prefill_ms:
                speed.samples.append(PrefillSample(point.n_tokens, point.prefill_ms))
        elif unrestored is Source.COLD:
            record.miss = loaded.miss_reason or Reason(ReasonCode.NOTHING_ALIKE)

    async def _prefixes_to_save(self, loaded: LoadedState) -> dict[Tokens, str | None]:
        """Map each prefix to save for other conversations to its audience (None: the default).

        A state that can be cut already serves the program's own conversations. A prefix sent by two programs, each
        with its own key, is shared with all programs but devices (`kvchat.kvstore.savepoint`).
        """
        lease, ids = self.lease, self.pending.prompt.ids
        has_own_key = self.pending.record.has_own_key and not device_of(lease.owner)
        may_save = lease.saving_enabled and self.pending.record.should_save
        few = len(ids) - loaded.expected_cached < MIN_HEAD
        if not may_save or few or (lease.engine.can_cut and not has_own_key):
            return {}
        head = await shared_tokens(lease.engine, self.pending.request.new_conversation)
        if not max(loaded.expected_cached, MIN_HEAD) < len(head) < len(ids) or ids[: len(head)] != head:
            return {}
        senders = {owner: has_key for owner, sent, has_key in self.recent_heads if sent == head}
        self.recent_heads.append((lease.owner, head, has_own_key))
        if has_own_key and any(
            has_key and program_of(owner) != program_of(lease.owner) for owner, has_key in senders.items()
        ):
            return {head: SHARED_AUDIENCE}
        return {head: None} if is_worth_saving(lease, head) else {}

    async def _process_in_steps(self) -> bool:
        """Prefill a long prompt in steps, except its end, so that other requests can run; False if not needed."""
        loaded, slots, slot = self.exchange.loaded, self.lease.slots, self.lease.slot
        ids, record, speed = self.pending.prompt.ids, self.pending.record, slots.restore_cost.speed
        rate, step_ms = speed.ms_per_token, TARGET_STEP_MS if slots.is_window_active else IDLE_STEP_MS
        missing = len(ids) - loaded.expected_cached
        last = len(ids) - (1 if self._engine_picks_slot else tail_size(missing, rate, step_ms))
        # The engine processes a picture in one piece: steps end at the first one.
        end = next((n for n, token in enumerate(ids[:last]) if token <= FIRST_PICTURE_ID), last)
        missing, heads = end - loaded.expected_cached, await self._prefixes_to_save(loaded)
        is_long = missing >= MIN_STEPPED and (rate is None or missing * rate >= 2 * TARGET_STEP_MS)
        if not (heads or is_long or (self._engine_picks_slot and missing > 0)):
            return False
        began_at, found, read = time.perf_counter(), loaded.expected_cached, record.processed_tokens
        ahead = loaded.prefilled_ahead.tokens

        def progress(done: int) -> None:
            record.processed_tokens = read + done - found
            self.set_stage(record, Stage.READING)
            if self.pending.request.wants_progress:
                self._send_progress(len(ids), found, done, 1000 * (time.perf_counter() - began_at))

        is_done, turn = True, partial(slots.program_step, slot)
        for stop in (*heads, ids[:end]):
            is_done = await prefill_ahead(
                self.lease,
                stop,
                loaded,
                lambda: not self.pending.is_abandoned,
                progress,
                step_ms=step_ms,
                step_gate=turn,
            )
            if not is_done:
                break
            if stop in heads:
                await shielded(self.lease.save(stop, notify=False, audience=heads[stop]))
            if contents := slot.contents:
                cached, now_ahead = max(len(stop), found), contents.prefilled_ahead
                loaded = replace(loaded, expected_cached=cached, restore=None, prefilled_ahead=now_ahead)
        record.processing_ms += 1000 * (time.perf_counter() - began_at)
        if contents := slot.contents:  # a hollow restore needs more tokens processed
            record.processed_tokens = max(record.processed_tokens, read + contents.prefilled_ahead.tokens - ahead)
        if not is_done:
            if record.should_save:
                await self.lease.save_processed()
            raise MustRestart
        return True

    def _send_progress(self, total: int, cached: int, done: int, ms: float) -> None:
        """Begin the response before the engine does, with the progress of the steps in the engine's format."""
        response = self.pending.response
        if not response.has_begun:
            response.begin(200, self._receipt_headers() | _STREAM_HEADERS)
        counts = {"total": total, "cache": cached, "processed": done, "time_ms": round(ms)}
        event = {"object": "chat.completion.chunk", "choices": [], "prompt_progress": counts}
        response.write(f"data: {json.dumps(event)}\n\n".encode())

    async def _forward(self, *, in_steps: bool) -> ResponseParser | None:
        pending, lease, engine, request = self.pending, self.lease, self.lease.engine.engine, self.pending.request
        rows, answer_has_begun, parser = (
            engine.rows.invalidate(),
            False,
            ResponseParser(request.dialect, request.stream),
        )
        self.set_stage(pending.record, Stage.ANSWERING)
        try:
            # With several answers, the slot may still hold another owner's state.
            reuse = not request.needs_several_slots or lease.slot.holder == lease.owner
            body = request.body_for_slot(engine.slot, reuse=reuse)
            async with lease.guarding_restore(), engine.forward(pending.path, body) as answer:
                pending.record.status = answer.status_code
                if answer.status_code != 200:
                    await self._forward_error(answer)
                    return None
                answer_has_begun = True
                parser.usage = self._usage_correction()
                body = await self._receive(answer, parser)
        finally:
            engine.rows.confirm(rows, parser.timings.cache_n if parser.timings else 0)
            self._note_contents(answer_has_begun=answer_has_begun)
        await self._prove(parser.timings, in_steps=in_steps)
        if request.stream:
            pending.response.write(f": kvchat {json.dumps(pending.record.receipt())}\n\n".encode())
        else:
            pending.response.send_whole(200, self._headers(answer) | headers_of(pending.record.receipt()), body)
        return parser

    async def _receive(self, answer: EngineResponse, parser: ResponseParser) -> bytes:
        """Pass a streamed answer on as it arrives; return the body of a non-streamed answer."""
        response, lease, prompt = self.pending.response, self.lease, len(self.pending.prompt.ids)
        response.has_answer = True
        if parser.stream and not response.has_begun:
            response.begin(200, self._headers(answer) | {"cache-control": "no-cache"})
        async for data in answer.aiter_raw():
            if lines := parser.feed(data):
                response.write(lines)
            self.pending.is_answered = parser.is_complete and not self.pending.request.needs_several_slots
            lease.slots.note_growth(lease.slot, lease.engine, prompt + parser.events)
        rest = await run_in_thread_if_large(parser.is_large, parser.finish)
        if parser.stream and rest:
            response.write(rest)
        return rest

    def _usage_correction(self) -> UsageCorrection:
        request, record = self.pending.request, self.pending.record
        keeps_name = request.dialect is Dialect.PLAIN and request.model  # embeddings keep the client's model name
        return UsageCorrection(
            "" if keeps_name else record.answering_model, record.processed_tokens, record.processing_ms
        )

    async def _forward_error(self, answer: EngineResponse) -> None:
        body, dialect = await answer.aread(), self.pending.request.dialect
        error = wire.parse_error(body, answer.status_code)
        if (
            self.pending.response.has_begun
            or error.crowded_out
            or (error.is_engine_fault and self.lease.slot.unproved_point)
        ):
            raise error
        if dialect is Dialect.MESSAGES:
            body = json.dumps(refusal(dialect, answer.status_code, error.message, error.kind)).encode()
        self.pending.response.send_whole(answer.status_code, self._headers(answer), body)

    def _note_contents(self, *, answer_has_begun: bool) -> None:
        """Record the slot's contents: the whole prompt if the answer has begun, else the part known to be processed."""
        lease, contents, ids = self.lease, self.lease.slot.contents, self.pending.prompt.ids
        held_tokens = common_prefix(contents.tokens, ids) if contents else 0
        if self._is_restorable and answer_has_begun:
            lease.note_contents(ids)
        elif self._is_restorable and contents and (lease.engine.can_cut or held_tokens == len(contents.tokens)):
            lease.note_contents(ids[:held_tokens])  # the minimum: the engine may have processed more
        elif self._is_restorable or answer_has_begun:
            lease.slot.forget()

    async def _prove(self, timings: Timings | None, *, in_steps: bool) -> None:
        record, ids, lease = self.pending.record, self.pending.prompt.ids, self.lease
        if timings is None:
            return
        lease.slot.mark_proved()
        cost, prompt = lease.slots.restore_cost, timings.prompt_tokens
        if not in_steps:
            cost.speed.learn(timings.prompt_n, timings.prompt_ms, timings.cache_n)
        record.processing_ms += timings.prompt_ms
        record.prompt_tokens, record.generated_tokens = prompt, timings.predicted_n
        record.generation_ms = 0.0 if record.stream else timings.predicted_ms
        record.cached_tokens = self._usage_correction().reused(timings.cache_n)
        if not self._is_restorable:
            return
        if prompt != len(ids):  # the slot holds another prompt than assumed
            lease.slot.forget()
            record.miss = Reason(ReasonCode.RENDERS_OTHERWISE)
            return
        timings = replace(timings, cache_n=record.cached_tokens, prompt_n=prompt - record.cached_tokens, prompt_ms=0.0)
        verdict = (await self.exchange.prove(timings)).verdict
        is_cold = _is_small_match(record.cached_tokens, prompt)
        record.source = (Source.COLD if is_cold else verdict.source).value
        record.miss = verdict.miss_reason or (record.miss if is_cold else None)
        record.saved_ms = max(0.0, cost.prefill_ms(record.cached_tokens) - record.restore_ms)

    def _headers(self, answer: EngineResponse) -> dict[str, str]:
        return {"content-type": answer.headers.get("content-type", "application/json")} | self._receipt_headers()

    def _receipt_headers(self) -> dict[str, str]:
        record = self.pending.record
        receipt = record.receipt() if record.found_tokens is not None else {"model": record.answering_model}
        return headers_of({name: value for name, value in receipt.items() if name not in PROVED_FIELDS})


def _is_small_match(found: int, prompt: int) -> bool:
    """True if the `found` tokens are so few that unrelated prompts may share them."""
    return found < MIN_GAIN <= prompt - found
