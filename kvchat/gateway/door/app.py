"""What answers behind which path, once a request has been let in."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from kvchat.engine.speaking.errors import EngineGone
from kvchat.errors import KvchatError
from kvchat.gateway.answering import Answering
from kvchat.gateway.dialects.asked import (
    ASIDE,
    GENERATING,
    MUCH,
    READING,
    Asked,
    Form,
    NotJson,
    Refused,
    refusal,
    understood,
)
from kvchat.gateway.dialects.bounds import OutOfBounds, check_bounds
from kvchat.gateway.door.checks import Checks, body_of
from kvchat.gateway.metrics import Metrics
from kvchat.gateway.models import Catalogue, as_json
from kvchat.gateway.requests import Passages
from kvchat.system.concurrency import apart

MOST_UNDER_WAY = 64  # requests that wait or are answered
MOST_BYTES = 400_000_000  # of all their bodies, and of those that are still coming
AGAIN_S = 5
OPEN = ("/health", "/v1/health")  # without a key


class Inside(Protocol):
    """What is behind the door."""

    catalogue: Catalogue
    passages: Passages
    answering: Answering
    metrics: Metrics  # by program
    totals: Metrics  # of all programs together

    async def look(self, path: str) -> bytes:
        """What the engine shows there. Raises KvchatError."""
        ...

    async def ask_aside(self, program: str, path: str, body: bytes) -> tuple[int, bytes]:
        """The engine's status and answer to what needs no slot. Raises KvchatError."""
        ...

    def as_json(self, program: str | None) -> dict[str, Any]:
        """The requests and the slots: a program's, or all."""
        ...


def make_app(gateway: Inside, checks: Checks) -> ASGIApp:
    """The door as an ASGI application."""
    answers = _Answers(gateway, checks)
    routes: list[BaseRoute] = [
        Route("/health", answers.health),
        Route("/v1/health", answers.health),
        Route("/v1/models", answers.models),
        Route("/models", answers.models),
        Route("/v1/models/{name:path}", answers.model),
        Route("/props", answers.look),
        Route("/metrics", answers.metrics),
        Route("/kvchat/requests", answers.requests),
    ]
    routes += [Route(path, _Endpoint(answers.generate, form), methods=["POST"]) for path, form in GENERATING.items()]
    routes += [Route(path, _Endpoint(answers.generate, Form.PLAIN), methods=["POST"]) for path in READING]
    routes += [
        Route(path, _Endpoint(answers.aside, Form.MESSAGES if "messages" in path else Form.PLAIN), methods=["POST"])
        for path in ASIDE
    ]
    app: ASGIApp = Starlette(routes=routes, exception_handlers={404: _no_such_path, 405: _no_such_path})
    if checks.origins:
        told = ["x-kvchat-source", "x-kvchat-found", "x-kvchat-restore-ms", "x-kvchat-miss"]
        app = CORSMiddleware(
            app,
            allow_origins=sorted(checks.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[*told, "x-kvchat-cached", "x-kvchat-prompt", "x-kvchat-model"],
        )
    return _Guard(app, checks)


class _Guard:
    """Turns away whoever may not come in, before anything of a request is read."""

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
        except Refused as error:
            await _refusal(error, GENERATING.get(scope["path"]))(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class _Endpoint:
    """A plain ASGI application for a path whose answer is passed on as it comes."""

    def __init__(self, answer: Callable[[Form, Scope, Receive, Send], Awaitable[None]], form: Form) -> None:
        self._answer, self._form = answer, form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(self._form, scope, receive, send)
        except Refused as error:
            await _refusal(error, self._form)(scope, receive, send)
        except ConnectionError:  # the client has left
            return


class _Answers:
    def __init__(self, gateway: Inside, checks: Checks) -> None:
        self._gateway, self._checks = gateway, checks
        self._bytes = 0

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        return JSONResponse(await self._gateway.catalogue.listed())

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"].lower()
        model = next((one for one in await self._gateway.catalogue.all() if one.name.lower() == name), None)
        if model is None:
            return _refusal(Refused(404, "There is no such model.", "model_not_found"), None)
        return JSONResponse(as_json(model))

    async def look(self, request: Request) -> Response:
        try:
            body = await self._gateway.look(request.scope["path"])  # request.url may be made of the Host header
        except KvchatError as error:
            return _refusal(Refused(503, str(error), "unavailable_error"), None)
        return Response(body, media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        metrics = self._gateway.metrics if request.scope["is_owner"] else self._gateway.totals
        return Response(metrics.text(), media_type=None, headers={"content-type": CONTENT_TYPE_LATEST})

    async def requests(self, request: Request) -> Response:
        return JSONResponse(self._gateway.as_json(None if request.scope["is_owner"] else request.scope["program"]))

    async def generate(self, form: Form, scope: Scope, receive: Receive, send: Send) -> None:
        """What takes a slot."""
        if (many := self._gateway.answering.under_way) >= MOST_UNDER_WAY:
            words = f"{many} requests are waiting already."
            raise Refused(429, words, "rate_limit_error", again_s=AGAIN_S)
        async with self._body(scope, receive) as raw:
            await self._generated(form, raw, scope, receive, send)

    async def _generated(self, form: Form, raw: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        answering = self._gateway.answering
        answering.crashes.check(scope["program"])
        asked = await _understood(form, raw)
        if answering.stops:
            raise Refused(503, "The engine is being stopped.", "unavailable_error", again_s=AGAIN_S)
        passage = self._gateway.passages.begin(scope["program"], scope["path"])
        passage.keyed = scope["program"] in self._checks.keys
        work = answering.begin(scope["path"], asked, passage)
        try:
            await work.outlet.deliver(receive, send)
        finally:
            work.leave()

    async def aside(self, form: Form, scope: Scope, receive: Receive, send: Send) -> None:
        """What the engine answers without a slot."""
        try:
            async with self._body(scope, receive) as raw:
                await _understood(form, raw)
                status, body = await self._gateway.ask_aside(scope["program"], scope["path"], raw)
        except KvchatError as error:
            status = 502 if isinstance(error, EngineGone) else 503
            raise Refused(status, str(error), "server_error") from error
        await Response(body, status, media_type="application/json")(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _body(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            if self._bytes + size > MOST_BYTES:
                raise Refused(429, "Others have sent too much.", "rate_limit_error", again_s=AGAIN_S)
            self._bytes, held = self._bytes + size, held + size

        try:
            yield await body_of(Request(scope).headers, receive, hold)
        finally:
            self._bytes -= held


async def _understood(form: Form, raw: bytes) -> Asked:
    """The body of a request that may reach the engine. Raises Refused."""

    def within_bounds() -> Asked:
        asked = understood(form, raw)
        check_bounds(asked.body, len(raw))
        asked.check()
        return asked

    try:
        return await apart(len(raw) > MUCH, within_bounds)
    except NotJson as error:
        raise Refused(400, f"The body is not JSON: {error}") from error
    except OutOfBounds as error:
        raise Refused(400, str(error)) from error


def _refusal(error: Refused, form: Form | None) -> Response:
    headers = {"retry-after": str(error.again_s)} if error.again_s else None
    return JSONResponse(refusal(form, error.status, error.message, error.kind), error.status, headers)


async def _no_such_path(request: Request, error: Exception) -> Response:
    status: Any = getattr(error, "status_code", 404)
    ways = ", ".join(path for path in GENERATING if path.startswith("/v1/"))
    words = f"There is nothing here. Programs ask at: {ways}." if status == 404 else "This cannot be asked so."
    return _refusal(Refused(status, words, "not_found_error"), None)
