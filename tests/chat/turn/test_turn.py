"""The turn on a fake engine: restoring, proof, settling, saving, and the receipt."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvchat.chat.events import FirstToken, MessagesChanged, ReplyDelta
from kvchat.chat.record.messages import Message, MessageState, Receipt, Role
from kvchat.kvstore import saver
from kvchat.kvstore.blocks.absorb import PreviousSave, split_slot_file
from kvchat.kvstore.blocks.recipe import Recipe
from kvchat.session.events import Restored, Saved, SaveSkipped, Saving
from kvchat.session.proof import Source
from kvchat.text.reasons import Reason, ReasonCode
from tests.chat.stage import QUESTION, Stage
from tests.chat.turn.test_live_words import remarks_and_receipt
from tests.engine_fixtures import FakeEngine
from tests.store_contents import spoil
from tests.systems import WARM, needs_signals

OTHER = "Something quite different about a violin, a lamp and a clock."


async def test_first_turn_is_cold_and_saved_and_next_is_hot(stage: Stage) -> None:
    chat = await stage.chat()
    receipt = await stage.answered(chat)
    assert (receipt.source, receipt.cached_tokens) == (Source.COLD, 0)
    assert receipt.miss_reason == Reason(ReasonCode.FIRST_REPLY)
    assert (receipt.settle_ms, receipt.save_ms) == (None, None), "not known yet"
    kinds = [type(event) for event in stage.events if isinstance(event, (FirstToken, Saving, Saved))]
    assert kinds == [FirstToken, Saving, Saved]
    assert len(stage.save_points()) == 1
    branch = await stage.messages(chat)
    assert [(message.role, message.content, message.state) for message in branch] == [
        (Role.USER, QUESTION, MessageState.COMPLETE),
        (Role.ASSISTANT, f"You said: {QUESTION}", MessageState.COMPLETE),
    ]
    assert min(branch[1].receipt.settle_ms, branch[1].receipt.save_ms) > 0
    saved = stage.events.index(stage.of(Saved)[-1])
    assert saved < max(place for place, event in enumerate(stage.events) if event == MessagesChanged(chat))
    receipt = await stage.answered(chat, "And the harbour?")
    assert (receipt.source, receipt.restore_ms) == (Source.HOT, 0)
    assert receipt.prompt_tokens - receipt.cached_tokens < 60
    assert not stage.requests("/slots/0?action=restore")


async def test_rows_kept_by_the_engine_are_not_absorbed_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    absorbed: list[tuple[int, int]] = []

    def spy(slot_file: Path, before: PreviousSave | None, *rest: Any, **more: Any) -> tuple[Recipe, int]:
        absorbed.append((before.unchanged_tokens, before.shared_tokens) if before else (0, 0))
        return split_slot_file(slot_file, before, *rest, **more)

    monkeypatch.setattr(saver, "split_slot_file", spy)
    chat = await stage.answered_chat()
    (first,) = [event.tokens for event in stage.of(Saved)]
    await stage.answered(chat, "And the harbour?")
    assert absorbed == [(0, 0), (first, first)]
    await stage.answered_chat("Something else altogether?")  # the slot keeps at most the template's beginning
    assert absorbed[-1][0] <= absorbed[-1][1] < first
    await stage.answered(chat, "Back again.")  # restored and extended
    assert absorbed[-1][0] > first


async def test_an_engine_starts_with_the_newest_state(stage: Stage) -> None:
    await stage.answered_chat()
    chat = await stage.answered_chat()
    await stage.runtime.restart_engine()
    await stage.until(lambda: stage.engine.is_ready())
    assert stage.slots.owners() == [chat]
    receipt = await stage.answered(chat, "And then?")
    assert (receipt.source, receipt.prefetched) == (Source.WARM, True)
    assert receipt.cached_tokens == stage.of(Restored)[0].tokens


async def test_prefix_is_restored_from_disk_after_a_restart(stage: Stage) -> None:
    chat = await stage.answered_chat()
    await stage.restart()
    receipt = await stage.answered(chat, "And then?")
    assert (receipt.source, receipt.prefetched) == (Source.DISK, False)
    assert receipt.cached_tokens == stage.of(Restored)[0].tokens
    assert receipt.ttft_ms >= receipt.restore_ms > 0


async def test_selecting_a_chat_restores_it(stage: Stage) -> None:
    first = await stage.answered_chat()
    await stage.answered_chat(OTHER)
    await stage.show(first)
    assert stage.slots.owners() == [first]
    receipt = await stage.answered(first, "Go on.")
    assert receipt.source in WARM
    assert receipt.prefetched
    assert [event.conversation_id for event in stage.of(Restored)] == [first]
    receipts = [message.receipt for message in await stage.messages(first) if message.receipt]
    saved_s = sum(receipt.saved_ms or 0.0 for receipt in receipts) / 1000
    assert (await stage.service.seconds_saved())[first] == pytest.approx(saved_s)


async def test_states_of_two_chats_do_not_mix(stage: Stage) -> None:
    first, second = await stage.chat(), await stage.chat()
    stage.fake.set(FAKE_TOKEN_DELAY=0.01)
    await asyncio.gather(stage.service.send(first, "Alpha " * 20), stage.service.send(second, "Omega " * 20))
    await stage.idle()
    saved = [point.tokens for point in stage.save_points()]
    texts = ["".join(chr(token - 10) for token in tokens if token >= 10) for tokens in saved]
    assert len(texts) == 2
    assert all(("Alpha" in text) != ("Omega" in text) for text in texts)


@pytest.mark.parametrize("how", ["abort", pytest.param("kill", marks=needs_signals)])
async def test_engine_crash_over_a_restored_state_sets_it_aside(stage: Stage, how: str) -> None:
    """A killed engine does not count as a crash."""
    chat = await stage.answered_chat()
    before = stage.save_points()
    stage.fake.set(FAKE_DIE_DURING="begin", FAKE_DIE_HOW=how)
    await stage.restart()
    receipt = (await stage.ask(chat, "And then?", keep=False)).receipt
    assert (receipt.source is Source.COLD) == (how == "abort")
    if how == "abort":
        assert receipt.miss_reason == Reason(ReasonCode.FAILED_OVER_USE)
    kept = [point.id for point in stage.save_points()]
    assert kept == ([point.id for point in before] if how == "kill" else [])
    assert not stage.errors()


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "foreign", "missing"])
async def test_damaged_block_never_reaches_the_engine(stage: Stage, damage: str) -> None:
    chat = await stage.answered_chat()
    await stage.runtime.close()
    for file in stage.kept().block_files():
        spoil(file, damage)
    await stage.restart()
    receipt = await stage.answered(chat, "And then?")
    assert receipt.source is Source.COLD
    assert receipt.miss_reason
    live, end, line = remarks_and_receipt(stage, chat)
    assert live == end
    assert live.partition(":")[0] == line.partition(":")[0] == "reprocessed"
    assert not stage.requests("/slots/0?action=restore")
    assert (await stage.answered(chat, "And now?")).source is Source.HOT


@pytest.mark.parametrize(
    ("switches", "source"),
    [
        ({"FAKE_EMPTY_SAVE": 1}, Source.HOT),
        ({"FAKE_TRUNCATE_SAVE": 1}, Source.HOT),
        ({"FAKE_DIE_DURING": "save"}, Source.COLD),
    ],
)
async def test_failed_save_is_discarded_and_repeated_after_the_next_turn(
    stage: Stage, switches: dict[str, object], source: Source
) -> None:
    chat = await stage.chat()
    stage.fake.set(**switches)
    assert (await stage.answered(chat)).source is Source.COLD
    assert stage.of(SaveSkipped)
    assert not stage.save_points()
    stage.fake.set(**dict.fromkeys(switches))
    assert (await stage.answered(chat, "Once more.")).source is source
    assert len(stage.save_points()) == 1


@pytest.mark.parametrize("phase", ["prefill", "stream"])
async def test_engine_crash_during_a_reply_keeps_the_text(stage: Stage, phase: str) -> None:
    chat = await stage.answered_chat()
    stage.fake.set(FAKE_DIE_DURING=phase, FAKE_DIE_TIMES=2 if phase == "prefill" else 1, FAKE_TOKEN_DELAY=0.001)
    assert await stage.ask(chat, "What now, after all that has been said and done?") is None
    assert "crashed" in stage.errors()[0].lower() or "died" in stage.errors()[0].lower(), stage.errors()
    _, _, question, *replies = await stage.messages(chat)
    assert question.content.startswith("What now")
    states = [(reply.state, reply.content.startswith("You said:")) for reply in replies]
    assert states == ([(MessageState.INTERRUPTED, True)] if phase == "stream" else [])
    again = await stage.finish(stage.service.retry(chat))  # the engine restarted by itself
    assert again.receipt.source in WARM or again.receipt.miss_reason == Reason(ReasonCode.NOT_WORTH_IT)


@pytest.mark.parametrize(
    "switches",
    [
        {"FAKE_DIE_DURING": "prefill", "FAKE_DIE_HOW": "kill"},
        {"FAKE_LOSE_GPU": "CUDA error: unspecified launch failure"},  # as after sleep: /health still reports ok
    ],
)
async def test_engine_lost_before_the_first_token_costs_no_message(stage: Stage, switches: dict[str, object]) -> None:
    chat = await stage.answered_chat()
    stage.fake.set(**switches)
    receipt = await stage.answered(chat, "What now, after all that has been said and done?")
    assert receipt.source in WARM  # the new engine restores the earlier save point
    assert receipt.engine_wait_ms > 0 or "FAKE_LOSE_GPU" in switches
    assert len(stage.fake.launches()) == 2
    assert not stage.errors()
    assert [message.state for message in await stage.messages(chat)] == [MessageState.COMPLETE] * 4


async def test_stopped_reply_is_kept_and_saved(stage: Stage) -> None:
    chat = await stage.chat()
    future = await stage.writing(chat)
    assert stage.service.is_answering(chat)
    stage.service.stop(chat)
    reply = await stage.resume(future)
    assert reply.state is MessageState.STOPPED
    assert "".join(event.text for event in stage.of(ReplyDelta)) == reply.content
    await stage.idle()
    assert stage.of(Saved)
    assert not stage.service.is_answering(chat)
    assert (await stage.answered(chat, "go on")).source is Source.HOT


async def test_time_saved_for_a_continued_reply_counts_each_restore_once(stage: Stage) -> None:
    async def stopped(begin: Callable[[], asyncio.Future[Message | None]]) -> tuple[Message, Receipt]:
        stage.fake.set(FAKE_HOLD_DURING="stream")
        known, reply = len(stage.of(FirstToken)), begin()
        await stage.until(lambda: len(stage.of(FirstToken)) > known)
        stage.service.stop(chat)
        message = await stage.resume(reply)
        await stage.idle()
        assert message.receipt is not None
        return message, message.receipt

    chat = await stage.answered_chat(QUESTION * 5)
    message, first = await stopped(lambda: stage.service.send(chat, "And the harbour, please?"))
    assert first.saved_ms
    message, continued = await stopped(lambda: stage.service.continue_reply(message))
    assert continued.source is Source.HOT
    assert continued.saved_ms == first.saved_ms, "stopping lost nothing"
    await stage.answered_chat("Something quite different.")
    _message, restored = await stopped(lambda: stage.service.continue_reply(message))
    assert restored.source in WARM
    assert (restored.saved_ms or 0.0) >= first.saved_ms, "the first saving still counts"


async def test_deleting_a_chat_ends_its_reply(stage: Stage) -> None:
    chat = await stage.chat()
    future = await stage.writing(chat)
    deleting = asyncio.create_task(stage.service.recently_deleted.purge_chat(chat))
    await asyncio.sleep(0)
    await stage.resume(deleting)
    await stage.finish(future)
    assert await stage.service.conversations() == []
    assert stage.save_points() == []


async def test_thinking_is_stored_and_sent_back(stage: Stage) -> None:
    stage.fake.set(FAKE_THINKING="Hm, a river.")
    chat = await stage.answered_chat()
    stage.fake.set(FAKE_THINKING=None)
    await stage.answered(chat, "More.")
    sent = stage.requests("/v1/chat/completions")[-1]["messages"]
    assert sent[1]["reasoning_content"] == "Hm, a river."


async def test_long_history_is_tokenized_once(stage: Stage) -> None:
    chat = await stage.answered_chat("A long story. " * 80)
    await stage.answered(chat, "And then?")  # by now it is known whether prompts can be cut
    before = len(stage.requests("/tokenize"))
    await stage.service.context.usage(chat)
    await stage.answered(chat, "And then?")
    await stage.service.context.usage(chat)
    sizes = [len(str(body["content"])) for body in stage.requests("/tokenize")[before:]]
    assert max(sizes) < 200
    assert len(sizes) <= 5


async def test_folder_with_a_longer_path_than_windows_allows(
    tmp_path: Path, fake_engine: FakeEngine, smollm2: Path
) -> None:
    """kvchat and its engine use it there if long paths are enabled."""
    async with Stage(tmp_path / ("x" * 200) / ("y" * 60), fake_engine, smollm2) as stage:
        chat = await stage.answered_chat()
        await stage.restart()
        assert (await stage.answered(chat, "And then?")).source is Source.DISK
