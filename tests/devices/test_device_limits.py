"""What one device can claim of the computer that shares its model."""

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from kvchat.gateway.runner import Model
from kvchat.settings import Settings
from tests.devices.conftest import PROGRAM_KEY, PROGRAM_KEYS, client_of, paired, sharing_of
from tests.engine.waiting import until
from tests.engine_fixtures import FakeEngine
from tests.gateway.servers import WORDS, RunningGateway, chat_body
from tests.library.gguf_files import LLAMA, write_gguf
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
    assert listener is not None
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
