"""Does restoring work here? Tried out on a fake engine that misbehaves, and what the chat makes of the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvchat.chat.events import Absorbed, EngineChanged, Notice, Prefilling
from kvchat.chat.record.messages import Role
from kvchat.engine.api.connection import EngineState
from kvchat.engine.api.wire import Sampling
from kvchat.session import prefill
from kvchat.session.events import Saved, SaveSkipped, Saving, WaitingForEngine
from kvchat.session.proof import Source
from kvchat.session.restore_support import Finding, Strategy
from kvchat.text.reasons import Reason, ReasonCode
from tests.chat.stage import QUESTION, Stage

SYSTEM = "You are a patient teacher of geography and speak of rivers only. " * 3


@pytest.fixture(autouse=True)
def restoring_is_known_to_work() -> None:
    """Here it is not."""


async def started(stage: Stage) -> Finding:
    await stage.runtime.start_engine()
    await stage.until(stage.engine.is_ready)
    assert stage.engine.finding is not None
    return stage.engine.finding


def saves(stage: Stage) -> int:
    return len(stage.requests("/slots/0?action=save"))


def left_behind(stage: Stage) -> Sequence[Path]:
    """Files in the staging folder, and blocks; not the lock by which this process is known to be there."""
    files = [file for file in (stage.home / "cache" / "savepoints").rglob("*") if file.is_file()]
    return [file for file in files if ".db" not in file.name and file.suffix != ".lock"]


async def test_the_first_start_tries_it_out_and_leaves_nothing(stage: Stage) -> None:
    assert await started(stage) == Finding(Strategy.PLAIN, proved=True)
    statuses = [event.status for event in stage.of(EngineChanged)]
    assert [s.state for s in statuses if s.checking] == [EngineState.LOADING], "told while it goes on"
    assert statuses[-1].state is EngineState.READY
    assert stage.requests("/slots/0?action=restore")
    assert list(stage.requests("/slots/0?action=erase"))[-1:] == [{}]
    assert stage.slots.owners() == []
    assert not left_behind(stage)
    assert not stage.save_points()
    assert not [event for event in stage.events if isinstance(event, (Saved, Saving, SaveSkipped, Absorbed, Notice))]

    receipt = await stage.answered(await stage.chat())
    assert (receipt.source, receipt.cached_tokens) == (Source.COLD, 0), "the slot was empty"


async def test_each_build_is_tried_out_once(stage: Stage) -> None:
    await started(stage)
    before = saves(stage)
    await stage.runtime.restart_engine()
    await stage.until(stage.engine.is_ready)
    await stage.restart()
    assert (await started(stage)).proved
    assert saves(stage) == before
    await stage.runtime.close()
    stage.fake.path.write_text(stage.fake.path.read_text() + "# another build\n")
    await stage.restart()
    await started(stage)
    assert saves(stage) == 2 * before


@pytest.mark.parametrize(
    ("switches", "strategy"),
    [
        ({"FAKE_EXACT_ONLY": 1}, Strategy.SETTLE),
        ({"FAKE_HOLLOW_RESTORE": 1}, Strategy.NONE),
        ({"FAKE_REFUSE_RESTORE": 1}, Strategy.NONE),
    ],
)
async def test_what_does_not_work_is_not_relied_on(
    stage: Stage, switches: dict[str, object], strategy: Strategy
) -> None:
    stage.fake.set(**switches)
    finding = await started(stage)
    assert (finding.strategy, finding.proved) == (strategy, True)
    assert finding.reason
    assert bool(stage.of(Notice)) == (strategy is Strategy.NONE)


async def test_where_restoring_does_not_work_nothing_is_saved_and_that_is_said_once(stage: Stage) -> None:
    stage.fake.set(FAKE_HOLLOW_RESTORE=1)
    await started(stage)
    before = saves(stage)
    first, second = await stage.chat(), await stage.chat()
    await stage.answered(first)
    assert (await stage.answered(first, "And then?")).source is Source.HOT
    await stage.answered(second, "Something quite different about a violin, a lamp and a clock.")
    receipt = await stage.answered(first, "Go on.")
    assert (receipt.source, receipt.miss_reason) == (Source.COLD, Reason(ReasonCode.NO_RESTORING))
    assert saves(stage) == before
    assert not stage.of(Saving)
    assert not stage.of(SaveSkipped)
    assert [notice.title for notice in stage.of(Notice)] == [("Chat memory does not work with this engine")]


async def test_an_engine_that_dies_over_it_restarts_and_is_not_tried_again(stage: Stage) -> None:
    stage.fake.set(FAKE_DIE_DURING="restore", FAKE_DIE_TIMES=99)
    chat = await stage.chat()
    receipt = await stage.answered(chat)  # its message came first and waited
    assert stage.of(WaitingForEngine)
    assert receipt.source is Source.COLD
    assert stage.engine.finding == Finding(Strategy.NONE, proved=True, reason=Reason(ReasonCode.DIED_OVER_TRIAL))
    assert len(stage.fake.launches()) == 2
    assert (await stage.answered(chat, "Still there?")).source is Source.HOT
    assert not stage.errors()
    assert not left_behind(stage)


async def test_the_user_may_have_it_tried_again(stage: Stage) -> None:
    stage.fake.set(FAKE_HOLLOW_RESTORE=1)
    assert (await started(stage)).strategy is Strategy.NONE
    stage.fake.set(FAKE_HOLLOW_RESTORE=None)
    assert stage.engine.may_retest
    await stage.runtime.retest_restoring()
    await stage.until(stage.engine.is_ready)
    assert stage.engine.finding == Finding(Strategy.PLAIN, proved=True)
    assert not stage.engine.may_retest


async def test_after_a_week_it_is_tried_again(stage: Stage) -> None:
    stage.fake.set(FAKE_HOLLOW_RESTORE=1)
    assert (await started(stage)).strategy is Strategy.NONE
    await stage.runtime.close()
    stage.fake.set(FAKE_HOLLOW_RESTORE=None)
    findings = stage.runtime.paths.restore_findings
    for days, strategy in ((6, Strategy.NONE), (2, Strategy.PLAIN)):
        rows = json.loads(findings.read_text("utf-8"))
        findings.write_text(json.dumps([row | {"found_at": row["found_at"] - days * 86_400} for row in rows]))
        await stage.restart()
        assert (await started(stage)).strategy is strategy


async def test_stopping_the_engine_in_the_middle_says_nothing_about_it(stage: Stage) -> None:
    stage.fake.set(FAKE_HOLD_DURING="prefill")
    chat = await stage.chat()
    waiting = stage.service.send(chat, QUESTION)
    await stage.until(lambda: any(event.status.checking for event in stage.of(EngineChanged)))
    await stage.runtime.stop_engine()
    assert await waiting is None
    assert [m.role for m in await stage.messages(chat)] == [Role.USER], "the words are kept"
    assert not left_behind(stage)
    stage.fake.set(FAKE_HOLD_DURING=None)
    assert await stage.service.retry(chat) is not None
    await stage.idle()
    assert stage.engine.finding == Finding(Strategy.PLAIN, proved=True)


async def test_stop_while_it_is_tried_out_ends_the_waiting_and_not_the_trial(stage: Stage) -> None:
    stage.fake.set(FAKE_HOLD_DURING="prefill")
    chat = await stage.chat()
    waiting = stage.service.send(chat, QUESTION)
    await stage.until(lambda: any(event.status.checking for event in stage.of(EngineChanged)))
    stage.service.stop(chat)
    assert await waiting is None
    stage.fake.set(FAKE_HOLD_DURING=None)
    await stage.until(stage.engine.is_ready)
    assert stage.engine.finding == Finding(Strategy.PLAIN, proved=True)


async def test_what_cannot_be_tried_is_assumed_and_proved_by_the_first_restore(stage: Stage) -> None:
    stage.fake.set(FAKE_EMPTY_SAVE=1)
    finding = await started(stage)
    assert (finding.strategy, finding.proved) == (Strategy.PLAIN, False)
    assert finding.reason == Reason(
        ReasonCode.NOT_TRIED, {"reason": Reason(ReasonCode.HELD_LESS, {"held": 0, "tokens": 96})}
    )
    stage.fake.set(FAKE_EMPTY_SAVE=None)
    chat = await stage.answered_chat()
    await stage.restart()
    assert (await stage.answered(chat, "And then?")).source is Source.DISK
    assert stage.engine.finding.proved


async def test_a_second_hollow_restore_in_a_row_makes_it_more_careful(stage: Stage) -> None:
    chats = [await stage.chat() for _ in range(3)]
    for number, chat in enumerate(chats):
        await stage.answered(chat, f"{number}: {QUESTION}")
    stage.fake.set(FAKE_HOLLOW_RESTORE=1)
    assert (await stage.answered(chats[0], "And then?")).hollow
    assert stage.engine.finding == Finding(Strategy.PLAIN, proved=True, hollow=1)
    await stage.restart()
    assert (await stage.answered(chats[1], "And then?")).hollow
    finding = stage.engine.finding
    assert (finding.strategy, finding.proved) == (Strategy.SETTLE, False)
    assert [notice.title for notice in stage.of(Notice)] == ["Chat memory did not work as expected"]


@pytest.mark.parametrize("written", ["{", '{"a": 1}', '[5, {"build": "x"}]', "[" * 100_000])
async def test_a_file_of_findings_that_makes_no_sense_costs_no_more_than_another_trial(
    stage: Stage, written: str
) -> None:
    stage.runtime.paths.restore_findings.write_text(written)
    assert await started(stage) == Finding(Strategy.PLAIN, proved=True)
    assert await stage.ask(await stage.chat()) is not None
    (kept,) = json.loads(stage.runtime.paths.restore_findings.read_text("utf-8"))
    assert kept["strategy"] == "plain"


async def test_a_shared_system_prompt_read_ahead_is_told_as_read(stage: Stage) -> None:
    stage.fake.set(FAKE_EXACT_ONLY=1)
    await stage.answered(await stage.chat(SYSTEM))
    second = await stage.chat(SYSTEM)
    receipt = await stage.answered(second, "And the Danube?")
    assert (receipt.source, receipt.cached_tokens, receipt.miss_reason) == (
        Source.COLD,
        0,
        Reason(ReasonCode.FIRST_REPLY),
    )
    told = [event for event in stage.of(Prefilling) if event.conversation_id == second]
    assert {event.total for event in told} == {receipt.prompt_tokens}
    assert len(stage.save_points()) == 3
    assert len([event for event in stage.of(Saved) if event.conversation_id == second]) == 1, (
        "said once, after the reply"
    )
    await stage.restart()
    receipt = await stage.answered(await stage.chat(SYSTEM), "And the Rhine?")
    assert receipt.source is Source.DISK
    assert receipt.cached_tokens > 0.9 * len(SYSTEM)


async def test_a_long_system_prompt_is_saved_before_anybody_shares_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.fake.set(FAKE_EXACT_ONLY=1)
    await stage.answered(await stage.chat("Be brief."), "A question that shows how quickly prompts are read. " * 3)
    monkeypatch.setattr(prefill, "LONG_PREFILL_MS", 0.001)
    chat = await stage.answered_chat(system=SYSTEM)
    question = (await stage.messages(chat))[1]
    reply = await stage.service.edit(question, "And the Danube?", Sampling(temperature=0.0))
    assert reply.receipt.cached_tokens > 0.9 * len(SYSTEM), "the first question asked anew"
    await stage.runtime.close()
    assert len([point for point in stage.save_points() if point.conversation_id == chat]) == 3


async def test_stop_while_the_system_prompt_is_read_ahead(stage: Stage) -> None:
    stage.fake.set(FAKE_EXACT_ONLY=1)
    await stage.answered(await stage.chat(SYSTEM))
    second = await stage.chat(SYSTEM)
    stage.fake.set(FAKE_HOLD_DURING="prefill")
    future = stage.service.send(second, "And the Danube?")
    await stage.until(lambda: any(event.conversation_id == second for event in stage.of(Prefilling)))
    stage.service.stop(second)
    assert await stage.resume(future) is None
    assert await stage.ask(second, "And the Elbe?") is not None
    assert not stage.errors()


async def test_an_engine_that_dies_while_it_saves_the_system_prompt_costs_no_reply(stage: Stage) -> None:
    stage.fake.set(FAKE_EXACT_ONLY=1)
    await stage.answered(await stage.chat(SYSTEM))
    stage.fake.set(FAKE_DIE_DURING="save")
    receipt = await stage.answered(await stage.chat(SYSTEM), "And the Danube?")
    assert receipt.source is Source.COLD
    assert stage.of(SaveSkipped)
    assert len(stage.fake.launches()) == 2


def test_a_restore_that_holds_forgives_a_hollow_one() -> None:
    once = Finding(Strategy.COMPLETE, proved=True).after_restore(hollow=True)
    assert once.strategy is Strategy.COMPLETE
    assert once.after_restore(hollow=False) == Finding(Strategy.COMPLETE, proved=True)
    assert once.after_restore(hollow=True).strategy is Strategy.LONG
    never_held = Finding(Strategy.SETTLE, proved=False)
    assert never_held.after_restore(hollow=True).strategy is Strategy.NONE
