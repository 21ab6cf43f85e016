"""Slot files that a real engine accepts with 200 and then crashes on: the reply comes by an ordinary prefill.

The files are damaged between the store, whose hashes would detect it, and the engine.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvchat.chat.record.messages import Message, MessageState
from kvchat.engine.api.wire import Sampling
from kvchat.engine.process import supervisor
from kvchat.kvstore.blocks.parser import WRAPPED_VERSION
from kvchat.kvstore.restorer import Restorer
from kvchat.kvstore.savepoint import RestoreMiss, RestorePlan, StagedFile
from kvchat.runtime import Runtime
from kvchat.session.proof import Source
from kvchat.session.self_test import TEST_TOKENS
from kvchat.settings import Settings
from tests.e2e.home import notes
from tests.e2e.restarts import settings
from tests.gateway.servers import chat_body, running_gateway
from tests.kvstore.store_bench import is_damage
from tests.models import tiny_model
from tests.running import opened
from tests.store_contents import StoreContents, flip_a_byte

pytestmark = pytest.mark.e2e

ENGINES, KINDS = ("embedded", "llama-server"), ("llama", "qwen35", "lfm2")
CELL = struct.Struct("<iI")  # position, number of sequences; their ids follow
FEW_WORDS = Sampling(max_tokens=6, temperature=0.0, seed=1)


def state_offset(data: bytearray) -> int:
    count: int = struct.unpack_from("<I", data, 8)[0]
    assert struct.unpack_from("<i", data, 16)[0] == WRAPPED_VERSION
    return 12 + 4 * count


def cell_count(change: Callable[[int], int]) -> Callable[[bytearray], None]:
    def poison(data: bytearray) -> None:
        offset = state_offset(data) + 4
        struct.pack_into("<I", data, offset, change(struct.unpack_from("<I", data, offset)[0]))

    return poison


def position(cell: int, value: int) -> Callable[[bytearray], None]:
    """Set the position of a cell; -1 is the last."""

    def poison(data: bytearray) -> None:
        offset = state_offset(data) + 4
        (cells,) = struct.unpack_from("<I", data, offset)
        struct.pack_into("<i", data, offset + 4 + (cell % cells) * (CELL.size + 4), value)

    return poison


def cut(share: float) -> Callable[[bytearray], None]:
    def poison(data: bytearray) -> None:
        del data[int(len(data) * share) :]

    return poison


def emptied(data: bytearray) -> None:
    data[state_offset(data) :] = struct.pack("<II", 1, 0) + bytes(64)


def rows(data: bytearray) -> None:
    half = len(data) // 2
    data[half:] = b"\xff" * (len(data) - half)


POISONS: dict[str, Callable[[bytearray], None]] = {
    "no cells": cell_count(lambda count: 0),
    "no state": emptied,
    "one cell": cell_count(lambda count: 1),
    "fewer cells": cell_count(lambda count: count - 7),
    "more cells": cell_count(lambda count: count + 7),
    "far too many cells": cell_count(lambda count: 2**31),
    "a position before all": position(0, -5),
    "a last position before all": position(-1, -5),
    "a position far beyond": position(-1, 2**30),
    "a position twice": position(-1, 3),
    "nearly whole": cut(0.99),
    "half": cut(0.5),
    "not a number": rows,
}


@dataclass
class Poisoner:
    """Damages the engine's files while a poison is set."""

    poison: Callable[[bytearray], None] | None = None
    damaged: list[str] = field(default_factory=list)  # save points


@pytest.fixture
def poisoner(monkeypatch: pytest.MonkeyPatch) -> Poisoner:
    poisoner, put = Poisoner(), Restorer._create_slot_file

    def put_poisoned(store: Restorer, plan: RestorePlan, target: Path, *others: Any) -> Any:
        placed = put(store, plan, target, *others)
        if poisoner.poison is not None and plan.tokens_used > TEST_TOKENS:
            data = bytearray(target.read_bytes())
            poisoner.poison(data)
            target.unlink()  # it may be a link to the warm tier
            target.write_bytes(data)
            poisoner.damaged.append(plan.save_point.id)
        return placed

    monkeypatch.setattr(Restorer, "_create_slot_file", put_poisoned)
    monkeypatch.setattr(supervisor, "RestartPolicy", partial(supervisor.RestartPolicy, first_delay_s=0.0))
    return poisoner


SYSTEM = "Answer from these notes alone.\n" + notes(14)
LONGEST, SHORTEST = "Which is the longest?", "And the shortest?"


def settings_for(kind: str, engine: str) -> Settings:
    return settings(tiny_model(kind, 0 if kind == "lfm2" else None), engine)


async def ask(runtime: Runtime, chat: str, text: str) -> Message:
    reply = await runtime.chat.send(chat, text, FEW_WORDS)
    await runtime.chat.wait_until_idle()
    assert reply is not None
    assert reply.state in (MessageState.COMPLETE, MessageState.LIMITED)
    return reply


async def new_chats(runtime: Runtime, count: int) -> list[str]:
    """Create chats with different beginnings, so that no slot serves another chat."""
    return [(await runtime.chat.new_conversation(f"{number}. {SYSTEM}")).id for number in range(count)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
async def test_any_damage(tmp_path, poisoner, kind, engine):
    home, chosen = tmp_path / "home", settings_for(kind, engine)
    async with opened(home, chosen) as runtime:
        chats = dict(zip(POISONS, await new_chats(runtime, len(POISONS)), strict=True))
        for chat in chats.values():
            await ask(runtime, chat, LONGEST)
    async with opened(home, chosen) as runtime:
        for name, chat in chats.items():
            poisoner.poison, poisoner.damaged = POISONS[name], []
            await ask(runtime, chat, SHORTEST)
            assert poisoner.damaged, name
            assert len(poisoner.damaged) == len(set(poisoner.damaged)), "none was restored twice"


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_chat_that_is_only_viewed(tmp_path, poisoner, engine):
    """It is restored and processed ahead; then its message and others are answered."""
    home, chosen = tmp_path / "home", settings_for("llama", engine)
    async with opened(home, chosen) as runtime:
        viewed, other = await new_chats(runtime, 2)
        for chat in (viewed, other):
            await ask(runtime, chat, LONGEST)
    poisoner.poison = POISONS["no cells"]
    async with opened(home, chosen) as runtime:
        await runtime.start_engine()
        await runtime.engine.ready()
        runtime.chat.select(viewed)
        runtime.chat.prepare(viewed, "And which of them is the shortest, if all of them are counted? " * 4)
        await runtime.chat.wait_until_idle()
        assert poisoner.damaged
        for chat in (viewed, other):
            await ask(runtime, chat, SHORTEST)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_program_is_answered(tmp_path, poisoner, engine):
    """Six restored states crash the engine: more crashes than are allowed without a restored state."""
    home, chosen = tmp_path / "home", settings_for("llama", engine)
    bodies = [chat_body(f"{number}. {SYSTEM}") for number in range(6)]
    async with running_gateway(home, chosen) as server:
        for body in bodies:
            assert (await server.client.post("/v1/chat/completions", json=body)).status_code == 200
            await server.settled()
    poisoner.poison = POISONS["no cells"]
    async with running_gateway(home, chosen) as server:
        for body in bodies:
            assert (await server.client.post("/v1/chat/completions", json=body)).status_code == 200
            await server.settled()
    assert len(poisoner.damaged) >= len(bodies)


@pytest.mark.parametrize("kind", ["llama", "qwen35"])
@pytest.mark.parametrize("way", ["chat", "viewed", "imported", "prepared", "program"])
async def test_a_flipped_byte_of_a_block_never_reaches_the_engine(tmp_path, monkeypatch, kind, way):
    """However a state is restored, the prompt is processed instead."""
    staged: list[StagedFile | RestoreMiss] = []
    stage = Restorer.stage

    def record_stage(store: Restorer, plan: RestorePlan, *where: Any, **how: Any) -> StagedFile | RestoreMiss:
        outcome = stage(store, plan, *where, **how)
        if plan.tokens_used > TEST_TOKENS:
            staged.append(outcome)
        return outcome

    home, chosen, few = tmp_path / "home", settings_for(kind, "llama-server"), 60
    (tmp_path / "notes.txt").write_text(SYSTEM)
    async with running_gateway(home, chosen) as server:
        chats, library = server.runtime.chat, server.runtime.chat.library
        chat = (await chats.new_conversation(SYSTEM)).id
        if way == "program":
            first = (await server.client.post("/v1/chat/completions", json=chat_body(SYSTEM))).json()
            await server.settled()
        elif way == "prepared":
            read = await library.process(await library.add([tmp_path / "notes.txt"], "Notes"))
        else:
            await ask(server.runtime, chat, LONGEST)
        if way == "imported":
            file = tmp_path / "chat.kvchat"
            await server.runtime.transfer.export_with_memory(chat, file, lambda done, total: None)
            await chats.recently_deleted.purge_chat(chat)
            await chats.wait_until_idle()
            [chat] = (await server.runtime.transfer.import_files([file], lambda done, total: None)).imported
    blocks = StoreContents(home).block_files()
    assert blocks
    for block in blocks:
        flip_a_byte(block)
    monkeypatch.setattr(Restorer, "stage", record_stage)
    async with running_gateway(home, chosen) as server:
        if way == "program":
            body = chat_body(SYSTEM, first["choices"][0]["message"]["content"], SHORTEST)
            again = await server.client.post("/v1/chat/completions", json=body)
            assert again.status_code == 200
            assert int(again.headers["x-kvchat-found"]) < few
        else:
            if way == "prepared":
                chat = (await server.runtime.chat.create(await server.runtime.chat.library.new_chat(read))).id
            if way == "viewed":
                await server.runtime.start_engine()
                await server.runtime.engine.ready()
                server.runtime.chat.select(chat)
                await server.runtime.chat.wait_until_idle()
            receipt = (await ask(server.runtime, chat, SHORTEST)).receipt
            assert receipt is not None
            assert receipt.source is Source.COLD or way == "viewed"
            assert (receipt.restored_bytes, receipt.cached_tokens < few) == (0, way != "viewed")
    assert staged
    assert all(isinstance(outcome, RestoreMiss) and is_damage(outcome.reason) for outcome in staged), staged
