"""Deleted chats and messages can be had back for days, also by the next run, and then they are gone."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from kvchat.chat.deletion import DeletedEntry, entries, purge_abandoned
from kvchat.chat.record import tree
from kvchat.chat.record.database import ConversationGone, Database
from kvchat.chat.record.messages import Attachment, MessageState, Role
from kvchat.chat.record.tree import ParentDeleted
from kvchat.session.proof import Source
from tests.chat.stage import QUESTION, Stage
from tests.chat.test_permanent import let_days_pass


async def deleted(stage: Stage) -> list[DeletedEntry]:
    return await stage.service.recently_deleted.entries()


async def test_a_chat_and_a_message_are_had_back_by_the_next_run_warm(stage: Stage) -> None:
    chat, other = await stage.chat(), await stage.chat()
    await stage.answered(chat)
    await stage.finish(stage.service.send(other, "Hello there", attachments=(Attachment("a.txt", 1, "h", "alpha"),)))
    chat_before, other_before = [await stage.messages(id) for id in (chat, other)]
    title = (await stage.service.conversations())[0].title
    assert len((await stage.service.finder.find("river")).chats) == 1
    await stage.service.recently_deleted.delete([chat])
    await stage.service.delete_message(other_before[0])
    assert await stage.service.conversation(chat) is None
    assert not (await stage.service.finder.find("river")).chats
    message, whole = await deleted(stage)
    assert (message.is_chat, message.text, message.messages) == (False, "Hello there", 2)
    assert (whole.is_chat, whole.id, whole.text, whole.messages) == (True, chat, "", 2)
    assert whole.expires_at - whole.deleted_at == timedelta(days=7)
    points = len(stage.save_points())
    await stage.runtime.close()
    let_days_pass(stage, 6)
    await stage.restart()
    stage.service.recently_deleted.start()
    await stage.idle()
    assert [entry.id for entry in await deleted(stage)] == [message.id, chat]
    for entry in await deleted(stage):
        await stage.service.recently_deleted.restore(entry)
    assert await deleted(stage) == []
    assert [await stage.messages(id) for id in (chat, other)] == [chat_before, other_before]
    assert (await stage.service.conversations())[0].title == title
    assert (await stage.service.finder.find("river")).chats[0].conversation_id == chat
    assert len(stage.save_points()) == points
    assert (await stage.answered(chat, "And the Danube?")).source is not Source.COLD


async def test_after_its_days_it_goes_while_kvchat_runs(stage: Stage) -> None:
    chat = await stage.answered_chat()
    await stage.service.recently_deleted.delete([chat])
    let_days_pass(stage, 6.9)
    stage.service.recently_deleted.schedule_purge()
    await stage.idle()
    assert len(await deleted(stage)) == 1
    await stage.runtime.apply_settings(dataclasses.replace(stage.settings, keep_deleted_days=3))
    await stage.until(lambda: not stage.save_points())
    assert await deleted(stage) == []


async def test_a_look_that_is_due_is_not_put_off_by_one_for_later(stage: Stage) -> None:
    chat = await stage.answered_chat()
    await stage.service.recently_deleted.delete([chat])
    let_days_pass(stage, 8)
    for seconds in (0, 3600):
        stage.service.recently_deleted.schedule_purge(seconds)
    await stage.until(lambda: not stage.save_points())
    assert await deleted(stage) == []


DAY, YEAR = 86_400.0, 365 * 86_400.0


@dataclasses.dataclass
class Clock:
    """The clock of the machine, which may be wrong, beside the time that really passes."""

    database: Database
    now: float = 1_790_000_000.0

    def pass_days(self, days: int, *, looks: int = 24) -> bool:
        """Let days pass in which kvchat looks so often; True if something can still be had back at their end."""
        for _look in range(days * looks):
            self.now += DAY / looks
            purge_abandoned(self.database, 7 * DAY)
        return bool(entries(self.database, 7 * DAY))

    def delete(self) -> None:
        whole, other = [self.database.create_conversation(title) for title in "ab"]
        question = self.database.append(other.id, None, Role.USER, "Hello", MessageState.COMPLETE)
        tree.remove(self.database, question)
        self.database.write("UPDATE conversations SET deleted_at = ? WHERE id = ?", (self.now, whole.id))


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    with closing(Database(tmp_path / "conversations.db")) as database:
        clock = Clock(database)
        monkeypatch.setattr(time, "time", lambda: clock.now)
        yield clock


@pytest.mark.parametrize("days_wrong", [0, 3])
@pytest.mark.parametrize("years", [5, -7])
def test_a_wrong_clock_ends_nothing_that_was_deleted_yesterday(clock: Clock, years: int, days_wrong: int) -> None:
    clock.delete()
    assert clock.pass_days(1)
    clock.now += years * YEAR
    purge_abandoned(clock.database, 7 * DAY)
    assert len(entries(clock.database, 7 * DAY)) == 2
    clock.pass_days(days_wrong)
    clock.now -= years * YEAR
    purge_abandoned(clock.database, 7 * DAY)
    assert len(entries(clock.database, 7 * DAY)) == 2
    assert not clock.pass_days(7), "kept for as long as was said, and no longer"


def test_a_clock_that_is_wrong_at_each_start_ends_nothing_early(clock: Clock) -> None:
    """A machine without a battery for its clock begins in 1970 until the network tells the time."""
    clock.delete()
    for _start in range(6):
        right, clock.now = clock.now + DAY, 0.0
        purge_abandoned(clock.database, 7 * DAY)
        clock.now = right
        purge_abandoned(clock.database, 7 * DAY)
        assert len(entries(clock.database, 7 * DAY)) == 2
    assert not clock.pass_days(2)


@pytest.mark.parametrize("years", [5, -7])
def test_what_was_deleted_by_a_wrong_clock_goes_in_time(clock: Clock, years: int) -> None:
    clock.now += years * YEAR
    clock.delete()
    clock.now -= years * YEAR
    purge_abandoned(clock.database, 7 * DAY)
    left = {entry.expires_at.timestamp() - clock.now for entry in entries(clock.database, 7 * DAY)}
    assert all(5.9 * DAY <= seconds <= 7 * DAY for seconds in left)
    assert clock.pass_days(5)
    assert not clock.pass_days(3)


def test_who_looks_once_a_day_keeps_things_as_long_as_was_said(clock: Clock) -> None:
    clock.delete()
    assert clock.pass_days(6, looks=1)
    assert not clock.pass_days(1, looks=1)


async def test_what_follows_a_deleted_message_comes_back_after_it(stage: Stage) -> None:
    chat = await stage.answered_chat()
    await stage.answered(chat, "And the garden?")
    before = await stage.messages(chat)
    later = await stage.service.delete_message(before[2])
    earlier = await stage.service.delete_message(before[1])
    with pytest.raises(ParentDeleted):
        await stage.service.restore_messages(later)
    await stage.service.recently_deleted.delete([chat])
    await stage.service.restore_messages(earlier)
    assert [conversation.id for conversation in await stage.service.conversations()] == [chat]
    await stage.service.restore_messages(later)
    assert await stage.messages(chat) == before
    assert QUESTION in before[0].content


async def test_a_damaged_entry_costs_nothing_else(stage: Stage) -> None:
    chat = await stage.answered_chat()
    removed = await stage.service.delete_message((await stage.messages(chat))[1])
    with stage.database.transaction() as db:
        db.execute("UPDATE removed SET rows = substr(rows, 1, 20)")
    assert await deleted(stage) == []
    with pytest.raises(ConversationGone):
        await stage.service.restore_messages(removed)
    assert len(await stage.messages(chat)) == 1


def test_a_picture_comes_back_byte_for_byte(tmp_path: Path) -> None:
    with closing(Database(tmp_path / "chats.db")) as database:
        chat = database.create_conversation("x")
        picture = Attachment("cat.png", 4, "h", "", b"\x89PN\0")
        said = database.append_question(chat.id, "", [picture])
        tree.remove(database, said)
        assert database.branch(chat.id) == []
        assert [entry.text for entry in entries(database, 0)] == ["cat.png"]
        tree.restore_messages(database, said.id)
        assert database.branch(chat.id) == [said]
