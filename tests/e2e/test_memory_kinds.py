"""Every kind of model memory comes back warm after a restart: next turn, regenerate, edit, a known prompt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvchat.chat.messages import Message, Receipt, Role
from kvchat.engine.wire import Sampling
from kvchat.paths import resolve_paths
from kvchat.runtime import Runtime, open_runtime
from kvchat.settings import Settings
from tests.e2e.home import engine_path, notes

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

GREEDY = Sampling(max_tokens=8, temperature=0.0, seed=1)
SYSTEM = "Answer from these notes alone.\n" + notes(60)


class App:
    """Opened and closed again and again on one home: what a user's restarts are."""

    def __init__(self, home: Path, model: Path, engine: str) -> None:
        self._paths = resolve_paths({"KVCHAT_HOME": str(home)})
        self._settings = Settings(
            model_path=str(model), engine_path=engine_path(engine), context_size=4096, free_floor_bytes=0
        )

    async def once(self, act: Callable[[Runtime], object]) -> Message:
        """Open, let `act` begin one turn, close; the reply."""
        runtime = await open_runtime(self._paths, self._settings)
        try:
            reply = await act(runtime)  # type: ignore[misc]
            await runtime.chat.idle()
        finally:
            await runtime.close()
        assert isinstance(reply, Message)
        return reply

    async def messages(self, chat: str) -> list[Message]:
        runtime = await open_runtime(self._paths, self._settings)
        try:
            return await runtime.chat.messages(chat)
        finally:
            await runtime.close()

    async def new(self, system: str) -> str:
        runtime = await open_runtime(self._paths, self._settings)
        try:
            return (await runtime.chat.new_conversation(system)).id
        finally:
            await runtime.close()


def receipt(reply: Message) -> Receipt:
    assert reply.receipt is not None
    return reply.receipt


def warm(reply: Message) -> bool:
    """All but the new question came from a save point."""
    return receipt(reply).cached_tokens >= 0.98 * receipt(reply).prompt_tokens


@pytest.mark.parametrize("engine", ["embedded", "llama-server"])
@pytest.mark.parametrize("architecture", ["gemma3", "qwen35", "mamba", "deepseek2"])
async def test_warm_after_a_restart(
    tmp_path: Path, tiny_model: Callable[[str], Path], architecture: str, engine: str
) -> None:
    app = App(tmp_path / "home", tiny_model(architecture), engine)
    chat = await app.new(SYSTEM)
    await app.once(lambda runtime: runtime.chat.send(chat, "Which is the longest bridge?", GREEDY))
    second = await app.once(lambda runtime: runtime.chat.send(chat, "And the shortest?", GREEDY))
    assert warm(second), receipt(second)

    again = await app.once(lambda runtime: runtime.chat.retry(chat, GREEDY))
    assert warm(again), receipt(again)
    assert again.content == second.content
    assert again.id != second.id

    questions = [m for m in await app.messages(chat) if m.role is Role.USER]
    edited = await app.once(lambda runtime: runtime.chat.edit(questions[1], "And the one in the middle?", GREEDY))
    assert warm(edited), receipt(edited)
    branch = [m.content for m in await app.messages(chat) if m.role is Role.USER]
    assert branch == ["Which is the longest bridge?", "And the one in the middle?"]

    onwards = await app.once(lambda runtime: runtime.chat.send(chat, "Thank you.", GREEDY))
    assert warm(onwards), receipt(onwards)


@pytest.mark.parametrize("architecture", ["llama", "deepseek2"])
async def test_a_known_system_prompt_starts_a_new_chat_warm(
    tmp_path: Path, tiny_model: Callable[[str], Path], architecture: str
) -> None:
    app = App(tmp_path / "home", tiny_model(architecture), "embedded")
    first = await app.new(SYSTEM)
    await app.once(lambda runtime: runtime.chat.send(first, "Which is the longest bridge?", GREEDY))
    second = await app.new(SYSTEM)
    reply = await app.once(lambda runtime: runtime.chat.send(second, "How many notes are there?", GREEDY))
    assert receipt(reply).cached_tokens >= 0.95 * receipt(reply).prompt_tokens, receipt(reply)
