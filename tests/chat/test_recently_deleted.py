"""Deleted chats and messages can be restored for days, also by the next run."""

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
from kvchat.chat.record.database_file import StorageFailed
from kvchat.chat.record.messages import Attachment, MessageState, Role
from kvchat.chat.record.tree import ParentDeleted
from kvchat.chat.search import find
from kvchat.session.proof import Source
from tests.chat.stage import Stage
from tests.chat.test_permanent import let_days_pass


async def deleted_entries(stage: Stage) -> list[DeletedEntry]:
    return await stage.service.recently_deleted.entries()


async def test_next_run_can_restore_a_chat_and_a_message_with_memory(stage: Stage) -> None:
    service, chat, other = stage.service, await stage.answered_chat(), await stage.chat()
    await stage.finish(service.send(other, "Hello there", attachments=(Attachment("a.txt", 1, "h", "alpha"),)))
    before = [await stage.messages(id) for id in (chat, other)]
    title = (await service.conversations())[0].title
    assert len((await service.finder.find("river")).chats) == 1
    await service.recently_deleted.delete([chat])
    await service.delete_message(before[1][0])
    assert await service.conversation(chat) is None
    assert not (await service.finder.find("river")).chats
    message, whole = await deleted_entries(stage)
    assert (message.is_chat, message.text, message.messages) == (False, "Hello there", 2)
    assert (whole.is_chat, whole.id, whole.text, whole.messages) == (True, chat, "", 2)
    assert whole.expires_at - whole.deleted_at == timedelta(days=7)
    points = len(stage.save_points())
    await stage.runtime.close()
    let_days_pass(stage, 6)
    await stage.restart()
    service = stage.service
    service.recently_deleted.start()
    await stage.idle()
    assert [entry.id for entry in await deleted_entries(stage)] == [message.id, chat]
    for entry in await deleted_entries(stage):
        await service.recently_deleted.restore(entry)
    assert await deleted_entries(stage) == []
    assert [await stage.messages(id) for id in (chat, other)] == before
    assert (await service.conversations())[0].title == title
    assert (await service.finder.find("river")).chats[0].conversation_id == chat
    assert len(stage.save_points()) == points
    assert (await stage.answered(chat, "And the Danube?")).source is not Source.COLD


async def test_chat_restored_while_others_are_deleted_permanently_stays(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats, deleted = {await stage.chat(), await stage.chat()}, stage.service.recently_deleted
    await deleted.delete([*chats])
    purge_chat = deleted.purge_chat

    async def purge_and_restore_other(id: str) -> None:
        await purge_chat(id)
        await deleted.restore_chats([*(chats - {id})])

    monkeypatch.setattr(deleted, "purge_chat", purge_and_restore_other)
    await deleted.delete_now(await deleted_entries(stage))
    assert len(await stage.service.conversations()) == 1


async def test_expired_chat_is_deleted_while_kvchat_runs(stage: Stage) -> None:
    await stage.service.recently_deleted.delete([await stage.answered_chat()])
    let_days_pass(stage, 6.9)
    stage.service.recently_deleted.schedule_purge()
    await stage.idle()
    assert len(await deleted_entries(stage)) == 1
    await stage.runtime.apply_settings(dataclasses.replace(stage.settings, keep_deleted_days=3))
    await stage.until(lambda: not stage.save_points())
    assert await deleted_entries(stage) == []


async def test_chats_are_deleted_at_exit_if_none_are_kept(stage: Stage) -> None:
    await stage.runtime.apply_settings(dataclasses.replace(stage.settings, keep_deleted_days=0))
    ids = [await stage.chat() for _ in range(2)]
    await stage.ask(ids[0], "Hello marmot")
    await stage.service.recently_deleted.delete(ids)
    await stage.service.recently_deleted.restore_chats(ids[1:])
    stage.service.close()
    await stage.idle()
    assert [row["id"] for row in stage.database.rows("SELECT id FROM conversations")] == ids[1:]
    assert stage.save_points() == []
    assert find(stage.database, "marmot") == ()


async def test_failed_deletion_does_not_prevent_a_start(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(database: Database, conversation_id: str) -> None:
        raise StorageFailed("no")

    chat = await stage.chat()
    stage.database.write("UPDATE conversations SET deleted_at = 1700000001, deleted_s = 1e8", ())
    monkeypatch.setattr(Database, "delete", fail)
    await stage.restart()
    assert [entry.id for entry in await deleted_entries(stage)] == [chat]


async def test_later_check_does_not_delay_an_earlier_one(stage: Stage) -> None:
    await stage.service.recently_deleted.delete([await stage.answered_chat()])
    let_days_pass(stage, 8)
    for seconds in (0, 3600):
        stage.service.recently_deleted.schedule_purge(seconds)
    await stage.until(lambda: not stage.save_points())
    assert await deleted_entries(stage) == []


DAY, YEAR = 86_400.0, 365 * 86_400.0


@dataclasses.dataclass
class Clock:
    """The machine's clock, which may be wrong, beside the time that really passes."""

    database: Database
    now: float = 1_790_000_000.0

    def entries(self) -> list[DeletedEntry]:
        return entries(self.database, 7 * DAY)

    def check(self) -> None:
        purge_abandoned(self.database, 7 * DAY)

    def pass_days(self, days: int, *, checks: int = 24) -> bool:
        """Let `days` days pass with `checks` checks each; return True if something can still be restored afterwards."""
        for _check in range(days * checks):
            self.now += DAY / checks
            self.check()
        return bool(self.entries())

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
def test_wrong_clock_deletes_nothing_early(clock: Clock, years: int, days_wrong: int) -> None:
    clock.delete()
    assert clock.pass_days(1)
    clock.now += years * YEAR
    clock.check()
    assert len(clock.entries()) == 2
    clock.pass_days(days_wrong)
    clock.now -= years * YEAR
    clock.check()
    assert len(clock.entries()) == 2
    assert not clock.pass_days(7), "kept too long"


def test_clock_wrong_at_each_start_deletes_nothing_early(clock: Clock) -> None:
    """A machine without a clock battery starts in 1970, until it gets the time from the network."""
    clock.delete()
    for _start in range(6):
        right, clock.now = clock.now + DAY, 0.0
        clock.check()
        clock.now = right
        clock.check()
        assert len(clock.entries()) == 2
    assert not clock.pass_days(2)


@pytest.mark.parametrize("years", [5, -7])
def test_deletion_under_a_wrong_clock_expires_in_time(clock: Clock, years: int) -> None:
    clock.now += years * YEAR
    clock.delete()
    clock.now -= years * YEAR
    clock.check()
    assert all(5.9 * DAY <= entry.expires_at.timestamp() - clock.now <= 7 * DAY for entry in clock.entries())
    assert clock.pass_days(5)
    assert not clock.pass_days(3)


def test_daily_checks_are_enough(clock: Clock) -> None:
    clock.delete()
    assert clock.pass_days(6, checks=1)
    assert not clock.pass_days(1, checks=1)


async def test_messages_are_restored_after_their_parent(stage: Stage) -> None:
    service, chat = stage.service, await stage.answered_chat()
    await stage.answered(chat, "And the garden?")
    before = await stage.messages(chat)
    later = await service.delete_message(before[2])
    earlier = await service.delete_message(before[1])
    with pytest.raises(ParentDeleted):
        await service.restore_messages(later)
    await service.recently_deleted.delete([chat])
    await service.restore_messages(earlier)
    assert [conversation.id for conversation in await service.conversations()] == [chat]
    await service.restore_messages(later)
    assert await stage.messages(chat) == before


async def test_damaged_entry_affects_only_itself(stage: Stage) -> None:
    chat = await stage.answered_chat()
    removed = await stage.service.delete_message((await stage.messages(chat))[1])
    stage.database.write("UPDATE removed SET rows = substr(rows, 1, 20)", ())
    assert await deleted_entries(stage) == []
    with pytest.raises(ConversationGone):
        await stage.service.restore_messages(removed)
    assert len(await stage.messages(chat)) == 1


def test_picture_is_restored_unchanged(database: Database) -> None:
    chat = database.create_conversation("x")
    question = database.append_question(chat.id, "", [Attachment("cat.png", 4, "h", "", b"\x89PN\0")])
    tree.remove(database, question)
    assert database.branch(chat.id) == []
    assert [entry.text for entry in entries(database, 0)] == ["cat.png"]
    tree.restore_messages(database, question.id)
    assert database.branch(chat.id) == [question]
