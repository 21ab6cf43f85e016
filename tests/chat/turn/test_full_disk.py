"""A disk that takes nothing more, or an index that fails, costs save points and never a reply."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvchat.chat.record.messages import MessageState
from kvchat.kvstore.block_store import BlockStore
from kvchat.kvstore.index.index import Index, IndexFailed
from kvchat.session.events import SaveSkipped
from kvchat.session.proof import Source
from tests.chat.stage import QUESTION, Stage


@contextlib.contextmanager
def _nothing_is_written(index: Index) -> Iterator[sqlite3.Connection]:
    raise IndexFailed("database or disk is full")
    yield


async def test_what_was_saved_is_restored_even_if_its_use_cannot_be_noted(
    stage: Stage, smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = await stage.chat()
    await stage.answered(chat)
    await stage.runtime.close()
    async with Stage(stage.home, stage.fake, smollm2) as again:
        monkeypatch.setattr(Index, "write", _nothing_is_written)
        assert (await again.answered(chat, "And then?")).source is Source.DISK
        monkeypatch.undo()


@pytest.mark.parametrize("switch", ["FAKE_HOLLOW_RESTORE", "FAKE_REFUSE_RESTORE"])
async def test_a_bad_save_point_that_cannot_be_set_aside_costs_no_reply(
    stage: Stage, smollm2: Path, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    chat = await stage.chat()
    await stage.answered(chat)
    await stage.runtime.close()
    stage.fake.set(**{switch: 1})
    async with Stage(stage.home, stage.fake, smollm2) as again:
        monkeypatch.setattr("kvchat.kvstore.restoring.index_points.count_use", lambda *_: None)
        monkeypatch.setattr("kvchat.kvstore.parts.Parts.lose", _refuses)
        reply = await again.ask(chat, "And then?")
        monkeypatch.undo()
        assert reply is not None, again.errors()
        assert (reply.state, reply.content) == (MessageState.COMPLETE, "You said: And then?")


def _refuses(*_: object, **__: object) -> str:
    raise IndexFailed("database or disk is full")


async def test_a_next_turn_is_saved_where_the_disk_has_room_for_what_is_new(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for the engine's file and half as much again, where no memory can be had: most of it is kept already."""
    check = BlockStore.check_room
    asked: list[int] = []

    def nearly_full(store: BlockStore, size: int, *rest: object) -> None:
        asked.append(size)
        store.keep_in_memory(0)
        store._parts.free_bytes = lambda: size * 3 // 2
        check(store, size, *rest)  # type: ignore[arg-type]

    chat = await stage.chat()
    await stage.answered(chat, QUESTION * 20)
    with monkeypatch.context() as patch:
        patch.setattr(BlockStore, "check_room", nearly_full)
        await stage.answered(chat, "And then?")
    assert asked
    assert stage.of(SaveSkipped) == []
    assert len(stage.save_points()) == 2
