"""A complete runtime with any engine or the fake one."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from kvchat.chat.record.messages import Message
from kvchat.runtime import Runtime, open_runtime
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths
from tests.engine_fixtures import FakeEngine
from tests.library.gguf_files import LLAMA, write_gguf


@contextlib.asynccontextmanager
async def opened(home: Path, settings: Settings) -> AsyncIterator[Runtime]:
    paths = resolve_paths({"KVCHAT_HOME": str(home)})
    runtime = await open_runtime(paths, settings)
    try:
        yield runtime
    finally:
        await runtime.close()


@contextlib.asynccontextmanager
async def running(folder: Path, fake: FakeEngine, **changes: object) -> AsyncIterator[Runtime]:
    model = write_gguf(folder / "model.gguf", dict(LLAMA))
    settings = replace(Settings(model_path=str(model), engine_path=str(fake.path)), **changes)  # type: ignore[arg-type]
    async with opened(folder / "home", settings) as runtime:
        yield runtime


async def ask(runtime: Runtime, chat: str, text: str) -> Message:
    reply = await runtime.chat.send(chat, text)
    assert reply is not None
    return reply
