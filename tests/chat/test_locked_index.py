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
from tests.chat.stage import Stage

pytestmark = pytest.mark.fake

HOLDS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(index: Path) -> Iterator[None]:
    """A process that holds the write lock."""
    command = [sys.executable, "-c", HOLDS, str(index)]
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
