"""The gateway's life cycle, request handlers and Prometheus metrics."""

import contextlib
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from kvchat.engine.api import wire
from kvchat.engine.api.client import LlamaServerClient
from kvchat.engine.api.errors import EngineGone
from kvchat.engine.process.external import is_loopback
from kvchat.errors import KvchatError
from kvchat.gateway.checks import AccessPolicy, chat_named_in, parse_checked, read_body, wants_saving
from kvchat.gateway.devices.api import DeviceApi, PairingApi
from kvchat.gateway.devices.browsers import BrowserPages, unpaired_page
from kvchat.gateway.devices.device_list import PAGE_PATHS
from kvchat.gateway.dialects.request import (
    EMBEDDING_PATHS,
    GENERATING_PATHS,
    SLOTLESS_PATHS,
    Dialect,
    RequestRefused,
    refusal,
)
from kvchat.gateway.records import FINISHED, RequestLog, RequestRecord, Stage
from kvchat.gateway.rewriting import PromptRewriter, RuleLookup
from kvchat.gateway.runner import RETRY_AFTER_S, Catalogue, RequestRunner
from kvchat.gateway.server import Listener, listen
from kvchat.kvstore.savepoint import program_of
from kvchat.session.host import EngineHost
from kvchat.session.slots import Slots
from kvchat.system.pairing import PAIR_PATH
from kvchat.text.language import _

MAX_ACTIVE = 64  # requests waiting or in progress
MAX_TOTAL_BODY_BYTES = 400_000_000  # total of request bodies, including incomplete ones
PUBLIC_PATHS = ("/health", "/v1/health", "/kvchat/pair", PAIR_PATH)  # need no key
_RECEIPT_HEADERS = ("source", "found", "restore-ms", "miss", "cached", "prompt", "model")


class Gateway:
    """The API server. Event loop thread only. Subscribe to `log` to follow requests."""

    def __init__(
        self,
        slots: Slots,
        host: EngineHost,
        catalogue: Catalogue,
        absorb: Callable[[], Awaitable[None]],
        enabled_rules: RuleLookup = lambda program: (),
        shares: Callable[[], bool] = lambda: False,
    ) -> None:
        """`absorb` absorbs saved files into the store; `enabled_rules` returns a program's enabled rewriting rules.

        `shares` returns True if all programs share their memory.
        """
        self._slots, self._host = slots, host
        self.catalogue = catalogue
        self.log = RequestLog(shares)
        self.metrics, self.total_metrics = (Metrics(self.log, by_program=by_program) for by_program in (True, False))
        self.runner = RequestRunner(slots, host, catalogue.find, self.log, absorb, PromptRewriter(enabled_rules))
        self._checks: AccessPolicy | None = None  # None while closed
        self._listener: Listener | None = None
        self._shared: Listener | None = None  # for paired devices
        self._body_bytes = 0  # request bodies in memory

    @property
    def url(self) -> str | None:
        if self._checks is None or self._listener is None:
            return None
        host = f"[{self._checks.host}]" if ":" in self._checks.host else self._checks.host
        return f"http://{host}:{self._listener.port}"

    async def open(self, checks: AccessPolicy, port: int) -> str:
        """Start listening and return the URL, closing the gateway first if it is open. Raises KvchatError."""
        if not checks.keys and not is_loopback(checks.host):
            raise KvchatError(
                _("The API server needs an API key for network access"),
                _("With the address {host}, any computer on the network could use the model.", host=checks.host),
                _("Set an API key (--key-file, or Settings, API server), or listen on 127.0.0.1 only."),
            )
        await self.close()
        app = self._app(())
        if checks.origins:
            app = CORSMiddleware(
                app,
                allow_origins=sorted(checks.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=[f"x-kvchat-{name}" for name in _RECEIPT_HEADERS],
            )
        self._listener = await listen(_guarded(app, checks), checks.host, port)
        self._checks = checks
        assert self.url is not None
        return self.url

    async def share(self, pairing: PairingApi, host: str, port: int, context: ssl.SSLContext) -> int:
        """Listen for paired devices as well, by TLS, until the next `open` or `close`. Return the port.

        Raises KvchatError.
        """
        app = self._app((*pairing.routes, *BrowserPages(pairing, self._engine).routes))
        app = _guarded(app, AccessPolicy(host, pairing.devices, is_shared=True))
        self._shared = await listen(app, host, port, context)
        return self._shared.port

    def _app(self, more_routes: Sequence[BaseRoute]) -> ASGIApp:
        errors: dict[Any, Any] = dict.fromkeys((404, 405, RequestRefused), _refused)
        return Starlette(routes=[*self._routes(), *more_routes], exception_handlers=errors)

    async def close(self) -> None:
        """Stop accepting requests, abort answers in progress, and wait for saves to finish."""
        self._checks = None
        listeners = [*filter(None, (self._listener, self._shared))]
        with self.runner.stopped():
            for listener in listeners:
                listener.stop_accepting()
            await self.runner.background.wait_until_idle()
            for listener in listeners:
                await listener.close()  # if cancelled, the next call waits again
            self._listener = self._shared = None

    def forget(self, program: str) -> None:
        self.log.forget(program)
        self.runner.rewriter.forget(program)

    def _routes(self) -> list[BaseRoute]:
        pages = dict.fromkeys(("/health", "/v1/health"), self._health) | {
            "/v1/models": self._list_models,
            "/models": self._list_models,
            "/v1/models/{name:path}": self._show_model,
            "/props": self._show_engine,
            "/metrics": self._show_metrics,
            "/kvchat/requests": self._show_requests,
        }
        endpoints = dict.fromkeys((*GENERATING_PATHS, *EMBEDDING_PATHS), self._generate) | dict.fromkeys(
            SLOTLESS_PATHS, self._pass_on
        )
        return [
            *(Route(path, page) for path, page in pages.items()),
            *DeviceApi(self._slots, self._host, self.runner, self._body).routes,
            *(Route(path, _Endpoint(handler), methods=["POST"]) for path, handler in endpoints.items()),
        ]

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _list_models(self, request: Request) -> Response:
        return JSONResponse(await self.catalogue.as_json())

    async def _show_model(self, request: Request) -> Response:
        name = request.path_params["name"].lower()
        model = next((entry for entry in await self.catalogue.all() if entry.name.lower() == name), None)
        if model is None:
            raise RequestRefused(404, "Model not found.", "model_not_found")
        return JSONResponse(model.as_json())

    async def _show_engine(self, request: Request) -> Response:
        try:
            engine = await self._engine()
            facts = wire.parse_object(await engine.get(request.scope["path"]))  # request.url may use the Host header
        except KvchatError as error:
            raise RequestRefused(503, str(error), "unavailable_error") from error
        for name in ("model_path", "model_alias"):
            if isinstance(path := facts.get(name), str):  # file name only
                facts[name] = re.split(r"[/\\]", path)[-1]
        return JSONResponse(facts)

    async def _show_metrics(self, request: Request) -> Response:
        metrics = self.metrics if request.scope["is_owner"] else self.total_metrics
        return Response(metrics.text(), media_type=None, headers={"content-type": CONTENT_TYPE_LATEST})

    async def _show_requests(self, request: Request) -> Response:
        """List active requests, recent requests (newest first) and slots.

        A client without the owner's key sees only those of its own program.
        """
        program = None if request.scope["is_owner"] else request.scope["program"]
        active, recent = (
            [record.as_json() for record in records if program in (None, record.program)]
            for records in (self.log.active, reversed(self.log.recent))
        )
        slots = []
        for slot in self._slots.all_slots:
            if slot.contents is not None and program in (None, owner := program_of(slot.contents.owner)):
                busy = slot.claimed_tokens > 0  # answering, settling or saving
                tokens = len(slot.contents.tokens)
                slots.append({"slot": slot.number, "owner": owner or "kvchat", "tokens": tokens, "busy": busy})
        return JSONResponse({"at": time.time(), "under_way": active, "last": recent, "slots": slots})

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        runner, program = self.runner, scope["program"]
        if (active := runner.active_count) >= MAX_ACTIVE:
            message = f"Too many requests: {active} are already active."
            raise RequestRefused(429, message, "rate_limit_error", RETRY_AFTER_S)
        chat = chat_named_in(Request(scope).headers)
        async with self._body(scope, receive) as raw:
            runner.crashes.check(program)
            request = await parse_checked(_dialect_of(scope["path"]), raw)
            runner.check_running()
            scope["check_key"]()
            record = self.log.add(program, scope["path"])
            record.has_own_key, record.chat = scope["has_own_key"], chat
            record.should_save = wants_saving(Request(scope).headers)
            pending = runner.begin(scope["path"], request, record)
            try:
                await pending.response.deliver(receive, send)
            finally:
                pending.abandon()

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        crashes, program = self.runner.crashes, scope["program"]
        try:
            async with self._body(scope, receive) as raw:
                await parse_checked(_dialect_of(scope["path"]), raw)
                async with crashes.admitting(program):
                    engine = await self._engine()
                    crashes.watch(engine.lifetime)
                    async with crashes.using_engine(program), engine.forward(scope["path"], raw) as answer:
                        status, body = answer.status_code, await answer.aread()
        except KvchatError as error:
            status = 502 if isinstance(error, EngineGone) else 503
            raise RequestRefused(status, str(error), "server_error") from error
        await Response(body, status, media_type="application/json")(scope, receive, send)

    async def _engine(self) -> LlamaServerClient:
        """Return the running engine, or start one. Raises KvchatError."""
        if self._host.is_ready():
            return (await self._host.ready()).engine
        async with self._slots.exclusive():
            return (await self._host.ready()).engine

    @contextlib.asynccontextmanager
    async def _body(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        counted = 0

        def count(size: int) -> None:
            nonlocal counted
            if self._body_bytes + size > MAX_TOTAL_BODY_BYTES:
                raise RequestRefused(
                    429, "Too much request data is already being processed.", "rate_limit_error", RETRY_AFTER_S
                )
            self._body_bytes, counted = self._body_bytes + size, counted + size

        try:
            body = await read_body(Request(scope).headers, receive, count)
            scope["check_key"]()  # the device may have been removed while it sent the body
            yield body
        finally:
            self._body_bytes -= counted


class _Endpoint:
    """ASGI endpoint: Starlette passes it the raw ASGI arguments, not a Request."""

    def __init__(self, handler: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ConnectionError):  # the client left
            await self._handler(scope, receive, send)


def _guarded(app: ASGIApp, checks: AccessPolicy) -> ASGIApp:
    """Wrap `app` in checks of host, origin and, except for public paths, API key."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        try:
            checks.check_host_and_origin(request.headers)
            is_check = checks.is_shared and "authorization" in request.headers  # of a device, which may be removed
            if scope["method"] != "OPTIONS" and (scope["path"] not in PUBLIC_PATHS or is_check):
                scope["program"] = program = checks.program(request.headers)
                scope["check_key"] = partial(checks.program, request.headers)
                if not checks.keys.allows(program, scope["path"]):
                    raise RequestRefused(404, "Not found.", "not_found_error")
                scope["is_owner"], scope["has_own_key"] = checks.is_owner(request.headers), program in checks.keys
        except RequestRefused as error:
            is_page = checks.is_shared and scope["path"] in PAGE_PATHS and error.status == 401
            await (unpaired_page() if is_page else await _refused(request, error))(scope, receive, send)
        else:
            await app(scope, receive, send)

    return call


def _dialect_of(path: str) -> Dialect:
    return GENERATING_PATHS.get(path) or (Dialect.MESSAGES if "messages" in path else Dialect.PLAIN)


async def _refused(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestRefused):
        status: Any = getattr(error, "status_code", 404)
        paths = ", ".join(path for path in GENERATING_PATHS if path.startswith("/v1/"))
        message = f"Not found. Send requests to one of: {paths}." if status == 404 else "Method not allowed."
        error = RequestRefused(status, message, "not_found_error")
    headers = {"retry-after": str(error.retry_after_s)} if error.retry_after_s else None
    body = refusal(_dialect_of(request.scope["path"]), error.status, error.message, error.kind)
    return JSONResponse(body, error.status, headers)


_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
MAX_PROGRAMS = 50  # clients choose their own names


class Metrics:
    """Prometheus metrics: program names and counts, no request contents."""

    def __init__(self, log: RequestLog, *, by_program: bool) -> None:
        self._registry = registry = CollectorRegistry()
        self._by_program = by_program
        self._programs: set[str] = set()
        labels = ("program", "source")
        self._requests = Counter("kvchat_requests", "Finished requests", (*labels, "outcome"), registry=registry)
        self._prompt = Counter("kvchat_prompt_tokens", "Prompt tokens", labels, registry=registry)
        self._cached = Counter("kvchat_cached_tokens", "Prompt tokens reused from the cache", labels, registry=registry)
        self._predicted = Counter("kvchat_predicted_tokens", "Generated tokens", labels, registry=registry)
        self._saved = Counter("kvchat_saved_seconds", "Processing time saved", labels, registry=registry)
        first = "kvchat_first_byte_seconds", "Time to the first byte of the response", ("source",)
        self._first_byte = Histogram(*first, buckets=_SECONDS, registry=registry)
        active = Gauge("kvchat_requests_under_way", "Active requests", registry=registry)
        active.set_function(lambda: len(log.active))
        log.subscribe(self._count)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _count(self, record: RequestRecord) -> None:
        if record.stage not in FINISHED:
            return
        program = record.program if self._by_program else "all"
        if program not in self._programs and len(self._programs) >= MAX_PROGRAMS:
            program = "other"
        self._programs.add(program)
        labels = program, record.source or "none"
        self._requests.labels(*labels, record.stage.value).inc()
        if record.stage is Stage.DONE:
            self._prompt.labels(*labels).inc(record.prompt_tokens or 0)
            self._cached.labels(*labels).inc(record.cached_tokens or 0)
            self._predicted.labels(*labels).inc(record.generated_tokens or 0)
            self._saved.labels(*labels).inc(record.saved_ms / 1000)
            if record.first_ms is not None:
                self._first_byte.labels(labels[1]).observe(record.first_ms / 1000)
