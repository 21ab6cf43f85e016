"""What the runtime passes on to the real store: plans, prunes, pins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from kvchat.kvstore.store import StoreRefused
from kvchat.paths import resolve_paths
from kvchat.runtime import Runtime, open_runtime
from kvchat.settings import Settings
from tests.kvstore.slot_files import FINGERPRINT, line
from tests.kvstore.true_files import FULL


@pytest_asyncio.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    """A runtime without an engine, which keeps two turns of one conversation and one of another."""
    runtime = await open_runtime(resolve_paths({"KVCHAT_HOME": str(tmp_path)}), Settings())
    for name, tokens in (("a", line(300)), ("a", line(700)), ("b", line(600, start=5000))):
        data = FULL.slot_file(tokens)
        path = runtime._store.staging_folder() / "saved.slot"
        path.write_bytes(data)
        runtime._store.take(path, name, FINGERPRINT, tokens, len(data), 5000.0)
        runtime._store.absorb_pending()
    yield runtime
    await runtime.close()


async def kept(runtime: Runtime) -> set[str]:
    return {entry.conversation_id for entry in (await runtime.store_usage()).conversations}


async def test_a_plan_removes_nothing_and_a_prune_does_the_plan(runtime: Runtime) -> None:
    before = (await runtime.store_usage()).conversations
    plan = await runtime.plan_prune(0)
    assert {one.conversation_id: one.save_points for one in plan.conversations} == {"a": 2, "b": 1}
    assert (await runtime.store_usage()).conversations == before
    assert await runtime.prune(plan) == plan.bytes_freed > 0
    assert await kept(runtime) == set()


async def test_what_is_pinned_is_in_no_plan(runtime: Runtime) -> None:
    await runtime.pin("a", True)
    plan = await runtime.plan_prune(0)
    assert {one.conversation_id for one in plan.conversations} == {"b"}
    await runtime.pin("a", False)
    assert {one.conversation_id for one in (await runtime.plan_prune(0)).conversations} == {"a", "b"}


async def test_never_saving_one(runtime: Runtime) -> None:
    await runtime.never_save("a", True)
    with pytest.raises(StoreRefused, match="never to save"):
        runtime._store.check_room(1000, "a")
    runtime._store.check_room(1000, "b")
    await runtime.never_save("a", False)
    runtime._store.check_room(1000, "a")
    assert await kept(runtime) == {"a", "b"}
