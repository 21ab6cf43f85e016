from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvchat.runtime import Runtime
from tests.engine_fixtures import FakeEngine
from tests.running import running


@pytest.fixture
async def runtime(tmp_path: Path, fake_engine: FakeEngine) -> AsyncIterator[Runtime]:
    async with running(tmp_path, fake_engine) as runtime:
        yield runtime
