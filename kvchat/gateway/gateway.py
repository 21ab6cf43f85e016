"""The gateway: starting and stopping it, the handler of each path, and the Prometheus counters."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
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
from kvchat.gateway.checks import Checks, body_of, check_bounds
from kvchat.gateway.dialects.request import (
    ASIDE,
    GENERATING,
    MUCH,
    READING,
    Form,
    ParsedRequest,
    RequestRefused,
    parse_request,
    refusal,
)
from kvchat.gateway.records import OVER, RequestLog, RequestRecord, Stage
from kvchat.gateway.rewriting import PromptRewriter, Rules
from kvchat.gateway.runner import Catalogue, RequestRunner, as_json
from kvchat.gateway.server import Listening, listen
from kvchat.kvstore.savepoint import program_of
from kvchat.session.host import EngineHost
from kvchat.session.slots import Slots
from kvchat.system.concurrency import run_in_thread_if_large
from kvchat.text.language import _

MOST_UNDER_WAY = 64  # requests waiting or in progress
MOST_BYTES = 400_000_000  # total of request bodies, including incomplete ones
AGAIN_S = 5
OPEN = ("/health", "/v1/health")  # need no key


class Gateway:
    """Belongs to one event loop. `records` has all requests; subscribe there for changes."""

    def __init__(
        self,
        slots: Slots,
        host: EngineHost,
        catalogue: Catalogue,
        absorb: Callable[[], Awaitable[None]],
        rules: Rules = lambda program: (),
        shares: Callable[[], bool] = lambda: False,
    ) -> None:
        """`absorb` starts background absorption of saved files; `rules` returns a program's enabled rules.

        `shares`: True if all programs share their memory.
        """
        self._slots, self._host = slots, host
        self.catalogue = catalogue
        self.records = RequestLog(shares)
        self.metrics, self.totals = (Metrics(self.records, by_program=by_program) for by_program in (True, False))
        self.runner = RequestRunner(slots, host, catalogue.find, self.records, absorb, PromptRewriter(rules))
        self._checks: Checks | None = None  # for incoming requests while open
        self._listening: Listening | None = None

    @property
    def url(self) -> str | None:
        if self._checks is None or self._listening is None:
            return None
        host = f"[{self._checks.host}]" if ":" in self._checks.host else self._checks.host
        return f"http://{host}:{self._listening.port}"

    async def open(self, checks: Checks, port: int) -> str:
        """Open the gateway, closing an open one; return its URL. Raises KvchatError."""
        if not checks.keys and not is_loopback(checks.host):
            raise KvchatError(
                _("The API server needs an API key for network access"),
                _("With the address {host}, any computer on the network could use the model.", host=checks.host),
                _("Set an API key (--key-file, or Settings, API server), or listen on 127.0.0.1 only."),
            )
        await self.shut()
        self._listening = await listen(_app(self, checks), checks.host, port)
        self._checks = checks
        assert self.url is not None
        return self.url

    async def shut(self) -> None:
        """Stop accepting requests; abort answers in progress, complete saves."""
        self._checks = None
        with self.runner.stopped():
            await self.runner.background.idle()
            if self._listening is not None:
                await self._listening.close()  # if cancelled here, the next caller waits for it again
                self._listening = None

    def forget(self, program: str) -> None:
        self.records.forget(program)
        self.runner.rewriter.forget(program)

    def as_json(self, program: str | None) -> dict[str, Any]:
        """Answer `GET /kvchat/requests`: current requests, recent ones newest first, and slots.

        Only those of `program`; None for all.
        """
        under_way, last = (
            [record.as_json() for record in records if program in (None, record.program)]
            for records in (self.records.under_way, reversed(self.records.last))
        )
        slots = []
        for slot in self._slots.all:
            if slot.contents is not None and program in (None, owner := program_of(slot.contents.owner)):
                busy = slot.claimed_tokens > 0  # answering, settling or saving
                tokens = len(slot.contents.tokens)
                slots.append({"slot": slot.number, "owner": owner or "kvchat", "tokens": tokens, "busy": busy})
        return {"at": time.time(), "under_way": under_way, "last": last, "slots": slots}

    async def engine(self) -> LlamaServerClient:
        """Return the running engine, or start one. Raises KvchatError."""
        if self._host.is_ready():
            return (await self._host.ready()).engine
        async with self._slots.exclusive():
            return (await self._host.ready()).engine


def _app(gateway: Gateway, checks: Checks) -> ASGIApp:
    answers = _Answers(gateway, checks)
    looked_at = dict.fromkeys(OPEN, answers.health) | {
        "/v1/models": answers.models,
        "/models": answers.models,
        "/v1/models/{name:path}": answers.model,
        "/props": answers.look,
        "/metrics": answers.metrics,
        "/kvchat/requests": answers.requests,
    }
    routes: list[BaseRoute] = [Route(path, answer) for path, answer in looked_at.items()]
    for path, form in (GENERATING | dict.fromkeys(READING, Form.PLAIN)).items():
        routes.append(Route(path, _Endpoint(answers.generate, form), methods=["POST"]))
    for path in ASIDE:
        form = Form.MESSAGES if "messages" in path else Form.PLAIN
        routes.append(Route(path, _Endpoint(answers.aside, form), methods=["POST"]))
    app: ASGIApp = Starlette(routes=routes, exception_handlers={404: _no_such_path, 405: _no_such_path})
    if checks.origins:
        told = ("source", "found", "restore-ms", "miss", "cached", "prompt", "model")
        app = CORSMiddleware(
            app,
            allow_origins=sorted(checks.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[f"x-kvchat-{name}" for name in told],
        )
    return _Guard(app, checks)


class _Guard:
    def __init__(self, app: ASGIApp, checks: Checks) -> None:
        self._app, self._checks = app, checks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Request(scope).headers
        try:
            self._checks.check_way(headers)
            if scope["method"] != "OPTIONS" and scope["path"] not in OPEN:
                scope["program"], scope["is_owner"] = self._checks.program(headers), self._checks.is_owner(headers)
        except RequestRefused as error:
            await _refusal(error, GENERATING.get(scope["path"]))(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class _Endpoint:
    def __init__(self, answer: Callable[[Form, Scope, Receive, Send], Awaitable[None]], form: Form) -> None:
        self._answer, self._form = answer, form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(self._form, scope, receive, send)
        except RequestRefused as error:
            await _refusal(error, self._form)(scope, receive, send)
        except ConnectionError:  # the client left
            return


class _Answers:
    def __init__(self, gateway: Gateway, checks: Checks) -> None:
        self._gateway, self._checks = gateway, checks
        self._bytes = 0  # request bodies in memory

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        return JSONResponse(await self._gateway.catalogue.listed())

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"].lower()
        model = next((entry for entry in await self._gateway.catalogue.all() if entry.name.lower() == name), None)
        if model is None:
            return _refusal(RequestRefused(404, "There is no such model.", "model_not_found"), None)
        return JSONResponse(as_json(model))

    async def look(self, request: Request) -> Response:
        try:
            engine = await self._gateway.engine()
            shown = wire.parse_object(await engine.get(request.scope["path"]))  # request.url may use the Host header
        except KvchatError as error:
            return _refusal(RequestRefused(503, str(error), "unavailable_error"), None)
        for name in ("model_path", "model_alias"):
            if isinstance(path := shown.get(name), str):  # file name only
                shown[name] = re.split(r"[/\\]", path)[-1]
        return JSONResponse(shown)

    async def metrics(self, request: Request) -> Response:
        metrics = self._gateway.metrics if request.scope["is_owner"] else self._gateway.totals
        return Response(metrics.text(), media_type=None, headers={"content-type": CONTENT_TYPE_LATEST})

    async def requests(self, request: Request) -> Response:
        return JSONResponse(self._gateway.as_json(None if request.scope["is_owner"] else request.scope["program"]))

    async def generate(self, form: Form, scope: Scope, receive: Receive, send: Send) -> None:
        answering, program = self._gateway.runner, scope["program"]
        if (many := answering.under_way) >= MOST_UNDER_WAY:
            words = f"{many} requests are waiting already."
            raise RequestRefused(429, words, "rate_limit_error", again_s=AGAIN_S)
        async with self._body(scope, receive) as raw:
            answering.crashes.check(program)
            asked = await _understood(form, raw)
            if answering.stops:
                raise RequestRefused(503, "The engine is being stopped.", "unavailable_error", again_s=AGAIN_S)
            record = self._gateway.records.begin(program, scope["path"])
            record.keyed = program in self._checks.keys
            work = answering.begin(scope["path"], asked, record)
            try:
                await work.outlet.deliver(receive, send)
            finally:
                work.leave()

    async def aside(self, form: Form, scope: Scope, receive: Receive, send: Send) -> None:
        crashes, program = self._gateway.runner.crashes, scope["program"]
        try:
            async with self._body(scope, receive) as raw:
                await _understood(form, raw)
                async with crashes.answering(program):
                    engine = await self._gateway.engine()
                    crashes.watch(engine.lifetime)
                    async with crashes.asking(program), engine.forward(scope["path"], raw) as answer:
                        status, body = answer.status_code, await answer.aread()
        except KvchatError as error:
            status = 502 if isinstance(error, EngineGone) else 503
            raise RequestRefused(status, str(error), "server_error") from error
        await Response(body, status, media_type="application/json")(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _body(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            if self._bytes + size > MOST_BYTES:
                raise RequestRefused(429, "Others have sent too much.", "rate_limit_error", again_s=AGAIN_S)
            self._bytes, held = self._bytes + size, held + size

        try:
            yield await body_of(Request(scope).headers, receive, hold)
        finally:
            self._bytes -= held


async def _understood(form: Form, raw: bytes) -> ParsedRequest:
    """Parse and check the body of a request that may reach the engine. Raises Refused."""

    def checked() -> ParsedRequest:
        asked = parse_request(form, raw)
        check_bounds(asked.body, len(raw))
        asked.check()
        return asked

    return await run_in_thread_if_large(len(raw) > MUCH, checked)


def _refusal(error: RequestRefused, form: Form | None) -> Response:
    headers = {"retry-after": str(error.again_s)} if error.again_s else None
    return JSONResponse(refusal(form, error.status, error.message, error.kind), error.status, headers)


async def _no_such_path(request: Request, error: Exception) -> Response:
    status: Any = getattr(error, "status_code", 404)
    ways = ", ".join(path for path in GENERATING if path.startswith("/v1/"))
    words = f"There is nothing here. Programs ask at: {ways}." if status == 404 else "This cannot be asked so."
    return _refusal(RequestRefused(status, words, "not_found_error"), None)


_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
MOST_PROGRAMS = 50  # clients choose their own names


class Metrics:
    """Program names and counts, no request contents."""

    def __init__(self, records: RequestLog, *, by_program: bool) -> None:
        self._registry = registry = CollectorRegistry()
        self._by_program = by_program
        self._programs: set[str] = set()
        by = ("program", "source")
        self._requests = Counter("kvchat_requests", "Requests that are over", (*by, "outcome"), registry=registry)
        self._prompt = Counter("kvchat_prompt_tokens", "Tokens of prompts", by, registry=registry)
        self._cached = Counter("kvchat_cached_tokens", "Of those, found", by, registry=registry)
        self._predicted = Counter("kvchat_predicted_tokens", "Tokens of answers", by, registry=registry)
        self._saved = Counter("kvchat_saved_seconds", "Reading that was spared", by, registry=registry)
        first = "kvchat_first_byte_seconds", "Until the first byte", ("source",)
        self._first = Histogram(*first, buckets=_SECONDS, registry=registry)
        under_way = Gauge("kvchat_requests_under_way", "Waiting or being answered", registry=registry)
        under_way.set_function(lambda: len(records.under_way))
        records.subscribe(self._count)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _count(self, record: RequestRecord) -> None:
        if record.stage not in OVER:
            return
        program = record.program if self._by_program else "all"
        if program not in self._programs and len(self._programs) >= MOST_PROGRAMS:
            program = "other"
        self._programs.add(program)
        labels = program, record.source or "none"
        self._requests.labels(*labels, record.stage.value).inc()
        if record.stage is Stage.DONE:
            self._prompt.labels(*labels).inc(record.prompt or 0)
            self._cached.labels(*labels).inc(record.cached or 0)
            self._predicted.labels(*labels).inc(record.predicted or 0)
            self._saved.labels(*labels).inc(record.saved_ms / 1000)
            if record.first_ms is not None:
                self._first.labels(labels[1]).observe(record.first_ms / 1000)
