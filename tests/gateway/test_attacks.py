"""Hostile requests: heads and bodies that no client sends, while the gateway goes on answering others."""

import asyncio
import contextlib
import copy
import json
import random
import socket
import sys
from asyncio.subprocess import PIPE
from typing import Any

import httpx2
import pytest

from kvchat.gateway import gateway as app
from kvchat.gateway import keys
from kvchat.gateway import server as listening
from kvchat.gateway.dialects import replies
from kvchat.gateway.dialects.request import Dialect, RequestRefused, parse_request
from kvchat.gateway.keys import Keys
from tests.engine_fixtures import FakeEngine
from tests.gateway.corpus import REQUESTS
from tests.gateway.servers import RunningGateway, chat_body

HOST = b"Host: localhost\r\n"
GET = b"GET /v1/models HTTP/1.1\r\n" + HOST
POST = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST
HEADS: dict[str, tuple[bytes, set[int]]] = {
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", {400}),
    "two hosts": (GET + b"Host: evil.example\r\n\r\n", {400}),
    "another host": (b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", {403}),
    "a host with a user": (b"GET /health HTTP/1.1\r\nHost: localhost@evil.example\r\n\r\n", {403}),
    "a host with two ports": (b"GET /health HTTP/1.1\r\nHost: evil.example:8737:localhost\r\n\r\n", {403}),
    "a host with a path": (b"GET /props HTTP/1.1\r\nHost: 127.0.0.1:80/slots?x=\r\n\r\n", {403}),
    "a proxy's request": (b"GET http://evil.example/v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", {403}),
    "no page's origin": (POST + b"Origin: null\r\nContent-Length: 2\r\n\r\n{}", {403}),
    "a page without an origin": (GET + b"Sec-Fetch-Site: cross-site\r\n\r\n", {403}),
    "a page that asks first": (b"OPTIONS / HTTP/1.1\r\n" + HOST + b"Origin: https://evil.example\r\n\r\n", {403}),
    "two lengths": (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", {400}),
    "no length": (POST + b"Content-Length: -1\r\n\r\n{}", {400}),
    "a length that is none": (POST + b"Content-Length: 1e3\r\n\r\n{}", {400}),
    "a length beyond all bounds": (POST + b"Content-Length: 99999999999\r\n\r\n{", {413}),
    "a chunk beyond all bounds": (POST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffffffffff\r\n{", {400}),
    "a coding nobody knows": (POST + b"Transfer-Encoding: zip\r\n\r\n{}", {400, 501}),
    "a zero in it": (GET + b"X: a\0b\r\n\r\n", {400}),
    "a head without end": (GET + b"X: " + b"a" * 200_000, {400, 431}),
    "another protocol": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 403}),
    "a socket": (GET + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n", {200, 400}),
    "another method": (b"TRACE /v1/models HTTP/1.1\r\n" + HOST + b"\r\n", {405}),
}  # fmt: skip
BODIES = {
    "not JSON": b'{"messages": "unspeakable',
    "no object": b"[]",
    "another encoding": json.dumps(chat_body("unspeakable")).encode("utf-16"),
    "no encoding": b'{"messages": [{"role": "user", "content": "unspeakable \xff"}]}',
    "no end of brackets": b'{"messages": ' + b"[" * 100_000,
    "no end of parts": b'{"messages": [' + b"{}," * 200_000 + b"{}]}",
    "no end of a number": b'{"messages": [], "max_tokens": ' + b"9" * 100_000 + b"}",
}

QUIET = {
    "nothing": b"",
    "half a head": POST + b"Content-Le",
    "half a body": POST + b"Content-Length: 100\r\n\r\n{",
    "a request answered at once": b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n",
}
CROWD = """
import socket, sys
said, held = bytes.fromhex(sys.stdin.readline()), []
for _ in range(int(sys.argv[2])):
    held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
    held[-1].sendall(said)
print("all are there", flush=True)
sys.stdin.read()
"""


async def status_of(server: RunningGateway, data: bytes) -> int:
    """Send these bytes; return the status of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    with contextlib.closing(writer):
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
        return int((await reader.readline()).split()[1])


async def test_malformed_heads_are_refused(server: RunningGateway, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = {}
    for name, (data, expected) in HEADS.items():
        async with asyncio.timeout(30):
            if (status := await status_of(server, data)) not in expected:
                wrong[name] = status
    assert not wrong
    assert (await server.chat("Hello")).status_code == 200
    assert not server.runtime.api_server.active_requests
    assert "".join(capfd.readouterr()) == ""


async def test_malformed_bodies_are_refused(server: RunningGateway, capfd: pytest.CaptureFixture[str]) -> None:
    for name, body in BODIES.items():
        for path in ("/v1/chat/completions", "/v1/messages"):
            answer = await server.client.post(path, content=body)
            assert answer.status_code == 400, name
            assert answer.json()["error"]["type"] == "invalid_request_error"
            assert "unspeakable" not in answer.text
    assert not server.runtime.api_server.recent_requests
    assert "".join(capfd.readouterr()) == ""


@pytest.mark.parametrize("count", [2, 2.0, True, "2", 0, [2]])
async def test_any_answer_count_takes_the_exclusive_lock(
    server: RunningGateway, fake_engine: FakeEngine, count: Any
) -> None:
    """The engine reads 2.0 as 2, and puts the second answer into a slot that was not acquired."""
    for name in ("n", "n_cmpl"):
        await server.chat("Hello")
        await server.settled()
        assert server.runtime.chat.slots.owners()
        await server.chat("Another program's words", headers={"user-agent": "another/1"}, **{name: count})
        await server.settled()
        assert not server.runtime.chat.slots.owners(), "it may have overwritten any slot"
        sent = [sent["body"] for sent in fake_engine.requests() if sent["path"] == "/v1/chat/completions"][-1]
        assert sent["cache_prompt"] is False, "nothing of another program's slot is reused"
        refused = await server.client.post("/v1/messages", json=chat_body("Hello") | {name: count})
        assert refused.status_code == 400
        assert refused.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("prompt", [[2**40], [5, -3], [[7], [2**31]], [2**31, "words"]])
async def test_impossible_token_ids_are_refused(server: RunningGateway, fake_engine: FakeEngine, prompt: Any) -> None:
    answer = await server.client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2})
    assert answer.status_code == 400
    assert "token ids" in answer.json()["error"]["message"]
    assert not fake_engine.requests()


def test_body_cannot_change_how_its_slot_is_used() -> None:
    for prompt in (["Hello", "And you?"], [{"prompt_string": "Hello"}, {"prompt_string": "And you?"}]):
        assert parse_request(Dialect.COMPLETION, json.dumps({"prompt": prompt}).encode()).needs_several_slots
    raw = json.dumps({"messages": [], "n_cache_reuse": 1, "cache_prompt": False}).encode()
    sent = json.loads(parse_request(Dialect.CHAT, raw).body_for_slot(2, reuse=True))
    assert (sent["n_cache_reuse"], sent["cache_prompt"], sent["id_slot"]) == (0, True, 2), "chunks are never shifted"
    with pytest.raises(RequestRefused, match="LoRA"):
        parse_request(Dialect.CHAT, b'{"messages": [], "lora": [{"id": 0, "scale": 1.0}]}').check()
    parse_request(Dialect.CHAT, b'{"messages": [], "lora": []}').check()


@pytest.mark.parametrize("seed", range(2))
async def test_bodies_of_any_shape(server: RunningGateway, seed: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Values of the wrong type anywhere: the engine reports them, and nothing in kvchat fails."""
    rng, clients = random.Random(seed), asyncio.Semaphore(8)

    async def ask(path: str, body: dict[str, Any]) -> None:
        async with clients:
            answer = await server.client.post(path, content=json.dumps(body))
        assert "made a mistake" not in answer.text, body
        assert answer.status_code < 500 or answer.status_code in (501, 502), (answer.text, body)

    await server.chat("Hello")
    requests = [(path, mutated(copy.deepcopy(body), rng)) for path, body in REQUESTS.values()]
    await asyncio.gather(*(ask(path, body | {"max_tokens": 2}) for path, body in requests))
    await server.settled()
    assert not server.runtime.api_server.active_requests
    assert (await server.chat("Hello")).status_code == 200
    assert "Traceback" not in "".join(capfd.readouterr())


def mutated(value: Any, rng: random.Random) -> Any:
    """Replace one or two values by odd ones."""
    places = list(places_in(value))
    odd = ("", "\ud800", "\0", "x" * 5000, [], {}, [[]], [None], {"type": 7}, {"type": "text"})
    for holder, key in rng.sample(places, min(len(places), rng.randint(1, 2))):
        holder[key] = rng.choice((None, True, -1, 1e300, *odd))
    return value


def places_in(value: Any) -> Any:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(inner, dict | list):
            yield from places_in(inner)


async def test_slow_bodies_block_nobody(
    server: RunningGateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """This holds for any number of bodies and any declared size. Their total size is limited."""
    slow = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(40)]
    for _, writer in slow:
        writer.write(POST + b"Content-Length: 60000000\r\n\r\n{")
    async with asyncio.timeout(30):
        assert (await server.chat("Hello")).status_code == 200
    monkeypatch.setattr(app, "MAX_TOTAL_BODY_BYTES", 50_000)
    for _, writer in slow[:5]:
        writer.write(b" " * 9_000)
    while (refused := await server.chat("x" * 20_000)).status_code != 429:  # once those have arrived
        assert refused.status_code == 400
    assert int(refused.headers["retry-after"]) > 0
    for _, writer in slow[:5]:
        writer.transport.abort()
    while (await server.chat("Hello")).status_code == 429:
        pass
    await server.runtime.api_server.close()
    for reader, writer in slow[5:]:
        with contextlib.suppress(ConnectionError):
            assert not await reader.read()
        writer.close()
    assert not caplog.records, "no warning is logged"


@pytest.mark.parametrize("data", sorted(QUIET))
async def test_idle_connections_keep_nobody_out(server: RunningGateway, fake_engine: FakeEngine, data: str) -> None:
    """A program holds more connections than allowed; other clients are answered to the end."""
    fake_engine.set(FAKE_HOLD_DURING="stream")
    arguments = str(server.port), str(listening.MAX_CONNECTIONS + 50)
    async with server.client.stream("POST", "/v1/chat/completions", json=chat_body("Hello", stream=True)) as before:
        crowd = await asyncio.create_subprocess_exec(sys.executable, "-c", CROWD, *arguments, stdin=PIPE, stdout=PIPE)
        crowd.stdin.write(QUIET[data].hex().encode() + b"\n")
        assert (await crowd.stdout.readline()).split() == [b"all", b"are", b"there"]
        async with httpx2.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as others:
            for _ in range(3):
                assert (await others.get("/v1/models")).status_code == 200
            assert (await others.post("/tokenize", json={"content": "x" * 300_000})).status_code == 200
        fake_engine.set(FAKE_HOLD_DURING=None)
        text = (await before.aread()).decode()
        crowd.stdin.close()
        await crowd.wait()
    assert text.rstrip().splitlines()[-1].startswith(": kvchat ")


async def test_clients_that_read_nothing_keep_nobody_out(
    server: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their responses are larger than the socket buffers."""
    monkeypatch.setattr(listening, "MAX_CONNECTIONS", 3)
    body = json.dumps({"content": "x" * 3_000_000}).encode()
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as held:
        for _ in range(3):
            connection = held.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.setblocking(False)
            data = b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body
            await loop.sock_sendall(connection, data)
            assert await loop.sock_recv(connection, 1)
        async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as others, asyncio.timeout(60):
            status = 0
            while status != 200:  # once the system's buffers for the answers are full
                with contextlib.suppress(httpx2.TransportError):
                    status = (await others.get("/v1/models")).status_code


def test_large_body_is_parsed_without_blocking_other_threads() -> None:
    """Python switches threads between its own calls, never during one written in C."""
    messages = [{"role": "user", "content": "Of the river."}] * 10_000
    body = {"messages": messages, "prompt": list(range(100_000))}
    small, large = (json.dumps(content).encode() for content in ({"messages": messages[:9]}, body))
    assert parse_request(Dialect.CHAT, large).body == body
    calls = []
    for raw in (small, large):
        calls.append(0)

        def count(*_: Any) -> None:
            calls[-1] += 1

        sys.setprofile(count)
        try:
            parse_request(Dialect.CHAT, raw)
        finally:
            sys.setprofile(None)
    assert calls[0] < 100 < 10_000 < calls[1]


async def test_prompt_longer_than_the_context_is_refused_by_the_engine(server: RunningGateway) -> None:
    answer = await server.chat("x" * 150_000)
    assert answer.status_code == 400
    assert "exceed" in answer.json()["error"]["type"]
    assert server.last.found_tokens is None, "kvchat looks nothing up for it"


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    compare = keys.hmac.compare_digest
    monkeypatch.setattr(
        keys.hmac, "compare_digest", lambda ours, theirs: bool(compared.append(ours)) or compare(ours, theirs)
    )
    many = Keys({f"program-{number}": f"the-key-of-{number}" for number in range(5)})
    for shown in ("the-key-of-0", "the-key-of-4", "another", "", "the-key"):
        compared.clear()
        many.program_of(shown)
        assert len(compared) == 5


async def test_response_size_is_limited(
    server: RunningGateway, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes of a request can ask for gigabytes, in one piece or as one event of a stream."""
    monkeypatch.setattr(replies, "MAX_PARSED", 2_000)
    fake_engine.set(FAKE_REPLY="x" * 3_000)
    refused = await server.chat("Hello", max_tokens=3_000)
    assert refused.status_code == 502
    assert "too long" in refused.text
    fake_engine.set(FAKE_REPLY="Hello")
    assert (await server.chat("Hello")).status_code == 200
