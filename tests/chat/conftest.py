from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvchat.session.host import ReadyEngine
from kvchat.session.restore_support import Finding, Strategy
from tests.chat.stage import Stage
from tests.engine_fixtures import FakeEngine


@pytest.fixture(autouse=True)
def restoring_is_known_to_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the first start with this engine; tests/chat/turn/test_self_test.py is about that one."""

    async def found(host: ReadyEngine) -> Finding:
        return Finding(Strategy.PLAIN, proved=True)

    monkeypatch.setattr("kvchat.engine_host.lifecycle.self_test", found)


@pytest.fixture
async def stage(tmp_path: Path, fake_engine: FakeEngine, smollm2: Path) -> AsyncIterator[Stage]:
    async with Stage(tmp_path / "home", fake_engine, smollm2) as stage:
        yield stage


@pytest.fixture
def cannot_cut(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """States are as those of hybrid and recurrent models."""

    async def found(host: ReadyEngine) -> Finding:
        return Finding(Strategy.SETTLE, proved=True)

    monkeypatch.setattr("kvchat.engine_host.lifecycle.self_test", found)
    stage.fake.set(FAKE_EXACT_ONLY=1)
