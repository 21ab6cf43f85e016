"""What happens when two things happen at once: each of these once went wrong."""

from __future__ import annotations

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
from kvchat.session import slot_request
from kvchat.session.events import Restored, RestoreFailed, Restoring, Saved, SaveSkipped, Saving
from kvchat.session.proof import Source
from tests.chat.stage import QUESTION, Stage

SYSTEM = "You are a patient teacher of geography and speak of rivers only. " * 3


@pytest.mark.parametrize("switches", [{"FAKE_BATCH_DELAY": 0.05}, {"FAKE_HOLD_DURING": "begin"}])
async def test_another_chat_that_is_stopped_early_does_not_hide_the_save_point(
    stage: Stage, switches: dict[str, object]
) -> None:
    """Stopped with a short prefix of it in the slot, or before a word of it was read."""
    first, second = await stage.chat(SYSTEM), await stage.chat(SYSTEM)
    await stage.answered(first, "A long story. " * 60)
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
    assert receipt.source is Source.WARM
    assert receipt.cached_tokens > 0.9 * receipt.prompt_tokens


def staged_for_ever(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From now on a save point is put together as long as anybody wants it. Whose is begun is in the list."""
    begun: list[str] = []
    store = stage.store

    def put_together(plan: RestorePlan, *_: object, cancelled: Callable[[], bool], **__: object) -> None:
        begun.append(plan.save_point.conversation_id)
        while not cancelled():
            time.sleep(0.005)
        raise Cancelled

    monkeypatch.setattr(store.restorer, "stage", put_together)
    return begun


async def test_a_restore_that_nobody_waits_for_gives_way_to_a_message_in_another_chat(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at, asked, between = await stage.chat(), await stage.chat(), await stage.chat()
    await stage.answered(looked_at, "A long story. " * 60)
    await stage.answered(between)
    with monkeypatch.context() as slowly:
        begun = staged_for_ever(stage, slowly)
        stage.service.select(looked_at)
        await stage.until(lambda: begun)
        assert await stage.service.send(asked, "Hello?")
        assert begun == [looked_at]
        await stage.until(lambda: len(begun) == 2)
        assert begun == [looked_at] * 2, "what is looked at is restored when that is over"
        stage.service.select(between)
    await stage.idle()


async def test_of_chats_chosen_one_after_the_other_only_the_last_is_restored(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = [await stage.chat() for _ in range(5)]
    for number, chat in enumerate(chats):
        await stage.answered(chat, f"Story {number}. " * 60)
    stage.slots.forget()
    stage.events.clear()
    with monkeypatch.context() as slowly:
        begun = staged_for_ever(stage, slowly)
        stage.service.select(chats[0])
        await stage.until(lambda: begun)
        for chat in chats[1:4]:
            stage.service.select(chat)
        await stage.until(lambda: len(begun) == 2)
    await stage.show(chats[4])
    assert begun == [chats[0], chats[3]]
    assert [event.conversation_id for event in stage.of(Restored)] == [chats[4]]
    assert stage.slots.owners() == [chats[4]]
    assert not stage.of(RestoreFailed)


async def test_settling_that_takes_long_gives_way_to_a_message_in_another_chat(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_request, "SETTLE_WAIT_S", 0.0)
    first, second = await stage.chat(), await stage.chat()
    one = await stage.writing(first, "A long story. " * 60)
    two = stage.service.send(second, "Hello?")
    await stage.until(lambda: stage.service.is_answering(second))
    stage.fake.set(FAKE_HOLD_DURING="begin")
    await one
    await stage.until(lambda: stage.of(SaveSkipped))
    assert stage.of(SaveSkipped)[0].conversation_id == first
    assert await stage.resume(two) is not None


async def test_a_message_during_settling_goes_on_with_the_slot_as_it_is(stage: Stage) -> None:
    chat = await stage.answered_chat("A long story. " * 60)
    stage.fake.set(FAKE_BATCH_DELAY=0.3)
    before = len(stage.of(Saving))
    await stage.service.send(chat, "More of it. " * 60)
    await stage.until(lambda: len(stage.of(Saving)) > before)
    second = await stage.finish(stage.service.send(chat, "And the end?"))
    assert not stage.of(Restoring), "nothing is restored over a live slot"
    assert second.receipt.source is Source.HOT
    assert second.receipt.cached_tokens > 0.9 * second.receipt.prompt_tokens
    assert [m.role for m in await stage.messages(chat)] == [Role.USER, Role.ASSISTANT] * 3
    assert stage.of(Saved)[-1].tokens == len(stage.save_points()[-1].tokens)


async def test_what_is_sent_while_the_engine_restarts_does_not_hold_that_up(stage: Stage) -> None:
    first, second = await stage.chat(), await stage.chat()
    await stage.answered(first)
    before = stage.engine.engine_pid
    stage.fake.set(FAKE_HOLD_DURING="save")
    answered = await stage.service.send(first, "And then?")
    assert answered is not None
    await stage.until(lambda: len(stage.of(Saving)) == 2)
    restarting = asyncio.create_task(stage.runtime.restart_engine())
    await asyncio.sleep(0)
    sent = stage.service.send(second, "Meanwhile?")
    assert await stage.resume(sent) is not None
    assert stage.engine.engine_pid not in (None, before), "one reply after another put it off"
    await restarting
    await stage.idle()
    assert len(stage.of(Saved)) == 3, "what was being saved is kept"
    assert not stage.errors()


async def test_who_stops_the_engine_while_it_restarts_has_it_stopped(stage: Stage) -> None:
    chat = await stage.chat()
    stage.fake.set(FAKE_HOLD_DURING="save")
    assert await stage.service.send(chat, QUESTION) is not None
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
async def test_a_hanging_engine_can_be_stopped(stage: Stage, phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "SAVE_TIMEOUT_S", 0.2)
    chat = await stage.chat()
    stage.fake.set(FAKE_HANG_DURING=phase, FAKE_IGNORE_SIGTERM=None)
    future = stage.service.send(chat, QUESTION)
    await stage.until(lambda: stage.of(Saving if phase == "save" else Prefilling))
    await asyncio.wait_for(stage.runtime.stop_engine(), 120)
    assert stage.engine.status.state is EngineState.STOPPED
    await future
    await stage.idle()
    stage.fake.set(FAKE_HANG_DURING=None)
    assert await stage.ask(chat, "Are you back?") is not None


async def test_deleting_does_not_wait_for_another_chats_reply(stage: Stage) -> None:
    talking, dropped = await stage.chat(), await stage.chat()
    await stage.answered(dropped)
    future = await stage.writing(talking)
    await stage.service.recently_deleted.purge_chat(dropped)
    assert stage.service.answering_chats[:1] == (talking,)
    assert [c.id for c in await stage.service.conversations()] == [talking]
    assert not stage.save_points()
    assert await stage.service.send(dropped, "Hello?") is None
    assert stage.of(QuestionNotStored)[0].text == "Hello?"
    stage.service.stop(talking)
    await stage.resume(future)


async def test_a_replaced_model_is_another_fingerprint_even_when_the_engine_restarts_by_itself(
    stage: Stage, tmp_path: Path
) -> None:
    model = tmp_path / "model.gguf"
    shutil.copyfile(str(stage.settings.model_path), model)
    await stage.runtime.apply_settings(replace(stage.runtime.settings, model_path=str(model)))
    chat = await stage.answered_chat()
    data = bytearray(model.read_bytes())
    data[-200_000:] = bytes(200_000)
    model.unlink()
    model.write_bytes(data)
    stage.fake.set(FAKE_DIE_DURING="prefill", FAKE_DIE_TIMES=2)
    assert await stage.ask(chat, "Still you?") is None
    reply = await stage.finish(stage.service.retry(chat))
    assert reply.receipt.source is Source.COLD
    assert not stage.of(Restored)


async def test_a_restore_ahead_that_proves_hollow_later_is_still_found_out(stage: Stage) -> None:
    chat = await stage.answered_chat()
    stage.fake.set(FAKE_HOLLOW_RESTORE=1)
    await stage.restart()
    await stage.runtime.start_engine()
    await stage.until(lambda: stage.engine.is_ready())
    await stage.show(chat)
    assert len(stage.of(Restored)) == 1
    reply = await stage.service.retry(chat)  # its prompt is shorter than what was restored
    await stage.idle()
    assert reply.receipt.hollow
    assert reply.receipt.prefetched


async def test_a_second_message_while_one_is_answered_goes_back(stage: Stage) -> None:
    chat = await stage.chat()
    first = await stage.writing(chat, "one " * 50)
    assert await stage.service.send(chat, "two") is None
    stage.fake.set(FAKE_HOLD_DURING=None)
    assert stage.of(QuestionNotStored)[0].text == "two"
    assert await first is not None
    await stage.idle()
    assert [m.role for m in await stage.messages(chat)] == [Role.USER, Role.ASSISTANT]


async def test_stopping_the_engine_stops_the_replies_that_wait_too(stage: Stage) -> None:
    first, second = await stage.chat(), await stage.chat()
    one = await stage.writing(first)
    two = stage.service.send(second, "word " * 100)
    await stage.runtime.stop_engine()
    assert (await one) is not None
    assert (await two) is None
    assert [m.role for m in await stage.messages(second)] == [Role.USER]


@pytest.mark.parametrize("where", ["store", "engine"])
async def test_stop_during_a_restore_leaves_no_link_behind(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Stopped twice while the slot file is there: the store has just made it, or the engine reads it."""
    chat = await stage.answered_chat()
    await stage.runtime.close()
    put, made, go_on = Restorer._put, threading.Event(), threading.Event()

    def held(*args: Any) -> Any:
        placed = put(*args)
        made.set()
        go_on.wait()
        return placed

    if where == "store":
        monkeypatch.setattr(Restorer, "_put", held)
    else:
        stage.fake.set(FAKE_HOLD_DURING="restore")
    await stage.restart()
    reading = len(stage.requests("/slots/0?action=restore"))
    future = stage.service.send(chat, "And then?")
    await stage.until(lambda: made.is_set() or len(stage.requests("/slots/0?action=restore")) > reading)
    staging = stage.home / "cache" / "savepoints" / "staging"
    assert slot_files(staging)
    for _ in range(2):
        stage.service.stop(chat)
        await asyncio.sleep(0)
    go_on.set()
    await stage.resume(future)
    await stage.idle()
    assert not slot_files(staging)


def slot_files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".lock"]


async def test_the_wait_for_another_chats_reply_is_named_in_the_receipt(stage: Stage) -> None:
    first, second = await stage.chat(), await stage.chat()
    one = await stage.writing(first, "word " * 20)
    two = stage.service.send(second, "Hello there, second conversation.")
    await asyncio.sleep(0.2)  # the shortest wait that the receipt may name
    await stage.resume(one)
    reply = await two
    assert reply.receipt is not None
    receipt = reply.receipt
    assert receipt.queue_wait_ms > 100
    parts = receipt.restore_ms + receipt.prefill_ms + receipt.first_token_ms
    assert parts == pytest.approx(receipt.ttft_ms, rel=0.02), "the wait is no part of the time to the first token"


async def test_an_empty_reply_is_not_saved_and_spoils_nothing(stage: Stage) -> None:
    chat = await stage.answered_chat()
    kept = stage.save_points()
    stage.fake.set(FAKE_REPLY=" ")
    await stage.ask(chat, "Say nothing.")
    assert stage.save_points() == kept
    stage.fake.set(FAKE_REPLY=None)
    assert await stage.ask(chat, "Say something.") is not None


async def test_what_the_engine_is_started_with_waits_for_its_next_start(stage: Stage) -> None:
    runtime = stage.runtime
    await stage.answered(await stage.chat())
    first = runtime.engine.engine_pid
    await runtime.apply_settings(replace(runtime.settings, context_size=2048))
    assert runtime.engine.restart_pending
    assert runtime.engine.engine_pid == first
    await runtime.apply_settings(replace(runtime.settings, context_size=4096))
    assert not runtime.engine.restart_pending, "what it was started with is back"
    await runtime.apply_settings(replace(runtime.settings, context_size=2048))
    await runtime.restart_engine()
    await stage.until(lambda: runtime.engine.status.state is EngineState.READY)
    assert runtime.engine.engine_pid != first
    assert runtime.engine.choice.plan.context_size == 2048
    assert runtime.engine.context_size == 2048, "not what the engine before it had reported"
    assert not runtime.engine.restart_pending


async def test_a_message_sent_while_the_middle_is_summed_up_stays_on_the_page(stage: Stage) -> None:
    chat = await stage.chat()
    for text in ("one", "two", "three"):
        await stage.answered(chat, f"{text} {'word ' * 100}")
    stage.fake.set(FAKE_HOLD_DURING="prefill", FAKE_REPLY="it was about this and that")
    summing = asyncio.create_task(stage.service.context.summarise(chat))
    await stage.until(lambda: not stage.slots.is_idle or summing.done())
    assert not summing.done()
    sent = stage.service.send(chat, "four")
    stage.fake.set(FAKE_HOLD_DURING=None)
    with contextlib.suppress(KvchatError):
        await summing
    assert await sent is not None
    await stage.idle()
    assert "four" in [message.content for message in await stage.messages(chat)]


async def test_a_restore_that_proves_hollow_in_a_summary_counts_as_one_in_a_turn(stage: Stage) -> None:
    chat = await stage.chat()
    for text in ("one", "two", "three"):
        await stage.answered(chat, f"{text} {'word ' * 100}")
    stage.fake.set(FAKE_HOLLOW_RESTORE=1)
    await stage.restart()
    await stage.service.context.summarise(chat)
    assert stage.of(RestoreFailed)
    assert stage.engine.finding.hollow == 1


async def test_quitting_waits_for_a_save_as_long_as_the_engine_writes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "SAVE_TIMEOUT_S", 2.0)
    chat = await stage.chat()
    stage.fake.set(FAKE_SAVE_DELAY=0.3)
    future = stage.service.send(chat, QUESTION)
    await stage.until(lambda: stage.of(Saving))
    await future
    await stage.runtime.close()
    assert stage.of(Saved)
    assert not stage.of(Notice)
    assert len(stage.save_points()) == 1


async def test_quitting_says_what_it_waits_for_and_need_not_wait(stage: Stage) -> None:
    chat = await stage.answered_chat()
    kept = stage.save_points()
    stage.fake.set(FAKE_HOLD_DURING="save")
    future = stage.service.send(chat, "And then? " * 40)
    await stage.until(lambda: len(stage.requests("/slots/0?action=save")) == 2)
    await future
    closing = asyncio.create_task(stage.runtime.close())
    await asyncio.sleep(0)
    unfinished = stage.runtime.unfinished
    assert unfinished.bytes > 0
    assert unfinished.seconds is not None
    assert ", about " in unfinished.description
    assert not closing.done()
    stage.runtime.cancel_saving()
    await closing
    stage.fake.set(FAKE_HOLD_DURING=None)
    assert stage.save_points() == kept
    await stage.restart()
    assert [message.role for message in await stage.messages(chat)] == [Role.USER, Role.ASSISTANT] * 2
    assert (await stage.answered(chat, "Are you back?")).source is Source.DISK


async def test_what_waits_to_be_absorbed_is_left_when_nobody_waits_for_it(stage: Stage) -> None:
    chat = await stage.chat()
    absorb = stage.store.absorb_pending
    asked: list[bool] = []

    def slowly(cancelled: Callable[[], bool] = lambda: False) -> AbsorbReport:
        asked.append(cancelled())
        while not cancelled():
            time.sleep(0.005)
        return absorb(cancelled)

    stage.store.absorb_pending = slowly  # type: ignore[method-assign]
    future = stage.service.send(chat, QUESTION)
    await stage.until(lambda: asked)
    await future
    closing = asyncio.create_task(stage.runtime.close())
    await stage.until(lambda: stage.runtime.unfinished)
    stage.runtime.cancel_saving()
    await closing
    assert stage.kept().absorbed() == 0
    await stage.restart()
    assert not stage.save_points()
    receipt = await stage.answered(chat, "Are you back?")
    assert receipt.source is Source.COLD
    assert stage.kept().absorbed() == 1


async def test_silence_in_mid_reply_is_said_and_what_came_is_kept(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_module, "SILENT_S", 0.1)
    chat = await stage.chat()
    stage.fake.set(FAKE_HOLD_DURING="stream", FAKE_REPLY="one two three four")
    future = stage.service.send(chat, QUESTION)
    await stage.until(lambda: stage.of(EngineSilent))
    assert stage.of(EngineSilent)[0].seconds > 0.1
    assert stage.engine.status.state is EngineState.READY
    reply = await stage.resume(future)
    assert reply.content == "one two three four"
    assert stage.of(EngineSilent)[-1].seconds == 0


async def test_who_waits_knows_for_whom_and_can_be_put_first(stage: Stage) -> None:
    talking, second, third = await stage.chat(), await stage.chat(), await stage.chat()
    one = await stage.writing(talking, "word " * 60)
    two, three = stage.service.send(second, "Hello?"), stage.service.send(third, "And me?")
    await stage.until(lambda: len(stage.of(WaitingForChat)) == 2)
    assert stage.of(WaitingForChat)
    chat = stage.service
    assert [chat.slots.blocking_chat(id) for id in (talking, second, third)] == [None, talking, talking]
    chat.turns.prioritize(third)
    stopped = await one  # or the reply ends by itself on a busy machine
    stage.fake.set(FAKE_HOLD_DURING=None)
    assert stopped.state is MessageState.STOPPED
    assert await three is not None
    assert await two is not None
    order = [event.conversation_id for event in stage.of(ReplyFinished)]
    assert order == [talking, third, second]
    assert (await chat.continue_reply(stopped)) is not None
    await chat.idle()


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("reads", [0, 1, 2, 3])
async def test_a_database_that_fails_before_the_reply_is_said_and_no_bug(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, slots: int, reads: int
) -> None:
    """`reads`: how many succeed after the question was stored."""
    await stage.restart(slots)
    database, left, bugs = stage.database, [reads], list[dict[str, object]]()
    chat, other = await stage.chat(), await stage.chat()
    await stage.answered(chat)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: bugs.append(context))
    reading, ask = database.reading, turns.store_question

    def fail_after_these() -> contextlib.AbstractContextManager[sqlite3.Connection]:
        left[0] -= 1
        if left[0] < 0:
            raise StorageFailed("Your chats could not be read or written", "disk I/O error")
        return reading()

    def ask_and_fail(*question: Any) -> turns.TurnStart:
        beginning = ask(*question)
        monkeypatch.setattr(database, "reading", fail_after_these)
        return beginning

    monkeypatch.setattr(turns, "store_question", ask_and_fail)
    reply = await stage.finish(stage.service.send(other, "And then?"))
    monkeypatch.undo()
    assert not bugs
    assert reply is not None or stage.of(TurnFailed), "nobody was told"
    assert await stage.ask(other, "And now?") is not None
