"""A full or removed disk or a failing index costs save points but no reply."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator

import pytest

from kvchat.chat import turn_context
from kvchat.chat.events import QuestionNotStored
from kvchat.chat.record.database import Database
from kvchat.chat.record.database_file import StorageFailed
from kvchat.chat.record.messages import MessageState
from kvchat.kvstore.index.index import Index, IndexFailed
from kvchat.kvstore.saver import Saver
from kvchat.session.events import SaveSkipped
from kvchat.session.proof import Source
from tests.chat.stage import QUESTION, Stage
from tests.systems import deletes_open_files


@contextlib.contextmanager
def _nothing_is_written(index: Index) -> Iterator[sqlite3.Connection]:
    raise IndexFailed("database or disk is full")
    yield


async def test_restore_works_if_its_use_cannot_be_recorded(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = await stage.answered_chat()
    await stage.restart()
    monkeypatch.setattr(Index, "write", _nothing_is_written)
    assert (await stage.answered(chat, "And then?")).source is Source.DISK
    monkeypatch.undo()


@pytest.mark.parametrize("switch", ["FAKE_HOLLOW_RESTORE", "FAKE_REFUSE_RESTORE"])
async def test_bad_save_point_that_cannot_be_set_aside_costs_no_reply(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    chat = await stage.answered_chat()
    stage.fake.set(**{switch: 1})
    await stage.restart()
    monkeypatch.setattr("kvchat.kvstore.inventory.Inventory.delete_unusable", _refuses)
    reply = await stage.ask(chat, "And then?")
    monkeypatch.undo()
    assert reply is not None, stage.errors()
    assert (reply.state, reply.content) == (MessageState.COMPLETE, "You said: And then?")


def _refuses(*_: object, **__: object) -> str:
    raise IndexFailed("database or disk is full")


async def test_next_turn_needs_disk_space_only_for_new_rows(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for one and a half slot files, without staging memory: most rows are stored already."""
    check = Saver.prepare_save
    sizes: list[int] = []

    def nearly_full(saver: Saver, size: int, *rest: object) -> None:
        sizes.append(size)
        store = stage.store
        store.restorer.limit_memory(0)
        store.inventory.free_bytes = lambda: size * 3 // 2
        check(saver, size, *rest)  # type: ignore[arg-type]

    chat = await stage.answered_chat(QUESTION * 20)
    with monkeypatch.context() as patch:
        patch.setattr(Saver, "prepare_save", nearly_full)
        await stage.answered(chat, "And then?")
    assert sizes
    assert stage.of(SaveSkipped) == []
    assert len(stage.save_points()) == 2


@deletes_open_files
async def test_removed_disk_costs_no_reply(stage: Stage) -> None:
    """A drive is unplugged that holds the chat memory, and comes back."""
    chat, folder = await stage.answered_chat(), stage.runtime.paths.save_points
    away = folder.rename(folder.with_name("away"))
    folder.touch()  # or kvchat would create it again
    await stage.answered(chat, "And then?")
    assert stage.of(SaveSkipped)
    folder.unlink()
    away.rename(folder)
    await stage.answered(chat, "And after that?")
    await stage.restart()
    assert (await stage.answered(chat, "And at the end?")).source is Source.DISK


class _Disk:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        for name in ("update_reply", "append_question"):
            monkeypatch.setattr(Database, name, self._checked(getattr(Database, name)))

    def _checked(self, write: Callable[..., object]) -> Callable[..., object]:
        def checked(*args: object) -> object:
            if self.full:
                raise StorageFailed("Your chats could not be read or written", "database or disk is full")
            return write(*args)

        return checked


@pytest.mark.parametrize("room", ["later", "at the end", "for the next message"])
async def test_unwritten_reply_is_written_later(stage: Stage, monkeypatch: pytest.MonkeyPatch, room: str) -> None:
    monkeypatch.setattr(turn_context, "RETRY_INTERVAL_S", 0.01 if room == "later" else 3600.0)
    chat, disk, text = await stage.chat(), _Disk(monkeypatch), " ".join(["word"] * 60)
    future = await stage.writing(chat, text)
    disk.full = True
    assert await stage.resume(future) is None
    assert len(stage.errors()) == 1
    reply = (await stage.messages(chat))[-1]
    assert (reply.content, reply.state) == (f"You said: {text}", MessageState.COMPLETE)
    assert stage.database.branch(chat)[-1].state is MessageState.STREAMING
    disk.full = False
    if room == "later":
        await stage.until(lambda: not stage.service.turn_context.unsaved_replies)
    elif room == "for the next message":
        await stage.answered(chat, "And then?")
    await stage.runtime.close()
    with contextlib.closing(Database(stage.runtime.paths.database)) as database:
        (stored,) = database.path(reply.id)[-1:]
    assert (stored.content, stored.state) == (reply.content, MessageState.COMPLETE)
    assert stored.receipt is not None


async def test_full_disk_leaves_no_empty_chat(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, chat = _Disk(monkeypatch), stage.service
    disk.full, new = True, await stage.service.new_chat("Be brief.")
    assert await chat.send(new.id, QUESTION, new=new) is None
    assert stage.of(QuestionNotStored)
    assert await chat.conversations() == []
    disk.full = False
    assert await chat.send(new.id, QUESTION, new=new) is not None
    assert [message.content for message in await chat.messages(new.id)][:2] == ["Be brief.", QUESTION]
