"""Limits on what one device can claim of the computer that shares its model."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from kvchat.engine.api.connection import EngineState
from kvchat.engine.process import external, supervisor
from kvchat.engine_host.paired_computer import PairedComputerStore
from kvchat.gateway import gateway
from kvchat.gateway.checks import parse_checked
from kvchat.gateway.crashes import MAX_CRASHES
from kvchat.gateway.devices import api
from kvchat.gateway.dialects.request import Dialect, ParsedRequest
from kvchat.gateway.runner import Model
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths
from tests.devices.conftest import PROGRAM_KEY, PROGRAM_KEYS, client_of, paired, sharing_of
from tests.engine.waiting import until
from tests.engine_fixtures import FakeEngine
from tests.gateway.servers import WORDS, RunningGateway, chat_body, running_gateway
from tests.library.gguf_files import LLAMA, write_gguf
from tests.running import opened
from tests.store_contents import StoreContents

OURS = {"authorization": f"Bearer {PROGRAM_KEY}"}


async def test_preparations_do_not_delay_closing(box: RunningGateway) -> None:
    device = await paired(box)
    await box.chat("Hello", headers=OURS)
    await box.settled()
    body = chat_body("Draft")
    async with client_of(device) as client:
        with box.gateway.runner.stopped():
            for path in ("prepare", "forecast"):
                assert (await client.post(f"/kvchat/{path}", json=body)).status_code == 503
        with box.runtime.chat.slots.paused() as released:
            await released
            async with client.stream("POST", "/kvchat/prepare?read=1", json=body) as preparing:
                closing = asyncio.create_task(box.gateway.close())
                assert await preparing.aread() == b""
            await closing


async def test_waiting_change_of_the_model_ends_with_its_device(
    box: RunningGateway, settings: Settings, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_gguf(Path(settings.model_path).parent / "egret.gguf", dict(LLAMA))
    monkeypatch.setattr(box.gateway.runner, "find_model", AsyncMock(return_value=Model("egret", str(other))))
    device, slots, listener = await paired(box), box.runtime.chat.slots, box.gateway._shared
    for is_removed in (False, True):
        async with slots.exclusive(), client_of(device) as client:
            loading = asyncio.create_task(client.post("/kvchat/model", json={}))
            await until(lambda: len(slots._engine_changes) == 2)
            assert (await client.post("/kvchat/model", json={})).status_code == 429, "one at a time"
            if is_removed:
                sharing_of(box).remove(device.device)
            else:
                loading.cancel()
                await until(lambda: listener.connection_count == 1)
        await until(lambda: not slots._engine_changes)
    assert not fake_engine.launches()


async def test_device_does_not_change_the_model_all_the_time(
    box: RunningGateway, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "MODEL_PAUSE_S", 1000.0)
    other = write_gguf(Path(settings.model_path).parent / "egret.gguf", dict(LLAMA))
    named = [Model(path.stem, str(path)) for path in (other, Path(settings.model_path), other)]
    monkeypatch.setattr(box.gateway.runner, "find_model", AsyncMock(side_effect=named))
    device = await paired(box)
    async with client_of(device) as client:
        assert (await client.post("/kvchat/model", json={})).status_code == 200
        again = asyncio.create_task(client.post("/kvchat/model", json={}))
        await until(lambda: box.gateway.runner.find_model.await_count == 2)
        async with client_of(await paired(box)) as somebody_else:
            assert (await somebody_else.post("/kvchat/model", json={})).status_code == 200
        assert not again.done()
        again.cancel()


async def test_laptop_notices_that_it_was_removed(
    box: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it sends no message."""
    monkeypatch.setattr(external, "PAIRED", replace(external.PAIRED, check_interval_s=0.05))
    home, device = tmp_path / "laptop", await paired(box)
    PairedComputerStore(resolve_paths({"KVCHAT_HOME": str(home)}).ensure()).save(device)
    async with opened(home, Settings(engine_url=device.url)) as laptop:
        await laptop.engine.ready()
        sharing_of(box).remove(device.device)
        await until(lambda: laptop.engine.status.state is EngineState.FAILED)
        assert "refused access" in laptop.engine.status.failure.title


def question(text: str, *more: str) -> dict[str, Any]:
    body = chat_body(text, *more)
    return body | {"messages": [{"role": "system", "content": WORDS}, *body["messages"]]}


async def test_nothing_is_saved_for_requests_that_forbid_it(
    box: RunningGateway, fake_engine: FakeEngine, tmp_path: Path
) -> None:
    fake_engine.set(FAKE_EXACT_ONLY=1)  # so that system prompts are saved, too
    never, device = {"x-kvchat-save": "never"}, await paired(box)
    async with client_of(device) as client:
        for key in PROGRAM_KEYS.values():
            headers = {"authorization": f"Bearer {key}"} | never
            answer = await box.client.post("/v1/chat/completions", json=question("Mine"), headers=headers)
            assert answer.status_code == 200
        for text, headers in (("Mine", never), (WORDS, {})):
            await box.settled()
            assert not StoreContents(tmp_path / "box").save_points()
            body = question(text, WORDS)
            answer = await client.post("/kvchat/prepare?read=1", json=body, headers=headers)
            assert answer.text.splitlines()
    await box.settled()
    assert StoreContents(tmp_path / "box").save_points()


async def test_device_whose_preparations_crash_the_engine_is_refused(
    box: RunningGateway, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "RestartPolicy", partial(supervisor.RestartPolicy, first_delay_s=0.0))
    device = await paired(box)
    async with client_of(device) as client:
        for number in range(MAX_CRASHES):
            assert (await box.chat("Hello", headers=OURS)).status_code == 200
            await box.settled()
            fake_engine.set(FAKE_DIE_DURING="prefill", FAKE_DIE_TIMES=number + 1)
            answer = await client.post("/kvchat/prepare?read=1", json=question(f"{number} {WORDS}"))
            assert answer.status_code == 200
            await box.settled()
            fake_engine.set(FAKE_DIE_DURING=None)
        assert (await box.chat("Hello", headers=OURS)).status_code == 200
        for path in ("/kvchat/prepare", "/kvchat/forecast", "/v1/chat/completions"):
            assert (await client.post(path, json=question("Hello"))).status_code == 429, path


async def test_device_that_is_removed_while_it_sends_a_request_is_refused(
    box: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed, device = await paired(box), await paired(box)

    async def parse(dialect: Dialect, raw: bytes) -> ParsedRequest:
        sharing_of(box).remove(removed.device)
        return await parse_checked(dialect, raw)

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"keep": '
        await asyncio.sleep(0.2)  # if the head arrives later, it is refused all the same
        sharing_of(box).remove(device.device)
        yield b'"always"}'

    monkeypatch.setattr(gateway, "parse_checked", parse)
    async with client_of(removed) as client:
        assert (await client.post("/v1/chat/completions", json=chat_body("Hello"))).status_code == 401
    async with client_of(device) as client:
        assert (await client.put("/kvchat/chats/mine", content=pieces())).status_code == 401


async def test_body_counts_as_in_memory_while_it_is_prepared(box: RunningGateway) -> None:
    await box.chat("Hello", headers=OURS)
    await box.settled()
    async with client_of(await paired(box)) as client:
        with box.runtime.chat.slots.paused() as released:
            await released
            async with client.stream("POST", "/kvchat/prepare", json=chat_body("Draft")) as preparing:
                assert box.gateway._body_bytes > 0
        assert preparing.status_code == 200
    await box.settled()
    assert box.gateway._body_bytes == 0


async def test_chats_without_memory_are_limited(box: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MAX_FLAGGED", 2)
    async with client_of(await paired(box)) as client:
        await client.post("/v1/chat/completions", json=chat_body(WORDS), headers={"x-kvchat-chat": "real"})
        await box.settled()
        statuses = {}
        for chat in ("one", "two", "three", "two", "real"):
            statuses[chat] = (await client.put(f"/kvchat/chats/{chat}", json={"keep": "always"})).status_code
        assert statuses == {"one": 200, "two": 200, "three": 409, "real": 200}
        for chat in ("two", "unknown"):
            answer = await client.put(f"/kvchat/chats/{chat}", json={"keep": "automatic"})
            assert answer.status_code == 200
        listed = {entry["chat"] for entry in (await client.get("/kvchat/chats")).json()["chats"]}
        assert listed == {"one", "real"}


async def test_programs_without_a_key_of_their_own_change_nothing(tmp_path: Path, settings: Settings) -> None:
    async with running_gateway(tmp_path / "home", settings) as server:
        assert (await server.client.get("/kvchat/chats")).status_code == 200
        for method in ("PUT", "DELETE"):
            answer = await server.client.request(method, "/kvchat/chats/mine", json={"keep": "always"})
            assert answer.status_code == 403
