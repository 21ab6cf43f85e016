"""The gateway on the fake engine: refusals, and what can go wrong between two programs."""

from __future__ import annotations

import asyncio
import contextlib
import json
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
from kvchat.gateway import checks, forwarder, pending_request, runner, server
from kvchat.gateway import gateway as app
from kvchat.gateway.keys import Keys
from kvchat.gateway.pending_request import PendingRequest
from kvchat.gateway.records import MAX_MODEL_NAME, Stage
from kvchat.kvstore.savepoint import Tokens, program_of
from kvchat.session import lease, prefill, slot_request
from kvchat.session.restore_cost import PrefillSample
from kvchat.settings import Settings
from kvchat.system.owner import owner_of
from tests.engine.waiting import until
from tests.engine_fixtures import FakeEngine
from tests.gateway.servers import WORDS, RunningGateway, chat_body, events, receipt_in, running_gateway
from tests.library.gguf_files import LLAMA, write_gguf
from tests.store_contents import StoreContents


async def test_an_answer_goes_through_as_it_is_and_its_receipt_follows(
    at: RunningGateway, fake_engine: FakeEngine
) -> None:
    answer = await at.chat(WORDS, id_slot=7, cache_prompt=False)  # that is not the client's to choose
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"].startswith("You said")
    first = {name[9:]: value for name, value in answer.headers.items() if name.startswith("x-kvchat-")}
    assert (first["source"], first["prompt"], first["cached"]) == ("cold", str(at.last.prompt), "0")
    await at.settled()
    streamed = await at.chat(WORDS, answer.json()["choices"][0]["message"]["content"], "And then?", stream=True)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    told = receipt_in(streamed.text)
    assert told["source"] == "hot"
    assert told["cached"] > 0.9 * told["found"] > 100
    known = {name[9:]: value for name, value in streamed.headers.items() if name.startswith("x-kvchat-")}
    assert known == {"source": "hot", "found": str(told["found"]), "restore-ms": "0", "model": "heron"}
    assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events(streamed.text)).startswith("You")
    forwarded = [r["body"] for r in fake_engine.requests() if r["path"] == "/v1/chat/completions"]
    assert all(body["id_slot"] == 0 and body["cache_prompt"] is True for body in forwarded)
    listed = (await at.client.get("/kvchat/requests")).json()["last"]
    names = ("source", "found", "restore-ms", "cached", "prompt")
    assert [tuple(one[name] for name in names) for one in (told, listed[0])] == [
        tuple(told[name] for name in names)
    ] * 2
    assert first.pop("model") == listed[1]["answering-model"] == told["model"]
    assert {name: str(listed[1][name]) for name in first if name != "restore-ms"} | {"restore-ms": "0"} == first
    assert set(first) == {*names, "miss", "miss-code"}, "there is a reason for the first"
    metrics = await at.client.get("/metrics")
    families = {one.name: one.samples for one in text_string_to_metric_families(metrics.text)}
    assert metrics.headers["content-type"].startswith("text/plain; version=")
    for name, wanted in (("kvchat_requests", 2), ("kvchat_prompt_tokens", listed[0]["prompt"] + listed[1]["prompt"])):
        assert sum(one.value for one in families[name] if one.name.endswith("_total")) == wanted
    assert sum(one.value for one in families["kvchat_first_byte_seconds"] if one.name.endswith("_count")) == 2


@pytest.mark.parametrize("keys", [{}, {"": "the-key-of-all", "editor": "the-editors-key"}])
async def test_clients_see_their_own_requests_and_the_owners_key_sees_all(
    tmp_path: Path, settings: Settings, keys: dict[str, str]
) -> None:
    """Why a prompt parted names its tools: that is nothing for other programs. Names are in any script."""
    async with running_gateway(tmp_path / "home", settings, keys) as at:
        editor = {"user-agent": b"editor/1"} | ({"authorization": b"Bearer the-editors-key"} if keys else {})
        agent = {"user-agent": "聊天助手/1.2".encode(), "x-api-key": b"the-key-of-all"}
        posing = {"user-agent": b"editor/1", "x-api-key": b"the-key-of-all"}
        for headers in (editor, agent):
            await at.client.post("/v1/chat/completions", json=chat_body(WORDS), headers=headers)
            await at.settled()

        async def seen_by(headers: dict[str, bytes]) -> set[str]:
            told = (await at.client.get("/kvchat/requests", headers=headers)).json()
            return {one["program"] for one in told["last"]} | {one["owner"] for one in told["slots"]}

        async def counted_for(headers: dict[str, bytes]) -> Counter[str]:
            text = (await at.client.get("/metrics", headers=headers)).text
            samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
            requests: Counter[str] = Counter()
            for one in samples:
                if one.name == "kvchat_requests_total":
                    requests[one.labels["program"]] += int(one.value)
            return requests

        assert await seen_by(editor) == {"editor"}
        assert await seen_by(agent) == {"聊天助手"}
        assert await seen_by({"x-api-key": b"the-key-of-all", "user-agent": b"kvchat/1"}) == set()
        if keys:
            assert await seen_by(posing) == set(), "it has not the editor's key"
        ours = {"authorization": f"Bearer {owner_of(tmp_path / 'home' / 'data').api_key}".encode()}
        assert await seen_by(ours) == {"editor", "聊天助手"}
        assert await counted_for(ours) == {"editor": 1, "聊天助手": 1}
        for headers in (editor, agent):
            assert await counted_for(headers) == {"all": 2}
        usage = await at.runtime.save_points.usage()
        assert {program_of(kept.conversation_id) for kept in usage.conversations} == {"editor", "聊天助手"}


async def test_a_made_up_model_is_the_one_in_use_or_refused_in_the_dialects_own_shape(at: RunningGateway) -> None:
    for stream in (False, True):
        answer = await at.chat(WORDS, model="gpt-4o" * 1000, stream=stream)
        assert answer.status_code == 200
        assert answer.headers["x-kvchat-model"] == "heron"
    assert at.last.model == ("gpt-4o" * 100)[:MAX_MODEL_NAME], "it is remembered for long"
    await at.runtime.apply_settings(replace(at.runtime.settings, api_any_model=False))
    for path, shape in (("/v1/chat/completions", "openai"), ("/v1/messages", "anthropic"), ("/v1/responses", "openai")):
        for body, status in ((b"{bad", 400), (b"[]", 400), (b'{"model": "gpt-4o", "messages": []}', 404)):
            answer = await at.client.post(path, content=body)
            told = answer.json()
            assert answer.status_code == status
            if shape == "anthropic":
                assert told["type"] == "error"
                assert told["error"]["type"] in ("invalid_request_error", "not_found_error")
            assert told["error"]["message"]
    told = (await at.client.post("/v1/chat/completions", json={"model": "gpt-4o", "messages": []})).json()
    assert told["error"]["type"] == "model_not_found"
    assert "There are: heron" in told["error"]["message"]
    told = (await at.client.post("/api/chat", json={"messages": []})).json()  # Ollama's
    assert "Send requests to one of: /v1/chat/completions, " in told["error"]["message"]
    assert (await at.client.get("/v1/chat/completions")).status_code == 405


async def test_a_model_that_a_client_names_is_loaded(
    tmp_path: Path, settings: Settings, fake_engine: FakeEngine
) -> None:
    """As a chat's own is: in place of the one that runs, once nobody is answered by that."""
    folder = tmp_path / "models"
    folder.mkdir()
    other = write_gguf(folder / "ibis.gguf", dict(LLAMA))
    async with running_gateway(tmp_path / "home", replace(settings, model_folders=(str(folder),))) as at:
        assert (await at.chat(WORDS)).status_code == 200
        fake_engine.set(FAKE_TOKEN_DELAY=0.02)
        busy = asyncio.ensure_future(at.chat(WORDS, "So?", "And then?", stream=True))
        await until(lambda: at.runtime.api_server.gateway.runner.active == 1)
        named, again = await asyncio.gather(at.chat(WORDS, model="Ibis"), at.chat("Hello", model="ibis"))
        assert [named.status_code, again.status_code] == [200, 200]
        assert "[DONE]" in (await busy).text
        models = [launch["arguments"][launch["arguments"].index("--model") + 1] for launch in fake_engine.launches()]
        assert models == [settings.model_path, str(other)]
        listed = [one["id"] for one in (await at.client.get("/v1/models")).json()["data"]]
        assert listed[0] == "ibis"


async def test_nobody_comes_in_by_another_name_or_from_another_web_page_or_without_the_key(
    tmp_path: Path, settings: Settings
) -> None:
    named = replace(settings, api_origins="https://chat.example")
    async with running_gateway(tmp_path / "home", named, {"": "the-key-of-all", "editor": "the-editors-key"}) as at:
        body = chat_body(WORDS)
        ours = {"authorization": "Bearer the-editors-key"}
        for headers, status in (
            ({}, 401),
            ({"authorization": "Bearer wrong"}, 401),
            (ours | {"host": "evil.example"}, 403),
            (ours | {"origin": "https://evil.example"}, 403),
            (ours, 200),
            ({"x-api-key": "the-key-of-all"}, 200),
        ):
            answer = await at.client.post("/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == status, headers
            assert "access-control-allow-origin" not in answer.headers
        assert (await at.client.get("/health")).status_code == 200
        assert (await at.client.get("/v1/models")).status_code == 401
        programs = [record.program for record in at.runtime.api_server.gateway.log.recent]
        assert programs[0] == "editor"
        assert programs[1].startswith("python-httpx")
        page = {"origin": "https://chat.example", "access-control-request-method": "POST"}
        asked = at.client.options("/v1/chat/completions", headers=page)
        for answer in (await asked, await at.client.get("/v1/models", headers=ours | page)):
            assert answer.headers["access-control-allow-origin"] == "https://chat.example"
        with pytest.raises(KvchatError, match="needs an API key"):  # what others can reach needs one
            await at.runtime.api_server.gateway.open(checks.Checks("0.0.0.0", Keys({})), 0)


async def test_too_much_is_refused(
    at: RunningGateway, monkeypatch: pytest.MonkeyPatch, fake_engine: FakeEngine
) -> None:
    monkeypatch.setattr(checks, "MAX_BODY", 1000)
    assert (await at.client.post("/v1/messages", content=b"x" * 2000)).json()["error"]["type"] == "request_too_large"

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 100

    assert (await at.client.post("/v1/chat/completions", content=endless())).status_code == 413
    monkeypatch.setattr(app, "MAX_ACTIVE", 2)
    fake_engine.set(FAKE_HOLD_DURING="begin")
    answering = at.runtime.api_server.gateway.runner
    first, second = (asyncio.ensure_future(at.chat("Hello")) for _ in range(2))
    await until(lambda: answering.active == 2)
    refused = await at.chat("Hello")
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    second.cancel()  # it leaves while it waits
    await until(lambda: answering.active == 1)
    assert at.last.stage is Stage.LEFT
    fake_engine.set(FAKE_HOLD_DURING=None)
    assert (await first).status_code == 200


def long_answer(at: RunningGateway, fake_engine: FakeEngine) -> contextlib.AbstractAsyncContextManager[httpx2.Response]:
    fake_engine.set(FAKE_REPLY="word " * 4000, FAKE_TOKEN_DELAY=0.01)
    body = chat_body(WORDS, stream=True) | {"max_tokens": 4000}
    return at.client.stream("POST", "/v1/chat/completions", json=body)


async def test_a_client_that_leaves_stops_its_answer_and_what_was_read_for_it_is_saved(
    tmp_path: Path, at: RunningGateway, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it takes long to read: its slot may be another's next."""
    monkeypatch.setattr(lease, "LONG_PREFILL_MS", 0.0)
    async with long_answer(at, fake_engine) as answer:
        async for _ in answer.aiter_bytes():
            break
    await until(lambda: at.runtime.api_server.gateway.log.recent)
    fake_engine.set(FAKE_REPLY=None, FAKE_TOKEN_DELAY=None)
    assert at.last.stage is Stage.LEFT
    await at.settled()
    assert StoreContents(tmp_path / "home").absorbed() == 1
    again = await at.chat(WORDS)
    assert again.headers["x-kvchat-source"] == "hot", "what was read for it is not read again"
    await at.settled()
    assert at.last.write_ms > 0, "of an answer in one piece nobody else knows when its first word came"


async def test_a_client_that_leaves_once_all_is_said_has_its_turn_saved(
    tmp_path: Path, at: RunningGateway, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many do: they close at the last word and wait neither for the stream's end nor for the receipt after it."""
    gone, abandon = asyncio.Event(), PendingRequest.abandon
    monkeypatch.setattr(PendingRequest, "abandon", lambda pending: (abandon(pending), gone.set()))
    fake_engine.set(FAKE_HOLD_DURING="end")
    async with at.client.stream("POST", "/v1/chat/completions", json=chat_body(WORDS, stream=True)) as answer:
        async for line in answer.aiter_lines():
            if '"finish_reason": "' in line:
                break
    await gone.wait()
    fake_engine.set(FAKE_HOLD_DURING=None)
    await at.settled()
    assert at.last.stage is Stage.DONE
    assert at.last.cached == 0
    assert StoreContents(tmp_path / "home").absorbed() == 1


async def test_a_conversation_that_begins_alike_waits_until_the_one_before_is_saved(
    tmp_path: Path, settings: Settings, fake_engine: FakeEngine
) -> None:
    """As a script's that asks the same of many documents, one at once after the other: each has a slot of its own."""
    system = "You sum up. " * 100
    async with running_gateway(tmp_path / "needs_several_slots", replace(settings, slots=3)) as at:
        await at.chat("Hello")
        await at.settled()
        fake_engine.set(FAKE_HOLD_DURING="save")
        await at.chat(system + "The first.")
        at.runtime.chat.slots.restore_cost.speed.samples.extend(
            [PrefillSample(1000, 1e6)] * 5
        )  # it is worth some waiting
        second = asyncio.ensure_future(at.chat(system + "Another."))
        await until(lambda: [one.stage for one in at.runtime.api_server.gateway.log.active] == [Stage.LOADING])
        fake_engine.set(FAKE_HOLD_DURING=None)
        assert int((await second).headers["x-kvchat-found"]) > len(system)


async def test_what_was_read_is_saved_where_another_program_needs_the_slot_before_it_is_settled(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = [asyncio.Event()]

    async def boundary(*what: Any) -> Tokens:
        if endless:
            await endless.pop().wait()
        return await find(*what)

    find = runner.shared_tokens
    monkeypatch.setattr(runner, "shared_tokens", boundary)
    monkeypatch.setattr(slot_request, "SETTLE_WAIT_S", 0.0)
    monkeypatch.setattr(lease, "LONG_PREFILL_MS", 0.0)
    async with running_gateway(tmp_path / "home", replace(settings, slots=1)) as at:
        answer = reply_in(await at.chat(WORDS))
        other = {"user-agent": "another/1.0"}
        told = await at.client.post("/v1/chat/completions", json=chat_body("Something else"), headers=other)
        assert told.status_code == 200
        await at.settled()
        again = await at.chat(WORDS, answer, "And then?")
        assert again.headers["x-kvchat-source"] in ("warm", "disk")
        assert int(again.headers["x-kvchat-found"]) > len(WORDS)


def reply_in(answer: httpx2.Response) -> str:
    return answer.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("stream", [True, False])
async def test_next_turn_is_hot_however_long_it_is(at: RunningGateway, fake_engine: FakeEngine, stream: bool) -> None:
    texts = [WORDS, reply_in(await at.chat(WORDS))]
    await at.settled()
    before = at.last.prompt or 0
    for text in ("And then?", "y" * 2000):
        answer = await at.chat(*texts, text, stream=stream)
        found, cached, prompt = (at.last.as_json()[name] for name in ("found", "cached", "prompt"))
        assert (answer.headers["x-kvchat-source"], at.last.stage) == ("hot", Stage.DONE)
        assert before <= found <= prompt - len(text)
        assert cached >= found - 1
        await at.settled()
    assert sum(one["path"] == "/v1/chat/completions" for one in fake_engine.requests()) == 3


async def test_a_request_that_the_engine_dies_of_is_not_sent_again(at: RunningGateway, fake_engine: FakeEngine) -> None:
    await at.chat("Hello")
    asked = len(fake_engine.requests())
    fake_engine.set(FAKE_DIE_DURING="begin", FAKE_DIE_TIMES=1)
    answer = await at.chat(WORDS, stream=True)
    assert answer.status_code == 502
    assert "crashed" in answer.text
    assert [one["path"] for one in fake_engine.requests()[asked:]].count("/v1/chat/completions") == 1
    assert (await at.chat(WORDS)).status_code == 200
    fake_engine.set(FAKE_DIE_DURING="stream", FAKE_DIE_TIMES=99)
    answer = await at.chat("x" + WORDS, stream=True)
    assert "[DONE]" not in answer.text
    assert at.last.stage is Stage.FAILED
    fake_engine.set(FAKE_DIE_DURING=None)
    assert (await at.chat(WORDS)).status_code == 200


async def test_an_engine_that_dies_over_what_was_restored_costs_nothing(
    tmp_path: Path, settings: Settings, fake_engine: FakeEngine
) -> None:
    async with running_gateway(tmp_path / "home", settings) as at:
        await at.chat(WORDS)
        await at.settled()
    fake_engine.set(FAKE_DIE_DURING="begin", FAKE_DIE_TIMES=2)
    async with running_gateway(tmp_path / "home", settings) as at:
        fake_engine.set(FAKE_DIE_TIMES=1)
        answer = await at.chat(WORDS, stream=True)
        assert answer.status_code == 200
        assert receipt_in(answer.text)["cached"] == 0
        assert at.runtime.engine.managed.connection.generation == 2


async def test_a_client_that_takes_nothing_keeps_nobody_waiting(
    at: RunningGateway, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_request, "SEND_TIMEOUT_S", 0.5)
    fake_engine.set(FAKE_REPLY="word " * 100)
    await at.chat("Hello")
    body = json.dumps(chat_body("x" * 3000, stream=True) | {"max_tokens": 900}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", at.port, limit=1)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    assert (await at.chat("And me")).status_code == 200
    writer.close()
    del reader


async def test_half_requests_and_too_many_are_let_go(at: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as hurried:
        hurried.setattr(server, "HEAD_TIMEOUT_S", 0.3)
        hurried.setattr(server, "MAX_CONNECTIONS", 20)
        opened = [await asyncio.open_connection("127.0.0.1", at.port) for _ in range(60)]
        for _, writer in opened:
            with contextlib.suppress(ConnectionError):
                writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc")
        for reader, writer in opened:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() in (b"", b"Invalid HTTP request received.")
            writer.close()
    assert (await at.chat("Hello")).status_code == 200
    monkeypatch.setattr(checks, "BODY_TIMEOUT_S", 0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    assert b" 408 " in await reader.readline()
    writer.close()


async def test_nothing_of_a_prompt_is_written_down(
    tmp_path: Path, at: RunningGateway, capfd: pytest.CaptureFixture[str], fake_engine: FakeEngine
) -> None:
    await at.chat("The unspeakable heron " + WORDS)
    await at.client.post("/v1/chat/completions", content=b'{"messages": "unspeakable')
    fake_engine.set(FAKE_DIE_DURING="stream", FAKE_DIE_TIMES=1)
    with contextlib.suppress(httpx2.HTTPError):
        await at.chat("The unspeakable heron", stream=True)
    await at.settled()
    told = (await at.client.get("/kvchat/requests")).text + (await at.client.get("/metrics")).text
    assert "unspeakable" not in told + "".join(capfd.readouterr())
    for file in (tmp_path / "home" / "state").rglob("*"):
        assert not file.is_file() or b"unspeakable" not in file.read_bytes(), file


@pytest.mark.parametrize("slots", [1, 2])
async def test_whoever_sits_at_the_window_waits_for_a_step_at_most(
    tmp_path: Path, settings: Settings, fake_engine: FakeEngine, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program's long prompt gives way between two steps, and goes on where it was."""
    monkeypatch.setattr(prefill, "MAX_STEP", 128)  # the fake engine says that it is quick
    async with running_gateway(tmp_path / "home", replace(settings, slots=slots)) as at:
        await at.chat("Hello")
        await at.settled()
        fake_engine.set(FAKE_BATCH_DELAY=0.1)
        long = asyncio.ensure_future(at.chat("x" * 3000))
        log = at.runtime.api_server.gateway.log
        await until(lambda: any(one.stage is Stage.READING and one.read for one in log.active))
        chat = await at.runtime.chat.new_conversation("")
        reply = await at.runtime.chat.send(chat.id, "And me?")
        assert reply.content == "You said: And me?"
        assert not long.done()
        fake_engine.set(FAKE_BATCH_DELAY=None)
        answer = await long
        assert answer.json()["choices"][0]["message"]["content"].startswith("You said: xx")
        assert (at.last.cached or 0) <= at.last.found < 20, "what it had read itself before it gave way was not found"


async def test_an_answer_that_another_takes_the_room_of_is_given_when_that_one_is_over(
    tmp_path: Path, settings: Settings, fake_engine: FakeEngine
) -> None:
    async with running_gateway(tmp_path / "home", replace(settings, slots=3)) as at:
        await at.chat("Hello")
        long = " ".join(f"word {n}" for n in range(200))  # 1,700 tokens, and the question's 600
        fake_engine.set(FAKE_REPLY=long, FAKE_TOKEN_DELAY=0.002)
        both = await asyncio.gather(*(at.chat(f"{n} {WORDS * 3}", max_tokens=2000) for n in range(2)))
        assert [answer.status_code for answer in both] == [200, 200], [answer.text for answer in both]
        texts = [answer.json()["choices"][0]["message"]["content"] for answer in both]
        assert texts == [long, long]
        crowded = [one for one in fake_engine.requests() if one["path"] == "/v1/chat/completions"]
        assert len(crowded) > 3, "one was asked again"


async def test_a_client_that_leaves_while_room_is_made_stops_nobody_else(
    tmp_path: Path, settings: Settings, fake_engine: FakeEngine
) -> None:
    """The user's message waits for the same slot to be erased as a program's request whose client hangs up."""
    fake_engine.set(FAKE_REPLY="Yes.")
    async with running_gateway(tmp_path / "home", replace(settings, slots=3)) as at:
        chats, slots = at.runtime.chat, at.runtime.chat.slots
        old, new = [(await chats.new_conversation("")).id for _ in range(2)]
        await chats.send(old, "x" * 2600)
        await chats.idle()
        await at.chat("Hello")
        await at.settled()
        fake_engine.set(FAKE_HOLD_DURING="erase")
        program = asyncio.ensure_future(at.chat("y" * 1500))
        await until(lambda: slots.slot_of(old) is None)
        reply = chats.send(new, "And me?")
        await until(lambda: sum(bool(slot.claimed_tokens) for slot in slots.all) == 2)  # it waits, too
        program.cancel()
        await until(lambda: at.last.stage is Stage.LEFT)
        fake_engine.set(FAKE_HOLD_DURING=None)
        answered = await reply
        assert (answered.state, answered.content) == (MessageState.COMPLETE, "Yes.")


async def test_who_is_broken_off_is_told_so_in_the_dialects_own_shape(
    at: RunningGateway, fake_engine: FakeEngine
) -> None:
    """One that streams, by a last event, and one that waits for it, by a refusal; both in their dialects."""
    async with long_answer(at, fake_engine) as answer:
        chunks = answer.aiter_text()
        told = await anext(chunks)
        waiting = asyncio.create_task(at.client.post("/v1/messages", json=chat_body("Me too")))
        await until(lambda: len(at.runtime.api_server.gateway.log.active) == 2)
        await at.runtime.stop_engine()
        told += "".join([chunk async for chunk in chunks])
    assert events(told)[-1]["error"]["code"] == 503
    assert (await waiting).status_code == 503
    assert (await waiting).json()["type"] == "error"
    assert at.last.stage is Stage.FAILED


async def test_clients_that_ask_again_and_again_do_not_keep_the_engine_from_stopping(at: RunningGateway) -> None:
    """Each is refused until it has stopped; then the next is answered by another engine."""
    await at.chat("Hello")
    refused = asyncio.Event()

    async def ask_again() -> None:
        while (await at.chat(WORDS)).status_code != 503:
            pass
        refused.set()
        while (await at.chat(WORDS)).status_code == 503:
            pass

    clients = [asyncio.create_task(ask_again()) for _ in range(4)]
    while not refused.is_set():
        await at.runtime.stop_engine()
    await asyncio.gather(*clients)


async def test_steps_are_short_only_where_somebody_at_the_window_may_wait(
    at: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a processor, a prompt read in many short steps takes several times as long as in a few long ones."""
    steps: list[float] = []
    read = forwarder.prefill_ahead

    async def heard(*args: Any, step_ms: float, **others: Any) -> bool:
        steps.append(step_ms)
        return await read(*args, step_ms=step_ms, **others)

    monkeypatch.setattr(forwarder, "prefill_ahead", heard)
    await at.chat("x" * 1000)
    chat = await at.runtime.chat.new_conversation("")
    await at.runtime.chat.send(chat.id, "Hello")
    await at.runtime.chat.idle()
    monkeypatch.setattr(forwarder, "MIN_STEPPED", 1)
    monkeypatch.setattr(forwarder, "TARGET_STEP_MS", 0.0)
    await at.chat("y" * 1000)
    assert steps == [forwarder.IDLE_STEP_MS, 0.0]


async def test_shutting_it_ends_what_is_said_and_takes_in_nobody(at: RunningGateway, fake_engine: FakeEngine) -> None:
    """Also when nobody waits for it, as for a switch in a window that closes: the next one who shuts it does."""
    with contextlib.suppress(httpx2.RemoteProtocolError, httpx2.ReadError):
        async with long_answer(at, fake_engine) as answer:
            async for _ in answer.aiter_bytes():
                first = asyncio.ensure_future(at.runtime.api_server.gateway.close())
                await until(lambda: at.runtime.api_server.gateway.url is None)
                first.cancel()
                await at.runtime.api_server.close()
    assert "API server" not in [task.get_name() for task in asyncio.all_tasks()]
    assert at.last.stage is Stage.FAILED
    with pytest.raises(httpx2.ConnectError):
        await at.client.get("/health")


async def test_who_gives_up_opening_it_leaves_nobody_listening() -> None:
    """At whatever step; and where one has listened the next can."""

    async def silent(scope: object, receive: object, send: object) -> None: ...

    there, files = asyncio.all_tasks(), psutil.Process().num_fds()
    for steps in range(8):
        opening = asyncio.ensure_future(server.listen(silent, "127.0.0.1", 0))
        for _ in range(steps):
            await asyncio.sleep(0)
        if not opening.done():
            opening.cancel()
            await asyncio.wait({opening})
        else:
            await opening.result().close()
        await until(lambda: asyncio.all_tasks() == there)
        assert psutil.Process().num_fds() <= files, steps
    listening = await server.listen(silent, "127.0.0.1", 0)
    with pytest.raises(KvchatError, match=f"listen on 127.0.0.1:{listening.port}") as told:
        await server.listen(silent, "127.0.0.1", listening.port)
    assert "another port" in told.value.advice
    _, writer = await asyncio.open_connection("127.0.0.1", listening.port)
    await until(lambda: listening.connections == 1)
    writer.close()
    await listening.close()


async def found(at: RunningGateway, key: str, name: str, *words: str) -> int:
    """How much of a prompt was known before it was asked, by somebody who shows this key and gives this name."""
    at.runtime.chat.slots.restore_cost.speed.samples.extend([PrefillSample(1000, 1e6)] * 5)  # restoring pays
    said = chat_body(*words)
    said["messages"].insert(0, {"role": "system", "content": WORDS})
    headers = {"authorization": f"Bearer {key}", "user-agent": name}
    answer = await at.client.post("/v1/chat/completions", json=said, headers=headers)
    await at.settled()
    return int(answer.headers["x-kvchat-found"])


KEYS = {"": "the-key-of-all", **{name: f"the-key-of-{name}" for name in ("ann", "bob", "cay")}}


@pytest.mark.parametrize("exact_only", [None, 1])
async def test_a_system_prompt_that_two_programs_sent_serves_the_third(
    tmp_path: Path, settings: Settings, fake_engine: FakeEngine, exact_only: int | None
) -> None:
    fake_engine.set(FAKE_EXACT_ONLY=exact_only)
    ann, bob, cay, anybody = (KEYS[name] for name in ("ann", "bob", "cay", ""))
    few, secret = len(WORDS) // 2, "What nobody else is to know. " * 4
    async with running_gateway(tmp_path / "home", settings, KEYS) as at:
        for name in ("ann", "zed", "quill", "loom"):
            assert await found(at, anybody, name, secret) < few, "names that anybody may take do not count"
        assert await found(at, ann, "", secret) < few
        assert await found(at, ann, "", "Another conversation") > few or exact_only, "it is exclusive"
        assert await found(at, bob, "", "Mine") < few, "it has not sent it before"
        told = await found(at, cay, "", secret)
        assert len(WORDS) - 20 < told < len(WORDS) + 60, "the system prompt, and nothing of what the first has asked"
    async with running_gateway(tmp_path / "home", settings, KEYS) as at:
        assert await found(at, anybody, "zed2", secret) == told, "as of any document for all"


async def test_programs_share_their_memory_where_the_user_wants_it(tmp_path: Path, settings: Settings) -> None:
    async with running_gateway(tmp_path / "home", replace(settings, api_share=True)) as at:
        await found(at, "none", "zed", "Tell me")
        assert await found(at, "none", "quill", "Tell me") > len(WORDS)
        chat = (await at.runtime.chat.new_conversation(WORDS)).id
        assert (reply := await at.runtime.chat.send(chat, "Tell me"))
        assert reply.receipt.cached_tokens < len(WORDS) // 2, "what programs ask is not for chats"
        [kept] = [one for one in (await at.runtime.save_points.usage()).conversations if one.conversation_id != chat]
        assert program_of(kept.conversation_id) == "all programs"
    async with running_gateway(tmp_path / "home", settings) as at:
        assert await found(at, "none", "zed", "Tell me") < len(WORDS) // 2, "and not any more where not"
