"""Prepared documents, real engine: warm from the first question after a restart, whatever memory a model has."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvchat.chat.prepared.record import Prepared
from kvchat.runtime import Runtime
from kvchat.session.proof import Source
from tests.e2e.home import notes
from tests.e2e.restarts import GREEDY, App, receipt
from tests.models import tiny_model

pytestmark = pytest.mark.e2e

QUESTION = "Which is the longest bridge?"


async def prepare(app: App, folder: Path, *, read: bool = True) -> Prepared:
    async with app.opened() as runtime:
        made = await runtime.chat.library.add([folder], "Bridges")
        return await runtime.chat.library.read(made) if read else made


async def asked(app: App, one: Prepared) -> tuple[str, int, int, Source]:
    """A first question in a new chat after a restart: the reply, tokens cached and in all, and where from."""

    async def ask(runtime: Runtime) -> object:
        chat = await runtime.chat.library.begin(one)
        return await runtime.chat.send(chat.id, QUESTION, GREEDY)

    reply = await app.once(ask)
    told = receipt(reply)
    return reply.content, told.cached_tokens, told.prompt_tokens, told.source


@pytest.mark.parametrize(
    ("architecture", "window"), [("llama", None), ("gemma3", 1024), ("gemma3", 64), ("qwen35", None)]
)
async def test_a_first_question_after_a_restart_is_warm_and_answered_as_a_cold_engine_does(
    tmp_path: Path, architecture: str, window: int | None
) -> None:
    folder = tmp_path / "bridges"
    folder.mkdir()
    (folder / "a.md").write_text(notes(60))
    (folder / "b.md").write_text(notes(60, start=60))
    model = tiny_model(architecture, window, heeds=True)
    app, cold = App(tmp_path / "home", model, "embedded"), App(tmp_path / "cold", model, "embedded")
    one = await prepare(app, folder)
    said, cached, prompt, source = await asked(app, one)
    assert source is Source.DISK
    assert one.tokens - 1 <= cached < prompt
    assert cached >= 0.98 * one.tokens
    unread = await prepare(cold, folder, read=False)
    told, _, again, from_where = await asked(cold, unread)
    assert from_where is Source.COLD
    assert (told, again) == (said, prompt)

    (folder / "b.md").write_text(notes(60, start=300))
    async with app.opened() as runtime:
        now = await runtime.chat.library.read(one)
    _, cached, _, source = await asked(app, now)
    assert source is Source.DISK
    assert cached >= now.tokens - 1
