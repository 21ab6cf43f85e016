"""The API for paired devices: pairing, the memory of a client's chats, and preparing its next request.

Everything but pairing is open to any client with a key, and shows each client only what it owns.
"""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope

from kvchat.errors import KvchatError
from kvchat.gateway.checks import chat_named_in, parse_checked, read_body, wants_saving
from kvchat.gateway.devices.device_list import MAX_DEVICES, Device, Devices
from kvchat.gateway.dialects.request import Dialect, ParsedRequest, RequestRefused
from kvchat.gateway.pending_request import shared_tokens
from kvchat.gateway.runner import RETRY_AFTER_S, RequestRunner
from kvchat.kvstore.savepoint import Tokens, program_chat_of, program_of, program_owner
from kvchat.session.exchange import Exchange, PromptRequest
from kvchat.session.host import EngineHost
from kvchat.session.prefill import prefill_and_save, prefixes_to_save
from kvchat.session.proof import Source
from kvchat.session.restore_cost import MIN_GAIN
from kvchat.session.slot import Priority, Slot
from kvchat.session.slots import Slots
from kvchat.system.pairing import CodeHolder, PairingLocked, WrongCode

MODEL_PAUSE_S = 5.0  # between two changes of the model by one client
MAX_AT_ONCE = 8  # requests of one client, except for models
MAX_FLAGGED = 1000  # names of one client's chats without memory that are to be kept, or not to be saved
_MAX_BODY = 10_000  # bytes, except of prompts
Handler = Callable[[Request], Awaitable[Response]]
KEEP = ("always", "never", "automatic")


@dataclass
class PairingApi:
    """Pairing of devices with a code. `on_paired` is called with each device that was paired."""

    devices: Devices
    codes: CodeHolder
    name: str  # of this computer
    mac: str  # its address for wake-on-LAN, or ""
    on_paired: Callable[[Device], None]

    @property
    def routes(self) -> Sequence[BaseRoute]:
        return (Route("/kvchat/pair", self._pair, methods=["POST"]),)

    async def _pair(self, request: Request) -> Response:
        """Answer the first request of a pairing (a SPAKE2 message); in the second, check the proof and issue a key."""
        body = await _json_body(request)
        try:
            if "message" in body:
                session, answer = self.codes.answer(bytes.fromhex(str(body["message"])))
                return JSONResponse({"session": session, "message": answer.hex()})
            if len(self.devices.all) >= MAX_DEVICES:
                raise RequestRefused(409, "Too many devices are paired.")
            name, proof = str(body.get("name", "")), str(body.get("proof", ""))
            own_proof = self.codes.accept(str(body.get("session", "")), name, proof)
            device, key = self.devices.add(name)
        except PairingLocked as error:
            raise RequestRefused(429, str(error), "rate_limit_error", 60) from error
        except (WrongCode, ValueError) as error:
            raise RequestRefused(403, "The code is wrong or has expired.", "permission_error") from error
        self.on_paired(device)
        return JSONResponse({"proof": own_proof, "device": device.id, "key": key, "name": self.name, "mac": self.mac})

    def pair_browser(self, token: str, name: str, key: str) -> str:
        """Pair a browser by a link's token and return its key. A browser that is still paired keeps its `key`.

        Raises PairingLocked, WrongCode and RequestRefused.
        """
        known = self.devices.find(self.devices.program_of(key) or "")
        if known is None and len(self.devices.all) >= MAX_DEVICES:
            raise RequestRefused(409, "Too many devices are paired.")
        self.codes.accept_token(token)
        if known is not None:
            device = self.devices.renew(known)
        else:
            device, key = self.devices.add(name, is_browser=True)
        self.on_paired(device)
        return key


@dataclass
class DeviceApi:
    slots: Slots
    host: EngineHost
    runner: RequestRunner
    read_body: Callable[[Scope, Receive], AbstractAsyncContextManager[bytes]]
    _preparing: Counter[str] = field(default_factory=Counter)  # by program
    _loading: set[str] = field(default_factory=set)  # programs
    _loaded_at: dict[str, float] = field(default_factory=dict)  # time.monotonic() of a program's last change of model

    @property
    def routes(self) -> Sequence[BaseRoute]:
        return (
            Route("/kvchat/chats", self._counted(self._list_chats)),
            Route("/kvchat/chats/{chat}", self._counted(self._keep_chat), methods=["PUT"]),
            Route("/kvchat/chats/{chat}", self._counted(self._forget_chat), methods=["DELETE"]),
            Route("/kvchat/model", self._load_model, methods=["POST"]),
            Route("/kvchat/forecast", self._counted(self._forecast), methods=["POST"]),
            Route("/kvchat/prepare", self._prepare, methods=["POST"]),
        )

    async def _list_chats(self, request: Request) -> Response:
        """List the memory of the client's chats. Sizes do not depend on other owners, who may use the same blocks."""
        program, inventory = request.scope["program"], self.slots.store.inventory
        usage = await _store(inventory.usage)
        chats = [entry for entry in usage.conversations if program_of(entry.conversation_id) == program]
        points = await _store(inventory.summaries, [entry.conversation_id for entry in chats])

        def source(owner: str) -> str:
            slot = self.slots.slot_of(owner)
            if slot is not None and slot.contents is not None:
                return Source.HOT.value
            best = max(points.get(owner, ()), key=lambda point: point.tokens, default=None)
            return (Source.COLD if best is None else Source(best.tier.value)).value

        return JSONResponse(
            {
                "bytes": next(
                    (whole.bytes for whole in usage.devices if program_of(whole.conversation_id) == program), 0
                ),
                "limit_bytes": usage.programs_quota_bytes,
                "chats": [
                    {
                        "chat": program_chat_of(entry.conversation_id),
                        "bytes": entry.bytes,
                        "save_points": entry.save_points,
                        "tokens": entry.tokens,
                        "source": source(entry.conversation_id),
                        "last_used_at": entry.last_used_at.timestamp(),
                        "keep": "always" if entry.pinned else "never" if entry.never_save else "automatic",
                    }
                    for entry in chats
                ],
            }
        )

    async def _keep_chat(self, request: Request) -> Response:
        _check_own_key(request)
        keep, inventory = (await _json_body(request)).get("keep"), self.slots.store.inventory
        owner, program = _owner(request, request.path_params["chat"]), request.scope["program"]
        if keep not in KEEP:
            raise RequestRefused(400, f"“keep” must be one of: {', '.join(KEEP)}.")
        usage = await _store(inventory.usage)
        own = [entry for entry in usage.conversations if program_of(entry.conversation_id) == program]
        if owner not in (entry.conversation_id for entry in own):
            if keep == "automatic":
                return JSONResponse({})
            if sum(entry.pinned or entry.never_save for entry in own) >= MAX_FLAGGED:
                raise RequestRefused(409, "Too many chats without memory are to be kept or not to be saved.")
        await _store(inventory.set_pinned, owner, keep == "always")
        await _store(inventory.set_never_save, owner, keep == "never")
        return JSONResponse({})

    async def _forget_chat(self, request: Request) -> Response:
        _check_own_key(request)
        owner = _owner(request, request.path_params["chat"])
        await self.slots.wait_until_released([owner])
        try:
            await self.slots.discard(owner)
            return JSONResponse({})
        except KvchatError as error:
            raise RequestRefused(503, str(error), "unavailable_error") from error

    async def _load_model(self, request: Request) -> Response:
        """Load a model as soon as no reply is being generated. A program has one loaded at a time, with pauses."""
        program = request.scope["program"]
        if program in self._loading:
            raise RequestRefused(429, "A model is being loaded.", "rate_limit_error", RETRY_AFTER_S)
        self._loading.add(program)
        try:
            return await self._load_named(request)
        finally:
            self._loading.discard(program)

    async def _load_named(self, request: Request) -> Response:
        model = await self.runner.find_model(str((await _json_body(request)).get("model", "")))
        path = model.path if model else None
        try:
            if not self.host.is_ready(path):
                program, never = request.scope["program"], -MODEL_PAUSE_S
                await asyncio.sleep(self._loaded_at.get(program, never) + MODEL_PAUSE_S - time.monotonic())
                async with self.slots.exclusive():
                    request.scope["check_key"]()  # it may have waited for long
                    self.runner.check_running()
                    if await request.is_disconnected():
                        raise RequestRefused(503, "The client disconnected.", "unavailable_error")
                    self._loaded_at[program] = time.monotonic()
                    await self.host.ready(path)
        except KvchatError as error:
            raise RequestRefused(503, str(error), "unavailable_error") from error
        return JSONResponse({"model": model.name if model else ""})

    async def _forecast(self, request: Request) -> Response:
        """Return what `_prepare` could load for a chat's next request, without loading it."""
        async with self._next_request(request) as (owner, parsed, path):
            try:
                engine = await self.host.ready(path)
                self.runner.crashes.watch(engine.engine.lifetime)
                async with self.runner.crashes.using_engine_at_once(request.scope["program"]):
                    prompt = await shared_tokens(engine, parsed.with_longer_draft)
                source, ready, size = await self.slots.forecast(owner, prompt, engine)
            except KvchatError as error:
                raise RequestRefused(503, str(error), "unavailable_error") from error
        return JSONResponse({"source": source.value, "ready": ready, "total": len(prompt), "bytes": size})

    @contextlib.asynccontextmanager
    async def _next_request(self, request: Request) -> AsyncIterator[tuple[str, ParsedRequest, str | None]]:
        """Context manager for the use of a chat's next request, whose body counts as in memory until the exit.

        Yields the owner, the body and the path of the model, which is loaded.
        """
        owner = _owner(request, request.headers.get("x-kvchat-chat", ""))
        async with self.read_body(request.scope, request.receive) as raw:
            self.runner.crashes.check(request.scope["program"])
            parsed = await parse_checked(Dialect.CHAT, raw)
            model = await self.runner.find_model(parsed.model)
            path = model.path if model else None
            if not self.host.is_ready(path):  # only sending a message loads another model
                raise RequestRefused(503, "The model is not loaded.", "unavailable_error")
            self.runner.check_running()
            request.scope["check_key"]()
            yield owner, parsed, path

    def _counted(self, handler: Handler) -> Handler:
        async def call(request: Request) -> Response:
            with self._counting(request):
                return await handler(request)

        return call

    @contextlib.contextmanager
    def _counting(self, request: Request) -> Iterator[None]:
        program = request.scope["program"]
        if self._preparing[program] >= MAX_AT_ONCE:
            raise RequestRefused(429, "Too many requests at a time.", "rate_limit_error", RETRY_AFTER_S)
        self._preparing[program] += 1
        try:
            yield
        finally:
            self._preparing[program] -= 1

    async def _prepare(self, request: Request) -> Response:
        """Load a chat's next request in idle time and, with `?read=1`, process and save what cannot be loaded.

        The body is a chat completion; a last user message is a draft, which may grow. The response lists the prompt
        tokens ready so far and in total, one JSON object per line. The client ends the work by disconnecting.
        """
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._counting(request))
            owner, parsed, path = await stack.enter_async_context(self._next_request(request))
            until_done = stack.pop_all()
        crashes, program = self.runner.crashes, request.scope["program"]
        reads, should_save = request.query_params.get("read") == "1", wants_saving(request.headers)
        lines = asyncio.Queue[dict[str, int] | None]()
        is_connected, stopped = True, self.runner.stopped_programs

        def has_client() -> bool:
            return is_connected and not self.runner.stops and program not in stopped

        waiting: asyncio.Task[None] | None = None  # until it gets a slot

        def stop_waiting() -> None:
            nonlocal waiting
            if waiting is not None:
                self.runner.preparations.discard(waiting)
            waiting = None

        async def work(slot: Slot, may_continue: Callable[[], bool]) -> None:
            stop_waiting()
            if not (has_client() and self.host.is_ready(path)):
                return
            async with crashes.using_engine_at_once(program):
                await load(slot, lambda: has_client() and may_continue() and not crashes.delays_requests)

        async def load(slot: Slot, may_continue: Callable[[], bool]) -> None:
            lease = await Exchange(self.slots, slot, self.host, owner).lease_slot(PromptRequest((), model=path))
            crashes.watch(lease.engine.engine.lifetime)
            tokens = await shared_tokens(lease.engine, parsed.with_longer_draft)
            if not 0 < len(tokens) < lease.engine.context_size:
                lines.put_nowait({"ready": 0, "total": len(tokens)})
                return
            loaded = await lease.load_boundary(tokens)
            lines.put_nowait({"ready": loaded.expected_cached, "total": len(tokens)})
            if not reads or len(tokens) - loaded.expected_cached < MIN_GAIN:
                return

            async def save(stop: Tokens) -> None:
                may_save = should_save and not parsed.has_draft and lease.saving_enabled
                if may_save and not await lease.is_saved(stop):
                    await lease.settle(stop)
                    await lease.save(stop, notify=False)

            await prefill_and_save(
                lease,
                [tokens] if parsed.has_draft else prefixes_to_save(lease, tokens),
                loaded,
                may_continue,
                save,
                lambda done: lines.put_nowait({"ready": done, "total": len(tokens)}),
            )

        async def run() -> None:
            nonlocal waiting
            async with until_done:
                waiting = asyncio.current_task()
                assert waiting is not None
                self.runner.preparations.add(waiting)
                try:
                    with contextlib.suppress(
                        KvchatError, RequestRefused
                    ):  # the next request meets it again and reports it
                        await self.slots.run_background(Priority.PREPARE, owner, work, concurrent=not reads)
                finally:
                    stop_waiting()
                    lines.put_nowait(None)
                await self.runner.absorb()

        self.runner.background.start(run())

        async def stream() -> AsyncIterator[bytes]:
            nonlocal is_connected
            try:
                while (line := await lines.get()) is not None:
                    yield json.dumps(line).encode() + b"\n"
            finally:
                is_connected = False
                if waiting is not None:  # it may wait for as long as others are answered
                    waiting.cancel()

        return StreamingResponse(stream(), media_type="application/x-ndjson")


def _check_own_key(request: Request) -> None:
    if not request.scope["has_own_key"]:  # any program can send another's User-Agent
        raise RequestRefused(403, "Only a program with its own API key may change what is kept.", "permission_error")


def _owner(request: Request, chat: str) -> str:
    return program_owner(request.scope["program"], chat_named_in({"x-kvchat-chat": chat}))


async def _store(call: Callable[..., Any], *arguments: object) -> Any:
    """Call a function of the store in a thread; a refusal becomes an HTTP error."""
    try:
        return await asyncio.to_thread(call, *arguments)
    except KvchatError as error:
        raise RequestRefused(503, str(error), "unavailable_error") from error


async def _json_body(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(await read_body(request.headers, request.receive, lambda size: None, _MAX_BODY))
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400, "The request body is not valid JSON.") from error
    if check_key := request.scope.get("check_key"):  # the device may have been removed while it sent the body
        check_key()
    if not isinstance(body, dict):
        raise RequestRefused(400, "The request body is not a JSON object.")
    return body
