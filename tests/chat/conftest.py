from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chat.stage import Stage
from tests.engine_fixtures import FakeEngine


@pytest.fixture
async def stage(tmp_path: Path, fake_engine: FakeEngine, smollm2: Path) -> AsyncIterator[Stage]:
    """An open stage; its engine starts with the first message."""
    async with Stage(tmp_path / "home", fake_engine, smollm2) as stage:
        yield stage
