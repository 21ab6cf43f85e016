"""Processing before Send on a fake engine: of an unsaved chat, and of a draft being typed."""

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
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "DWELL_S", 0.05)
    monkeypatch.setattr(read_ahead, "TYPING_PAUSE_S", 0.05)
    monkeypatch.setattr(prefill, "MAX_STEP", 64)


async def set_draft(stage: Stage, chat: str | None, draft: str) -> None:
    stage.service.prepare(chat, draft)
    await stage.until(lambda: stage.service.read_ahead._timer is None)
    await stage.idle()


async def two_chats(stage: Stage) -> tuple[str, str]:
    """Return an answered chat and another one, which has the slot."""
    return await stage.answered_chat(STORY), await stage.answered_chat()


def forget_all(stage: Stage) -> None:
    """Delete all memory of chats, on disk and in the slot."""
    stage.store.inventory.delete_all()
    stage.slots.forget()
    stage.events.clear()


async def test_selected_chat_without_memory_is_read_and_saved(stage: Stage) -> None:
    chat, _ = await two_chats(stage)
    forget_all(stage)
    await stage.show(chat)
    progress = stage.of(ReadAheadProgress)
    assert progress[0].done_tokens == 0 < progress[0].total == progress[-1].done_tokens
    assert not progress[-1].draft
    assert [point.conversation_id for point in stage.save_points()] == [chat]
    receipt = await stage.answered(chat, "Go on.")
    assert receipt.cached_tokens > 0.9 * receipt.prompt_tokens
    assert receipt.read_ahead_tokens > 0.8 * receipt.prompt_tokens


async def test_draft_is_read_while_typed_and_never_saved(stage: Stage) -> None:
    chat = await stage.answered_chat(STORY)
    before = stage.save_points()
    await stage.show(chat)
    await set_draft(stage, chat, DRAFT)
    assert stage.of(ReadAheadProgress)[-1].draft
    tokenized = len(stage.requests("/tokenize"))
    await set_draft(stage, chat, DRAFT + "And what of the boat? " * 5)
    new = [str(body["content"]) for body in stage.requests("/tokenize")[tokenized:]]
    assert not any(STORY[:40] in text for text in new), "tokenized twice"
    assert stage.save_points() == before
    receipt = await stage.answered(chat, DRAFT + "And what of the boat? " * 5)
    assert receipt.prompt_tokens - receipt.cached_tokens < 60


@pytest.mark.usefixtures("can_cut")
async def test_deleting_the_draft_returns_to_the_turn_boundary(stage: Stage) -> None:
    chat = await stage.answered_chat(STORY)
    await stage.show(chat)
    await set_draft(stage, chat, DRAFT)
    await set_draft(stage, chat, "")
    receipt = await stage.answered(chat, "Something else altogether.")
    assert receipt.cached_tokens > 0.9 * receipt.prompt_tokens
    assert receipt.source in (Source.HOT, Source.WARM, Source.DISK)


async def test_chat_is_restored_even_if_reading_ahead_is_off(stage: Stage) -> None:
    stage.runtime.settings = replace(stage.runtime.settings, read_ahead="never")
    chat, _ = await two_chats(stage)
    await stage.show(chat)
    await set_draft(stage, chat, DRAFT)
    assert not stage.of(ReadAheadProgress)
    assert stage.slots.owners() == [chat]


async def test_never_saved_chat_is_reported_once(stage: Stage) -> None:
    chat, _ = await two_chats(stage)
    forget_all(stage)
    await stage.runtime.save_points.set_never_save(chat, True)
    await stage.show(chat)
    for draft in (DRAFT, DRAFT[:200], DRAFT + DRAFT):
        await set_draft(stage, chat, draft)
    assert len(stage.of(SaveSkipped)) == 1


async def test_paste_on_battery_is_reported_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    battery = SimpleNamespace(percent=80, secsleft=3600, power_plugged=False)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    stage.runtime.settings = replace(stage.runtime.settings, read_ahead="auto")
    chat = await stage.answered_chat()
    stage.events.clear()
    for draft in ("Well", DRAFT * 2, DRAFT * 4):
        await set_draft(stage, chat, draft)
    assert [event.reason for event in stage.of(ReadAheadSkipped)] == [Reason(ReasonCode.ON_BATTERY)]
    assert not stage.of(ReadAheadProgress)
    battery.power_plugged = True
    await set_draft(stage, chat, DRAFT)
    assert stage.of(ReadAheadProgress)


async def test_reading_ahead_stopped_by_the_user_resumes_when_reopened(stage: Stage) -> None:
    chat, other = await two_chats(stage)
    forget_all(stage)
    stage.fake.set(FAKE_BATCH_DELAY=0.05)
    stage.service.select(chat)
    await stage.until(lambda: stage.of(ReadAheadProgress))
    stage.service.read_ahead.stop(chat)
    await stage.idle()
    assert not stage.save_points()
    stage.service.select(other)
    await stage.show(chat)
    assert [point.conversation_id for point in stage.save_points()] == [chat]


async def test_message_in_another_chat_waits_for_one_step(stage: Stage) -> None:
    chat, other = await two_chats(stage)
    await stage.show(chat)
    stage.fake.set(FAKE_BATCH_DELAY=0.05)
    stage.service.prepare(chat, DRAFT * 3)
    await stage.until(lambda: any(0 < event.done_tokens < event.total for event in stage.of(ReadAheadProgress)))
    steps = len(stage.of(ReadAheadProgress))
    assert await stage.service.send(other, "Hello?")
    before = [event for event in stage.of(ReadAheadProgress)[: steps + 2] if event.done_tokens < event.total]
    assert len(before) <= steps + 1
    await stage.idle()
    assert stage.slots.owners() == [chat], "then the draft is read again"


@pytest.mark.parametrize("method", ["summarise", "drop_middle"])
async def test_shorter_branch_is_read_ahead(stage: Stage, method: str) -> None:
    chat = await stage.answered_chat(STORY)
    for text in ("Why? ", "Who? "):
        await stage.answered(chat, text * 150)
    await stage.show(chat)
    await getattr(stage.service.context, method)(chat)
    await stage.idle()
    receipt = await stage.answered(chat, "Go on.")
    assert receipt.cached_tokens > 0.9 * receipt.prompt_tokens
