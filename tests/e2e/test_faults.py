"""Faults of the real engine: a clear message, no lost text, and the chat continues."""

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.chat.events import Event, Prefilling, ReplyDelta, TurnFailed
from kvchat.chat.record.messages import Message, MessageState
from kvchat.engine.api.wire import Sampling
from kvchat.runtime import Runtime, open_runtime
from kvchat.session.events import Saved, SaveSkipped, Saving
from kvchat.session.proof import Source
from kvchat.system.paths import resolve_paths
from tests.e2e.home import notes
from tests.e2e.restarts import settings
from tests.models import tiny_model

pytestmark = pytest.mark.e2e

ENGINES = ("embedded", "llama-server")
GREEDY = Sampling(max_tokens=200, temperature=0.0, seed=1, grammar="root ::= [a-z ]{500}")  # always a long reply


class Watched:
    """A runtime, its events so far, and a hook called with each event."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.events: list[Event] = []
        self.hook: Callable[[Event], None] = lambda event: None
        runtime.events.subscribe(self._on_event)

    def _on_event(self, event: Event) -> None:
        self.events.append(event)
        self.hook(event)

    def kill_engine_at(self, kind: type[Event], when: Callable[[Event], bool] = lambda event: True) -> None:

        def kill(event: Event) -> None:
            if isinstance(event, kind) and when(event):
                self.hook = lambda event: None
                assert self.runtime.engine.engine_pid is not None
                os.kill(self.runtime.engine.engine_pid, signal.SIGKILL)

        self.hook = kill

    async def send(self, chat: str, text: str, sampling: Sampling = GREEDY) -> Message | None:
        reply = await self.runtime.chat.send(chat, text, sampling)
        await self.runtime.chat.wait_until_idle()
        return reply

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


@asynccontextmanager
async def opened(home: Path, model: Path, engine: str, cache: Path | None = None) -> AsyncIterator[Watched]:
    paths = resolve_paths({"KVCHAT_HOME": str(home)})
    if cache:
        paths = replace(paths, cache=cache)
    runtime = await open_runtime(paths, settings(model, engine))
    try:
        yield Watched(runtime)
    finally:
        await runtime.close()


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_killed_engine_during_prefill_streaming_or_saving(tmp_path, smollm2, engine):
    async with opened(tmp_path / "home", smollm2, engine) as app:
        chat = (await app.runtime.chat.new_conversation()).id
        short = Sampling(max_tokens=8, temperature=0.0)

        app.kill_engine_at(Prefilling, lambda event: isinstance(event, Prefilling) and event.done_tokens > 0)
        repeated = await app.send(chat, notes(60), short)
        assert repeated is not None, "nothing was sent yet: the next engine answers"
        assert not app.of(TurnFailed)
        assert repeated.receipt is not None
        assert repeated.receipt.engine_wait_ms > 0

        deltas = len(app.of(ReplyDelta))
        app.kill_engine_at(ReplyDelta, lambda event: len(app.of(ReplyDelta)) > deltas + 2)
        assert await app.send(chat, "Count to a hundred in words.") is None
        failure = app.of(TurnFailed)[0]
        assert isinstance(failure, TurnFailed)
        assert "killed" in str(failure.error).lower()
        partial = (await app.runtime.chat.messages(chat))[-1]
        assert partial.state is MessageState.INTERRUPTED
        assert partial.content
        again = await app.runtime.chat.retry(chat, short)
        await app.runtime.chat.wait_until_idle()
        assert again is not None
        assert again.receipt is not None
        assert again.receipt.source is Source.WARM, "the turn before was saved and is restored"

        app.kill_engine_at(Saving)
        saved_before = len(app.of(Saved))
        assert await app.send(chat, "Thank you.", short) is not None
        assert len(app.of(Saved)) == saved_before
        assert isinstance(app.of(SaveSkipped)[-1], SaveSkipped)
        after = await app.send(chat, "Goodbye.", short)
        assert after is not None
        assert after.receipt is not None
        assert after.receipt.source is Source.WARM
        assert len(app.of(Saved)) == saved_before + 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 3 MB."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("engine", ENGINES)
async def test_the_disk_is_full_while_the_engine_saves(tmp_path, small_disk, engine):
    """The tiny llama takes about 2 KB a token: 2,700 tokens do not fit 3 MB."""
    async with opened(tmp_path / "home", tiny_model("llama"), engine, cache=small_disk / "cache") as app:
        await app.runtime.apply_settings(replace(app.runtime.settings, quota_bytes=1_000_000_000))
        chat = (await app.runtime.chat.new_conversation()).id
        short = Sampling(max_tokens=4, temperature=0.0)
        reply = await app.send(chat, notes(150), short)
        assert reply is not None, "the reply does not wait for the disk"
        assert isinstance(app.of(SaveSkipped)[0], SaveSkipped)
        assert not app.of(Saved)
        leftovers = [f for f in (small_disk / "cache").rglob("*") if f.is_file() and f.suffix in ("", ".slot")]
        assert not leftovers, "a failed save does not keep filling the disk"
        other = (await app.runtime.chat.new_conversation()).id
        assert await app.send(other, "Hello", short) is not None
        assert app.of(Saved), "a small chat still fits"
