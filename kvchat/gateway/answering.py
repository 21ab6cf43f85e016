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
from kvchat.gateway.dialects.asked import Asked, Form, Refused
from kvchat.gateway.dialects.conversion import Json
from kvchat.gateway.dialects.replies import Heard
from kvchat.gateway.forwarder import Forwarder
from kvchat.gateway.mending import Mending, tokens_spared
from kvchat.gateway.requests import MOST_NAME, Passage, Passages, Stage
from kvchat.gateway.work import GaveWay, TooSlow, Work, pictures_in, shared_tokens
from kvchat.kvstore.savepoint import Tokens, common_prefix
from kvchat.session.events import ignore_event
from kvchat.session.exchange import Exchange, Request
from kvchat.session.host import EngineHost, ReadyEngine
from kvchat.session.lease import Lease
from kvchat.session.prefill import Settling
from kvchat.session.slot import TAIL_TOKENS, Slot
from kvchat.session.slots import Slots
from kvchat.system.concurrency import Background, apart

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
        raise Refused(404, f"There is no model “{name[:100]}”. {there}", "model_not_found")

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
class Answering:
    """Answers requests, one at a time per slot. Event loop thread only."""

    slots: Slots
    host: EngineHost
    find_model: Callable[[str], Awaitable[Model | None]]  # by a client's name for it; None: no model chosen yet
    passages: Passages
    absorb: Callable[[], Awaitable[None]]  # has the store absorb saved files when there is time
    mending: Mending = field(default_factory=Mending)

    def __post_init__(self) -> None:
        self.crashes = Crashes(
            lambda: any(slot.suspect and slot.claimed_tokens and not slot.window for slot in self.slots.all)
        )
        self._works: list[Work] = []
        self._last: dict[Slot, Work] = {}  # last request by slot
        self._heads: deque[tuple[str, Tokens, bool]] = deque(maxlen=HEADS)
        self.background = Background()
        self.stops = 0  # stops in progress block new work

    @property
    def under_way(self) -> int:
        """The number of requests queued or being answered, not those only being saved."""
        return sum(1 for work in self._works if not work.outlet.ended)

    def begin(self, path: str, asked: Asked, passage: Passage) -> Work:
        work = Work(path, asked, passage)
        passage.model, passage.stream = asked.model[:MOST_NAME], asked.stream
        work.outlet.sent = lambda: setattr(passage, "first_ms", passage.ms())
        self._works.append(work)
        self.background.begin(self._run(work))
        return work

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Context manager: abort all answers and refuse requests until it exits. Saves in progress continue."""
        self.stops += 1
        for work in tuple(self._works):
            work.break_off()
            self.passages.moved(work.passage, Stage.FAILED)
        try:
            yield
        finally:
            self.stops -= 1

    async def _run(self, work: Work) -> None:
        work.task = asyncio.current_task()
        try:
            async with self.crashes.answering(work.passage.program):
                await self._answer(work)
        except asyncio.CancelledError:
            if not work.left:
                raise
        except Refused as error:
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
            self.passages.moved(work.passage, Stage.LEFT if work.left else Stage.FAILED)

    async def _answer(self, work: Work) -> None:
        passage = work.passage
        work.asked = await self.mending.treated(work.asked, passage)
        pictures = await apart(work.asked.is_large, pictures_in, work.asked)
        seen = (ChatMessage("user", "", pictures=pictures),) if pictures else ()
        model = await self.find_model(work.asked.model)
        passage.answering_model = model.name if model else ""
        request = Request(seen, model=model.path if model else None)
        engine: ReadyEngine | None = None
        if self.host.is_ready(request.model, vision=request.vision):  # without an engine, no slot holds anything
            engine = await self.host.ready(request.model, vision=request.vision)
            before = self._goes_on_from(work, engine)
            if before and await self._answer_in_a_slot(work, request, engine, before):
                return
            self.crashes.watch(engine.engine.lifetime)
            async with self.crashes.asking(passage.program):
                await work.render(engine)
        while not await self._answer_in_a_slot(work, request, engine):
            self.passages.moved(passage, Stage.QUEUED)

    async def _answer_in_a_slot(
        self, work: Work, request: Request, engine: ReadyEngine | None, before: Work | None = None
    ) -> bool:
        """Answer, then settle and save; False if the request must start over.

        `before`: the request it continues, if sent without waiting for its own token ids.
        """
        asked, passage = work.asked, work.passage
        async with contextlib.AsyncExitStack() as held:
            ids = (before or work).prompt.ids
            slot = await held.enter_async_context(self.slots.acquire(passage.owner, ids, window=False))
            if before and (engine is None or self._goes_on_from(work, engine, slot) is not before):
                return False
            await held.enter_async_context(self.crashes.asking(passage.program))
            passage.slot, passage.queue_ms = slot.number, passage.queue_ms or passage.ms()
            if asked.several:
                await held.enter_async_context(self.slots.exclusive(slot))
            exchange = Exchange(self.slots, slot, self.host, passage.owner)
            forwarder = Forwarder(
                *(work, request, exchange, self.passages.moved, self.mending, self.crashes, self._heads),
                ahead=before is not None,
            )
            try:
                heard = await work.answering.run(forwarder.run())
            except GaveWay:
                return False
            work.outlet.end()
            if work.left:
                self.crashes.left(passage.program)
            else:
                prompt = work.prompt
                if passage.changes and passage.cached is not None and prompt.ids:
                    tokens = len(prompt.ids)
                    passage.mended = tokens_spared(passage.changes, prompt.text, tokens, passage.cached)
                self._last.pop(slot, None)
                if len(asked.raw) <= MOST_REMEMBERED:
                    self._last[slot] = work
            self.passages.moved(passage, Stage.LEFT if work.left else Stage.DONE)
            lease = exchange.lease
            if lease is not None and not (work.left and self.stops):
                await self._keep(work, slot, lease, heard)
        if lease is not None and lease.saving_enabled:
            await self.absorb()
        return True

    def _goes_on_from(self, work: Work, engine: ReadyEngine, slot: Slot | None = None) -> Work | None:
        """Return the request this one most likely continues, whose prompt is in a slot (or in `slot`)."""
        asked, owner = work.asked, work.passage.owner
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

    async def _keep(self, work: Work, slot: Slot, lease: Lease, heard: Heard | None) -> None:
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


async def _boundary(lease: Lease, asked: Asked, reply: Json | None) -> Tokens:
    if reply is None:
        return ()
    boundary = await shared_tokens(lease.engine, lambda words: asked.followed_by(reply, words))
    return boundary if len(boundary) >= LEAST_KEPT else ()
