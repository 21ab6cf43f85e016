"""kvchat with a server that the user runs: chats, saves where it may, and leaves the server alone."""

import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.chat.events import Event, TurnFailed
from kvchat.engine.api.client import LlamaServerClient
from kvchat.engine.api.connection import EngineState
from kvchat.engine.api.vitals import SlotState
from kvchat.engine.discovery.engines import EngineLocation
from kvchat.engine.process.plan import LaunchPlan
from kvchat.engine_host.engines import choose_slot, server_key
from kvchat.kvstore import disk
from kvchat.library.model_files import name_from_path
from kvchat.runtime import Runtime
from kvchat.session.proof import Source
from kvchat.session.restore_support import Strategy
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths
from kvchat.text.reasons import Reason, ReasonCode
from tests.engine.waiting import until
from tests.engine_fixtures import FakeEngine
from tests.library.gguf_files import LLAMA, write_gguf
from tests.running import ask, opened
from tests.users_server import KEY, UsersServer

LONG = "Tell me again, and at length, how a cache of keys and values comes to know what was said before. " * 20
sees_processes = pytest.mark.skipif(sys.platform != "linux", reason="looks into another process")


@pytest.fixture
def fake(fake_engine: FakeEngine, tmp_path: Path) -> FakeEngine:
    """Return a fake engine whose model has a GGUF header."""
    return replace(fake_engine, plan=replace(fake_engine.plan, model=write_gguf(tmp_path / "model.gguf", dict(LLAMA))))


def serve(fake: FakeEngine, *, saves: bool = True) -> contextlib.closing[UsersServer]:
    return contextlib.closing(UsersServer(fake.path, fake.plan, saves=saves))


@contextlib.asynccontextmanager
async def attached(folder: Path, url: str, *, key: str = KEY) -> AsyncIterator[Runtime]:
    server_key(resolve_paths({"KVCHAT_HOME": str(folder / "home")})).save(key)
    async with opened(folder / "home", Settings(engine_url=url)) as runtime:
        yield runtime


@sees_processes
async def test_conversation_survives_a_server_restart(tmp_path: Path, fake: FakeEngine) -> None:
    with serve(fake) as server:
        async with attached(tmp_path, server.address.url) as runtime:
            assert runtime.model.is_configured
            chat = (await runtime.chat.new_conversation()).id
            first = await ask(runtime, chat, LONG)
            assert first.receipt.source is Source.COLD
            assert runtime.model.name == name_from_path(fake.plan.model)
            assert runtime.engine.engine_pid == server.process.pid
            await runtime.chat.wait_until_idle()
            server.close()
            await until(lambda: runtime.engine.status.state is not EngineState.READY)
            server.start()
            second = await ask(runtime, chat, "And then?")
            assert second.receipt.source in (Source.WARM, Source.DISK)
            assert second.receipt.cached_tokens >= 0.9 * second.receipt.prompt_tokens
            vitals = await runtime.engine.vitals()
            assert vitals.memory is not None
            assert KEY not in await runtime.diagnostics()
        assert server.process.poll() is None
        assert not list(fake.plan.slot_path.glob("*.slot"))


@sees_processes
async def test_slot_in_use_is_not_touched(tmp_path: Path, fake: FakeEngine) -> None:
    with serve(fake) as server:
        async with contextlib.aclosing(LlamaServerClient(server.address.url, KEY)) as somebody_else:
            await until(server.listens)
            while not await somebody_else.is_loaded():
                pass
            await somebody_else.prefill([7] * 100)
            before = len(fake.requests())
            async with attached(tmp_path, server.address.url) as runtime:
                await runtime.engine.ready()
                asked = {request["path"] for request in fake.requests()[before:] if request["method"] == "POST"}
                assert asked == {"/apply-template"}, "it needs no slot"
                assert runtime.engine.finding.strategy.supports_saving
                assert runtime.engine.finding.reason == Reason(ReasonCode.IN_USE)
            assert (await somebody_else.prefill([7] * 100)).cache_n == 99


@pytest.mark.parametrize(
    ("slots", "chosen"),
    [
        ([(False, 0), (False, 0)], (1, True)),
        ([(False, 0), (False, 9)], (0, True)),
        ([(True, 9), (False, 9)], (1, False)),
        ([(False, 0), (True, 0)], (0, True)),
        ([], (0, False)),
    ],
)
def test_last_free_slot_is_chosen(slots: list[tuple[bool, int]], chosen: tuple[int, bool]) -> None:
    assert choose_slot([SlotState(busy, tokens, 4096) for busy, tokens in slots]) == chosen


@sees_processes
async def test_only_stale_files_are_deleted(tmp_path: Path, fake: FakeEngine) -> None:
    of_this_run = disk.engine_file_name()
    of_our_data_folder = "-".join(of_this_run.split("-")[:2])
    left = fake.plan.slot_path / f"{of_our_data_folder}-0123456789abcdef-4567cdef.slot"
    folder = fake.plan.slot_path / f"{of_our_data_folder}-0123456789abcdef-4567cdef-x"
    (folder / "store").mkdir(parents=True)
    another_kvchat = "kvchat-00000000-0123456789abcdef-4567cdef.slot"
    kept = ("mine.slot", "kvchat-notes.slot", another_kvchat, f"{of_this_run}.slot")
    stay = {fake.plan.slot_path / name for name in kept}
    for file in (left, *stay):
        file.write_bytes(b"rows")
    with serve(fake) as server:
        async with attached(tmp_path, server.address.url) as runtime:
            await runtime.engine.ready()
        assert set(fake.plan.slot_path.iterdir()) == stay


async def test_without_slot_folder_nothing_is_saved(tmp_path: Path, fake: FakeEngine) -> None:
    with serve(fake, saves=False) as server:
        async with attached(tmp_path, server.address.url) as runtime:
            chat = (await runtime.chat.new_conversation()).id
            await ask(runtime, chat, LONG)
            hot = await ask(runtime, chat, "And then?")
            assert hot.receipt.source is Source.HOT  # the server's own slot still has it
            assert runtime.engine.finding.strategy is Strategy.NONE
            assert (await runtime.save_points.usage()).save_points == 0


@pytest.mark.parametrize(
    ("url", "key", "title"),
    [(None, "guessed", "rejected the API key"), ("127.0.0.1:8080", KEY, "address is invalid")],
)
async def test_problems_are_reported(tmp_path: Path, fake: FakeEngine, url: str | None, key: str, title: str) -> None:
    with serve(fake) as server:
        async with attached(tmp_path, url or server.address.url, key=key) as runtime:
            events: list[Event] = []
            runtime.events.subscribe(events.append)
            chat = (await runtime.chat.new_conversation()).id
            assert await runtime.chat.send(chat, "Hello") is None
            (failed,) = [event for event in events if isinstance(event, TurnFailed)]
            assert title in failed.error.title


async def test_settings_switch_between_engine_and_server(tmp_path: Path, fake: FakeEngine) -> None:
    with serve(fake) as server:
        async with attached(tmp_path, server.address.url) as runtime:
            external = runtime.settings
            own = replace(external, engine_url=None, engine_path=str(fake.path), model_path=str(fake.plan.model))
            await runtime.apply_settings(own)
            chat = (await runtime.chat.new_conversation()).id
            await ask(runtime, chat, "Hello")
            own_pid = runtime.engine.engine_pid
            assert own_pid not in (None, server.process.pid)
            await runtime.apply_settings(external)
            assert runtime.engine.restart_pending
            await runtime.restart_engine()
            await until(lambda: runtime.engine.status.state is EngineState.READY)
            assert runtime.engine.is_external
            await ask(runtime, chat, "Hello again")
            await runtime.apply_settings(own)
            await runtime.restart_engine()
            await ask(runtime, chat, "Back")
            assert runtime.engine.engine_pid not in (None, server.process.pid, own_pid)
        assert server.process.poll() is None


@sees_processes
@pytest.mark.engine
async def test_real_server(tmp_path: Path, smollm2: Path, real_llama_server: EngineLocation) -> None:
    slots = tmp_path / "slots"
    slots.mkdir()
    with contextlib.closing(UsersServer(real_llama_server.path, LaunchPlan(smollm2, 1024, slots))) as server:
        async with attached(tmp_path, server.address.url) as runtime:
            await runtime.apply_settings(replace(runtime.settings, max_tokens=8))
            chat = (await runtime.chat.new_conversation()).id
            await ask(runtime, chat, LONG[:1500])
            await runtime.chat.wait_until_idle()
            server.close()
            await until(lambda: runtime.engine.status.state is not EngineState.READY)
            server.start()
            second = await ask(runtime, chat, "And then?")
            assert second.receipt.source in (Source.WARM, Source.DISK), second.receipt
            assert second.receipt.cached_tokens >= 0.9 * second.receipt.prompt_tokens
