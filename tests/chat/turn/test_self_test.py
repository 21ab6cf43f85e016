"""The self-test of restoring on a fake engine that misbehaves, and its effects on chats."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvchat.chat.events import Absorbed, EngineChanged, Notice, Prefilling
from kvchat.chat.record.messages import Role
from kvchat.engine.api.connection import EngineState
from kvchat.session.events import Saved, SaveSkipped, Saving, WaitingForEngine
from kvchat.session.proof import Source
from kvchat.session.restore_cost import RestoreCost
from kvchat.session.restore_support import RestoreFinding, Strategy
from kvchat.text.reasons import Reason, ReasonCode
from tests.chat.stage import QUESTION, Stage
from tests.systems import needs_scripts

SYSTEM = "You are a patient teacher of geography and speak of rivers only. " * 3
PLAIN = RestoreFinding(Strategy.PLAIN, proved=True)


@pytest.fixture(autouse=True)
def restoring_is_known_to_work() -> None:
    """Override: here the self-test runs."""


async def start_engine(stage: Stage) -> RestoreFinding:
    await stage.runtime.start_engine()
    await stage.until(stage.engine.is_ready)
    assert stage.engine.finding is not None
    return stage.engine.finding


def save_count(stage: Stage) -> int:
    return len(stage.requests("/slots/0?action=save"))


def leftover_files(stage: Stage) -> Sequence[Path]:
    """Return files in the staging folder and blocks, without this process's lock."""
    files = [file for file in (stage.home / "cache" / "savepoints").rglob("*") if file.is_file()]
    return [file for file in files if ".db" not in file.name and file.suffix != ".lock"]


async def test_first_start_runs_the_self_test_and_leaves_nothing(stage: Stage) -> None:
    assert await start_engine(stage) == PLAIN
    statuses = [event.status for event in stage.of(EngineChanged)]
    assert [status.state for status in statuses if status.is_testing] == [EngineState.LOADING]
    assert statuses[-1].state is EngineState.READY
    assert stage.requests("/slots/0?action=restore")
    assert list(stage.requests("/slots/0?action=erase"))[-1:] == [{}]
    assert stage.slots.owners() == []
    assert not leftover_files(stage)
    assert not stage.save_points()
    assert not [event for event in stage.events if isinstance(event, (Saved, Saving, SaveSkipped, Absorbed, Notice))]
    receipt = await stage.answered(await stage.chat())
    assert (receipt.source, receipt.cached_tokens) == (Source.COLD, 0), "the slot was empty"


@needs_scripts
async def test_each_build_is_tested_once(stage: Stage) -> None:
    await start_engine(stage)
    before = save_count(stage)
    await stage.runtime.restart_engine()
    await stage.until(stage.engine.is_ready)
    await stage.restart()
    assert (await start_engine(stage)).proved
    assert save_count(stage) == before
    await stage.runtime.close()
    stage.fake.path.write_text(stage.fake.path.read_text() + "# another build\n")
    await stage.restart()
    await start_engine(stage)
    assert save_count(stage) == 2 * before


@pytest.mark.parametrize(
    ("switches", "strategy"),
    [
        ({"FAKE_EXACT_ONLY": 1}, Strategy.SETTLE),
        ({"FAKE_HOLLOW_RESTORE": 1}, Strategy.NONE),
        ({"FAKE_REFUSE_RESTORE": 1}, Strategy.NONE),
    ],
)
async def test_strategy_avoids_what_failed(stage: Stage, switches: dict[str, object], strategy: Strategy) -> None:
    stage.fake.set(**switches)
    finding = await start_engine(stage)
    assert (finding.strategy, finding.proved) == (strategy, True)
    assert finding.reason
    assert bool(stage.of(Notice)) == (strategy is Strategy.NONE)


async def test_without_restoring_nothing_is_saved_and_one_notice_shown(stage: Stage) -> None:
    stage.fake.set(FAKE_HOLLOW_RESTORE=1)
    await start_engine(stage)
    before = save_count(stage)
    first = await stage.answered_chat()
    assert (await stage.answered(first, "And then?")).source is Source.HOT
    await stage.answered_chat("Something quite different about a violin, a lamp and a clock.")
    receipt = await stage.answered(first, "Go on.")
    assert (receipt.source, receipt.miss_reason) == (Source.COLD, Reason(ReasonCode.NO_RESTORING))
    assert save_count(stage) == before
    assert not stage.of(Saving)
    assert not stage.of(SaveSkipped)
    assert [notice.title for notice in stage.of(Notice)] == [("Chat memory does not work with this engine")]


async def test_engine_that_crashes_in_the_self_test_restarts_without_it(stage: Stage) -> None:
    stage.fake.set(FAKE_DIE_DURING="restore", FAKE_DIE_TIMES=99)
    chat = await stage.chat()
    receipt = await stage.answered(chat)  # it was sent before the self-test ended, and waited
    assert stage.of(WaitingForEngine)
    assert receipt.source is Source.COLD
    reason = Reason(ReasonCode.DIED_OVER_TRIAL)
    assert stage.engine.finding == RestoreFinding(Strategy.NONE, proved=True, reason=reason)
    assert len(stage.fake.launches()) == 2
    assert (await stage.answered(chat, "Still there?")).source is Source.HOT
    assert not stage.errors()
    assert not leftover_files(stage)


async def test_rpc_server_lost_in_the_self_test_proves_nothing(stage: Stage) -> None:
    stage.fake.set(FAKE_DIE_DURING="restore", FAKE_DIE_HOW="rpc")
    chat = await stage.chat()
    assert await stage.ask(chat) is None
    assert "An RPC server is not responding" in stage.errors()[0]
    assert (await stage.answered(chat, "Are you back?")).source is Source.COLD
    assert len(stage.fake.launches()) == 2
    assert stage.engine.finding == PLAIN


async def test_failed_self_test_is_repeated_after_a_week(stage: Stage) -> None:
    stage.fake.set(FAKE_HOLLOW_RESTORE=1)
    assert (await start_engine(stage)).strategy is Strategy.NONE
    await stage.runtime.close()
    stage.fake.set(FAKE_HOLLOW_RESTORE=None)
    findings = stage.runtime.paths.restore_findings
    for days, strategy in ((6, Strategy.NONE), (2, Strategy.PLAIN)):
        rows = json.loads(findings.read_text("utf-8"))
        findings.write_text(json.dumps([row | {"found_at": row["found_at"] - days * 86_400} for row in rows]))
        await stage.restart()
        assert (await start_engine(stage)).strategy is strategy


@pytest.mark.parametrize("stopped", ["engine", "reply"])
async def test_stop_during_the_self_test(stage: Stage, stopped: str) -> None:
    """Stopping the engine discards the test; stopping a reply ends only its wait."""
    stage.fake.set(FAKE_HOLD_DURING="prefill")
    chat = await stage.chat()
    waiting = stage.service.send(chat, QUESTION)
    await stage.until(lambda: any(event.status.is_testing for event in stage.of(EngineChanged)))
    if stopped == "engine":
        await stage.runtime.stop_engine()
    else:
        stage.service.stop(chat)
    assert await waiting is None
    assert [message.role for message in await stage.messages(chat)] == [Role.USER], "the message is kept"
    assert stopped == "reply" or not leftover_files(stage)
    stage.fake.set(FAKE_HOLD_DURING=None)
    if stopped == "engine":
        assert await stage.finish(stage.service.retry(chat)) is not None
    await stage.until(stage.engine.is_ready)
    assert stage.engine.finding == PLAIN


async def test_inconclusive_self_test_is_proved_by_the_first_restore(stage: Stage) -> None:
    stage.fake.set(FAKE_EMPTY_SAVE=1)
    finding = await start_engine(stage)
    assert (finding.strategy, finding.proved) == (Strategy.PLAIN, False)
    held_less = Reason(ReasonCode.HELD_LESS, {"held": 0, "tokens": 96})
    assert finding.reason == Reason(ReasonCode.NOT_TRIED, {"reason": held_less})
    stage.fake.set(FAKE_EMPTY_SAVE=None)
    chat = await stage.answered_chat()
    await stage.restart()
    assert (await stage.answered(chat, "And then?")).source is Source.DISK
    assert stage.engine.finding.proved


async def test_two_hollow_restores_in_a_row_change_the_strategy(stage: Stage) -> None:
    chats = [await stage.answered_chat(f"{number}: {QUESTION}") for number in range(3)]
    stage.fake.set(FAKE_HOLLOW_RESTORE=1)
    assert (await stage.answered(chats[0], "And then?")).hollow
    assert stage.engine.finding == RestoreFinding(Strategy.PLAIN, proved=True, hollow=1)
    await stage.restart()
    assert (await stage.answered(chats[1], "And then?")).hollow
    assert (stage.engine.finding.strategy, stage.engine.finding.proved) == (Strategy.SETTLE, False)
    assert [notice.title for notice in stage.of(Notice)] == ["Chat memory did not work as expected"]


@pytest.mark.parametrize("text", ['[5, {"build": "x"}]', "[" * 100_000])
async def test_invalid_findings_file_costs_only_another_self_test(stage: Stage, text: str) -> None:
    stage.runtime.paths.restore_findings.write_text(text)
    assert await start_engine(stage) == PLAIN
    assert await stage.ask(await stage.chat()) is not None
    (finding,) = json.loads(stage.runtime.paths.restore_findings.read_text("utf-8"))
    assert finding["strategy"] == "plain"


async def test_progress_includes_a_system_prompt_processed_first(stage: Stage) -> None:
    stage.fake.set(FAKE_EXACT_ONLY=1)
    first = await stage.chat(SYSTEM)
    receipt = await stage.answered(first, "And the Danube?")
    assert (receipt.source, receipt.cached_tokens) == (Source.COLD, 0)
    assert receipt.miss_reason == Reason(ReasonCode.FIRST_REPLY)
    totals = {event.total for event in stage.of(Prefilling) if event.conversation_id == first}
    assert totals == {receipt.prompt_tokens}
    assert len(stage.save_points()) == 2
    assert len(stage.of(Saved)) == 1, "only after the reply"
    await stage.restart()
    receipt = await stage.answered(await stage.chat(SYSTEM), "And the Rhine?")
    assert receipt.source is Source.DISK
    assert receipt.cached_tokens > 0.9 * len(SYSTEM)


async def test_system_prompt_that_is_processed_faster_than_restored_is_not_saved(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.fake.set(FAKE_EXACT_ONLY=1)
    await stage.answered_chat()
    monkeypatch.setattr(RestoreCost, "is_worthwhile", lambda self, gain, size: False)
    await stage.answered_chat(system=SYSTEM)
    assert len(stage.save_points()) == 2, "one for each reply"


async def test_engine_crash_while_saving_the_system_prompt_costs_no_reply(stage: Stage) -> None:
    stage.fake.set(FAKE_EXACT_ONLY=1)
    await stage.answered_chat()
    stage.fake.set(FAKE_DIE_DURING="save")
    receipt = await stage.answered(await stage.chat(SYSTEM), "And the Danube?")
    assert receipt.source is Source.COLD
    assert stage.of(SaveSkipped)
    assert len(stage.fake.launches()) == 2


def test_successful_restore_clears_a_hollow_one() -> None:
    once = RestoreFinding(Strategy.COMPLETE, proved=True).after_restore(was_used=False)
    assert once.strategy is Strategy.COMPLETE
    assert once.after_restore(was_used=True) == RestoreFinding(Strategy.COMPLETE, proved=True)
    assert once.after_restore(was_used=False).strategy is Strategy.LONG
    assert RestoreFinding(Strategy.SETTLE, proved=False).after_restore(was_used=False).strategy is Strategy.NONE
