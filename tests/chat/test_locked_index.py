"""Another process holds the index's write lock: nobody who waits for an answer waits for that."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvchat.chat.events import ConversationsChanged
from kvchat.chat.record.messages import Source
from kvchat.kvstore.index import index as index_module
from kvchat.session.events import Saving
from tests.chat.stage import Stage

pytestmark = pytest.mark.fake

HOLDS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
if sys.argv[2] == "EXCLUSIVE":
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
connection.execute("BEGIN " + sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(index: Path, lock: str = "IMMEDIATE") -> Iterator[None]:
    """A process that holds the write lock, or with EXCLUSIVE the whole file."""
    command = [sys.executable, "-c", HOLDS, str(index), lock]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield
        process.communicate()


async def test_a_message_is_answered_while_another_process_writes(stage: Stage) -> None:
    here, there = await stage.chat(), await stage.chat()
    for chat in (here, there):
        await stage.ask(chat)
    with held(stage.kept().folder / "index.db"):
        stage.runtime.chat.select(here)
        restored = await stage.ask_while_busy(here, "And the garden?")
        assert restored is not None
        assert restored.receipt is not None
        assert restored.receipt.source is not Source.COLD
        reply = await stage.ask_while_busy(there, "And the river?")  # while what was said here waits to be kept
        assert reply is not None
        assert reply.receipt is not None
        assert reply.receipt.source is not Source.COLD
        assert len(stage.kept().save_points()) == 2, "what was waited for came before the answer"
    await stage.runtime.chat.idle()
    assert len(stage.kept().save_points()) == 4
    after = await stage.answered(here, "And then?")
    assert after.source is not Source.COLD


async def test_a_message_is_answered_while_a_deletion_waits_for_another_process(stage: Stage) -> None:
    here, gone = await stage.chat(), await stage.chat()
    for chat in (gone, here):
        await stage.ask(chat)
    stage.events.clear()
    with held(stage.kept().folder / "index.db"):
        deleting = asyncio.ensure_future(stage.runtime.chat.delete(gone))
        await stage.until(lambda: stage.of(ConversationsChanged))
        reply = await stage.ask_while_busy(here, "And the garden?")
        assert reply is not None
        assert not deleting.done()
        assert len(stage.save_points()) == 2, "what was waited for came before the answer"
    await deleting
    await stage.runtime.chat.idle()
    assert {point.conversation_id for point in stage.save_points()} == {here}


@pytest.mark.parametrize("lock", ["IMMEDIATE", "EXCLUSIVE"])
async def test_what_another_process_holds_keeps_nobody_from_beginning(
    stage: Stage, smollm2: Path, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    chat = await stage.chat()
    await stage.ask(chat)
    await stage.runtime.close()
    monkeypatch.setattr(index_module, "FIRST_WAIT_S", 0.1)
    with held(stage.kept().folder / "index.db", lock):
        async with Stage(stage.home, stage.fake, smollm2) as again:
            assert await again.ask_while_busy(chat, "And the garden?")
            if again.runtime.save_points.problem:
                await again.runtime.chat.idle()
                assert not again.of(Saving), "what cannot be kept is not said to be"
            again.runtime.give_up_saving()
        assert (again.runtime.save_points.problem is None) == (lock == "IMMEDIATE")
