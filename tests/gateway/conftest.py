from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.engine.discovery.engines import EngineLocation
from kvchat.settings import Settings
from tests.engine_fixtures import FakeEngine
from tests.gateway.corpus import TEMPLATE
from tests.gateway.servers import RunningGateway, running_gateway
from tests.library.gguf_files import LLAMA, write_gguf


@pytest.fixture
def settings(tmp_path: Path, fake_engine: FakeEngine) -> Settings:
    model = write_gguf(tmp_path / "heron.gguf", dict(LLAMA))
    return Settings(model_path=str(model), engine_path=str(fake_engine.path), context_size=4096, free_floor_bytes=0)


@pytest.fixture
async def server(tmp_path: Path, settings: Settings) -> AsyncIterator[RunningGateway]:
    async with running_gateway(tmp_path / "home", settings) as gateway:
        yield gateway


@pytest.fixture
def real(
    tmp_path: Path, tiny_model: Callable[[str], Path], real_llama_server: EngineLocation
) -> Callable[..., Settings]:
    """Return a function that makes settings for the real engine, with a template that supports tools."""
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE, "utf-8")
    chosen = Settings(
        engine_path=str(real_llama_server.path),
        engine_arguments=f"--chat-template-file {template}",
        context_size=8192,
        free_floor_bytes=0,
        api_any_model=True,
    )
    return lambda kind="llama", **changes: replace(chosen, model_path=str(tiny_model(kind)), **changes)
