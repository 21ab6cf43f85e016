"""The gateway on the fake engine: refusals, and what can go wrong between two programs."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvchat.chat.record.messages import MessageState
from kvchat.errors import KvchatError
from kvchat.gateway import checks, runner
from kvchat.gateway import gateway as gateway_module
from kvchat.gateway import server as listening
from kvchat.gateway.keys import Keys
from kvchat.gateway.pending_request import PendingRequest
from kvchat.gateway.records import MAX_MODEL_NAME, Stage
from kvchat.kvstore.savepoint import Tokens, program_of
from kvchat.session import lease, prefill
from kvchat.session import slot as slot_module
from kvchat.session.restore_cost import PrefillSample
from kvchat.settings import Settings
from kvchat.system.owner import owner_of
from tests.engine.waiting import until
from tests.engine_fixtures import FakeEngine
from tests.gateway.servers import WORDS, RunningGateway, chat_body, events, receipt_in, reply_in, running_gateway
from tests.library.gguf_files import LLAMA, write_gguf
from tests.store_contents import StoreContents
from tests.systems import not_on_windows

CHAT = "/v1/chat/completions"


def forwarded(fake_engine: FakeEngine) -> list[dict[str, Any]]:
    return [request["body"] for request in fake_engine.requests() if request["path"] == CHAT]


async def test_answer_passes_unchanged_with_a_receipt(server: RunningGateway, fake_engine: FakeEngine) -> None:
    answer = await server.chat(WORDS, id_slot=7, cache_prompt=False)  # the client must not choose these
    assert answer.status_code == 200
    assert reply_in(answer).startswith("You said")
    first = {name[9:]: value for name, value in answer.headers.items() if name.startswith("x-kvchat-")}
    assert (first["source"], first["prompt"], first["cached"]) == ("cold", str(server.last.prompt_tokens), "0")
    await server.settled()
    streamed = await server.chat(WORDS, reply_in(answer), "And then?", stream=True)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    receipt = receipt_in(streamed.text)
    assert receipt["source"] == "hot"
    assert receipt["cached"] > 0.9 * receipt["found"] > 100
    early = {name[9:]: value for name, value in streamed.headers.items() if name.startswith("x-kvchat-")}
    assert early == {"source": "hot", "found": str(receipt["found"]), "restore-ms": "0", "model": "heron"}
    deltas = [event["choices"][0]["delta"].get("content") or "" for event in events(streamed.text)]
    assert "".join(deltas).startswith("You")
    assert all(body["id_slot"] == 0 and body["cache_prompt"] is True for body in forwarded(fake_engine))
    names = ("source", "found", "restore-ms", "cached", "prompt")
    second_entry, first_entry = (await server.client.get("/kvchat/requests")).json()["last"]
    assert {"at", "read"} <= second_entry.keys()
    assert [second_entry[name] for name in names] == [receipt[name] for name in names]
    assert first.pop("model") == first_entry["answering-model"] == receipt["model"]
    assert {name: str(first_entry[name]) for name in first if name != "restore-ms"} | {"restore-ms": "0"} == first
    assert set(first) == {*names, "miss", "miss-code"}, "there is a reason for the first"
    metrics = await server.client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=")
    samples = [sample for family in text_string_to_metric_families(metrics.text) for sample in family.samples]
    for name, total in (
        ("kvchat_requests_total", 2),
        ("kvchat_prompt_tokens_total", first_entry["prompt"] + second_entry["prompt"]),
        ("kvchat_first_byte_seconds_count", 2),
    ):
        assert sum(sample.value for sample in samples if sample.name == name) == total


@pytest.mark.parametrize("keys", [{}, {"": "the-key-of-all", "editor": "the-editors-key"}])
async def test_clients_see_only_their_own_requests(tmp_path: Path, settings: Settings, keys: dict[str, str]) -> None:
    """A divergence names tools, which other programs must not see. Program names are in any script."""
    async with running_gateway(tmp_path / "home", settings, keys) as server:
        editor = {"user-agent": b"editor/1"} | ({"authorization": b"Bearer the-editors-key"} if keys else {})
        agent = {"user-agent": "聊天助手/1.2".encode(), "x-api-key": b"the-key-of-all"}
        posing = {"user-agent": b"editor/1", "x-api-key": b"the-key-of-all"}
        owner = {"authorization": f"Bearer {owner_of(tmp_path / 'home' / 'data').api_key}".encode()}
        for headers in (editor, agent):
            await server.client.post(CHAT, json=chat_body(WORDS), headers=headers)
            await server.settled()

        async def seen_by(headers: dict[str, bytes]) -> set[str]:
            seen = (await server.client.get("/kvchat/requests", headers=headers)).json()
            return {entry["program"] for entry in seen["last"]} | {slot["owner"] for slot in seen["slots"]}

        async def counted_for(headers: dict[str, bytes]) -> Counter[str]:
            text = (await server.client.get("/metrics", headers=headers)).text
            requests: Counter[str] = Counter()
            for sample in (sample for family in text_string_to_metric_families(text) for sample in family.samples):
                if sample.name == "kvchat_requests_total":
                    requests[sample.labels["program"]] += int(sample.value)
            return requests

        assert await seen_by(editor) == {"editor"}
        assert await seen_by(agent) == {"聊天助手"}
        assert await seen_by({"x-api-key": b"the-key-of-all", "user-agent": b"kvchat/1"}) == set()
        if keys:
            assert await seen_by(posing) == set(), "it has not the editor's key"
        assert await seen_by(owner) == {"editor", "聊天助手"}
        assert await counted_for(owner) == {"editor": 1, "聊天助手": 1}
        for headers in (editor, agent):
            assert await counted_for(headers) == {"all": 2}
        usage = await server.runtime.save_points.usage()
        assert {program_of(chat.conversation_id) for chat in usage.conversations} == {"editor", "聊天助手"}


async def test_unknown_model_is_the_one_in_use_or_refused(server: RunningGateway) -> None:
    for stream in (False, True):
        answer = await server.chat(WORDS, model="gpt-4o" * 1000, stream=stream)
        assert answer.status_code == 200
        assert answer.headers["x-kvchat-model"] == "heron"
    assert server.last.model == ("gpt-4o" * 100)[:MAX_MODEL_NAME]
    await server.runtime.apply_settings(replace(server.runtime.settings, api_any_model=False))
    for path in (CHAT, "/v1/messages", "/v1/responses"):
        for body, status in ((b"{bad", 400), (b"[]", 400), (b'{"model": "gpt-4o", "messages": []}', 404)):
            answer = await server.client.post(path, content=body)
            error = answer.json()
            assert answer.status_code == status
            if path == "/v1/messages":
                assert error["type"] == "error"
                assert error["error"]["type"] in ("invalid_request_error", "not_found_error")
            assert error["error"]["message"]
    error = (await server.client.post(CHAT, json={"model": "gpt-4o", "messages": []})).json()["error"]
    assert error["type"] == "model_not_found"
    assert "Available models: heron" in error["message"]
    error = (await server.client.post("/api/chat", json={"messages": []})).json()["error"]  # Ollama's path
    assert "Send requests to one of: /v1/chat/completions, " in error["message"]
    assert (await server.client.get(CHAT)).status_code == 405


async def test_named_model_is_loaded(tmp_path: Path, settings: Settings, fake_engine: FakeEngine) -> None:
    """It replaces the loaded model once all answers of that are complete."""
    folder = tmp_path / "models"
    folder.mkdir()
    other = write_gguf(folder / "ibis.gguf", dict(LLAMA))
    async with running_gateway(tmp_path / "home", replace(settings, model_folders=(str(folder),))) as server:
        assert (await server.chat(WORDS)).status_code == 200
        fake_engine.set(FAKE_TOKEN_DELAY=0.02)
        busy = asyncio.ensure_future(server.chat(WORDS, "So?", "And then?", stream=True))
        await until(lambda: [record.stage for record in server.log.active] == [Stage.ANSWERING])
        answers = await asyncio.gather(server.chat(WORDS, model="Ibis"), server.chat("Hello", model="ibis"))
        assert [answer.status_code for answer in answers] == [200, 200]
        assert "[DONE]" in (await busy).text
        models = [launch["arguments"][launch["arguments"].index("--model") + 1] for launch in fake_engine.launches()]
        assert models == [settings.model_path, str(other)]
        assert (await server.client.get("/v1/models")).json()["data"][0]["id"] == "ibis"


async def test_access_needs_the_right_host_origin_and_key(tmp_path: Path, settings: Settings) -> None:
    settings = replace(settings, api_origins="https://chat.example")
    async with running_gateway(tmp_path / "home", settings, {"": "the-key-of-all", "editor": "editors-key"}) as server:
        editor = {"authorization": "Bearer editors-key"}
        for headers, status in (
            ({}, 401),
            ({"authorization": "Bearer wrong"}, 401),
            (editor | {"host": "evil.example"}, 403),
            (editor | {"origin": "https://evil.example"}, 403),
            (editor, 200),
            ({"x-api-key": "the-key-of-all"}, 200),
        ):
            answer = await server.chat(WORDS, headers=headers)
            assert answer.status_code == status, headers
            assert "access-control-allow-origin" not in answer.headers
        assert (await server.client.get("/health")).status_code == 200
        assert (await server.client.get("/v1/models")).status_code == 401
        first, second = (record.program for record in server.log.recent)
        assert first == "editor"
        assert second.startswith("python-httpx")
        page = {"origin": "https://chat.example", "access-control-request-method": "POST"}
        preflight = await server.client.options(CHAT, headers=page)
        for answer in (preflight, await server.client.get("/v1/models", headers=editor | page)):
            assert answer.headers["access-control-allow-origin"] == "https://chat.example"
        with pytest.raises(KvchatError, match="needs an API key"):  # the network can reach it
            await server.gateway.open(checks.AccessPolicy("0.0.0.0", Keys({})), 0)


async def test_too_much_is_refused(
    server: RunningGateway, monkeypatch: pytest.MonkeyPatch, fake_engine: FakeEngine
) -> None:
    monkeypatch.setattr(checks, "MAX_BODY", 1000)
    refused = await server.client.post("/v1/messages", content=b"x" * 2000)
    assert refused.json()["error"]["type"] == "request_too_large"

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 100

    assert (await server.client.post(CHAT, content=endless())).status_code == 413
    monkeypatch.setattr(gateway_module, "MAX_ACTIVE", 2)
    fake_engine.set(FAKE_HOLD_DURING="begin")
    first, second = (asyncio.ensure_future(server.chat("Hello")) for _ in range(2))
    await until(lambda: server.gateway.runner.active_count == 2)
    refused = await server.chat("Hello")
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    second.cancel()  # it disconnects while it waits
    await until(lambda: server.gateway.runner.active_count == 1)
    assert server.last.stage is Stage.LEFT
    fake_engine.set(FAKE_HOLD_DURING=None)
    assert (await first).status_code == 200


def long_answer(
    server: RunningGateway, fake_engine: FakeEngine
) -> contextlib.AbstractAsyncContextManager[httpx2.Response]:
    fake_engine.set(FAKE_REPLY="word " * 4000, FAKE_TOKEN_DELAY=0.01)
    return server.client.stream("POST", CHAT, json=chat_body(WORDS, stream=True, max_tokens=4000))


async def test_disconnecting_stops_the_answer_and_saves_the_prompt(
    tmp_path: Path, server: RunningGateway, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If processing it took long: another may need its slot next."""
    monkeypatch.setattr(lease, "LONG_PREFILL_MS", 0.0)
    async with long_answer(server, fake_engine) as answer:
        async for _ in answer.aiter_bytes():
            break
    await until(lambda: server.log.recent)
    fake_engine.set(FAKE_REPLY=None, FAKE_TOKEN_DELAY=None)
    assert server.last.stage is Stage.LEFT
    await server.settled()
    assert StoreContents(tmp_path / "home").absorbed() == 1
    again = await server.chat(WORDS)
    assert again.headers["x-kvchat-source"] == "hot"
    await server.settled()
    assert server.last.generation_ms > 0, "the engine's time is the only sign of an unstreamed answer's first token"


async def test_disconnecting_after_the_last_token_saves_the_turn(
    tmp_path: Path, server: RunningGateway, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many clients close at the last token and wait neither for the stream's end nor for the receipt after it."""
    gone, abandon = asyncio.Event(), PendingRequest.abandon
    monkeypatch.setattr(PendingRequest, "abandon", lambda pending: (abandon(pending), gone.set()))
    fake_engine.set(FAKE_HOLD_DURING="end")
    async with server.client.stream("POST", CHAT, json=chat_body(WORDS, stream=True)) as answer:
        async for line in answer.aiter_lines():
            if '"finish_reason": "' in line:
                break
    await gone.wait()
    fake_engine.set(FAKE_HOLD_DURING=None)
    await server.settled()
    assert (server.last.stage, server.last.cached_tokens) == (Stage.DONE, 0)
    assert StoreContents(tmp_path / "home").absorbed() == 1


async def test_similar_conversation_waits_for_a_save_in_progress(
    tmp_path: Path, settings: Settings, fake_engine: FakeEngine
) -> None:
    """As in a script that asks the same about many documents, each in its own slot."""
    system = "You sum up. " * 100
    async with running_gateway(tmp_path / "home", replace(settings, slots=3)) as server:
        await server.chat("Hello")
        await server.settled()
        fake_engine.set(FAKE_HOLD_DURING="save")
        await server.chat(system + "The first.")
        server.runtime.chat.slots.restore_cost.speed.samples.extend([PrefillSample(1000, 1e6)] * 5)
        second = asyncio.ensure_future(server.chat(system + "Another."))
        await until(lambda: [record.stage for record in server.log.active] == [Stage.LOADING])
        fake_engine.set(FAKE_HOLD_DURING=None)
        assert int((await second).headers["x-kvchat-found"]) > len(system)


async def test_prompt_is_saved_if_another_program_takes_the_slot_before_settling(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = [asyncio.Event()]
    shared_tokens = runner.shared_tokens

    async def late_boundary(*args: Any) -> Tokens:
        if endless:
            await endless.pop().wait()
        return await shared_tokens(*args)

    monkeypatch.setattr(runner, "shared_tokens", late_boundary)
    monkeypatch.setattr(slot_module, "SETTLE_WAIT_S", 0.0)
    monkeypatch.setattr(lease, "LONG_PREFILL_MS", 0.0)
    async with running_gateway(tmp_path / "home", replace(settings, slots=1)) as server:
        reply = reply_in(await server.chat(WORDS))
        assert (await server.chat("Something else", headers={"user-agent": "another/1.0"})).status_code == 200
        await server.settled()
        again = await server.chat(WORDS, reply, "And then?")
        assert again.headers["x-kvchat-source"] in ("warm", "disk")
        assert int(again.headers["x-kvchat-found"]) > len(WORDS)


@pytest.mark.parametrize("stream", [True, False])
async def test_next_turn_is_hot_however_long_it_is(
    server: RunningGateway, fake_engine: FakeEngine, stream: bool
) -> None:
    texts = [WORDS, reply_in(await server.chat(WORDS))]
    await server.settled()
    before = server.last.prompt_tokens or 0
    for text in ("And then?", "y" * 2000):
        answer = await server.chat(*texts, text, stream=stream)
        found, cached, prompt = (server.last.as_json()[name] for name in ("found", "cached", "prompt"))
        assert (answer.headers["x-kvchat-source"], server.last.stage) == ("hot", Stage.DONE)
        assert before <= found <= prompt - len(text)
        assert cached >= found - 1
        await server.settled()
    assert len(forwarded(fake_engine)) == 3


async def test_request_that_crashes_the_engine_is_not_resent(server: RunningGateway, fake_engine: FakeEngine) -> None:
    await server.chat("Hello")
    fake_engine.set(FAKE_DIE_DURING="begin", FAKE_DIE_TIMES=1)
    answer = await server.chat(WORDS, stream=True)
    assert answer.status_code == 502
    assert "crashed" in answer.text
    assert len(forwarded(fake_engine)) == 2
    assert (await server.chat(WORDS)).status_code == 200
    fake_engine.set(FAKE_DIE_DURING="stream", FAKE_DIE_TIMES=99)
    assert "[DONE]" not in (await server.chat("x" + WORDS, stream=True)).text
    assert server.last.stage is Stage.FAILED
    fake_engine.set(FAKE_DIE_DURING=None)
    assert (await server.chat(WORDS)).status_code == 200


async def test_crash_over_a_restored_state_is_retried_without_it(
    tmp_path: Path, settings: Settings, fake_engine: FakeEngine
) -> None:
    async with running_gateway(tmp_path / "home", settings) as server:
        await server.chat(WORDS)
        await server.settled()
    fake_engine.set(FAKE_DIE_DURING="begin", FAKE_DIE_TIMES=2)
    async with running_gateway(tmp_path / "home", settings) as server:
        fake_engine.set(FAKE_DIE_TIMES=1)
        answer = await server.chat(WORDS, stream=True)
        assert answer.status_code == 200
        assert receipt_in(answer.text)["cached"] == 0
        assert server.runtime.engine.managed.connection.generation == 2


async def test_incomplete_requests_and_too_many_connections_are_dropped(
    server: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as hurried:
        hurried.setattr(listening, "HEAD_TIMEOUT_S", 0.3)
        hurried.setattr(listening, "MAX_CONNECTIONS", 20)
        connections = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(60)]
        for _, writer in connections:
            with contextlib.suppress(ConnectionError):
                writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc")
        for reader, writer in connections:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() in (b"", b"Invalid HTTP request received.")
            writer.close()
    assert (await server.chat("Hello")).status_code == 200
    monkeypatch.setattr(checks, "BODY_TIMEOUT_S", 0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    assert b" 408 " in await reader.readline()
    writer.close()


async def test_prompts_are_never_written_to_logs_or_files(
    tmp_path: Path, server: RunningGateway, capfd: pytest.CaptureFixture[str], fake_engine: FakeEngine
) -> None:
    await server.chat("The unspeakable heron " + WORDS)
    await server.client.post(CHAT, content=b'{"messages": "unspeakable')
    fake_engine.set(FAKE_DIE_DURING="stream", FAKE_DIE_TIMES=1)
    with contextlib.suppress(httpx2.HTTPError):
        await server.chat("The unspeakable heron", stream=True)
    await server.settled()
    pages = [(await server.client.get(path)).text for path in ("/kvchat/requests", "/metrics")]
    assert "unspeakable" not in "".join([*pages, *capfd.readouterr()])
    for file in (tmp_path / "home" / "state").rglob("*"):
        assert not file.is_file() or b"unspeakable" not in file.read_bytes(), file


@pytest.mark.parametrize("slots", [1, 2])
async def test_window_waits_for_one_step_at_most(
    tmp_path: Path, settings: Settings, fake_engine: FakeEngine, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program's long prompt yields between two steps, then continues where it was."""
    monkeypatch.setattr(prefill, "MAX_STEP", 128)  # the fake engine reports a high speed
    async with running_gateway(tmp_path / "home", replace(settings, slots=slots)) as server:
        await server.chat("Hello")
        await server.settled()
        fake_engine.set(FAKE_BATCH_DELAY=0.1)
        long = asyncio.ensure_future(server.chat("x" * 3000))
        await until(
            lambda: any(record.stage is Stage.READING and record.processed_tokens for record in server.log.active)
        )
        chat = await server.runtime.chat.new_conversation("")
        reply = await server.runtime.chat.send(chat.id, "And me?")
        assert reply.content == "You said: And me?"
        assert not long.done()
        fake_engine.set(FAKE_BATCH_DELAY=None)
        assert reply_in(await long).startswith("You said: xx")
        assert (server.last.cached_tokens or 0) <= server.last.found_tokens < 20, (
            "tokens it processed itself were not found"
        )


async def test_answer_that_lost_its_room_is_retried_after_the_other(
    tmp_path: Path, settings: Settings, fake_engine: FakeEngine
) -> None:
    async with running_gateway(tmp_path / "home", replace(settings, slots=3)) as server:
        await server.chat("Hello")
        long = " ".join(f"word {n}" for n in range(200))  # 1,700 tokens, and the question's 600
        fake_engine.set(FAKE_REPLY=long, FAKE_TOKEN_DELAY=0.002)
        answers = await asyncio.gather(*(server.chat(f"{n} {WORDS * 3}", max_tokens=2000) for n in range(2)))
        assert [answer.status_code for answer in answers] == [200, 200], [answer.text for answer in answers]
        assert [reply_in(answer) for answer in answers] == [long, long]
        assert len(forwarded(fake_engine)) > 3, "one was sent again"


async def test_disconnecting_while_room_is_made_stops_nobody_else(
    tmp_path: Path, settings: Settings, fake_engine: FakeEngine
) -> None:
    """The user's message waits for the same slot to be erased as the request of a client that disconnects."""
    fake_engine.set(FAKE_REPLY="Yes.")
    async with running_gateway(tmp_path / "home", replace(settings, slots=3)) as server:
        chats, slots = server.runtime.chat, server.runtime.chat.slots
        old, new = [(await chats.new_conversation("")).id for _ in range(2)]
        await chats.send(old, "x" * 2600)
        await chats.wait_until_idle()
        await server.chat("Hello")
        await server.settled()
        fake_engine.set(FAKE_HOLD_DURING="erase")
        request = asyncio.ensure_future(server.chat("y" * 1500))
        await until(lambda: slots.slot_of(old) is None)
        reply = chats.send(new, "And me?")
        await until(lambda: sum(bool(slot.claimed_tokens) for slot in slots.all_slots) == 2)  # it waits, too
        request.cancel()
        await until(lambda: server.last.stage is Stage.LEFT)
        fake_engine.set(FAKE_HOLD_DURING=None)
        answered = await reply
        assert (answered.state, answered.content) == (MessageState.COMPLETE, "Yes.")


async def test_stopping_the_engine_ends_answers_in_their_dialect(
    server: RunningGateway, fake_engine: FakeEngine
) -> None:
    """A stream ends with an event, a waiting request is refused."""
    async with long_answer(server, fake_engine) as answer:
        chunks = answer.aiter_text()
        text = await anext(chunks)
        waiting = asyncio.create_task(server.client.post("/v1/messages", json=chat_body("Me too")))
        await until(lambda: len(server.log.active) == 2)
        await server.runtime.stop_engine()
        text += "".join([chunk async for chunk in chunks])
    assert events(text)[-1]["error"]["code"] == 503
    assert (await waiting).status_code == 503
    assert (await waiting).json()["type"] == "error"
    assert server.last.stage is Stage.FAILED


async def test_request_stopped_before_its_first_step_is_not_answered(
    server: RunningGateway, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = server.gateway.runner.begin

    def begin_and_stop(*arguments: Any) -> PendingRequest:
        pending = begin(*arguments)
        pending.stop()
        return pending

    monkeypatch.setattr(server.gateway.runner, "begin", begin_and_stop)
    assert (await server.chat("Hello")).status_code == 503
    await server.settled()
    assert not forwarded(fake_engine)
    assert server.last.stage is Stage.LEFT


async def test_insistent_clients_do_not_keep_the_engine_from_stopping(server: RunningGateway) -> None:
    """Each is refused until it has stopped; then another engine answers the next."""
    await server.chat("Hello")
    refused = asyncio.Event()

    async def ask_again() -> None:
        while (await server.chat(WORDS)).status_code != 503:
            pass
        refused.set()
        while (await server.chat(WORDS)).status_code == 503:
            pass

    clients = [asyncio.create_task(ask_again()) for _ in range(4)]
    while not refused.is_set():
        await server.runtime.stop_engine()
    await asyncio.gather(*clients)


async def test_closing_ends_answers_and_accepts_no_more(server: RunningGateway, fake_engine: FakeEngine) -> None:
    """Also if the first close is cancelled, as for a switch in a window that closes: the next one completes it."""
    with contextlib.suppress(httpx2.RemoteProtocolError, httpx2.ReadError):
        async with long_answer(server, fake_engine) as answer:
            async for _ in answer.aiter_bytes():
                first = asyncio.ensure_future(server.gateway.close())
                await until(lambda: server.gateway.url is None)
                first.cancel()
                await server.runtime.api_server.close()
    assert server.last.stage is Stage.FAILED
    with pytest.raises(httpx2.ConnectError):
        await server.client.get("/health")


@not_on_windows("psutil counts no open files there")
async def test_cancelled_listen_leaves_no_listener() -> None:
    """At whatever step; and a port in use is refused with advice."""

    async def silent(scope: object, receive: object, send: object) -> None: ...

    tasks, files = asyncio.all_tasks(), psutil.Process().num_fds()
    for steps in range(8):
        opening = asyncio.ensure_future(listening.listen(silent, "127.0.0.1", 0))
        for _ in range(steps):
            await asyncio.sleep(0)
        if not opening.done():
            opening.cancel()
            await asyncio.wait({opening})
        else:
            await opening.result().close()
        await until(lambda: asyncio.all_tasks() == tasks)
        assert psutil.Process().num_fds() <= files, steps
    listener = await listening.listen(silent, "127.0.0.1", 0)
    with pytest.raises(KvchatError, match=f"listen on 127.0.0.1:{listener.port}") as refusal:
        await listening.listen(silent, "127.0.0.1", listener.port)
    assert "another port" in refusal.value.advice
    _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    await until(lambda: listener.connection_count == 1)
    writer.close()
    await listener.close()


async def found_tokens(server: RunningGateway, key: str, program: str, text: str) -> int:
    """Send a question after a long system prompt; return how much of it was found."""
    body = chat_body(text)
    body["messages"].insert(0, {"role": "system", "content": WORDS})
    headers = {"authorization": f"Bearer {key}", "user-agent": program}
    answer = await server.client.post(CHAT, json=body, headers=headers)
    await server.settled()
    return int(answer.headers["x-kvchat-found"])


KEYS = {"": "the-key-of-all", **{name: f"the-key-of-{name}" for name in ("ann", "bob", "cay")}}


@pytest.mark.parametrize("exact_only", [None, 1])
async def test_system_prompt_sent_by_two_programs_serves_the_third(
    tmp_path: Path, settings: Settings, fake_engine: FakeEngine, exact_only: int | None
) -> None:
    fake_engine.set(FAKE_EXACT_ONLY=exact_only)
    ann, bob, cay, shared_key = (KEYS[name] for name in ("ann", "bob", "cay", ""))
    few, secret = len(WORDS) // 2, "What nobody else is to know. " * 4
    async with running_gateway(tmp_path / "home", settings, KEYS) as server:
        for name in ("ann", "zed", "quill", "loom"):
            assert await found_tokens(server, shared_key, name, secret) < few, "names without keys do not count"
        assert await found_tokens(server, ann, "", secret) < few
        assert await found_tokens(server, ann, "", "Another conversation") > few, "it may use its own"
        assert await found_tokens(server, bob, "", "Mine") < few, "it has not sent it before"
        found = await found_tokens(server, cay, "", secret)
        assert len(WORDS) - 20 < found < len(WORDS) + 60, "the system prompt, and nothing of the first question"
    async with running_gateway(tmp_path / "home", settings, KEYS) as server:
        assert await found_tokens(server, shared_key, "zed2", secret) == found, "as any document for all"


async def test_programs_share_memory_if_the_user_allows_it(tmp_path: Path, settings: Settings) -> None:
    async with running_gateway(tmp_path / "home", replace(settings, api_share=True)) as server:
        await found_tokens(server, "none", "zed", "Tell me")
        assert await found_tokens(server, "none", "quill", "Tell me") > len(WORDS)
        chat = (await server.runtime.chat.new_conversation(WORDS)).id
        assert (reply := await server.runtime.chat.send(chat, "Tell me"))
        assert reply.receipt.cached_tokens < len(WORDS) // 2, "chats do not share with programs"
        stored = (await server.runtime.save_points.usage()).conversations
        owners = [program_of(usage.conversation_id) for usage in stored if usage.conversation_id != chat]
        assert owners == ["all programs"]
    async with running_gateway(tmp_path / "home", settings) as server:
        assert await found_tokens(server, "none", "zed", "Tell me") < len(WORDS) // 2, "no longer"
