"""Runs a program's request in its slot: load, process in steps, forward as it is, stream the reply, prove."""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from kvchat.engine.api import wire
from kvchat.engine.api.errors import EngineError
from kvchat.engine.api.pictures import FIRST_PICTURE_ID
from kvchat.engine.api.transport import EngineResponse
from kvchat.engine.api.wire import Timings
from kvchat.gateway.crashes import Crashes
from kvchat.gateway.dialects.replies import ResponseParser, Usage
from kvchat.gateway.dialects.request import LIMITS, Form, RequestRefused, refusal
from kvchat.gateway.pending_request import MustRestart, PendingRequest, shared_tokens
from kvchat.gateway.records import RequestRecord, Stage, headers_of, is_lost
from kvchat.gateway.rewriting import PromptRewriter
from kvchat.kvstore.savepoint import SHARED_AUDIENCE, Tokens, common_prefix
from kvchat.session.exchange import Exchange, Request
from kvchat.session.prefill import TARGET_STEP_MS, prefill_ahead, tail_size
from kvchat.session.proof import SOURCES, LoadedState, Source
from kvchat.session.restore_cost import LONG_PREFILL_MS, MIN_GAIN, PrefillSample
from kvchat.session.slot import load_unchanged
from kvchat.system.concurrency import run_in_thread_if_large, shielded
from kvchat.text.reasons import Reason, ReasonCode

LEAST_HEAD = 64  # tokens; reprocessing fewer beats saving
# For a request forwarded before it is tokenized, kvchat tokenizes after the answer if that is complete this soon:
# tokenizing takes a core from the engine. It waits no longer: a long prompt may have to start again.
SOON_S = 0.25
LEAST_STEPS = 256  # tokens; the request itself processes fewer
ALONE_STEP_MS = 2000.0  # target time of a step while the window is not in use: small steps are slower
PROVED = ("cached", "prompt")  # known from the answer; the rest, at its start


@dataclass
class Forwarder:
    work: PendingRequest
    request: Request
    exchange: Exchange
    moved: Callable[[RequestRecord, Stage], None]
    rewriter: PromptRewriter
    crashes: Crashes
    heads: deque[tuple[str, Tokens, bool]]  # recent prompt heads by program; True: has its own key
    ahead: bool  # likely extends what the slot holds, so it is forwarded before its prompt is known

    async def run(self) -> ResponseParser | None:
        """Answer the request; return the parsed response, None if the engine refused it.

        Not resent after a crash that it may have caused. Raises EngineError and GaveWay.
        """
        async with self.exchange.explaining_losses():
            return await self.exchange.attempt(self._send, lambda: self.work.outlet.begun, resend=False)

    async def _send(self) -> ResponseParser | None:
        self.lease = await self.exchange.ready(self.request)
        self.crashes.watch(self.lease.engine.engine.lifetime)
        if self.ahead:
            self.ahead = False  # a retry knows the prompt
            slot, engine = self.lease.slot, self.lease.engine
            tokens = slot.max_tokens_held(engine.generation) + LEAST_STEPS + self._reserve
            await self.lease.slots.reserve_room(slot, engine, min(tokens, engine.context_size))
            return await self._forward(unknown=True)
        if self.work.rendered_by != self.lease.engine.generation:
            await self._render()
        if self.work.record.found is None:  # else it is a retry
            await self.rewriter.compare(self.work, self.lease)
        wanted = len(self.work.prompt.ids) + self._reserve
        if self.lease.engine.too_small(wanted):
            self.lease = await self.exchange.with_room(self.request, wanted)
        if self._known:
            self.moved(self.work.record, Stage.LOADING)
            await self.lease.wait_for_pending_saves(self.work.prompt.ids)
            await self.exchange.load(self.work.prompt.ids, self._reserve)
            self._found()
        elif self.work.asked.several:
            await self.lease.erase_all()
        else:
            await self.lease.take_over()
        steps = await self._read()
        if self._known and not steps:
            self._note_loaded()
        if self._choosy and not self.work.asked.several:
            await self.lease.isolate_slot(self.work.prompt.ids)
        return await self._forward(steps=steps)

    async def _catch_up(self, *, answered: bool) -> None:
        """Tokenize a prompt already forwarded, and find how much of it was in the slot.

        Raises GaveWay if it does not continue the slot's contents and is unanswered.
        """
        await self._render()
        ids, contents, held = self.work.prompt.ids, self.lease.slot.contents, self._as_it_is.expected_cached
        # It continues the slot's contents if nothing must be restored and few tokens processed.
        little = LEAST_STEPS if contents and held == len(contents.tokens) else MIN_GAIN
        goes_on = self._known and held > 0 and len(ids) - held < little
        if not ids or not (answered or (goes_on and not self.lease.engine.too_small(len(ids) + self._reserve))):
            raise MustRestart
        await self.rewriter.compare(self.work, self.lease)
        self.exchange.loaded = self._as_it_is
        self._found()
        self._note_loaded()

    async def _render(self) -> None:
        await self.work.render(self.lease.engine)
        self.lease.slots.set_prompt(self.lease.slot, self.work.prompt.ids)

    def _note_loaded(self) -> None:
        loaded = self.exchange.loaded
        self.lease.note_contents(self.work.prompt.ids[: loaded.expected_cached], loaded=loaded)

    @property
    def _reserve(self) -> int:
        limits = (self.work.asked.body.get(name) for name in LIMITS)
        limit = next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)
        return self.lease.engine.reserve(limit)

    @property
    def _as_it_is(self) -> LoadedState:
        return load_unchanged(
            self.lease.engine, self.lease.slot.known_contents(self.lease.engine), self.work.prompt.ids
        )

    @property
    def _known(self) -> bool:
        """True for a single prompt with known token ids that fits the context. Only these are restored and saved."""
        return not self.work.asked.several and 0 < len(self.work.prompt.ids) < self.lease.engine.context_size

    @property
    def _choosy(self) -> bool:
        """True if the engine picks the slot: for Anthropic requests, the one with the longest prefix."""
        return self.work.asked.form is Form.MESSAGES and len(self.lease.slots.all) > 1

    def _found(self) -> None:
        record, ids, loaded = self.work.record, self.work.prompt.ids, self.exchange.loaded
        if is_lost(loaded.miss_reason) and not record.is_known_prompt:  # another chat's was lost
            self.exchange.loaded = loaded = replace(loaded, miss_reason=Reason(ReasonCode.NOTHING_ALIKE))
        if record.found is not None:  # a retry: tokens it processed itself were not found
            return
        record.prompt, record.found = len(ids), loaded.expected_cached
        as_it_is = Source.COLD if _is_little(loaded.expected_cached, len(ids)) else Source.HOT
        record.source = (SOURCES[loaded.restore.tier] if loaded.restore else as_it_is).value
        if loaded.restore:
            point = loaded.restore.save_point
            record.restore_ms = loaded.restore.ms
            speed = self.lease.slots.restore_cost.speed
            if speed.ms_per_token is None and point.prefill_ms:
                speed.samples.append(PrefillSample(point.n_tokens, point.prefill_ms))
        if as_it_is is Source.COLD and not loaded.restore:
            record.miss = loaded.miss_reason or Reason(ReasonCode.NOTHING_ALIKE)

    async def _heads(self, loaded: LoadedState) -> dict[Tokens, str | None]:
        """Map the prefixes to save for other conversations to their audience (None: the default).

        States that can be cut already serve the program itself. A prefix sent by two programs, each with its own
        key, is shared with all (`kvchat.kvstore.savepoint`).
        """
        lease, ids, keyed = self.lease, self.work.prompt.ids, self.work.record.keyed
        few = len(ids) - loaded.expected_cached < LEAST_HEAD
        if not lease.saving_enabled or few or (lease.engine.can_cut and not keyed):
            return {}
        head = await shared_tokens(lease.engine, self.work.asked.begun_otherwise)
        if not max(loaded.expected_cached, LEAST_HEAD) < len(head) < len(ids) or ids[: len(head)] != head:
            return {}
        sent_by = {owner: has_key for owner, sent, has_key in self.heads if sent == head}
        self.heads.append((lease.owner, head, keyed))
        if keyed and any(has_key for owner, has_key in sent_by.items() if owner != lease.owner):
            return {head: SHARED_AUDIENCE}
        worth = lease.owner in sent_by or lease.slots.restore_cost.prefill_ms(len(head)) >= LONG_PREFILL_MS
        return {head: None} if worth and not lease.engine.can_cut else {}

    async def _read(self) -> bool:
        """Process all but a long prompt's last tokens in steps, letting others in between; False if none."""
        if not self._known:
            return False
        loaded = self.exchange.loaded
        ids, record, cost = self.work.prompt.ids, self.work.record, self.lease.slots.restore_cost
        choosy = self._choosy
        rate, step_ms = cost.speed.ms_per_token, TARGET_STEP_MS if self.lease.slots.is_window_active else ALONE_STEP_MS
        last = len(ids) - (1 if choosy else tail_size(len(ids) - loaded.expected_cached, rate, step_ms))
        # The engine processes a picture in one piece: steps end at the first one.
        end = next((n for n, token in enumerate(ids[:last]) if token <= FIRST_PICTURE_ID), last)
        missing, heads = end - loaded.expected_cached, await self._heads(loaded)
        is_long = missing >= LEAST_STEPS and (rate is None or missing * rate >= 2 * TARGET_STEP_MS)
        if not (heads or is_long or (choosy and missing > 0)):
            return False
        began_at, found, read = time.perf_counter(), loaded.expected_cached, record.read
        ahead = loaded.ahead.tokens

        def ended() -> None:
            record.read_ms += 1000 * (time.perf_counter() - began_at)
            if contents := slot.contents:  # a hollow restore needs more tokens processed
                record.read = max(record.read, read + contents.ahead.tokens - ahead)

        def progress(done: int) -> None:
            record.read = read + done - found
            self.moved(record, Stage.READING)

        slots, slot = self.lease.slots, self.lease.slot
        turn = partial(slots.program_step, slot)
        for stop in (*heads, ids[:end]):
            if not await prefill_ahead(
                self.lease, stop, loaded, lambda: not self.work.left, progress, step_ms=step_ms, turn=turn
            ):
                ended()
                await self.lease.save_processed()
                raise MustRestart
            if stop in heads:
                await shielded(self.lease.save(stop, notify=False, audience=heads[stop]))
            if contents := slot.contents:
                loaded = replace(loaded, expected_cached=max(len(stop), found), restore=None, ahead=contents.ahead)
        ended()
        return True

    async def _forward(self, *, steps: bool = False, unknown: bool = False) -> ResponseParser | None:
        work, lease, engine, asked = self.work, self.lease, self.lease.engine.engine, self.work.asked
        rows, begun, heard, ahead = engine.rows.invalidate(), False, ResponseParser(asked.form, asked.stream), unknown

        async def catch_up() -> None:
            nonlocal unknown
            if unknown:
                await self._catch_up(answered=begun)
                unknown = False
            self.moved(work.record, Stage.ANSWERING)

        patience_s = SOON_S if ahead and not asked.stream else 0.0
        try:
            # Several answers use no lease on the slot's state, which may be another owner's.
            reuse = not asked.several or lease.slot.holder(lease.engine.generation) == lease.owner
            body = asked.for_slot(engine.slot, reuse=reuse)
            async with lease.guarding_restore(), engine.forward(work.path, body, catch_up, patience_s) as answer:
                work.record.status = answer.status_code
                if unknown and (asked.stream or answer.status_code != 200):
                    await catch_up()
                if answer.status_code != 200:
                    await self._refused(answer)
                    return None
                begun = True
                heard.usage = self._usage()
                body = await self._take(answer, heard)
                if unknown:
                    self._send_hot(answer, heard.counts, body)
                    with contextlib.suppress(EngineError, MustRestart):
                        await catch_up()
        finally:
            engine.rows.confirm(rows, heard.counts.cache_n if heard.counts else 0)
            self._note(begun=begun, ahead=ahead)
        await self._prove(heard.counts, steps=steps)
        if asked.stream:
            work.outlet.write(f": kvchat {json.dumps(work.record.receipt())}\n\n".encode())
        elif not work.outlet.ended:
            work.outlet.whole(200, self._headers(answer) | headers_of(work.record.receipt()), body)
        return heard

    def _send_hot(self, answer: EngineResponse, counts: Timings | None, body: bytes) -> None:
        """Send a response at once if the engine counts its prompt as cached, and not by an unproven restore."""
        record, contents = self.work.record, self.lease.slot.contents
        hot = counts and counts.prompt_n < LEAST_STEPS and not _is_little(counts.cache_n, counts.prompt_tokens)
        if counts and hot and contents and not contents.unproved:
            record.source, record.found, record.cached = Source.HOT.value, counts.cache_n, counts.cache_n
            record.prompt = counts.prompt_tokens
            self.work.outlet.whole(200, self._headers(answer) | headers_of(record.receipt()), body)

    async def _take(self, answer: EngineResponse, heard: ResponseParser) -> bytes:
        outlet = self.work.outlet
        if heard.stream:
            outlet.begin(200, self._headers(answer) | {"cache-control": "no-cache"})
        prompt, lease = len(self.work.prompt.ids), self.lease
        async for data in answer.aiter_raw():
            if lines := heard.take(data):
                outlet.write(lines)
            self.work.answered = heard.whole and not self.work.asked.several
            lease.slots.note_growth(lease.slot, lease.engine, prompt + heard.events)
            if heard.is_too_large:
                raise RequestRefused(502, "The answer is too long.", "server_error")
        rest = await run_in_thread_if_large(heard.is_large, heard.end)
        if heard.stream and rest:
            outlet.write(rest)
        return rest

    def _usage(self) -> Usage:
        asked, record = self.work.asked, self.work.record
        named = asked.form is Form.PLAIN and asked.model  # embeddings keep the client's model name
        return Usage("" if named else record.answering_model, record.read, record.read_ms)

    async def _refused(self, answer: EngineResponse) -> None:
        body, form = await answer.aread(), self.work.asked.form
        error = wire.parse_error(body, answer.status_code)
        if error.crowded_out or (error.is_engine_fault and self.lease.slot.suspect):
            raise error
        if form is Form.MESSAGES:
            body = json.dumps(refusal(form, answer.status_code, error.message, error.kind)).encode()
        self.work.outlet.whole(answer.status_code, self._headers(answer), body)

    def _note(self, *, begun: bool, ahead: bool) -> None:
        """Record the slot's contents: the whole prompt once the answer has begun, else what is certain."""
        lease, contents, ids = self.lease, self.lease.slot.contents, self.work.prompt.ids
        held = common_prefix(contents.tokens, ids) if contents else 0
        if self._known and begun:
            lease.note_contents(ids)
        elif self._known and contents and (lease.engine.can_cut or held == len(contents.tokens)):
            lease.note_contents(ids[:held])  # at least; more may have been processed
        elif self._known or begun or ahead:
            lease.slot.forget()

    async def _prove(self, counts: Timings | None, *, steps: bool) -> None:
        """Check what was loaded against the engine's counts; learn the restore cost."""
        record, ids, lease = self.work.record, self.work.prompt.ids, self.lease
        if counts is None:
            return
        lease.slot.mark_proved()
        cost, prompt = lease.slots.restore_cost, counts.prompt_tokens
        if not steps:
            cost.speed.learn(counts.prompt_n, counts.prompt_ms, counts.cache_n)
        record.read_ms += counts.prompt_ms
        record.prompt, record.predicted = prompt, counts.predicted_n
        record.write_ms = 0.0 if record.stream else counts.predicted_ms
        record.cached = self._usage().reused(counts.cache_n)
        if not self._known:
            return
        if prompt != len(ids):  # the slot holds another prompt than assumed
            lease.slot.forget()
            record.miss = Reason(ReasonCode.RENDERS_OTHERWISE)
            return
        timings = replace(counts, cache_n=record.cached, prompt_n=prompt - record.cached, prompt_ms=0.0)
        verdict = (await self.exchange.prove(timings)).verdict
        little = _is_little(record.cached, prompt)
        record.source = (Source.COLD if little else verdict.source).value
        record.miss = verdict.miss_reason or (record.miss if little else None)
        record.saved_ms = max(0.0, cost.prefill_ms(record.cached) - record.restore_ms)

    def _headers(self, answer: EngineResponse) -> dict[str, str]:
        told, record = {"content-type": answer.headers.get("content-type", "application/json")}, self.work.record
        receipt = record.receipt() if record.found is not None else {"model": record.answering_model}
        return told | headers_of({name: value for name, value in receipt.items() if name not in PROVED})


def _is_little(found: int, prompt: int) -> bool:
    """True if `found` is no more than any two prompts share."""
    return found < MIN_GAIN <= prompt - found
