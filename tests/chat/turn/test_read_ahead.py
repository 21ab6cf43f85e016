"""What is done before Send, on a fake engine: an unsaved chat is read, and a draft while it is written."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from kvchat.chat.events import ReadAheadProgress, ReadAheadSkipped
from kvchat.chat.turn import read_ahead
from kvchat.session import prefill
from kvchat.session.events import SaveSkipped
from kvchat.session.proof import Source
from kvchat.text.reasons import Reason, ReasonCode
from tests.chat.stage import Stage

STORY = "A long story of the river and the garden. " * 20
DRAFT = "What came of the garden in the end, and who looked after it when the river had gone? " * 4


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "DWELL_S", 0.05)
    monkeypatch.setattr(read_ahead, "TYPING_PAUSE_S", 0.05)
    monkeypatch.setattr(prefill, "MAX_STEP", 64)


async def shown(stage: Stage, chat: str) -> None:
    await stage.show(chat)


async def written(stage: Stage, chat: str | None, draft: str) -> None:
    stage.service.prepare(chat, draft)
    await stage.until(lambda: stage.service.read_ahead._timer is None)
    await stage.idle()


def forgotten(stage: Stage) -> None:
    """Nothing is kept of any chat any more, on disk or in the slot."""
    stage.store.inventory.delete_all()
    stage.slots.forget()
    stage.events.clear()


def read(stage: Stage) -> list[int]:
    return [len(body["prompt"]) for body in stage.requests("/completion")]


async def test_a_chat_of_which_nothing_is_kept_is_read_and_saved_when_it_is_looked_at(stage: Stage) -> None:
    chat, other = await stage.chat(), await stage.chat()
    await stage.answered(chat, STORY)
    await stage.answered(other)
    forgotten(stage)
    await shown(stage, chat)
    told = stage.of(ReadAheadProgress)
    assert told[0].done == 0 < told[0].total == told[-1].done
    assert not told[-1].draft
    assert [point.conversation_id for point in stage.save_points()] == [chat]
    receipt = await stage.answered(chat, "Go on.")
    assert receipt.cached_tokens > 0.9 * receipt.prompt_tokens
    assert receipt.read_ahead_tokens > 0.8 * receipt.prompt_tokens


async def test_a_draft_is_read_while_it_is_written_and_never_saved(stage: Stage) -> None:
    chat = await stage.answered_chat(STORY)
    before = stage.save_points()
    await shown(stage, chat)
    await written(stage, chat, DRAFT)
    assert stage.of(ReadAheadProgress)[-1].draft
    asked = len(stage.requests("/tokenize"))
    await written(stage, chat, DRAFT + "And what of the boat? " * 5)
    new = [str(body["content"]) for body in stage.requests("/tokenize")[asked:]]
    assert not any(STORY[:40] in text for text in new), "what was tokenised once is not tokenised again"
    assert stage.save_points() == before
    receipt = await stage.answered(chat, DRAFT + "And what of the boat? " * 5)
    assert receipt.prompt_tokens - receipt.cached_tokens < 60


@pytest.mark.parametrize("kind", ["can_cut", "cannot_cut"])
async def test_deleting_the_draft_goes_back_to_the_turn_boundary(
    stage: Stage, kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "cannot_cut":
        request.getfixturevalue(kind)
    chat = await stage.answered_chat(STORY)
    await shown(stage, chat)
    await written(stage, chat, DRAFT)
    await written(stage, chat, "")
    receipt = await stage.answered(chat, "Something else altogether.")
    assert receipt.cached_tokens > 0.9 * receipt.prompt_tokens
    assert receipt.source in (Source.HOT, Source.WARM, Source.DISK)


async def test_where_nothing_may_be_read_ahead_it_is_restored_all_the_same(stage: Stage) -> None:
    stage.runtime.settings = replace(stage.runtime.settings, read_ahead="never")
    chat, other = await stage.chat(), await stage.chat()
    await stage.answered(chat, STORY)
    await stage.answered(other)
    await shown(stage, chat)
    await written(stage, chat, DRAFT)
    assert not stage.of(ReadAheadProgress)
    assert stage.slots.owners() == [chat]


async def test_that_a_chat_is_never_saved_is_told_once_however_often_it_is_read(stage: Stage) -> None:
    chat, other = await stage.chat(), await stage.chat()
    await stage.answered(chat, STORY)
    await stage.answered(other)
    forgotten(stage)
    await stage.runtime.save_points.never_save(chat, True)
    await shown(stage, chat)
    for draft in (DRAFT, DRAFT[:200], DRAFT + DRAFT):
        await written(stage, chat, draft)
    assert len(stage.of(SaveSkipped)) == 1


async def test_that_a_paste_is_not_read_ahead_on_battery_is_told_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    battery = SimpleNamespace(percent=80, secsleft=3600, power_plugged=False)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    stage.runtime.settings = replace(stage.runtime.settings, read_ahead="auto")
    chat = await stage.answered_chat()
    stage.events.clear()
    for draft in ("Well", DRAFT * 2, DRAFT * 4):
        await written(stage, chat, draft)
    assert [told.reason for told in stage.of(ReadAheadSkipped)] == [Reason(ReasonCode.ON_BATTERY)]
    assert not stage.of(ReadAheadProgress)
    battery.power_plugged = True
    await written(stage, chat, DRAFT)
    assert stage.of(ReadAheadProgress)


async def test_what_is_read_ahead_teaches_how_fast_reading_is(stage: Stage) -> None:
    chat = await stage.answered_chat()
    await shown(stage, chat)
    speed = stage.slots.restore_cost.speed
    speed.samples.clear()
    await written(stage, chat, DRAFT * 4)
    assert sum(one.tokens for one in speed.samples) == stage.of(ReadAheadProgress)[-1].done
    assert speed.ms_per_token


async def test_what_is_read_ahead_can_be_stopped_until_it_is_opened_again(stage: Stage) -> None:
    chat, other = await stage.chat(), await stage.chat()
    await stage.answered(chat, STORY)
    await stage.answered(other)
    forgotten(stage)
    stage.fake.set(FAKE_BATCH_DELAY=0.05)
    stage.service.select(chat)
    await stage.until(lambda: stage.of(ReadAheadProgress))
    stage.service.read_ahead.stop(chat)
    await stage.idle()
    assert not stage.save_points()
    stage.service.select(other)
    await stage.show(chat)
    assert [point.conversation_id for point in stage.save_points()] == [chat]


async def test_a_send_elsewhere_waits_for_one_step_and_what_was_read_is_of_use(stage: Stage) -> None:
    chat, other = await stage.chat(), await stage.chat()
    await stage.answered(chat, STORY)
    await stage.answered(other)
    await shown(stage, chat)
    stage.fake.set(FAKE_BATCH_DELAY=0.05)
    stage.service.prepare(chat, DRAFT * 3)
    await stage.until(lambda: any(0 < event.done < event.total for event in stage.of(ReadAheadProgress)))
    steps = len(stage.of(ReadAheadProgress))
    assert await stage.service.send(other, "Hello?")
    before = [event for event in stage.of(ReadAheadProgress)[: steps + 2] if event.done < event.total]
    assert len(before) <= steps + 1
    await stage.idle()
    assert stage.slots.owners() == [chat], "and then the draft is read again"
