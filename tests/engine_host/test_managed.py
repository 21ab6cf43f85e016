"""kvchat's own engine, over the fake one."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from kvchat.engine.speaking.connection import EngineState
from kvchat.engine_host.choice import EngineChoice
from kvchat.engine_host.managed import EngineMemory
from tests.engine.waiting import until
from tests.engine_fixtures import FakeEngine
from tests.running import running


async def test_no_engine_is_started_once_kvchat_has_ended_it_for_good(
    tmp_path: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims, goes_on = threading.Event(), threading.Event()

    chosen = EngineMemory.choose

    def choose(*given: Any, **more: Any) -> EngineChoice:
        claims.set()
        goes_on.wait()
        return chosen(*given, **more)

    monkeypatch.setattr(EngineMemory, "choose", choose)
    async with running(tmp_path, fake_engine) as runtime:
        await runtime.start_engine()
        await until(claims.is_set)
        closing = asyncio.ensure_future(runtime.engine.close())
        await asyncio.sleep(0)
        goes_on.set()
        await closing
        await runtime._background.idle()
        assert runtime.engine.status.state is EngineState.STOPPED
        assert not fake_engine.launches()
