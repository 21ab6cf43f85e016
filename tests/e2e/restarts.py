"""A kvchat that is opened and closed for every turn, without a window: what a user's restarts are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvchat.chat.record.messages import Message, Receipt
from kvchat.engine.speaking.wire import Sampling
from kvchat.runtime import Runtime, open_runtime
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths
from tests.e2e.home import engine_path, notes

GREEDY = Sampling(max_tokens=8, temperature=0.0, seed=1)
SYSTEM = "Answer from these notes alone.\n" + notes(60)


class App:
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

    async def new(self, system: str | None = None) -> str:
        runtime = await open_runtime(self._paths, self._settings)
        try:
            return (await runtime.chat.new_conversation(system)).id
        finally:
            await runtime.close()


def receipt(reply: Message) -> Receipt:
    assert reply.receipt is not None
    return reply.receipt
