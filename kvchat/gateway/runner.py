"""Answer requests: assign each a slot of an engine with its model, and save the slot's state afterwards."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kvchat.engine.api.errors import EngineError, EngineGone, EngineRefused
from kvchat.engine.api.wire import ChatMessage
from kvchat.errors import KvchatError
from kvchat.gateway.crashes import Crashes
from kvchat.gateway.dialects.replies import ResponseParser
from kvchat.gateway.dialects.request import ParsedRequest, RequestRefused
from kvchat.gateway.forwarder import Forwarder
from kvchat.gateway.pending_request import ClientTooSlow, MustRestart, PendingRequest, pictures_in, shared_tokens
from kvchat.gateway.records import MAX_MODEL_NAME, RequestLog, RequestRecord, Stage
from kvchat.gateway.rewriting import PromptRewriter, tokens_saved
from kvchat.kvstore.savepoint import Tokens
from kvchat.session.events import ignore_event
from kvchat.session.exchange import Exchange, PromptRequest
from kvchat.session.host import EngineHost
from kvchat.session.lease import Lease
from kvchat.session.prefill import Settling
from kvchat.session.slot import Slot
from kvchat.session.slots import Slots
from kvchat.system.concurrency import BackgroundTasks, run_in_thread_if_large

DEFAULT_NAMES = ("", "default", "kvchat")  # names for the model in use
REFRESH_S = 30.0  # until files are listed again
MAX_LISTED = 40  # models in an error


@dataclass(frozen=True)
class Model:
    name: str
    path: str | None  # None: the model of a user's server

    def as_json(self) -> dict[str, Any]:
        openai = {"id": self.name, "object": "model", "created": 0, "owned_by": "kvchat"}
        return openai | {"type": "model", "display_name": self.name, "created_at": "1970-01-01T00:00:00Z"}


@dataclass
class Catalogue:
    in_use: Callable[[], Model | None]
    find_models: Callable[[], Awaitable[list[Model]]]  # searches this computer's folders
    accepts_any_name: Callable[[], bool]  # True if an unknown name means the model in use
    _files: list[Model] = field(default_factory=list)
    _listed_at: float = field(default=-REFRESH_S)

    async def all(self) -> list[Model]:
        now, in_use = time.monotonic(), self.in_use()
        if now - self._listed_at >= REFRESH_S:
            self._files, self._listed_at = await self.find_models(), now
        if in_use is None:
            return list(self._files)
        return [in_use, *(model for model in self._files if in_use.path not in (None, model.path))]

    async def find(self, name: str) -> Model | None:
        """Return the model that a client calls `name`, or None for the default if the user has selected no model.

        Raises RequestRefused if there is no such model.
        """
        in_use, wanted = self.in_use(), name.strip().lower()
        if wanted in DEFAULT_NAMES or (in_use and wanted == in_use.name.lower()):
            return in_use
        models = await self.all()
        for model in models:
            if model.name.lower() == wanted:
                return model
        if self.accepts_any_name() and in_use:
            return in_use
        names = [model.name for model in models]
        more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
        available = f"Available models: {', '.join(names[:MAX_LISTED])}{more}." if names else "No models are available."
        raise RequestRefused(404, f"Model “{name[:100]}” not found. {available}", "model_not_found")

    async def as_json(self) -> dict[str, Any]:
        data = [model.as_json() for model in await self.all()]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
        return {"object": "list", "data": data, "has_more": False} | ends


RETRY_AFTER_S = 5
MAX_HEADS = 20  # remembered prompt beginnings
MIN_SAVED = 64  # tokens; processing a shorter state again is faster than a lookup


@dataclass
class RequestRunner:
    """Runner that answers one request at a time per slot. Event loop thread only."""

    slots: Slots
    host: EngineHost
    find_model: Callable[[str], Awaitable[Model | None]]  # by a client's name for it; None: no model chosen yet
    log: RequestLog
    absorb: Callable[[], Awaitable[None]]  # has the store absorb saved files when there is time
    rewriter: PromptRewriter = field(default_factory=PromptRewriter)

    def __post_init__(self) -> None:
        self.crashes = Crashes(
            lambda: any(
                slot.unproved_point and slot.claimed_tokens and not slot.is_window_owned
                for slot in self.slots.all_slots
            )
        )
        self._pending: list[PendingRequest] = []
        self._heads: deque[tuple[str, Tokens, bool]] = deque(maxlen=MAX_HEADS)
        self.background = BackgroundTasks()
        self.preparations: set[asyncio.Task[None]] = set()  # those that wait for a slot
        self.stops = 0  # stops in progress block new requests
        self.stopped_programs: set[str] = set()  # removed devices, whose ids are never used again

    @property
    def active_count(self) -> int:
        """Number of requests that are queued or being answered, excluding those only being saved."""
        return sum(not pending.response.has_ended for pending in self._pending)

    def begin(self, path: str, request: ParsedRequest, record: RequestRecord) -> PendingRequest:
        pending = PendingRequest(path, request, record)
        record.model, record.stream = request.model[:MAX_MODEL_NAME], request.stream
        pending.response.on_first_byte = lambda: setattr(record, "first_ms", record.elapsed_ms())
        self._pending.append(pending)
        self.background.start(self._run(pending))
        return pending

    def check_running(self) -> None:
        """Raise RequestRefused while new requests are blocked."""
        if self.stops:
            raise RequestRefused(503, "The engine is stopping.", "unavailable_error", RETRY_AFTER_S)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Context manager that aborts all answers and blocks new requests. Saves in progress continue."""
        self.stops += 1
        for preparation in tuple(self.preparations):
            preparation.cancel()
        for pending in tuple(self._pending):
            pending.stop()
            self.log.set_stage(pending.record, Stage.FAILED)
        try:
            yield
        finally:
            self.stops -= 1

    def stop_program(self, program: str) -> None:
        """Abort all answers to a program, which sends no more requests."""
        self.stopped_programs.add(program)
        for pending in tuple(self._pending):
            if pending.record.program == program:
                pending.stop()
                self.log.set_stage(pending.record, Stage.FAILED)

    async def _run(self, pending: PendingRequest) -> None:
        pending.task = asyncio.current_task()
        try:
            if pending.is_abandoned:  # stopped before this task's first step
                return
            async with self.crashes.admitting(pending.record.program):
                await self._answer(pending)
        except asyncio.CancelledError:
            if not pending.is_abandoned:
                raise
        except RequestRefused as error:
            pending.refuse(error.status, error.message, error.kind, error.retry_after_s)
        except EngineRefused as error:
            pending.refuse(max(400, error.status), error.message, error.kind or "invalid_request_error")
        except EngineError as error:
            pending.refuse(502, str(error), "server_error")
        except KvchatError as error:
            pending.refuse(503, str(error), "unavailable_error")
        except ClientTooSlow:
            pending.is_abandoned = True
        except BaseException:
            pending.refuse(500, "kvchat made a mistake.", "server_error")
            raise
        finally:
            self._pending.remove(pending)
            pending.response.end()
            self.log.set_stage(pending.record, Stage.LEFT if pending.is_abandoned else Stage.FAILED)

    async def _answer(self, pending: PendingRequest) -> None:
        record = pending.record
        pending.request = await self.rewriter.rewrite_in_order(pending.request, record)
        pictures = await run_in_thread_if_large(pending.request.is_large, pictures_in, pending.request)
        model = await self.find_model(pending.request.model)
        record.answering_model = model.name if model else ""
        messages = (ChatMessage("user", "", pictures=pictures),) if pictures else ()
        request = PromptRequest(messages, model=model.path if model else None)
        if self.host.is_ready(
            request.model, needs_vision=request.needs_vision
        ):  # without an engine, no slot holds anything
            engine = await self.host.ready(request.model, needs_vision=request.needs_vision)
            self.crashes.watch(engine.engine.lifetime)
            async with self.crashes.using_engine(record.program):
                await pending.render(engine)
        while not await self._answer_in_slot(pending, request):
            self.log.set_stage(record, Stage.QUEUED)

    async def _answer_in_slot(self, pending: PendingRequest, request: PromptRequest) -> bool:
        """Answer the request in a slot and save the slot's state; return False if the request must start over."""
        record = pending.record
        async with contextlib.AsyncExitStack() as stack:
            slot = await stack.enter_async_context(
                self.slots.acquire(record.owner, pending.prompt.ids, from_window=False)
            )
            await stack.enter_async_context(self.crashes.using_engine(record.program))
            record.slot, record.queue_ms = slot.number, record.queue_ms or record.elapsed_ms()
            if pending.request.needs_several_slots:
                await stack.enter_async_context(self.slots.exclusive(slot))
            exchange = Exchange(self.slots, slot, self.host, record.owner)
            exchange.saves = record.should_save
            forwarder = Forwarder(
                pending, request, exchange, self.log.set_stage, self.rewriter, self.crashes, self._heads
            )
            try:
                parser = await pending.answering.run(forwarder.run())
            except MustRestart:
                return False
            pending.response.end()
            if pending.is_abandoned:
                self.crashes.note_abandoned(record.program)
            elif record.changes and record.cached_tokens is not None and pending.prompt.ids:
                text, tokens = pending.prompt.text, len(pending.prompt.ids)
                record.saved_by_rule = tokens_saved(record.changes, text, tokens, record.cached_tokens)
            self.log.set_stage(record, Stage.LEFT if pending.is_abandoned else Stage.DONE)
            lease = exchange.lease
            if lease is not None and record.should_save and not (pending.is_abandoned and self.stops):
                await self._settle(pending, slot, lease, parser)
        if lease is not None and lease.saving_enabled:
            await self.absorb()
        return True

    async def _settle(self, pending: PendingRequest, slot: Slot, lease: Lease, parser: ResponseParser | None) -> None:
        """Make the slot hold exactly the tokens that the next request will start with, and save them.

        If these cannot be predicted, saves all processed tokens.
        """
        reply, request = parser.reply if parser else None, pending.request
        if request.needs_several_slots or not pending.prompt.ids or slot.contents is None:
            return

        async def boundary() -> Tokens:
            if reply is None:
                return ()
            tokens = await shared_tokens(lease.engine, lambda text: request.next_request(reply, text))
            return tokens if len(tokens) >= MIN_SAVED else ()

        settling = Settling(ignore_event)
        with self.slots.settling(slot, settling.supersede, settling.hurry):
            try:
                await settling.run(lease, boundary)
            except EngineGone as loss:
                self.slots.forget()
                await loss.explain()
