"""A session by itself: an engine of a few lines, a store that keeps nothing, no process and no chat."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from kvchat.engine.api.client import LlamaServerClient, UnchangedRows
from kvchat.engine.api.errors import (
    EngineError,
    EngineFailure,
    EngineGone,
    EngineLifetime,
    EngineRefused,
    FailureKind,
)
from kvchat.engine.api.wire import ChatChunk, ChatMessage, PromptProgress, Sampling, Timings
from kvchat.kvstore.savepoint import Fingerprint, Tokens
from kvchat.kvstore.store import BlockStore
from kvchat.session.events import MakingRoom, RequestSent, SessionEvent, WaitingForEngine
from kvchat.session.exchange import Exchange, PromptTooLong, Request
from kvchat.session.host import EngineHost, ReadyEngine
from kvchat.session.proof import Source
from kvchat.session.restore_support import Finding, Strategy
from kvchat.session.slots import Slots

WORDS = ChatMessage("user", "what was said of the river and of the garden")


class Script:
    """An engine that says what it was given to say. An exception in the script is raised there."""

    def __init__(self, *script: ChatChunk | Exception) -> None:
        self.script, self.rows, self.hangs = script, UnchangedRows(), asyncio.Event()

    def on_slot(self, slot: int, owner: str = "") -> Script:
        return self

    async def prompt_tokens(self, messages: Sequence[ChatMessage]) -> Tokens:
        return tuple(ord(letter) for message in messages for letter in message.content)

    async def chat(self, messages: Sequence[ChatMessage], sampling: Sampling) -> AsyncGenerator[ChatChunk, None]:
        for one in self.script:
            if isinstance(one, Exception):
                raise one
            yield one
        self.hangs.set()
        await asyncio.Event().wait()


@dataclass
class Room:
    """Gives out these engines, one after the other is lost."""

    engines: list[ReadyEngine]
    sizes: list[int] = field(default_factory=list)  # asked for

    def is_ready(self, model: str | None = None, *, vision: bool = False) -> bool:
        return False

    async def ready(self, model: str | None = None, *, vision: bool = False, tokens: int = 0) -> ReadyEngine:
        self.sizes.append(tokens)
        return self.engines.pop(0) if len(self.engines) > 1 else self.engines[0]

    def can_recover(self) -> bool:
        return True

    async def note_restore(self, *, hollow: bool) -> None: ...


def lost() -> EngineGone:
    error = EngineGone("It is gone", "", "")
    error.lifetime = EngineLifetime()
    error.lifetime.end(EngineFailure(FailureKind.OUT_OF_MEMORY, "It ran out of memory", "", ""))
    return error


def ready(engine: Script, strategy: Strategy = Strategy.NONE, generation: int = 1, size: int = 4096) -> ReadyEngine:
    fingerprint = Fingerprint("m", "f16", "f16", "auto", 1, "")
    finding = Finding(strategy, proved=True)
    return ReadyEngine(cast(LlamaServerClient, engine), generation, Path(), fingerprint, size, 1.0, finding)


def chunk(text: str = "", *, cached: int = 0, read: int = 44) -> ChatChunk:
    return ChatChunk(text=text, timings=Timings(cached, read, 5.0, 1, 1.0))


def progress(done: int) -> ChatChunk:
    return ChatChunk(progress=PromptProgress(44, 0, done))


class Cast:
    """A session with all that belongs to it."""

    def __init__(self, *engines: ReadyEngine) -> None:
        self.host, self.told, self.heard = Room(list(engines)), list[SessionEvent](), list[ChatChunk]()
        self.slots = Slots(cast(BlockStore, None))  # where restoring does not work, it is not asked
        self.exchange = Exchange(self.slots, self.slots.all[0], cast(EngineHost, self.host), "river", self.told.append)

    async def ask(self, hear: Callable[[ChatChunk], bool] | None = None) -> None:
        await self.exchange.answer(Request([WORDS]), hear or self.heard.append)


DONE = EngineRefused(400, "the script is over")


async def test_it_tells_what_happens_and_what_the_counts_prove() -> None:
    cast_ = Cast(ready(Script(progress(20), chunk("Yes"), chunk(" it was."), DONE)))
    with pytest.raises(EngineRefused):
        await cast_.ask()
    assert [type(event) for event in cast_.told] == [WaitingForEngine, RequestSent]
    assert "".join(one.text for one in cast_.heard) == "Yes it was."
    assert cast_.exchange.result.verdict.source is Source.COLD
    assert cast_.slots.all[0].holder() == "river"
    assert len(cast_.slots.all[0].contents.tokens) == 44


async def test_enough_ends_the_stream_and_it_is_proved_all_the_same() -> None:
    cast_ = Cast(ready(Script(chunk("Yes"), chunk(" and"), chunk(" no"))))
    await cast_.ask(lambda chunk: chunk.text == " and")
    assert cast_.exchange.result is not None


@pytest.mark.parametrize(
    ("strategy", "script", "kept"),
    [
        (Strategy.SETTLE, Script(), None),  # it cannot be cut back to what was in the slot: the engine may have read on
        (Strategy.PLAIN, Script(), 40),
        (Strategy.NONE, Script(progress(20)), 20),
    ],
)
async def test_a_stop_before_the_answer_notes_what_the_slot_holds(
    strategy: Strategy, script: Script, kept: int | None
) -> None:
    script.hangs = asyncio.Event()
    cast_ = Cast(ready(script, strategy))
    known = await script.prompt_tokens([WORDS])
    await cast_.exchange.ready(Request([WORDS]))
    if strategy.saves:
        cast_.exchange.lease.note_contents(known[:40], exact=True)
    asking = asyncio.ensure_future(cast_.ask())
    await script.hangs.wait()
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    contents = cast_.slots.all[0].contents
    assert (contents.tokens if contents else None) == (known[:kept] if kept else None)


async def test_an_engine_lost_before_the_first_word_costs_nothing() -> None:
    cast_ = Cast(ready(Script(progress(20), lost())), ready(Script(chunk("Yes"), DONE), generation=2))
    with pytest.raises(EngineRefused):
        await cast_.ask()
    assert [one.text for one in cast_.heard if one.text] == ["Yes"]


async def test_an_engine_lost_after_it_is_told_in_the_rooms_words() -> None:
    cast_ = Cast(ready(Script(chunk("Yes"), lost())), ready(Script(chunk("Yes"), DONE), generation=2))
    with pytest.raises(EngineError, match="ran out of memory"):
        async with cast_.exchange.explaining_losses():
            await cast_.ask()
    assert cast_.slots.all[0].contents is None
    assert cast_.exchange.result is not None, "what it had counted"


async def test_room_is_made_for_a_prompt_that_needs_it_and_refused_beyond_that() -> None:
    script = Script(chunk("Yes"))
    small = ready(script, size=40)
    cast_ = Cast(small)
    with pytest.raises(PromptTooLong):
        await cast_.ask()
    cast_ = Cast(ReadyEngine(**(vars(small) | {"max_context": 4096})))
    with pytest.raises(PromptTooLong):
        await cast_.ask()  # the engine stayed as it is
    assert cast_.host.sizes == [0, 44 + 512]
    assert [event for event in cast_.told if isinstance(event, MakingRoom)] == [
        MakingRoom(556),
        MakingRoom(556, done=True),
    ]
