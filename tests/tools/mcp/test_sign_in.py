"""Sign-in with OAuth at a small account service on this computer."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from kvchat.system.paths import Paths
from kvchat.tools.mcp.manager import ServerManager
from kvchat.tools.tool import ToolFailed
from tests.tools.mcp.test_http import add_server, make_server, serving


@dataclass
class Service:
    """MCP server that requires a token, and the account service that grants it."""

    grants: list[str] = field(default_factory=list)
    answer: str = "code=abc&"

    def __post_init__(self) -> None:
        self._inner = make_server().streamable_http_app()
        self._accounts = Starlette(
            routes=[
                Route("/.well-known/oauth-protected-resource{rest:path}", self._resource),
                Route("/.well-known/oauth-authorization-server", self._metadata),
                Route("/register", self._register, methods=["POST"]),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
            ]
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or scope["path"].startswith("/mcp"):
            headers = dict(scope.get("headers", ()))
            if scope["type"] == "http" and headers.get(b"authorization") != f"Bearer token{len(self.grants)}".encode():
                await Response(status_code=401, headers={"WWW-Authenticate": "Bearer"})(scope, receive, send)
            else:
                await self._inner(scope, receive, send)
        else:
            await self._accounts(scope, receive, send)

    async def _resource(self, request: Request) -> Response:
        base = str(request.base_url).rstrip("/")
        return JSONResponse({"resource": f"{base}/mcp", "authorization_servers": [base]})

    async def _metadata(self, request: Request) -> Response:
        base = str(request.base_url).rstrip("/")
        more = {"response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"]}
        ends = {"token_endpoint": f"{base}/token", "registration_endpoint": f"{base}/register"}
        return JSONResponse({"issuer": base, "authorization_endpoint": f"{base}/authorize"} | ends | more)

    async def _register(self, request: Request) -> Response:
        return JSONResponse(await request.json() | {"client_id": "kvchat-1"}, 201)

    async def _authorize(self, request: Request) -> Response:
        query = request.query_params
        return RedirectResponse(f"{query['redirect_uri']}?{self.answer}state={query['state']}")

    async def _token(self, request: Request) -> Response:
        self.grants.append(str((await request.form())["grant_type"]))
        token = {"access_token": f"token{len(self.grants)}", "token_type": "Bearer", "expires_in": 3600}
        return JSONResponse(token | {"refresh_token": "renew"})


@pytest.fixture
def browser() -> Iterator[Any]:
    """Open pages as a browser does, and keep their texts."""
    texts: list[str] = []
    threads: list[threading.Thread] = []

    def visit(url: str) -> None:
        with httpx2.Client(follow_redirects=True) as client:
            texts.append(client.get(url).text)

    def open_browser(url: str) -> None:
        threads.append(threading.Thread(target=visit, args=(url,)))
        threads[-1].start()

    open_browser.texts = texts  # type: ignore[attr-defined]
    yield open_browser
    for thread in threads:
        thread.join()


def secret_file(paths: Paths) -> Path:
    [file] = [path for path in paths.config.iterdir() if path.name != "mcp.json"]
    return file


async def test_sign_in_is_kept_and_renewed(manager: ServerManager, paths: Paths, browser: Any) -> None:
    service = Service()
    async with serving(service) as url:
        source = await add_server(manager, f"{url}/mcp")
        with pytest.raises(ToolFailed, match="The server requires you to sign in"):
            await source.tools()
        assert source.server.needs_sign_in
        assert service.grants == []
        await manager.sign_in("web", browser)
        assert not source.server.needs_sign_in
        assert (await source.call("add", {"a": 2, "b": 3})).text == "5"
        assert "token1" not in manager.file.read_text() + "".join(source.log.lines)
        await source.close()

        again = ServerManager(paths)
        await again.load()
        assert await again.source("web").tools()
        await again.close()
        assert service.grants == ["authorization_code"]

        file = secret_file(paths)
        file.write_text(json.dumps(json.loads(file.read_text()) | {"expires_at": 1.0}))
        assert await source.tools()
        assert service.grants == ["authorization_code", "refresh_token"]
        await manager.sign_out("web")
        assert not file.exists()
        with pytest.raises(ToolFailed, match="The server requires you to sign in"):
            await source.tools()
    [page] = browser.texts
    assert "You are signed in" in page


@pytest.mark.parametrize(
    ("service", "sentence"),
    [
        (Service(answer="error=access_denied&"), "No authorization code received"),
        (Service(answer="code=abc&state=forged&"), "State parameter mismatch"),
    ],
    ids=["denied", "forged"],
)
async def test_sign_in_fails(manager: ServerManager, browser: Any, service: Service, sentence: str) -> None:
    async with serving(service) as url:
        await add_server(manager, f"{url}/mcp")
        with pytest.raises(ToolFailed, match="could not be started") as failed:
            await manager.sign_in("web", browser)
    assert sentence in failed.value.detail
    assert service.grants == []
