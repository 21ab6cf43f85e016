"""A kvchat that shares its model, with the fake engine, and computers that are paired with it."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from kvchat.engine.process.plan import free_port
from kvchat.engine_host.paired_computer import PairedComputer, pair
from kvchat.settings import Settings
from kvchat.sharing_service import SharingService
from kvchat.system.certificate import pinned_context
from tests.engine_fixtures import FakeEngine
from tests.gateway.servers import RunningGateway, running_gateway
from tests.library.gguf_files import LLAMA, write_gguf

PROGRAM_KEY = "the-editors-own"
PROGRAM_KEYS = {"editor": PROGRAM_KEY, "notes": "the-notes-own"}  # of programs on the box


@pytest.fixture
def settings(tmp_path: Path, fake_engine: FakeEngine) -> Settings:
    model = write_gguf(tmp_path / "heron.gguf", dict(LLAMA))
    chosen = Settings(model_path=str(model), engine_path=str(fake_engine.path), context_size=4096, free_floor_bytes=0)
    return replace(chosen, share_devices=True, share_port=free_port("127.0.0.1"))


@pytest.fixture
async def box(tmp_path: Path, settings: Settings) -> AsyncIterator[RunningGateway]:
    async with running_gateway(tmp_path / "box", settings, PROGRAM_KEYS) as gateway:
        yield gateway


def sharing_of(box: RunningGateway) -> SharingService:
    return box.runtime.api_server.sharing


def address_of(box: RunningGateway) -> str:
    return f"127.0.0.1:{sharing_of(box).port}"


async def paired(box: RunningGateway) -> PairedComputer:
    return await pair(address_of(box), sharing_of(box).show_code())


def client_of(device: PairedComputer) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {device.key}"}
    tls = pinned_context(device.certificate)
    return httpx2.AsyncClient(base_url=device.url, verify=tls, headers=headers, timeout=60, trust_env=False)
