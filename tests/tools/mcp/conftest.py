import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from kvchat.system.paths import Paths
from kvchat.tools.mcp.manager import ServerManager
from kvchat.tools.mcp.source import McpSource

FAULTY_SERVER = Path(__file__).with_name("faulty_server.py")

Start = Callable[..., Awaitable[McpSource]]


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(*(tmp_path / name for name in ("config", "data", "cache", "state")))


@pytest.fixture
async def manager(paths: Paths) -> AsyncIterator[ServerManager]:
    manager = ServerManager(paths)
    await manager.load()
    yield manager
    await manager.close()


@pytest.fixture
def faulty(manager: ServerManager) -> Start:
    """Return a function that configures the faulty server and approves it."""

    async def add(mode: str = "", **entry: object) -> McpSource:
        await manager.add("faulty", {"command": sys.executable, "args": [str(FAULTY_SERVER), mode], **entry})
        await manager.approve(manager.source("faulty").server)
        return manager.source("faulty")

    return add
