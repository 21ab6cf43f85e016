"""The runtime with the real store: plans, prunes, pins, limits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from kvchat.chat.events import SettingsChanged
from kvchat.chat.record.database import Database
from kvchat.engine.api.connection import EngineState
from kvchat.engine.api.errors import EngineFailed, EngineGone
from kvchat.kvstore import savepoint
from kvchat.kvstore.inventory import Inventory
from kvchat.runtime import Runtime, open_runtime
from kvchat.settings import GB, Settings, SettingsNotSaved, load_settings
from kvchat.system.paths import resolve_paths
from tests.kvstore.store_bench import FINGERPRINT, FULL, Bench, token_range
from tests.running import ask, running


@pytest_asyncio.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    """Yield a runtime without an engine; its store has two turns of one conversation and one of another."""
    runtime = await open_runtime(resolve_paths({"KVCHAT_HOME": str(tmp_path)}), Settings())
    for name, tokens in (("a", token_range(300)), ("a", token_range(700)), ("b", token_range(600, start=5000))):
        data = FULL.slot_file(tokens)
        path = runtime._store.staging.slot_folder() / "saved.slot"
        path.write_bytes(data)
        runtime._store.saver.add(path, name, FINGERPRINT, tokens, len(data), 5000.0)
        runtime._store.absorb_pending()
    yield runtime
    await runtime.close()


async def saved_chats(runtime: Runtime) -> set[str]:
    return {entry.conversation_id for entry in (await runtime.save_points.usage()).conversations}


async def test_prune_executes_the_plan(runtime):
    with pytest.raises(EngineFailed, match="No model is chosen yet"):
        await runtime.engine.ready()
    assert runtime.engine.status.state is EngineState.STOPPED, "nothing has failed"
    before = (await runtime.save_points.usage()).conversations
    plan = await runtime.save_points.plan_prune(0)
    assert {chat.conversation_id: chat.save_points for chat in plan.conversations} == {"a": 2, "b": 1}
    assert (await runtime.save_points.usage()).conversations == before
    assert await runtime.save_points.prune(plan) == plan.bytes_freed > 0
    assert await saved_chats(runtime) == set()


async def test_concurrent_settings_are_stored_in_order(runtime):
    events: list[object] = []
    runtime.events.subscribe(events.append)
    changes = [replace(runtime.settings, max_age_days=days) for days in range(1, 9)]
    await asyncio.gather(*(runtime.apply_settings(settings) for settings in changes))
    assert load_settings(runtime.paths.settings_file) == runtime.settings == changes[-1]
    assert events == [SettingsChanged()] * 8


async def test_settings_apply_even_if_not_saved(runtime):
    runtime.paths.settings_file.mkdir()  # no file can take its place
    with pytest.raises(SettingsNotSaved, match="could not be saved") as refused:
        await runtime.apply_settings(replace(runtime.settings, quota_bytes=GB))
    assert "settings.json" in refused.value.detail
    assert (await runtime.save_points.usage()).quota_bytes == GB


async def test_startup_quota_covers_existing_memory_and_expired_memory_is_deleted(tmp_path, monkeypatch):
    paths = resolve_paths({"KVCHAT_HOME": str(tmp_path)})
    paths.ensure()
    with closing(Database(paths.database)) as database:
        old, pinned = (database.create_conversation(name).id for name in ("An old one", "A dear one"))
    bench = Bench(paths.save_points)  # its clock stands long ago
    bench.save(old, token_range(300))
    bench.save(pinned, token_range(300, start=5000))
    bench.inventory.set_pinned(pinned, True)
    bench.store.close()
    for days, left in ((None, {old, pinned}), (30, {pinned})):
        with monkeypatch.context() as patches:
            patches.setattr(savepoint, "DEFAULT_QUOTA", 1)
            if days is None:
                patches.setattr(Inventory, "usage", lambda store: pytest.fail("it goes through all chats"))
            runtime = await open_runtime(paths, Settings(max_age_days=days))
        usage = await runtime.save_points.usage()
        assert await saved_chats(runtime) == left
        assert usage.quota_bytes > 1
        assert days or usage.quota_bytes <= usage.physical_bytes
        await runtime.close()


async def test_maximum_age_deletes_older_memory(runtime):
    runtime._store.inventory.clock = lambda: datetime.now(UTC) + timedelta(days=3)
    await runtime.apply_settings(replace(runtime.settings, theme="dark"))
    assert await saved_chats(runtime) == {"a", "b"}
    await runtime.save_points.set_pinned("b", True)
    await runtime.apply_settings(replace(runtime.settings, max_age_days=4))
    assert await saved_chats(runtime) == {"a", "b"}
    await runtime.apply_settings(replace(runtime.settings, max_age_days=2))
    left = (await runtime.save_points.usage()).conversations
    assert {chat.conversation_id for chat in left if chat.save_points} == {"b"}


async def test_changes_are_made_here_even_if_the_paired_computer_is_away(runtime, monkeypatch):
    async def memory_server():
        raise EngineGone("The other computer is not available", "", "")

    monkeypatch.setattr(runtime.save_points, "_memory_server", memory_server)
    for change in (
        runtime.save_points.set_pinned("b", True),
        runtime.save_points.set_never_save("b", True),
        runtime.save_points.delete("a"),
    ):
        with pytest.raises(EngineGone):
            await change
    (left,) = (await runtime.save_points.usage()).conversations
    assert (left.conversation_id, left.never_save) == ("b", True)
    with pytest.raises(EngineGone):
        await runtime.save_points.delete(None)
    assert not any(chat.save_points for chat in (await runtime.save_points.usage()).conversations)


async def test_diagnostics_describe_the_engine_without_private_data(tmp_path, fake_engine):
    async with running(tmp_path, fake_engine, kv_type="q8_0") as runtime:
        assert await runtime.engine.vitals() is None
        await ask(runtime, (await runtime.chat.new_conversation()).id, "A question of mine")
        (key,) = runtime.engine.secrets
        runtime._log.note(f"0.00.000.001 I a line with {key} and {Path.home()}/model.gguf")
        text = await runtime.diagnostics()
        for part in ("ready", "kv_type: 'q8_0'", "a line with ‹removed› and ~/model.gguf", "model.gguf", "memory"):
            assert part in text
        for private in (key, "A question of mine", f"{Path.home()}/"):
            assert private not in text
