"""Exchanges with a scripted engine, without a store, a process or a chat."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from kvchat.engine.api.client import LlamaServerClient, UnchangedRows
from kvchat.engine.api.errors import EngineError, EngineFailure, EngineGone, EngineLifetime, EngineRefused, FailureKind
from kvchat.engine.api.wire import ChatChunk, ChatMessage, PromptProgress, Sampling, Timings
from kvchat.kvstore.savepoint import Fingerprint, Tokens
from kvchat.kvstore.store import BlockStore
from kvchat.session.events import IncreasingContext, RequestSent, SessionEvent, WaitingForEngine
from kvchat.session.exchange import Exchange, PromptRequest, PromptTooLong
from kvchat.session.host import EngineHost, ReadyEngine
from kvchat.session.proof import Source
from kvchat.session.restore_support import RestoreFinding, Strategy
from kvchat.session.slots import Slots

MESSAGE = ChatMessage("user", "what was said of the river and of the garden")


class Engine:
    """Engine that sends these chunks; an exception among them is raised in its place."""

    def __init__(self, *chunks: ChatChunk | Exception) -> None:
        self.chunks, self.rows, self.hangs = chunks, UnchangedRows(), asyncio.Event()

    def for_slot(self, slot: int, owner: str = "") -> Engine:
        return self

    async def prompt_tokens(self, messages: Sequence[ChatMessage]) -> Tokens:
        return tuple(ord(letter) for message in messages for letter in message.content)

    async def chat(self, messages: Sequence[ChatMessage], sampling: Sampling) -> AsyncGenerator[ChatChunk, None]:
        for chunk in self.chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk
        self.hangs.set()
        await asyncio.Event().wait()


@dataclass
class Host:
    """Provides these engines, the next whenever one is lost."""

    engines: list[ReadyEngine]
    sizes: list[int] = field(default_factory=list)  # requested

    def is_ready(self, model: str | None = None, *, needs_vision: bool = False) -> bool:
        return False

    async def ready(self, model: str | None = None, *, needs_vision: bool = False, tokens: int = 0) -> ReadyEngine:
        self.sizes.append(tokens)
        return self.engines.pop(0) if len(self.engines) > 1 else self.engines[0]

    async def memory_server(self) -> None:
        return None

    async def has_pairing(self) -> bool:
        return False

    def can_recover(self) -> bool:
        return True

    async def note_restore(self, *, was_used: bool) -> None: ...


def lost() -> EngineGone:
    error = EngineGone("It is gone", "", "")
    error.lifetime = EngineLifetime()
    error.lifetime.end(EngineFailure(FailureKind.OUT_OF_MEMORY, "It ran out of memory", "", ""))
    return error


def ready(engine: Engine, strategy: Strategy = Strategy.NONE, generation: int = 1, size: int = 4096) -> ReadyEngine:
    fingerprint = Fingerprint("m", "f16", "f16", "auto", 1, "")
    finding = RestoreFinding(strategy, proved=True)
    return ReadyEngine(cast(LlamaServerClient, engine), generation, Path(), fingerprint, size, 1.0, finding)


def chunk(text: str = "", *, cached: int = 0, read: int = 44) -> ChatChunk:
    return ChatChunk(text=text, timings=Timings(cached, read, 5.0, 1, 1.0))


def progress(done: int) -> ChatChunk:
    return ChatChunk(progress=PromptProgress(44, 0, done))


class Session:
    def __init__(self, *engines: ReadyEngine) -> None:
        self.host, self.events, self.chunks = Host(list(engines)), list[SessionEvent](), list[ChatChunk]()
        self.slots = Slots(cast(BlockStore, None))  # never used if restoring does not work
        self.exchange = Exchange(
            self.slots, self.slots.all_slots[0], cast(EngineHost, self.host), "river", self.events.append
        )

    async def ask(self, on_chunk: Callable[[ChatChunk], bool] | None = None) -> None:
        await self.exchange.answer(PromptRequest([MESSAGE]), on_chunk or self.chunks.append)


DONE = EngineRefused(400, "the script is over")


async def test_events_are_sent_and_the_counts_are_judged() -> None:
    session = Session(ready(Engine(progress(20), chunk("Yes"), chunk(" it was."), DONE)))
    with pytest.raises(EngineRefused):
        await session.ask()
    assert [type(event) for event in session.events] == [WaitingForEngine, RequestSent]
    assert "".join(chunk.text for chunk in session.chunks) == "Yes it was."
    assert session.exchange.result.verdict.source is Source.COLD
    assert session.slots.all_slots[0].holder == "river"
    assert len(session.slots.all_slots[0].contents.tokens) == 44


@pytest.mark.parametrize(
    ("strategy", "engine", "kept"),
    [
        (Strategy.SETTLE, Engine(), None),  # it cannot be cut: the engine may have processed more
        (Strategy.PLAIN, Engine(), 40),
        (Strategy.NONE, Engine(progress(20)), 20),
    ],
)
async def test_the_slot_contents_are_known_after_a_stop_before_the_answer(
    strategy: Strategy, engine: Engine, kept: int | None
) -> None:
    engine.hangs = asyncio.Event()
    session = Session(ready(engine, strategy))
    known = await engine.prompt_tokens([MESSAGE])
    await session.exchange.lease_slot(PromptRequest([MESSAGE]))
    if strategy.supports_saving:
        session.exchange.lease.note_contents(known[:40], is_exact=True)
    asking = asyncio.ensure_future(session.ask())
    await engine.hangs.wait()
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    contents = session.slots.all_slots[0].contents
    assert (contents.tokens if contents else None) == (known[:kept] if kept else None)


async def test_the_request_is_repeated_if_the_engine_is_lost_before_the_answer() -> None:
    session = Session(ready(Engine(progress(20), lost())), ready(Engine(chunk("Yes"), DONE), generation=2))
    with pytest.raises(EngineRefused):
        await session.ask()
    assert [chunk.text for chunk in session.chunks if chunk.text] == ["Yes"]


async def test_an_engine_lost_during_the_answer_is_explained() -> None:
    session = Session(ready(Engine(chunk("Yes"), lost())), ready(Engine(chunk("Yes"), DONE), generation=2))
    with pytest.raises(EngineError, match="ran out of memory"):
        async with session.exchange.explaining_losses():
            await session.ask()
    assert session.slots.all_slots[0].contents is None
    assert session.exchange.result is not None, "what was counted before"


async def test_the_context_grows_for_a_long_prompt_up_to_its_maximum() -> None:
    small = ready(Engine(chunk("Yes")), size=40)
    with pytest.raises(PromptTooLong):
        await Session(small).ask()
    session = Session(ReadyEngine(**(vars(small) | {"max_context": 4096})))
    with pytest.raises(PromptTooLong):
        await session.ask()  # the engine stayed as it is
    assert session.host.sizes == [0, 44 + 512]
    events = [event for event in session.events if isinstance(event, IncreasingContext)]
    assert events == [IncreasingContext(556), IncreasingContext(556, is_finished=True)]
