import asyncio
import contextlib
import gc
import json
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from kvchat.engine.api import response, transport, wire
from kvchat.engine.api.client import THREAD_PARSE_BYTES, LlamaServerClient, UnchangedRows
from kvchat.engine.api.errors import (
    EngineBroken,
    EngineError,
    EngineGone,
    EngineRefused,
    EngineUnreachable,
    ForeignServer,
)
from kvchat.engine.api.wire import ChatChunk, ChatMessage, Sampling
from kvchat.engine.process.plan import free_port
from kvchat.engine.process.supervisor import EngineSupervisor
from kvchat.system.certificate import pinned_context, server_context
from tests.engine.waiting import until
from tests.engine_fixtures import FakeEngine, supervised

HELLO = [ChatMessage("system", "Be kind."), ChatMessage("user", "Hello there, fake engine!")]


@pytest.fixture
async def supervisor(fake_engine: FakeEngine) -> AsyncIterator[EngineSupervisor]:
    async with supervised(fake_engine.location, fake_engine.plan) as supervisor:
        yield supervisor


@pytest.fixture
async def client(supervisor: EngineSupervisor) -> LlamaServerClient:
    return await supervisor.ready()


@contextlib.asynccontextmanager
async def scripted(
    status: int, body: str, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[LlamaServerClient, list[str]]]:
    """Yield a client of a server that gives this response to all requests, and the heads of the requests."""
    heads: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(f"HTTP/1.1 {status} So\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

    server = await asyncio.start_server(answer, "localhost", 0, family=socket.AF_INET, ssl=tls)
    url = f"http{'s' if tls else ''}://localhost:{server.sockets[0].getsockname()[1]}"
    async with server, contextlib.aclosing(LlamaServerClient(url, "secret")) as client:
        yield client, heads


async def collect_texts(engine: LlamaServerClient, texts: list[str]) -> None:
    async for chunk in engine.chat(HELLO, Sampling()):
        texts.append(chunk.text)  # noqa: PERF401 - one by one, as they come


async def all_chunks(engine: LlamaServerClient, sampling: Sampling | None = None) -> list[ChatChunk]:
    return [chunk async for chunk in engine.chat(HELLO, sampling or Sampling())]


@pytest.mark.parametrize("omits", [None, 1])
async def test_tools_are_rendered_without_their_grammar_if_the_prompt_is_the_same(
    client: LlamaServerClient, fake_engine: FakeEngine, omits: int | None
) -> None:
    fake_engine.set(FAKE_OMITS_TOOLS=omits)
    await client.facts()
    tools = '[{"type": "function", "function": {"name": "weather"}}]'
    rendered, _tokens = await client.request_tokens(wire.prompt_body([ChatMessage("system", "", tools=tools), *HELLO]))
    assert "weather" in rendered
    *_, body = [request["body"] for request in fake_engine.requests() if request["path"] == "/apply-template"]
    assert body.get("tool_choice") == (None if omits else "none")


async def test_reply_with_progress_timings_and_end(client: LlamaServerClient, fake_engine: FakeEngine) -> None:
    facts = await client.facts()
    assert (facts.context_size, facts.model_path) == (fake_engine.plan.context_size, str(fake_engine.plan.model))
    chunks = await all_chunks(client)
    assert "".join(chunk.text for chunk in chunks) == "You said: Hello there, fake engine!"
    progress = [chunk.progress for chunk in chunks if chunk.progress]
    prompt = len(await client.prompt_tokens(HELLO))
    assert [p.processed for p in progress] == [*range(0, prompt, 64), prompt]
    assert chunks[-1].finish_reason == "stop"
    assert (chunks[-1].timings.cache_n, chunks[-1].timings.prompt_tokens) == (0, prompt)
    await client.prefill(await client.prompt_tokens(HELLO))
    assert (await all_chunks(client))[-1].timings.prompt_n == 1  # all but the last token, whose logits are needed
    fake_engine.set(FAKE_THINKING="Let me see.")
    chunks = await all_chunks(client, Sampling(max_tokens=8, temperature=0.0, seed=7))
    assert "".join(chunk.text for chunk in chunks) == "You said"
    assert "".join(chunk.thinking for chunk in chunks) == "Let me see."
    assert chunks[-1].finish_reason == "length"


async def test_long_ids_are_parsed_in_another_thread(
    client: LlamaServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, threads = wire.parse_tokens, dict[bool, threading.Thread]()

    def record_thread(answer: bytes) -> tuple[int, ...] | None:
        threads[len(answer) > THREAD_PARSE_BYTES] = threading.current_thread()
        return parse(answer)

    monkeypatch.setattr(wire, "parse_tokens", record_thread)
    assert await client.count_tokens("Hello") < await client.count_tokens("river and garden " * 10_000)
    assert threads[False] is threading.current_thread()
    assert threads[True] is not threading.current_thread()


async def test_slot_round_trip(client: LlamaServerClient, fake_engine: FakeEngine) -> None:
    tokens = await client.prompt_tokens(HELLO)
    await client.prefill(tokens)
    saved = await client.save_slot("a.bin")
    assert saved.tokens == len(tokens)
    assert saved.file_bytes == (fake_engine.plan.slot_path / "a.bin").stat().st_size
    await client.erase_slot()
    assert (await client.save_slot("b.bin")).tokens == 0
    assert (await client.restore_slot("a.bin")).tokens == len(tokens)
    for name, message in (("nothing.bin", "Unable to restore"), ("../a", "Invalid filename")):
        with pytest.raises(EngineRefused, match=message) as refusal:
            await client.restore_slot(name)
        assert (refusal.value.status, refusal.value.kind) == (400, "invalid_request_error")


async def test_wrong_key_and_too_long_prompt_are_refused(client: LlamaServerClient) -> None:
    with pytest.raises(EngineRefused) as refusal:
        await client.prefill([10] * 5000)
    assert refusal.value.kind == "exceed_context_size_error"
    async with contextlib.aclosing(LlamaServerClient(str(client.base_url), "wrong")) as stranger:
        with pytest.raises(EngineRefused) as refusal:
            await stranger.facts()
        assert refusal.value.status == 401
        with pytest.raises(ForeignServer):
            await stranger.verify()


@pytest.mark.parametrize(
    ("phase", "act"),
    [
        ("prefill", lambda client: all_chunks(client)),
        ("prefill", lambda client: client.prefill([1, 2, 3])),
        ("stream", lambda client: all_chunks(client)),
        ("save", lambda client: client.save_slot("a.bin")),
        ("restore", lambda client: client.restore_slot("a.bin")),
    ],
)
async def test_dying_engine_is_gone(
    client: LlamaServerClient, fake_engine: FakeEngine, phase: str, act: Callable[[LlamaServerClient], object]
) -> None:
    fake_engine.set(FAKE_DIE_DURING=phase)
    with pytest.raises(EngineGone):
        await act(client)  # type: ignore[misc]


@pytest.mark.parametrize("delay", [0, 0.001])
async def test_output_of_killed_engine_is_complete(
    client: LlamaServerClient, fake_engine: FakeEngine, delay: float
) -> None:
    """Including output still unread when its process was found dead and the connections were dropped."""
    text = "".join(f"word{i} " for i in range(60))
    fake_engine.set(FAKE_REPLY=text, FAKE_TOKEN_DELAY=delay, FAKE_DIE_DURING="stream", FAKE_DIE_HOW="kill")
    texts: list[str] = []
    with pytest.raises(EngineGone):
        await collect_texts(client, texts)
    assert "".join(texts) == text[: text.index(" word30")]


async def test_first_word_is_immediate_and_the_rest_batched(
    fake_engine: FakeEngine, client: LlamaServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response, "READ_INTERVAL_S", 3600)
    fake_engine.set(FAKE_REPLY="word " * 1000, FAKE_TOKEN_DELAY=0.005)
    async with contextlib.aclosing(client.chat(HELLO, Sampling())) as chunks:
        assert await anext(chunk.text async for chunk in chunks if chunk.text) == "word"
    monkeypatch.setattr(response, "READ_INTERVAL_S", 0.5)
    fake_engine.set(FAKE_REPLY="word " * 40, FAKE_TOKEN_DELAY=0.005)
    came = [time.monotonic() async for chunk in client.chat(HELLO, Sampling()) if chunk.text]
    assert len(came) == 41
    assert max(later - sooner for sooner, later in pairwise(came)) > 0.4


async def test_closing_a_reply_drops_the_request(client: LlamaServerClient, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_REPLY="word " * 10_000, FAKE_TOKEN_DELAY=0.005)
    reply = client.chat(HELLO, Sampling())
    async for chunk in reply:
        if chunk.text:
            break
    await reply.aclose()
    saved = await client.save_slot("a.bin")  # it waits for the slot to be free
    assert saved.tokens < 5_000


@pytest.mark.parametrize("end", ["whole", "dropped", "refused"])
async def test_generators_are_closed(client: LlamaServerClient, fake_engine: FakeEngine, end: str) -> None:
    """Qt's event loop, unlike asyncio's, does not close them: each would end with a printed warning."""
    left: list[object] = []
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(finalizer=left.append)
    try:
        fake_engine.set(FAKE_BREAK_STREAM="Compute error." if end == "refused" else None)
        with contextlib.suppress(EngineBroken):
            async with contextlib.aclosing(client.chat(HELLO, Sampling())) as chunks:
                async for chunk in chunks:
                    if chunk.text and end == "dropped":
                        break
        gc.collect()
    finally:
        sys.set_asyncgen_hooks(*hooks)
    assert left == []


async def test_no_server_is_gone_and_no_proxy_is_used(
    client: LlamaServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setitem(os.environ, name, nowhere)
    async with contextlib.aclosing(LlamaServerClient(str(client.base_url), client.key)) as fresh:
        assert await fresh.is_loaded()
    async with contextlib.aclosing(LlamaServerClient(nowhere, "key")) as nobody:
        with pytest.raises(EngineGone):
            await nobody.is_loaded()


async def test_server_without_key_check_gets_no_key() -> None:
    async with scripted(200, '{"status": "ok"}') as (client, heads):
        assert await client.is_loaded()
        with pytest.raises(ForeignServer):
            await client.verify()
    assert len(heads) == 2
    assert all(client.key not in head for head in heads)


async def test_https_needs_a_trusted_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "certificate.pem"
    tls, _fingerprint = server_context(file)
    body = 'data: {"choices": [{"delta": {"content": "Hello"}}]}\n\ndata: [DONE]\n\n'
    async with scripted(200, body, tls) as (client, heads):
        with pytest.raises(EngineGone):
            await all_chunks(client)
        monkeypatch.setattr(transport, "_tls_context", lambda: pinned_context(file.read_text()))
        assert [chunk.text for chunk in await all_chunks(client)] == ["Hello"]
        assert "Authorization: Bearer secret" in heads[0]


async def test_connection_to_a_paired_kvchat_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "certificate.pem"
    tls, _fingerprint = server_context(file)
    served, is_silent = list[int](), False

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = max(served, default=0) + 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            while await reader.readuntil(b"\r\n\r\n"):
                served.append(number)
                if not is_silent:
                    writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{"status": "ok"}')

    server = await asyncio.start_server(answer, "localhost", 0, family=socket.AF_INET, ssl=tls)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
    pinned = pinned_context(file.read_text())
    async with contextlib.aclosing(LlamaServerClient(url, "key", tls=pinned, response_s=2.0)) as client:
        assert await client.is_loaded()
        await asyncio.gather(client.get("/props"), client.get("/props"))
        assert sorted(served) == [1, 1, 2], "the first one is used again, but not for two requests at once"
        with monkeypatch.context() as patched:
            patched.setattr(transport, "_SPARE_S", -1.0)
            await client.get("/props")
        assert served[-1] == 3, "the server may have closed a connection that was idle for long"
        server.close()
        is_silent = True
        with pytest.raises(EngineUnreachable):
            await client.get("/props")
        assert served[-1] == 3, "the request was sent on the kept connection, without an answer"


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [(200, "data: {}\n\n", EngineGone), (200, "<html>", EngineGone), (502, "bad gateway", EngineRefused)],
)
async def test_invalid_replies(status: int, body: str, error: type[Exception]) -> None:
    async with scripted(status, body) as (client, _):
        with pytest.raises(error):
            await all_chunks(client)


@pytest.mark.parametrize(
    "vectors",
    [
        "",
        "[1, 2]",
        "[1, 2], [1, 2], [1, 2]",
        "[1, 2], [1]",
        "[1, 2], [0, 0]",
        "[1, 2], [1, NaN]",
        "[], []",
        "[1, 2], 3",
    ],
)
async def test_invalid_vectors(vectors: str) -> None:
    items = json.loads(f"[{vectors}]")
    for number, vector in enumerate(items):
        items[number] = {"index": number, "embedding": vector}
    async with scripted(200, json.dumps({"data": items})) as (client, _):
        with pytest.raises(EngineRefused, match="The response is invalid"):
            await client.embed(["heron", "stork"])


async def test_stop_in_mid_reply_is_gone(supervisor: EngineSupervisor, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_TOKEN_DELAY=0.05, FAKE_REPLY="word " * 1000)
    texts: list[str] = []
    listening = asyncio.create_task(collect_texts(await supervisor.ready(), texts))
    await until(lambda: any(texts))
    await supervisor.close()
    with pytest.raises(EngineGone):
        await listening


async def test_cancelled_request_leaves_no_connection() -> None:
    confirm = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            confirm.set()
            await reader.read()  # until the client disconnects

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = LlamaServerClient(f"http://127.0.0.1:{port}", "key")
    steps, done = 0, False
    while not done:
        asking = asyncio.ensure_future(client.facts())
        for _ in range(steps):
            await asyncio.sleep(0)
        done, steps = asking.done(), steps + 1
        asking.cancel()
        await asyncio.wait([asking])
    await until(lambda: not [c for c in psutil.Process().net_connections() if c.raddr and c.raddr.port == port])
    assert confirm.is_set()
    await client.aclose()
    server.close()


def timings_event(cached: int) -> str:
    numbers = f'"cache_n": {cached}, "prompt_n": 1, "prompt_ms": 1.0, "predicted_n": 0, "predicted_ms": 0.0'
    return f'data: {{"content": "", "stop": true, "timings": {{{numbers}}}}}\n\n'


@pytest.mark.parametrize(("cached", "count"), [(100, 100), (150, 100), (40, 40), (0, 0)])
async def test_reused_rows_are_unchanged(cached: int, count: int) -> None:
    async with scripted(200, timings_event(cached)) as (client, _):
        client.rows.mark_saved(100)
        await client.with_template({"thinking": True}).prefill([1, 2, 3])
        assert client.rows.count == count
    shared = UnchangedRows(exclusive=False)  # if others send requests, nothing is ever known
    shared.mark_saved(100)
    assert shared.count == 0


async def test_failed_request_invalidates_rows() -> None:
    for status in (200, 500):
        async with scripted(status, "data: {}\n\n") as (client, _):
            for change in (client.prefill([1, 2]), client.erase_slot(), client.restore_slot("a.slot")):
                client.rows.mark_saved(100)
                with contextlib.suppress(EngineError):
                    await change
                assert client.rows.count == 0
