"""Assigns each request a slot of an engine with its model, then settles and saves the slot."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kvchat.engine.api.errors import EngineError, EngineGone, EngineRefused
from kvchat.engine.api.wire import ChatMessage
from kvchat.errors import KvchatError
from kvchat.gateway.crashes import Crashes
from kvchat.gateway.dialects.conversion import Json
from kvchat.gateway.dialects.replies import ResponseParser
from kvchat.gateway.dialects.request import Form, ParsedRequest, RequestRefused
from kvchat.gateway.forwarder import Forwarder
from kvchat.gateway.pending_request import MustRestart, PendingRequest, TooSlow, pictures_in, shared_tokens
from kvchat.gateway.records import MOST_NAME, RequestLog, RequestRecord, Stage
from kvchat.gateway.rewriting import PromptRewriter, tokens_spared
from kvchat.kvstore.savepoint import Tokens, common_prefix
from kvchat.session.events import ignore_event
from kvchat.session.exchange import Exchange, Request
from kvchat.session.host import EngineHost, ReadyEngine
from kvchat.session.lease import Lease
from kvchat.session.prefill import Settling
from kvchat.session.slot import TAIL_TOKENS, Slot
from kvchat.session.slots import Slots
from kvchat.system.concurrency import Background, run_in_thread_if_large

IN_USE = ("", "default", "kvchat")  # names for the model in use
LOOKED_S = 30.0  # seconds before files are listed again
MOST_NAMED = 40  # models in an error


@dataclass(frozen=True)
class Model:
    name: str
    path: str | None  # None: the model of a user's server


@dataclass
class Catalogue:
    in_use: Callable[[], Model | None]
    look: Callable[[], Awaitable[list[Model]]]  # searches this computer's folders
    any_name: Callable[[], bool]  # True if an unknown name means the model in use
    _found: list[Model] = field(default_factory=list)
    _looked_at: float = field(default=-LOOKED_S)

    async def all(self) -> list[Model]:
        now, ours = time.monotonic(), self.in_use()
        if now - self._looked_at >= LOOKED_S:
            self._found, self._looked_at = await self.look(), now
        first = [ours] if ours else []
        if ours and ours.path is None:
            return first
        return first + [model for model in self._found if model.path != (ours.path if ours else None)]

    async def find(self, name: str) -> Model | None:
        """Return the model for the name a client gave; None if none is selected yet. Raises Refused."""
        ours, wanted = self.in_use(), name.strip().lower()
        if wanted in IN_USE or (ours and wanted == ours.name.lower()):
            return ours
        models = await self.all()
        for model in models:
            if model.name.lower() == wanted:
                return model
        if self.any_name() and ours:
            return ours
        names = [model.name for model in models]
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        there = f"There are: {', '.join(names[:MOST_NAMED])}{more}." if names else "There is none."
        raise RequestRefused(404, f"There is no model “{name[:100]}”. {there}", "model_not_found")

    async def listed(self) -> dict[str, Any]:
        data = [as_json(model) for model in await self.all()]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
        return {"object": "list", "data": data, "has_more": False} | ends


def as_json(model: Model) -> dict[str, Any]:
    openai = {"id": model.name, "object": "model", "created": 0, "owned_by": "kvchat"}
    return openai | {"type": "model", "display_name": model.name, "created_at": "1970-01-01T00:00:00Z"}


HEADS = 20  # remembered prompt beginnings
MOST_REMEMBERED = 8_000_000  # bytes of a body; comparing larger ones, with pictures, saves little
LEAST_KEPT = 64  # tokens; rereading a shorter state is faster than a lookup


@dataclass
class RequestRunner:
    """Answers requests, one at a time per slot. Event loop thread only."""

    slots: Slots
    host: EngineHost
    find_model: Callable[[str], Awaitable[Model | None]]  # by a client's name for it; None: no model chosen yet
    records: RequestLog
    absorb: Callable[[], Awaitable[None]]  # has the store absorb saved files when there is time
    rewriter: PromptRewriter = field(default_factory=PromptRewriter)

    def __post_init__(self) -> None:
        self.crashes = Crashes(
            lambda: any(slot.suspect and slot.claimed_tokens and not slot.window for slot in self.slots.all)
        )
        self._works: list[PendingRequest] = []
        self._last: dict[Slot, PendingRequest] = {}  # last request by slot
        self._heads: deque[tuple[str, Tokens, bool]] = deque(maxlen=HEADS)
        self.background = Background()
        self.stops = 0  # stops in progress block new work

    @property
    def under_way(self) -> int:
        """The number of requests queued or being answered, not those only being saved."""
        return sum(1 for work in self._works if not work.outlet.ended)

    def begin(self, path: str, asked: ParsedRequest, record: RequestRecord) -> PendingRequest:
        work = PendingRequest(path, asked, record)
        record.model, record.stream = asked.model[:MOST_NAME], asked.stream
        work.outlet.sent = lambda: setattr(record, "first_ms", record.ms())
        self._works.append(work)
        self.background.begin(self._run(work))
        return work

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Context manager: abort all answers and refuse requests until it exits. Saves in progress continue."""
        self.stops += 1
        for work in tuple(self._works):
            work.break_off()
            self.records.moved(work.record, Stage.FAILED)
        try:
            yield
        finally:
            self.stops -= 1

    async def _run(self, work: PendingRequest) -> None:
        work.task = asyncio.current_task()
        try:
            async with self.crashes.answering(work.record.program):
                await self._answer(work)
        except asyncio.CancelledError:
            if not work.left:
                raise
        except RequestRefused as error:
            work.refuse(error.status, error.message, error.kind, error.again_s)
        except EngineRefused as error:
            work.refuse(max(400, error.status), error.message, error.kind or "invalid_request_error")
        except EngineError as error:
            work.refuse(502, str(error), "server_error")
        except KvchatError as error:
            work.refuse(503, str(error), "unavailable_error")
        except TooSlow:
            work.left = True
        except BaseException:
            work.refuse(500, "kvchat made a mistake.", "server_error")
            raise
        finally:
            self._works.remove(work)
            work.outlet.end()
            self.records.moved(work.record, Stage.LEFT if work.left else Stage.FAILED)

    async def _answer(self, work: PendingRequest) -> None:
        record = work.record
        work.asked = await self.rewriter.treated(work.asked, record)
        pictures = await run_in_thread_if_large(work.asked.is_large, pictures_in, work.asked)
        seen = (ChatMessage("user", "", pictures=pictures),) if pictures else ()
        model = await self.find_model(work.asked.model)
        record.answering_model = model.name if model else ""
        request = Request(seen, model=model.path if model else None)
        engine: ReadyEngine | None = None
        if self.host.is_ready(request.model, vision=request.vision):  # without an engine, no slot holds anything
            engine = await self.host.ready(request.model, vision=request.vision)
            before = self._goes_on_from(work, engine)
            if before and await self._answer_in_a_slot(work, request, engine, before):
                return
            self.crashes.watch(engine.engine.lifetime)
            async with self.crashes.asking(record.program):
                await work.render(engine)
        while not await self._answer_in_a_slot(work, request, engine):
            self.records.moved(record, Stage.QUEUED)

    async def _answer_in_a_slot(
        self, work: PendingRequest, request: Request, engine: ReadyEngine | None, before: PendingRequest | None = None
    ) -> bool:
        """Answer, then settle and save; False if the request must start over.

        `before`: the request it continues, if sent without waiting for its own token ids.
        """
        asked, record = work.asked, work.record
        async with contextlib.AsyncExitStack() as held:
            ids = (before or work).prompt.ids
            slot = await held.enter_async_context(self.slots.acquire(record.owner, ids, window=False))
            if before and (engine is None or self._goes_on_from(work, engine, slot) is not before):
                return False
            await held.enter_async_context(self.crashes.asking(record.program))
            record.slot, record.queue_ms = slot.number, record.queue_ms or record.ms()
            if asked.several:
                await held.enter_async_context(self.slots.exclusive(slot))
            exchange = Exchange(self.slots, slot, self.host, record.owner)
            forwarder = Forwarder(
                *(work, request, exchange, self.records.moved, self.rewriter, self.crashes, self._heads),
                ahead=before is not None,
            )
            try:
                heard = await work.answering.run(forwarder.run())
            except MustRestart:
                return False
            work.outlet.end()
            if work.left:
                self.crashes.left(record.program)
            else:
                prompt = work.prompt
                if record.changes and record.cached is not None and prompt.ids:
                    tokens = len(prompt.ids)
                    record.mended = tokens_spared(record.changes, prompt.text, tokens, record.cached)
                self._last.pop(slot, None)
                if len(asked.raw) <= MOST_REMEMBERED:
                    self._last[slot] = work
            self.records.moved(record, Stage.LEFT if work.left else Stage.DONE)
            lease = exchange.lease
            if lease is not None and not (work.left and self.stops):
                await self._keep(work, slot, lease, heard)
        if lease is not None and lease.saving_enabled:
            await self.absorb()
        return True

    def _goes_on_from(
        self, work: PendingRequest, engine: ReadyEngine, slot: Slot | None = None
    ) -> PendingRequest | None:
        """Return the request this one most likely continues, whose prompt is in a slot (or in `slot`)."""
        asked, owner = work.asked, work.record.owner
        astray = asked.form is Form.MESSAGES and len(self.slots.all) > 1  # it cannot be pinned to a slot
        if asked.several or asked.form is Form.PLAIN or astray:
            return None
        for place in self.slots.all if slot is None else [slot]:
            contents, before = place.contents, self._last.get(place)
            if before is None or contents is None or place.holder(engine.generation) != owner:
                continue
            there = common_prefix(contents.tokens, before.prompt.ids) >= len(before.prompt.ids) - TAIL_TOKENS > 0
            if there and asked.goes_on_from(before.asked):
                return before
        return None

    async def _keep(self, work: PendingRequest, slot: Slot, lease: Lease, heard: ResponseParser | None) -> None:
        """Settle the slot at the next request's boundary and save; if unknown, save what was processed."""
        reply, asked = heard.reply if heard else None, work.asked
        if asked.several or not work.prompt.ids or slot.contents is None:
            return
        settling = Settling(ignore_event)
        with self.slots.settling(slot, settling.supersede, settling.hurry):
            try:
                await settling.run(lease, partial(_boundary, lease, asked, reply))
            except EngineGone as loss:
                self.slots.forget()
                await loss.explain()


async def _boundary(lease: Lease, asked: ParsedRequest, reply: Json | None) -> Tokens:
    if reply is None:
        return ()
    boundary = await shared_tokens(lease.engine, lambda words: asked.followed_by(reply, words))
    return boundary if len(boundary) >= LEAST_KEPT else ()
