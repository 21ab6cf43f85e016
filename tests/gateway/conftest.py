from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvchat.settings import Settings
from tests.engine_fixtures import FakeEngine
from tests.gateway.doors import OpenDoor, door
from tests.library.gguf_files import LLAMA, write_gguf


@pytest.fixture
def settings(tmp_path: Path, fake_engine: FakeEngine) -> Settings:
    model = write_gguf(tmp_path / "heron.gguf", dict(LLAMA))
    return Settings(model_path=str(model), engine_path=str(fake_engine.path), context_size=4096, free_floor_bytes=0)


@pytest.fixture
async def at(tmp_path: Path, settings: Settings) -> AsyncIterator[OpenDoor]:
    async with door(tmp_path / "home", settings) as one:
        yield one
