"""A kvchat without a window that is restarted for every turn."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from kvchat.chat.record.messages import Message, Receipt
from kvchat.engine.api.wire import Sampling
from kvchat.runtime import Runtime
from kvchat.settings import Settings
from tests.e2e.home import engine_path, notes
from tests.running import opened

GREEDY = Sampling(max_tokens=8, temperature=0.0, seed=1)
SYSTEM = "Answer from these notes alone.\n" + notes(60)


def settings(model: Path, engine: str, **more: Any) -> Settings:
    """`engine`: "embedded" or "llama-server"."""
    chosen: dict[str, Any] = {"context_size": 4096, "free_floor_bytes": 0} | more
    return Settings(model_path=str(model), engine_path=engine_path(engine), **chosen)


class App:
    def __init__(self, home: Path, model: Path, engine: str, arguments: str = "") -> None:
        self._home, self._settings = home, settings(model, engine, engine_arguments=arguments)

    def opened(self) -> AbstractAsyncContextManager[Runtime]:
        return opened(self._home, self._settings)

    async def run_turn(self, act: Callable[[Runtime], object]) -> Message:
        """Open kvchat, start one turn with `act`, close; return the reply."""
        async with self.opened() as runtime:
            reply = await act(runtime)  # type: ignore[misc]
            await runtime.chat.wait_until_idle()
        assert isinstance(reply, Message)
        return reply

    async def new_chat(self, system: str | None = None) -> str:
        async with self.opened() as runtime:
            return (await runtime.chat.new_conversation(system)).id


def receipt(reply: Message) -> Receipt:
    assert reply.receipt is not None
    return reply.receipt
