"""An idle engine is stopped; the next message starts it and restores its chat."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from kvchat.engine.api.connection import EngineState
from kvchat.engine_host.idle_stop import IdleStop
from kvchat.runtime import Runtime
from kvchat.session.proof import Source
from tests.engine.waiting import until
from tests.engine_fixtures import FakeEngine
from tests.running import ask, running

UNLOADED, READY = EngineState.UNLOADED, EngineState.READY
LONG = "Tell me again, and at length, how a cache of keys and values comes to know what was said before. " * 20


@contextlib.asynccontextmanager
async def resting_at_once(runtime: Runtime) -> AsyncIterator[None]:
    """Stop the engine as soon as it is idle."""
    rest = IdleStop(lambda: 0, runtime.chat, runtime.engine, check_interval_s=0.01)
    running = asyncio.create_task(rest.run())
    try:
        yield
    finally:
        rest.end()
        await running


async def test_idle_engine_stops_and_restarts_warm(runtime: Runtime, fake_engine: FakeEngine) -> None:
    chat = (await runtime.chat.new_conversation()).id
    await ask(runtime, chat, LONG)
    await runtime.chat.save_and_stop(AsyncMock(return_value=False))  # a message came before the stop
    assert (await ask(runtime, chat, "And then?")).receipt.source is Source.HOT
    async with resting_at_once(runtime):
        await until(lambda: runtime.engine.status.state is UNLOADED)
        await until(lambda: runtime.engine.engine_pid is None)
    assert [request for request in fake_engine.requests() if "action=save" in request["path"]]
    second = await ask(runtime, chat, "And then?")
    assert len(fake_engine.launches()) == 2
    assert second.receipt.source is Source.WARM
    assert second.receipt.cached_tokens >= 0.9 * second.receipt.prompt_tokens


async def test_start_with_the_first_message(tmp_path: Path, fake_engine: FakeEngine) -> None:
    async with running(tmp_path, fake_engine, engine_start="message") as runtime:
        await runtime.start()
        assert runtime.engine.status.state is UNLOADED
        assert not runtime.engine.restart_pending
        assert fake_engine.launches() == []
        await ask(runtime, (await runtime.chat.new_conversation()).id, "Hello")
        assert runtime.engine.status.state is READY


@pytest.mark.parametrize("step", ["prepare", "start"])
async def test_stop_during_the_start_of_the_engine_is_no_failure(
    tmp_path: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async with running(tmp_path, fake_engine, engine_start="message") as runtime:
        await runtime.start()
        chat, reached = (await runtime.chat.new_conversation()).id, asyncio.Event()

        async def hang() -> None:
            reached.set()
            await asyncio.Event().wait()

        async def prepare(*_: object, **__: object) -> Callable[[], Awaitable[None]]:
            if step == "prepare":
                await hang()
            return hang

        with monkeypatch.context() as slow:
            slow.setattr(runtime.engine.managed, "prepare", prepare)
            reply = runtime.chat.send(chat, "Hello")
            await reached.wait()
            runtime.chat.stop(chat)
            assert await reply is None
        assert (runtime.engine.status.state, runtime.engine.status.failure) == (UNLOADED, None)
        await ask(runtime, chat, "Hello again")


async def test_busy_engine_does_not_stop(runtime: Runtime, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_TOKEN_DELAY=0.05, FAKE_REPLY="one two three four five six")
    chat = (await runtime.chat.new_conversation()).id
    async with resting_at_once(runtime):
        reply = await ask(runtime, chat, "Count")
        assert reply.content == "one two three four five six"
        assert len(fake_engine.launches()) == 1
    assert not IdleStop(lambda: 60, runtime.chat, runtime.engine)._is_due()


async def test_messages_while_stopping_are_answered(runtime: Runtime) -> None:
    chat = (await runtime.chat.new_conversation()).id
    async with resting_at_once(runtime):
        for turn in range(3):
            assert (await ask(runtime, chat, f"Message {turn}")).content == f"You said: Message {turn}"
            await until(lambda: runtime.engine.status.state is UNLOADED)
