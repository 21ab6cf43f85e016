"""Web pages and searches, from stand-in servers on this computer; attempts to reach private addresses."""

import asyncio
import contextlib
import gzip
import json
import socket
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

import httpcore2
import pytest

from kvchat.chat.attachments import document_from_bytes
from kvchat.tools.built_in import public_web
from kvchat.tools.built_in.public_web import MAX_BYTES, PublicNetwork, fetch, is_public
from kvchat.tools.built_in.web import MAX_RESULTS, fetch_tool, search_tool
from kvchat.tools.tool import ToolFailed

PUBLIC = "93.184.216.34"
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]]


def respond(body: bytes | str = b"", *headers: str, status: str = "200 OK") -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str) -> None:
        data = body.encode() if isinstance(body, str) else body
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(data)}", *headers, "", ""]
        writer.write("\r\n".join(lines).encode() + data)

    return answer


class Web:
    """A stand-in for the public web: names with their addresses, all public ones answered by one local server."""

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {}
        self.answers: dict[str, Answer] = {}  # by path
        self.connected: list[str] = []  # addresses
        self.requests: list[str] = []
        self.port = 0

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        if host in self.names:
            return self.names[host]
        try:  # as getaddrinfo reads numbers: decimal, octal, hexadecimal
            return [socket.inet_ntoa(socket.inet_aton(host))]
        except OSError:
            return [host] if ":" in host else [PUBLIC]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.requests.append(head)
        target = head.split()[1]
        with contextlib.suppress(ConnectionError):
            await self.answers.get(target.partition("?")[0], respond(status="404 Not Found"))(reader, writer, target)
            await writer.drain()
        writer.close()

    @property
    def network(self) -> PublicNetwork:
        return PublicNetwork(self.resolve, _Local(self))

    async def fetch(self, url: str) -> public_web.Page:
        return await fetch(url, self.network)


class _Local(httpcore2.AsyncNetworkBackend):
    def __init__(self, web: Web) -> None:
        self._web = web

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        self._web.connected.append(host)
        if host == "93.184.216.35":
            raise httpcore2.ConnectError("refused")
        return await httpcore2.AnyIOBackend().connect_tcp("127.0.0.1", self._web.port)


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    web = Web()
    server = await asyncio.start_server(web.serve, "127.0.0.1", 0)
    web.port = server.sockets[0].getsockname()[1]
    yield web
    server.close()


@pytest.fixture
def page_of(web: Web, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[str]]:
    """Call the tool as a model does."""

    async def call(url: str, **arguments: Any) -> str:
        monkeypatch.setattr(public_web, "PublicNetwork", lambda: web.network)
        tool = fetch_tool(lambda name, data, format: document_from_bytes(name, data, format).text)
        return (await tool.run({"url": url, **arguments})).text

    return call


async def test_a_page_is_returned_as_text(web: Web, page_of: Callable[..., Awaitable[str]]) -> None:
    html = "<html><nav>Menu</nav><h1>Herons</h1><p>They wait.</p><script>x</script><footer>Imprint</footer></html>"
    web.answers["/page"] = respond(html, "Content-Type: text/html; charset=utf-8")
    web.answers["/old"] = respond("", "Location: /page", status="301 Moved Permanently")
    assert await page_of("http://herons.example/old#top") == "http://herons.example/page\n\n# Herons\n\nThey wait."
    assert web.requests[-1].startswith("GET /page HTTP/1.1\r\nHost: herons.example\r\n")
    web.answers["/only-nav"] = respond("<nav>Menu", "Content-Type: text/html")
    assert (await page_of("http://herons.example/only-nav")).endswith("Menu")


async def test_encodings_and_types(web: Web, page_of: Callable[..., Awaitable[str]]) -> None:
    latin = "<p>Straße".encode("latin-1")
    web.answers["/latin"] = respond(latin, "Content-Type: text/html; charset=ISO-8859-1")
    web.answers["/gzip"] = respond(gzip.compress(b"packed"), "Content-Type: text/plain", "Content-Encoding: gzip")
    web.answers["/json"] = respond('{"a": 1}', "Content-Type: application/ld+json")
    web.answers["/none"] = respond("plain")
    for path, text in (("latin", "Straße"), ("gzip", "packed"), ("json", '{"a": 1}'), ("none", "plain")):
        assert (await page_of(f"http://site.example/{path}")).partition("\n\n")[2] == text
    web.answers["/picture"] = respond(b"\x89PNG\0", "Content-Type: image/png")
    web.answers["/liar"] = respond(b"\x89PNG\0\0", "Content-Type: text/plain")
    web.answers["/pdf"] = respond(b"\x89PNG\0\0", "Content-Type: application/pdf")
    for path, reason in (("picture", "is not text"), ("liar", "No text could be read"), ("pdf", "damaged")):
        with pytest.raises(ToolFailed, match=reason):
            await page_of(f"http://site.example/{path}")


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1"),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "2002:7f00:1::", "2002:a00:1::", "64:ff9b::7f00:1"),
        *("64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1", "2001:0:7f00:1::", "::ffff:0:127.0.0.1"),
    ],
)
async def test_private_addresses_are_refused(web: Web, address: str) -> None:
    assert not is_public(address)
    web.names["trap.example"] = [address]
    with pytest.raises(ToolFailed, match="not a public address"):
        await web.fetch("http://trap.example/")
    assert web.connected == []


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.1", "2130706433", "017700000001", "0x7f000001", "0177.0.0.1", "0", "[::1]"),
        *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "user@127.0.0.1", "site.example@127.0.0.1", "127.0.0.1%2f@[::1]"),
    ],
)
async def test_all_ways_to_write_this_computer_are_refused(web: Web, host: str) -> None:
    with pytest.raises(ToolFailed):
        await web.fetch(f"http://{host}/")
    assert web.connected == []


def test_public_addresses_are_allowed_but_not_those_of_this_computer(monkeypatch: pytest.MonkeyPatch) -> None:
    public = (PUBLIC, "2606:4700::1111", f"::ffff:{PUBLIC}", "64:ff9b::5db8:d822")
    assert all(map(is_public, public))
    own = public_web.ipaddress.ip_address("2606:4700::1111")
    monkeypatch.setattr(public_web, "_own_addresses", lambda: {own})
    assert not is_public("2606:4700::1111")


async def test_names_of_this_computer_are_refused_by_the_real_resolver() -> None:
    for host in ("localhost", "2130706433", "127.1"):
        with pytest.raises(ToolFailed):
            await fetch(f"http://{host}:9/")
    assert public_web._own_addresses() >= {public_web.ipaddress.ip_address("127.0.0.1")}


async def test_the_checked_address_is_the_one_connected_to(web: Web) -> None:
    """DNS rebinding: the second answer for the name would be private."""
    answers = [[PUBLIC], ["127.0.0.1"]]
    web.answers["/"] = respond("fine", "Content-Type: text/plain")

    async def resolve(host: str, port: int) -> Sequence[str]:
        return answers.pop(0)

    network = PublicNetwork(resolve, _Local(web))
    assert (await fetch("http://rebind.example/", network)).data == b"fine"
    assert web.connected == [PUBLIC]
    with pytest.raises(ToolFailed, match="not a public address"):
        await fetch("http://rebind.example/", network)
    assert web.connected == [PUBLIC]


async def test_of_several_addresses_only_public_ones_are_tried(web: Web) -> None:
    web.names["mixed.example"] = ["10.0.0.1", "93.184.216.35", "::1", PUBLIC]
    web.answers["/"] = respond("fine")
    assert (await web.fetch("http://mixed.example/")).data == b"fine"
    assert web.connected == ["93.184.216.35", PUBLIC]


@pytest.mark.parametrize(
    "location",
    [
        *("http://127.0.0.1/", "http://localhost/", "//169.254.169.254/latest", "http://[::ffff:a00:1]/"),
        *("file:///etc/passwd", "ftp://site.example/", "data:text/plain,x", "gopher://127.0.0.1/", "javascript:1"),
        *("http://", "http://[/", "/again", "http://\x7f/"),
    ],
)
async def test_redirects_are_checked_again(web: Web, location: str) -> None:
    web.names["localhost"] = ["127.0.0.1"]
    for path in ("/", "/again"):
        web.answers[path] = respond("", f"Location: {location}", status="302 Found")
    with pytest.raises(ToolFailed):
        await web.fetch("http://site.example/")
    assert set(web.connected) == {PUBLIC}


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/", "site.example", "", "http://", "https:///x", "\0"])
async def test_other_schemes_and_nonsense_are_refused(web: Web, url: str) -> None:
    with pytest.raises(ToolFailed):
        await web.fetch(url)
    assert web.connected == []


async def test_proxies_are_not_used(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    web.answers["/"] = respond("fine")
    assert (await web.fetch("http://site.example/")).data == b"fine"


async def test_bodies_without_end_and_bombs_are_refused(web: Web) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 100_000)
            await writer.drain()

    async def endless_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-Header: x\r\n" * 1000)
            await writer.drain()

    bomb = zlib.compress(b"\0" * (10 * MAX_BYTES), wbits=31)
    web.answers |= {
        "/endless": endless,
        "/head": endless_head,
        "/bomb": respond(bomb, "Content-Encoding: gzip"),
        "/bombs": respond(gzip.compress(bomb), "Content-Encoding: gzip, gzip"),
        "/damaged": respond(b"none", "Content-Encoding: gzip"),
        "/brotli": respond(b"none", "Content-Encoding: br"),
        "/short": respond(b"", "Content-Length: 10"),
    }
    reasons = {"/endless": "larger than", "/bomb": "larger than", "/bombs": "compressed with gzip, gzip"}
    for path in web.answers:
        with pytest.raises(ToolFailed, match=reasons.get(path, "could not be fetched")):
            await web.fetch(f"http://site.example{path}")


async def test_a_slow_server_has_a_time_limit(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_web, "TIMEOUT_S", 0.3)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str) -> None:
        await reader.read()

    web.answers |= {"/drip": drip, "/silent": silent}
    for path in ("/drip", "/silent"):
        with pytest.raises(ToolFailed, match=r"took longer than|ReadTimeout"):
            await web.fetch(f"http://site.example{path}")


async def test_stop_ends_the_request(web: Web) -> None:
    arrived, ended = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str) -> None:
        arrived.set()
        await reader.read()
        ended.set()

    web.answers["/"] = silent
    request = asyncio.ensure_future(web.fetch("http://site.example/"))
    await arrived.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await ended.wait()


async def test_web_search_asks_the_users_server(web: Web) -> None:
    address = ""
    tool = search_tool(lambda: address)
    assert not tool.is_offered()
    with pytest.raises(ToolFailed, match="No web search is set up"):
        await tool.run({"query": "herons"})
    address = f"http://127.0.0.1:{web.port}/searx/"
    assert tool.is_offered()
    results = [{"title": f"Page {n}", "url": f"https://x.example/{n}", "content": "a\nb" * 1000} for n in range(30)]
    web.answers["/searx/search"] = respond(json.dumps({"results": ["nonsense", *results, {"title": None}]}))
    found = (await tool.run({"query": "herons & co"})).text.split("\n\n")
    assert web.requests[-1].split()[1] == "/searx/search?q=herons+%26+co&format=json"
    assert len(found) == MAX_RESULTS
    assert found[0].splitlines()[:2] == ["Page 0", "https://x.example/0"]
    assert len(found[0]) < 600
    for answer, reason in (
        (respond("no", status="403 Forbidden"), "search.formats"),
        (respond("<html>"), "invalid answer"),
        (respond("[" * 100_000), "invalid answer"),
        (respond("[]"), "invalid answer"),
        (respond('{"results": 3}'), "invalid answer"),
        (respond("", "Location: http://10.0.0.1/", status="302 Found"), "status 302"),
        (respond(b" " * 5_000_000), "larger than"),
    ):
        web.answers["/searx/search"] = answer
        with pytest.raises(ToolFailed, match=reason):
            await tool.run({"query": "herons"})
    web.answers["/searx/search"] = respond('{"results": []}')
    assert (await tool.run({"query": "herons"})).text == "The search found nothing."
    for address in ("http://127.0.0.1:9", "nonsense", "file:///etc"):  # noqa: B007
        with pytest.raises(ToolFailed, match="could not be reached"):
            await tool.run({"query": "herons"})
