"""A whole runtime over the fake engine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from kvchat.chat.messages import Message
from kvchat.runtime import Runtime, open_runtime
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths
from tests.engine_fixtures import FakeEngine
from tests.library.gguf_files import LLAMA, write_gguf


@contextlib.asynccontextmanager
async def running(folder: Path, fake: FakeEngine, **wishes: object) -> AsyncIterator[Runtime]:
    model = write_gguf(folder / "model.gguf", dict(LLAMA))
    settings = replace(Settings(model_path=str(model), engine_path=str(fake.path)), **wishes)  # type: ignore[arg-type]
    runtime = await open_runtime(resolve_paths({"KVCHAT_HOME": str(folder / "home")}), settings)
    try:
        yield runtime
    finally:
        await runtime.close()


async def ask(runtime: Runtime, chat: str, text: str) -> Message:
    reply = await runtime.chat.send(chat, text)
    assert reply is not None
    return reply
