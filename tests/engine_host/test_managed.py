"""kvchat's own engine, over the fake one."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kvchat.engine.speaking.connection import EngineState
from kvchat.system.ownership import Ownership
from tests.engine.waiting import until
from tests.engine_fixtures import FakeEngine
from tests.running import running


async def test_no_engine_is_started_once_kvchat_has_ended_it_for_good(
    tmp_path: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims, goes_on = threading.Event(), threading.Event()

    def claim(self: Ownership) -> None:
        claims.set()
        goes_on.wait()

    monkeypatch.setattr(Ownership, "claim", claim)
    async with running(tmp_path, fake_engine) as runtime:
        await runtime.start_engine()
        await until(claims.is_set)
        await runtime.engine.close()
        goes_on.set()
        await runtime._background.idle()
        assert runtime.engine.status.state is EngineState.STOPPED
        assert not fake_engine.launches()
