"""Requests that crash the engine: sent once, and refused when there are too many, whatever else is active."""

import asyncio
import base64
import contextlib
import json
import re
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvchat.engine.api.errors import EngineFailure, EngineGone, EngineLifetime, FailureKind
from kvchat.engine.process import supervisor
from kvchat.gateway.checks import MAX_ALTERNATIVES, MAX_ENTRIES, MAX_GRAMMAR_CHARS, MAX_NESTING, MAX_TEXT, check_bounds
from kvchat.gateway.crashes import ABANDONED_S, CRASH_WINDOW_S, REFUSED_S, Crashes
from kvchat.gateway.dialects.request import RequestRefused
from kvchat.gateway.records import Stage
from kvchat.settings import Settings
from tests.engine.waiting import until
from tests.engine_fixtures import FakeEngine
from tests.gateway.corpus import REQUESTS
from tests.gateway.servers import RunningGateway, chat_body, running_gateway

BOMB = "boom"
CRASHED, HUNG, KILLED = (
    EngineFailure(kind, "", "", "") for kind in (FailureKind.CRASHED, FailureKind.HANGS, FailureKind.KILLED)
)


@pytest.fixture
async def server(
    tmp_path: Path, settings: Settings, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RunningGateway]:
    """A gateway with four slots, on an engine that crashes at a word and is restarted at once."""
    monkeypatch.setattr(supervisor, "RestartPolicy", partial(supervisor.RestartPolicy, first_delay_s=0.0))
    fake_engine.set(FAKE_DIE_ON=BOMB, FAKE_REPLY="word " * 10)
    async with running_gateway(tmp_path / "home", replace(settings, slots=4)) as gateway:
        await gateway.chat("Hello")
        await gateway.settled()
        yield gateway


async def status_of(server: RunningGateway, program: str, text: str = "Hello") -> int:
    return (await server.chat(text, headers={"user-agent": f"{program}/1"})).status_code


def count_bombs(fake_engine: FakeEngine) -> int:
    """Count those that have reached the engine."""
    requests = [request for request in fake_engine.requests() if request["path"] == "/v1/chat/completions"]
    return sum(BOMB in json.dumps(request["body"]) for request in requests)


async def test_program_that_keeps_crashing_the_engine_is_refused(
    server: RunningGateway, fake_engine: FakeEngine
) -> None:
    for number in range(3):
        assert await status_of(server, "hostile", BOMB) == 502
        assert count_bombs(fake_engine) == number + 1, "sent once"
    refused = await server.chat("Hello", headers={"user-agent": "hostile/1"})
    assert refused.status_code == 429
    assert 0 < int(refused.headers["retry-after"]) <= REFUSED_S
    assert count_bombs(fake_engine) == 3
    assert await status_of(server, "friend") == 200
    now = time.monotonic()
    server.gateway.runner.crashes._clock = lambda: now + REFUSED_S + 60
    assert await status_of(server, "hostile") == 200


async def test_programs_beside_it_are_not_refused(server: RunningGateway, fake_engine: FakeEngine) -> None:
    """It sends its request only while others are active; after the first crash it runs alone."""
    friends, active = ("first", "second"), server.log.active
    for number in range(4):
        fake_engine.set(FAKE_HOLD_DURING="stream")
        pending = [
            asyncio.ensure_future(status_of(server, friend, f"{number}")) for friend in friends[: 1 if number else 2]
        ]
        await until(lambda: sum(record.stage is Stage.ANSWERING for record in active) >= len(pending))  # noqa: B023
        hostile = asyncio.ensure_future(status_of(server, "hostile", BOMB))
        if number:
            await until(lambda: any(record.program == "hostile" for record in active))
            await asyncio.sleep(0)
            assert count_bombs(fake_engine) == number, "it waits for the other"
        else:
            await hostile
        fake_engine.set(FAKE_HOLD_DURING=None)
        statuses = await asyncio.gather(*pending)
        assert await hostile == 502
        assert number == 0 or statuses == [200]
    assert await status_of(server, "hostile") == 429
    for friend in friends:
        assert await status_of(server, friend) == 200


async def test_crash_after_a_disconnect_counts(server: RunningGateway, fake_engine: FakeEngine) -> None:
    connection = server.runtime.engine.managed.connection
    for number in range(1, 4):
        fake_engine.set(FAKE_HOLD_DURING="begin")
        request, generation = asyncio.ensure_future(status_of(server, "hostile", BOMB)), connection.generation
        await until(lambda: count_bombs(fake_engine) >= number)  # noqa: B023
        request.cancel()
        await until(lambda: sum(record.program == "hostile" for record in server.log.recent) >= number)  # noqa: B023
        fake_engine.set(FAKE_HOLD_DURING=None)
        await until(lambda: connection.generation > generation)  # noqa: B023
        assert await status_of(server, "friend") == 200
    assert await status_of(server, "hostile") == 429


async def test_loss_is_explained_by_its_own_lifetime(server: RunningGateway, fake_engine: FakeEngine) -> None:
    """Also if the next engine is ready before anyone asks."""
    host, connection = server.runtime.engine, server.runtime.engine.managed.connection
    engine, generation = await connection.ready(), connection.generation
    with pytest.raises(EngineGone, match="was lost") as loss:
        await engine._http.request_json("POST", "/v1/chat/completions", chat_body(BOMB))
    await until(lambda: connection.generation > generation and host.is_ready())
    assert "crashed" in str(await loss.value.explain())


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def crash(crashes: Crashes, *programs: str, failure: EngineFailure | None = CRASHED) -> None:
    """End an engine while these programs use it."""
    lifetime, ended = EngineLifetime(), asyncio.Event()
    crashes.watch(lifetime)

    async def use_engine(program: str) -> None:
        async with crashes.using_engine(program):
            await ended.wait()

    users = [asyncio.ensure_future(use_engine(program)) for program in programs]
    await asyncio.sleep(0)
    lifetime.end(failure)
    ended.set()
    await asyncio.gather(*users)


def is_refused(crashes: Crashes, program: str) -> bool:
    try:
        crashes.check(program)
    except RequestRefused:
        return True
    return False


async def test_which_program_is_blamed() -> None:
    clock = Clock()
    crashes = Crashes(clock=clock)
    for _ in range(5):
        await crash(crashes, "a", "b")
        await crash(crashes, "a", failure=KILLED)
        await crash(crashes, "a", failure=None)
    assert not is_refused(crashes, "a")
    assert crashes._is_suspected("b")
    await crash(crashes, "a")
    assert not crashes._is_suspected("b"), "forgiven"
    clock.now += CRASH_WINDOW_S
    await crash(crashes, "a")
    await crash(crashes, "a")
    assert not is_refused(crashes, "a"), "the first is long ago"
    await crash(crashes)  # without any of them
    await crash(crashes, "a")
    assert not is_refused(crashes, "a")
    await crash(crashes, "a")
    await crash(crashes, "a")
    assert is_refused(crashes, "a")
    clock.now += REFUSED_S
    assert not is_refused(crashes, "a")


async def test_one_hang_is_enough_and_a_restored_state_may_be_the_cause() -> None:
    """A hang is detected after ten minutes, so three never happen within ten."""
    crashes = Crashes(clock=Clock())
    await crash(crashes, "a", "b", failure=HUNG)
    assert not is_refused(crashes, "a")
    await crash(crashes, "a", failure=HUNG)
    assert is_refused(crashes, "a")
    assert not is_refused(crashes, "b")
    crashes = Crashes(lambda: True)
    for _ in range(4):
        await crash(crashes, "a")
    assert not is_refused(crashes, "a")


async def test_hang_after_a_disconnect_is_blamed_on_the_disconnected() -> None:
    """A hang is detected minutes later: a disconnected program uses the engine until its loop responds again."""
    clock = Clock()
    crashes = Crashes(clock=clock)
    for number in range(4):
        lifetime = EngineLifetime()
        crashes.watch(lifetime)
        clock.now = lifetime.responded_at = clock.now + 1.0
        with contextlib.suppress(asyncio.CancelledError):
            async with crashes.using_engine("hostile"):
                clock.now += 1.0
                raise asyncio.CancelledError
        clock.now += 240.0
        if number == 0:  # nothing is suspected yet
            assert crashes._may_start("friend")
            crashes._in_engine["friend"] += 1
        else:
            assert not crashes._may_start("friend"), "it would be blamed for the hang"
        lifetime.end(HUNG)
        crashes._in_engine.clear()
        assert crashes._may_start("friend")
    assert is_refused(crashes, "hostile")
    assert not is_refused(crashes, "friend")
    crashes.watch(lifetime := EngineLifetime())
    crashes._suspected_until["hostile"], crashes._abandoned["hostile"] = clock.now + 100.0, clock.now
    clock.now += ABANDONED_S
    lifetime.responded_at = clock.now
    assert crashes._may_start("friend"), "the engine has responded since"


def deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def picture_header(width: int, height: int) -> str:
    """Return a PNG header of this size in base64."""
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height)
    return base64.b64encode(head + bytes(40)).decode()


def with_pictures(*files: str) -> list[dict[str, Any]]:
    urls = [{"url": f"data:image/png;base64,{file}"} for file in files]
    return [{"role": "user", "content": [{"type": "image_url", "image_url": url} for url in urls]}]


DANGEROUS: dict[str, dict[str, Any]] = {
    "a template's option": {"chat_template_kwargs": {"a": deep(MAX_NESTING)}},
    "a tool": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": deep(MAX_NESTING)}}}]},
    "a call's arguments": {"messages": [{"tool_calls": [{"function": {"arguments": "[" * 300 + "]" * 300}}]}]},
    "a call's endless arguments": {"messages": [{"function": {"arguments": "[" * 90_000 + "]" * 90_000}}]},
    "a long grammar": {"grammar": "root ::= " + '"a" ' * (MAX_GRAMMAR_CHARS // 4)},
    "a grammar's brackets": {"grammar": "root ::= " + "(" * 300 + '"a"' + ")" * 300},
    "a template's grammar": {"chat_template_kwargs": {"grammar": "x" * (MAX_GRAMMAR_CHARS + 1)}},
    "a schema": {"json_schema": {"enum": ["x" * MAX_GRAMMAR_CHARS]}},
    "a format": {
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["x" * MAX_GRAMMAR_CHARS]}}}
    },
    "a long text": {"messages": [{"role": "user", "content": "a " * (MAX_TEXT // 2)}]},
    "many messages": {"messages": [{"role": "user", "content": "a"}] * (MAX_ENTRIES + 1)},
    "many stop words": {"stop": ["a"] * (MAX_ENTRIES + 1)},
    "many biases": {"logit_bias": {str(token): 1 for token in range(MAX_ENTRIES + 1)}},
    "a list of each token's probabilities": {"n_probs": 1_000_000_000.0},
    "the same as OpenAI calls it": {"logprobs": True, "top_logprobs": MAX_ALTERNATIVES + 1},
    "a huge picture": {"messages": with_pictures(picture_header(65_000, 65_000))},
    "another dialect's": {
        "messages": [{"content": [{"source": {"type": "base64", "data": picture_header(65_000, 65_000)}}]}]
    },
    "a completion's": {"prompt": {"prompt_string": "?", "multimodal_data": [picture_header(65_000, 65_000)]}},
    "many large pictures": {"messages": with_pictures(*[picture_header(6_000, 6_000)] * 14)},
    "a schema's pattern": {"json_schema": {"type": "string", "pattern": "^" + "(" * 300 + "a" + ")" * 300 + "$"}},
}


@pytest.mark.parametrize("name", DANGEROUS)
async def test_dangerous_requests_do_not_reach_the_engine(
    server: RunningGateway, fake_engine: FakeEngine, name: str
) -> None:
    sent, body = len(fake_engine.requests()), chat_body("Hello") | DANGEROUS[name]
    for path in ("/v1/chat/completions", "/v1/messages", "/apply-template"):
        answer = await server.client.post(path, json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert re.search(r"(?:(?:more|longer|larger) than|at most) \d[\d,]*\b", answer.text), "it names the limit"
    assert len(fake_engine.requests()) == sent


@pytest.mark.parametrize("scheme", ["http:", "https:", "file:", "HTTP:", " http:", ""])
async def test_pictures_are_not_fetched(server: RunningGateway, fake_engine: FakeEngine, scheme: str) -> None:
    """The engine would fetch them, in the user's network."""
    url, sent = f"{scheme}//127.0.0.1:9/picture.png", len(fake_engine.requests())
    image = {"type": "image", "source": {"type": "url", "url": url}}
    in_result = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    in_chat = [{"type": "image_url", "image_url": {"url": url}}]
    in_responses = [{"type": "input_image", "image_url": url}]
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": in_chat}]}),
        ("/apply-template", {"messages": [{"role": "tool", "content": in_chat}]}),
        ("/v1/responses", {"input": [{"role": "user", "content": in_responses}]}),
        ("/v1/responses", {"input": [{"type": "function_call_output", "call_id": "c", "output": in_responses}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [image]}]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": [in_result]}]}),
        ("/v1/chat/completions", {"messages": [{"content": [{"type": "video_url", "video_url": {"url": url}}]}]}),
        ("/v1/chat/completions", {"messages": [{"content": [{"type": "input_audio", "input_audio": {"url": url}}]}]}),
    ]
    for path, body in bodies:
        answer = await server.client.post(path, json=body)
        assert answer.status_code == 400, path
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert len(fake_engine.requests()) == sent


def test_normal_requests_are_within_limits() -> None:
    for _, body in REQUESTS.values():
        check_bounds(body)
    check_bounds({"grammar": "root ::= " + "(" * 150 + '"a"' + ")" * 150, "messages": deep(MAX_NESTING - 2)})
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * MAX_TEXT}}
    check_bounds({"messages": [{"role": "user", "content": [picture]}]}, MAX_TEXT + 200)
    check_bounds({"messages": with_pictures(*[picture_header(6_000, 6_000)] * 13)})
    call = {"type": "tool_use", "id": "t", "name": "fetch", "input": {"url": "https://a.example", "image_url": "b"}}
    cited = {"type": "text", "text": "", "citations": [{"url": "https://a.example"}]}
    check_bounds({"messages": [{"role": "assistant", "content": [call, cited]}]})
    check_bounds({"prompt": [7] * (MAX_ENTRIES + 1), "logprobs": True, "top_logprobs": MAX_ALTERNATIVES})
    with pytest.raises(RequestRefused):
        check_bounds({"messages": deep(MAX_NESTING + 1)})
