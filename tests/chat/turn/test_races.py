"""Concurrent operations; each of these once went wrong."""

import asyncio
import contextlib
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvchat import runtime as runtime_module
from kvchat.chat.events import (
    EngineSilent,
    Notice,
    Prefilling,
    QuestionNotStored,
    ReplyFinished,
    TurnFailed,
    WaitingForChat,
)
from kvchat.chat.record.database_file import StorageFailed
from kvchat.chat.record.messages import MessageState, Role
from kvchat.chat.turn import reply as reply_module
from kvchat.chat.turn import turns
from kvchat.engine.api.connection import EngineState
from kvchat.errors import KvchatError
from kvchat.kvstore.restorer import Restorer
from kvchat.kvstore.savepoint import AbsorbReport, Cancelled, RestorePlan
from kvchat.session import slot as slot_module
from kvchat.session.events import Restored, RestoreFailed, Restoring, Saved, SaveSkipped, Saving
from kvchat.session.proof import Source
from tests.chat.stage import QUESTION, Stage
from tests.systems import WARM, deletes_open_files

SYSTEM = "You are a patient teacher of geography and speak of rivers only. " * 3
STORY = "A long story. " * 60


@pytest.mark.parametrize("switches", [{"FAKE_BATCH_DELAY": 0.05}, {"FAKE_HOLD_DURING": "begin"}])
async def test_stopping_another_chat_early_keeps_the_save_point_usable(
    stage: Stage, switches: dict[str, object]
) -> None:
    """The other chat has a short prefix in the slot, or has not been processed at all."""
    first, second = await stage.answered_chat(STORY, SYSTEM), await stage.chat(SYSTEM)
    stage.fake.set(**switches)
    future = stage.service.send(second, "Another story. " * 60)
    if "FAKE_HOLD_DURING" in switches:
        await stage.until(lambda: len(stage.requests("/v1/chat/completions")) == 2)
    else:
        await stage.until(lambda: stage.of(Prefilling) and stage.of(Prefilling)[-1].conversation_id == second)
    stage.service.stop(second)
    await future
    stage.fake.set(**dict.fromkeys(switches))
    receipt = await stage.answered(first, "Go on.")
    assert receipt.source in WARM
    assert receipt.cached_tokens > 0.9 * receipt.prompt_tokens


def stage_until_cancelled(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make assembling a slot file last until it is cancelled; return the chats for which it began."""
    begun: list[str] = []

    def assemble(plan: RestorePlan, *_: object, cancelled: Callable[[], bool], **__: object) -> None:
        begun.append(plan.save_point.conversation_id)
        while not cancelled():
            time.sleep(0.005)
        raise Cancelled

    monkeypatch.setattr(stage.store.restorer, "stage", assemble)
    return begun


async def test_restore_of_the_selected_chat_gives_way_to_a_message(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    selected, between, other = await stage.answered_chat(STORY), await stage.answered_chat(), await stage.chat()
    with monkeypatch.context() as patch:
        begun = stage_until_cancelled(stage, patch)
        stage.service.select(selected)
        await stage.until(lambda: begun)
        assert await stage.service.send(other, "Hello?")
        assert begun == [selected]
        await stage.until(lambda: len(begun) == 2)
        assert begun == [selected] * 2, "restored after the reply"
        stage.service.select(between)
    await stage.idle()


async def test_only_the_last_of_several_selected_chats_is_restored(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = [await stage.answered_chat(f"Story {number}. " * 60) for number in range(5)]
    stage.slots.forget()
    stage.events.clear()
    with monkeypatch.context() as patch:
        begun = stage_until_cancelled(stage, patch)
        stage.service.select(chats[0])
        await stage.until(lambda: begun)
        for chat in chats[1:4]:
            stage.service.select(chat)
        await stage.until(lambda: len(begun) == 2)
    await stage.show(chats[4])
    assert begun == [chats[0], chats[3]]
    assert [event.conversation_id for event in stage.of(Restored)] == stage.slots.owners() == [chats[4]]
    assert not stage.of(RestoreFailed)


async def test_slow_settling_gives_way_to_another_chat(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_module, "SETTLE_WAIT_S", 0.0)
    first, second = await stage.chat(), await stage.chat()
    one = await stage.writing(first, STORY)
    two = stage.service.send(second, "Hello?")
    await stage.until(lambda: stage.service.is_answering(second))
    stage.fake.set(FAKE_HOLD_DURING="begin")
    await one
    await stage.until(lambda: stage.of(SaveSkipped))
    assert stage.of(SaveSkipped)[0].conversation_id == first
    assert await stage.resume(two) is not None


async def test_message_during_settling_continues_in_the_slot(stage: Stage) -> None:
    chat = await stage.answered_chat(STORY)
    stage.fake.set(FAKE_BATCH_DELAY=0.3)
    before = len(stage.of(Saving))
    await stage.service.send(chat, "More of it. " * 60)
    await stage.until(lambda: len(stage.of(Saving)) > before)
    second = await stage.finish(stage.service.send(chat, "And the end?"))
    assert not stage.of(Restoring), "nothing is restored over a live slot"
    assert second.receipt.source is Source.HOT
    assert second.receipt.cached_tokens > 0.9 * second.receipt.prompt_tokens
    assert [message.role for message in await stage.messages(chat)] == [Role.USER, Role.ASSISTANT] * 3
    assert stage.of(Saved)[-1].tokens == len(stage.save_points()[-1].tokens)


async def test_message_during_a_restart_does_not_delay_it(stage: Stage) -> None:
    first, second = await stage.answered_chat(), await stage.chat()
    before = stage.engine.engine_pid
    stage.fake.set(FAKE_HOLD_DURING="save")
    assert await stage.service.send(first, "And then?") is not None
    await stage.until(lambda: len(stage.of(Saving)) == 2)
    restarting = asyncio.create_task(stage.runtime.restart_engine())
    await asyncio.sleep(0)
    assert await stage.resume(stage.service.send(second, "Meanwhile?")) is not None
    assert stage.engine.engine_pid not in (None, before), "one reply after another delayed it"
    await restarting
    await stage.idle()
    assert len(stage.of(Saved)) == 3, "the save in progress is kept"
    assert not stage.errors()


async def test_engine_stopped_during_a_restart_stays_stopped(stage: Stage) -> None:
    stage.fake.set(FAKE_HOLD_DURING="save")
    assert await stage.service.send(await stage.chat(), QUESTION) is not None
    await stage.until(lambda: stage.of(Saving))
    restarting = asyncio.create_task(stage.runtime.restart_engine())
    await asyncio.sleep(0)
    stopping = asyncio.create_task(stage.runtime.stop_engine())
    await asyncio.sleep(0)
    stage.fake.set(FAKE_HOLD_DURING=None)
    await asyncio.gather(restarting, stopping)
    await stage.idle()
    assert stage.engine.status.state is EngineState.STOPPED


@pytest.mark.parametrize("phase", ["save", "prefill"])
async def test_hanging_engine_can_be_stopped(stage: Stage, phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "SAVE_TIMEOUT_S", 0.2)
    chat = await stage.chat()
    stage.fake.set(FAKE_HANG_DURING=phase)
    future = stage.service.send(chat, QUESTION)
    await stage.until(lambda: stage.of(Saving if phase == "save" else Prefilling))
    await asyncio.wait_for(stage.runtime.stop_engine(), 120)
    assert stage.engine.status.state is EngineState.STOPPED
    await stage.finish(future)
    stage.fake.set(FAKE_HANG_DURING=None)
    assert await stage.ask(chat, "Are you back?") is not None


async def test_second_message_is_returned_and_another_chat_deleted_during_a_reply(stage: Stage) -> None:
    deleted, chat = await stage.answered_chat(), await stage.chat()
    future = await stage.writing(chat)
    assert await stage.service.send(chat, "two") is None
    await stage.service.recently_deleted.purge_chat(deleted)
    assert stage.service.answering_chats == (chat,)
    assert [conversation.id for conversation in await stage.service.conversations()] == [chat]
    assert not stage.save_points()
    assert await stage.service.send(deleted, "Hello?") is None
    assert [event.text for event in stage.of(QuestionNotStored)] == ["two", "Hello?"]
    assert await stage.resume(future) is not None
    await stage.idle()
    assert [message.role for message in await stage.messages(chat)] == [Role.USER, Role.ASSISTANT]


async def test_replaced_model_file_gets_another_fingerprint(stage: Stage, tmp_path: Path) -> None:
    """Also if the engine restarts by itself."""
    model = tmp_path / "model.gguf"
    shutil.copyfile(str(stage.settings.model_path), model)
    await stage.runtime.apply_settings(replace(stage.runtime.settings, model_path=str(model)))
    chat = await stage.answered_chat()
    data = model.read_bytes()
    model.unlink()
    model.write_bytes(data[:-200_000] + bytes(200_000))
    stage.fake.set(FAKE_DIE_DURING="prefill", FAKE_DIE_TIMES=2)
    assert await stage.ask(chat, "Still you?") is None
    reply = await stage.finish(stage.service.retry(chat))
    assert reply.receipt.source is Source.COLD
    assert not stage.of(Restored)


async def test_hollow_restore_ahead_of_a_message_is_detected(stage: Stage) -> None:
    chat = await stage.answered_chat()
    stage.fake.set(FAKE_HOLLOW_RESTORE=1)
    await stage.restart()
    await stage.runtime.start_engine()
    await stage.until(lambda: stage.engine.is_ready())
    await stage.show(chat)
    assert len(stage.of(Restored)) == 1
    receipt = (await stage.finish(stage.service.retry(chat))).receipt  # its prompt is shorter than the restored one
    assert (receipt.hollow, receipt.prefetched) == (True, True)


async def test_stopping_the_engine_also_stops_waiting_replies(stage: Stage) -> None:
    first, second = await stage.chat(), await stage.chat()
    one = await stage.writing(first)
    two = stage.service.send(second, "word " * 100)
    await stage.runtime.stop_engine()
    assert (await one) is not None
    assert (await two) is None
    assert [message.role for message in await stage.messages(second)] == [Role.USER]


@deletes_open_files
@pytest.mark.parametrize("where", ["store", "engine"])
async def test_stop_during_a_restore_leaves_no_slot_file(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Stopped twice while the slot file exists: the store has just made it, or the engine reads it."""
    chat = await stage.answered_chat()
    await stage.runtime.close()
    put, placed, released = Restorer._create_slot_file, threading.Event(), threading.Event()

    def put_and_wait(*args: Any) -> Any:
        file = put(*args)
        placed.set()
        released.wait()
        return file

    def slot_files() -> list[Path]:
        staging = stage.home / "cache" / "savepoints" / "staging"
        return [file for file in staging.rglob("*") if file.is_file() and file.suffix != ".lock"]

    if where == "store":
        monkeypatch.setattr(Restorer, "_create_slot_file", put_and_wait)
    else:
        stage.fake.set(FAKE_HOLD_DURING="restore")
    await stage.restart()
    before = len(stage.requests("/slots/0?action=restore"))
    future = stage.service.send(chat, "And then?")
    await stage.until(lambda: placed.is_set() or len(stage.requests("/slots/0?action=restore")) > before)
    assert slot_files()
    for _ in range(2):
        stage.service.stop(chat)
        await asyncio.sleep(0)
    released.set()
    await stage.resume(future)
    await stage.idle()
    assert not slot_files()


async def test_receipt_states_the_wait_for_another_reply(stage: Stage) -> None:
    first, second = await stage.chat(), await stage.chat()
    one = await stage.writing(first, "word " * 20)
    two = stage.service.send(second, "Hello there, second conversation.")
    await asyncio.sleep(0.2)  # the shortest wait that a receipt may state
    await stage.resume(one)
    receipt = (await two).receipt
    assert receipt.queue_wait_ms > 100
    parts = receipt.restore_ms + receipt.prefill_ms + receipt.first_token_ms
    assert parts == pytest.approx(receipt.ttft_ms, rel=0.02), "the wait is not part of the time to the first token"


async def test_empty_reply_is_not_saved(stage: Stage) -> None:
    chat = await stage.answered_chat()
    before = stage.save_points()
    stage.fake.set(FAKE_REPLY=" ")
    await stage.ask(chat, "Say nothing.")
    assert stage.save_points() == before
    stage.fake.set(FAKE_REPLY=None)
    assert await stage.ask(chat, "Say something.") is not None


async def chat_with_three_turns(stage: Stage) -> str:
    chat = await stage.chat()
    for text in ("one", "two", "three"):
        await stage.answered(chat, f"{text} {'word ' * 100}")
    return chat


async def test_message_sent_during_a_summary_is_kept(stage: Stage) -> None:
    chat = await chat_with_three_turns(stage)
    stage.fake.set(FAKE_HOLD_DURING="prefill", FAKE_REPLY="it was about this and that")
    summary = asyncio.create_task(stage.service.context.summarise(chat))
    await stage.until(lambda: not stage.slots.is_idle or summary.done())
    assert not summary.done()
    sent = stage.service.send(chat, "four")
    with contextlib.suppress(KvchatError):
        await stage.resume(summary)
    assert await stage.finish(sent) is not None
    assert "four" in [message.content for message in await stage.messages(chat)]


async def test_hollow_restore_in_a_summary_counts(stage: Stage) -> None:
    chat = await chat_with_three_turns(stage)
    stage.fake.set(FAKE_HOLLOW_RESTORE=1)
    await stage.restart()
    await stage.service.context.summarise(chat)
    assert stage.of(RestoreFailed)
    assert stage.engine.finding.hollow == 1


async def test_quitting_waits_while_the_engine_saves(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "SAVE_TIMEOUT_S", 2.0)
    stage.fake.set(FAKE_SAVE_DELAY=0.3)
    future = stage.service.send(await stage.chat(), QUESTION)
    await stage.until(lambda: stage.of(Saving))
    await future
    await stage.runtime.close()
    assert stage.of(Saved)
    assert not stage.of(Notice)
    assert len(stage.save_points()) == 1


async def test_quitting_states_the_pending_save_and_can_skip_it(stage: Stage) -> None:
    chat = await stage.answered_chat()
    before = stage.save_points()
    stage.fake.set(FAKE_HOLD_DURING="save")
    future = stage.service.send(chat, "And then? " * 40)
    await stage.until(lambda: len(stage.requests("/slots/0?action=save")) == 2)
    await future
    closing = asyncio.create_task(stage.runtime.close())
    await asyncio.sleep(0)
    unfinished = stage.runtime.pending_save
    assert unfinished.bytes > 0
    assert unfinished.seconds is not None
    assert ", about " in unfinished.description
    assert not closing.done()
    stage.runtime.cancel_saving()
    await closing
    stage.fake.set(FAKE_HOLD_DURING=None)
    assert stage.save_points() == before
    await stage.restart()
    assert [message.role for message in await stage.messages(chat)] == [Role.USER, Role.ASSISTANT] * 2
    assert (await stage.answered(chat, "Are you back?")).source is Source.DISK


async def test_absorbing_can_be_skipped_when_quitting(stage: Stage) -> None:
    chat, absorb, calls = await stage.chat(), stage.store.absorb_pending, list[bool]()

    def absorb_until_cancelled(cancelled: Callable[[], bool] = lambda: False) -> AbsorbReport:
        calls.append(cancelled())
        while not cancelled():
            time.sleep(0.005)
        return absorb(cancelled)

    stage.store.absorb_pending = absorb_until_cancelled  # type: ignore[method-assign]
    future = stage.service.send(chat, QUESTION)
    await stage.until(lambda: calls)
    await future
    closing = asyncio.create_task(stage.runtime.close())
    await stage.until(lambda: stage.runtime.pending_save)
    stage.runtime.cancel_saving()
    await closing
    assert stage.kept().absorbed() == 0
    await stage.restart()
    assert not stage.save_points()
    assert (await stage.answered(chat, "Are you back?")).source is Source.COLD
    assert stage.kept().absorbed() == 1


async def test_silent_engine_is_reported_and_the_reply_kept(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_module, "SILENT_S", 0.1)
    stage.fake.set(FAKE_HOLD_DURING="stream", FAKE_REPLY="one two three four")
    future = stage.service.send(await stage.chat(), QUESTION)
    await stage.until(lambda: stage.of(EngineSilent))
    assert stage.of(EngineSilent)[0].seconds > 0.1
    assert stage.engine.status.state is EngineState.READY
    assert (await stage.resume(future)).content == "one two three four"
    assert stage.of(EngineSilent)[-1].seconds == 0


async def test_waiting_chat_knows_the_blocking_one_and_can_go_first(stage: Stage) -> None:
    service, slots = stage.service, stage.slots
    first, second, third = await stage.chat(), await stage.chat(), await stage.chat()
    one = await stage.writing(first, "word " * 60)
    two, three = service.send(second, "Hello?"), service.send(third, "And me?")
    await stage.until(lambda: len(stage.of(WaitingForChat)) == 2)
    assert [slots.blocking_chat(chat) for chat in (first, second, third)] == [None, first, first]
    service.turns.prioritize(third)
    stopped = await one  # or the reply ends by itself on a busy machine
    assert stopped.state is MessageState.STOPPED
    assert await stage.resume(three) is not None
    assert await two is not None
    assert [event.conversation_id for event in stage.of(ReplyFinished)] == [first, third, second]
    assert await stage.finish(service.continue_reply(stopped)) is not None


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("reads", [0, 1, 2, 3])
async def test_database_failure_before_the_reply_is_reported(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, slots: int, reads: int
) -> None:
    """`reads`: the number that succeed after the question was stored."""
    await stage.restart(slots)
    other, database, bugs = await stage.chat(), stage.database, list[dict[str, object]]()
    await stage.answered_chat()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: bugs.append(context))
    reading, store, left = database.reading, turns.store_question, iter(range(reads))

    def read_or_fail() -> contextlib.AbstractContextManager[sqlite3.Connection]:
        if next(left, None) is None:
            raise StorageFailed("Your chats could not be read or written", "disk I/O error")
        return reading()

    def store_then_fail(*question: Any) -> turns.TurnStart:
        start = store(*question)
        monkeypatch.setattr(database, "reading", read_or_fail)
        return start

    monkeypatch.setattr(turns, "store_question", store_then_fail)
    reply = await stage.finish(stage.service.send(other, "And then?"))
    monkeypatch.undo()
    assert not bugs
    assert reply is not None or stage.of(TurnFailed), "not reported"
    assert await stage.ask(other, "And now?") is not None
