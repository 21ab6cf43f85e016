"""The turn on a fake engine: what is restored, proved, settled and saved, and what the receipt says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvchat.chat.events import FirstToken, MessagesChanged, Prefilling, ReplyDelta
from kvchat.chat.record.messages import Message, MessageState, Receipt, Role
from kvchat.kvstore import saver
from kvchat.kvstore.blocks.absorb import PreviousSave, split_slot_file
from kvchat.kvstore.blocks.recipe import Recipe
from kvchat.session.events import Restored, RestoreFailed, Saved, SaveSkipped, Saving
from kvchat.session.proof import Source
from kvchat.session.restore_cost import MIN_GAIN, RestoreCost
from kvchat.text.reasons import Reason, ReasonCode
from tests.chat.stage import QUESTION, Stage
from tests.engine_fixtures import FakeEngine
from tests.store_contents import spoil


async def test_the_first_turn_is_cold_and_saved_and_the_next_is_hot(stage: Stage) -> None:
    chat = await stage.chat()
    receipt = await stage.answered(chat)
    assert receipt.source is Source.COLD
    assert receipt.cached_tokens == 0
    assert receipt.miss_reason == Reason(ReasonCode.FIRST_REPLY)
    told = [type(event) for event in stage.events if isinstance(event, (FirstToken, Saving, Saved))]
    assert told == [FirstToken, Saving, Saved]
    assert len(stage.save_points()) == 1
    branch = await stage.messages(chat)
    assert [(m.role, m.content, m.state) for m in branch] == [
        (Role.USER, QUESTION, MessageState.COMPLETE),
        (Role.ASSISTANT, f"You said: {QUESTION}", MessageState.COMPLETE),
    ]
    receipt = await stage.answered(chat, "And the harbour?")
    assert receipt.source is Source.HOT
    assert receipt.prompt_tokens - receipt.cached_tokens < 60
    assert receipt.restore_ms == 0
    assert not stage.requests("/slots/0?action=restore")


async def test_rows_the_engine_has_kept_are_not_read_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    absorbed: list[tuple[int, int]] = []

    def spy(slot_file: Path, before: PreviousSave | None, *rest: Any, **more: Any) -> tuple[Recipe, int]:
        absorbed.append((before.unchanged, before.shared) if before else (0, 0))
        return split_slot_file(slot_file, before, *rest, **more)

    monkeypatch.setattr(saver, "split_slot_file", spy)
    chat = await stage.answered_chat()
    (first,) = [event.tokens for event in stage.events if isinstance(event, Saved)]
    await stage.answered(chat, "And the harbour?")
    assert absorbed == [(0, 0), (first, first)]
    other = await stage.chat()
    await stage.answered(other, "Something else altogether?")  # the slot keeps the template's first words at most
    assert absorbed[-1][0] <= absorbed[-1][1] < first
    await stage.answered(chat, "Back again.")  # restored, and grown from there
    assert absorbed[-1][0] > first


async def test_after_a_restart_the_prefix_comes_from_disk(stage: Stage) -> None:
    chat = await stage.answered_chat()
    await stage.restart()
    receipt = await stage.answered(chat, "And then?")
    assert receipt.source is Source.DISK
    assert receipt.restore_ms > 0
    assert not receipt.prefetched
    assert receipt.cached_tokens == stage.of(Restored)[0].tokens
    assert receipt.ttft_ms >= receipt.restore_ms


async def test_selecting_restores_before_anyone_types(stage: Stage) -> None:
    first, second = await stage.chat(), await stage.chat()
    await stage.answered(first)
    await stage.answered(second, "Something quite different about a violin, a lamp and a clock.")
    await stage.show(first)
    assert stage.slots.owners() == [first]
    assert [event.conversation_id for event in stage.of(Restored)] == [first]
    receipt = await stage.answered(first, "Go on.")
    assert receipt.source is Source.WARM
    assert receipt.prefetched
    assert len(stage.of(Restored)) == 1
    receipts = [message.receipt for message in await stage.messages(first)]
    said = sum(receipt.saved_ms or 0.0 for receipt in receipts if receipt) / 1000
    assert (await stage.service.seconds_saved())[first] == pytest.approx(said)


@pytest.mark.usefixtures("cannot_cut")
async def test_selecting_restores_the_newest_state_where_only_that_is_of_use(stage: Stage) -> None:
    first, second = await stage.chat(), await stage.chat()
    await stage.answered(first)
    await stage.answered(first, "And the harbour?")
    newest = stage.save_points()[-1]
    await stage.answered(second, "Something quite different about a violin, a lamp and a clock.")
    await stage.show(first)
    receipt = await stage.answered(first, "Go on.")
    assert receipt.prefetched
    assert receipt.cached_tokens == newest.n_tokens
    assert [event.tokens for event in stage.of(Restored)] == [newest.n_tokens]


async def test_a_new_chat_with_a_known_system_prompt_is_restored_while_the_user_writes(stage: Stage) -> None:
    system = "You are a gardener who knows every river, every garden and every tree in this country by its name. " * 3
    await stage.ask(await stage.chat(system))
    await stage.restart()
    await stage.engine.ready()
    chat = await stage.chat(system)
    await stage.show(chat)
    assert stage.of(Restored)
    receipt = await stage.answered(chat, "Which trees stand by the river?")
    assert receipt.prefetched
    assert receipt.cached_tokens >= 0.9 * stage.of(Restored)[-1].tokens


async def test_sending_while_another_chat_saves_mixes_nothing(stage: Stage) -> None:
    first, second = await stage.chat(), await stage.chat()
    stage.fake.set(FAKE_TOKEN_DELAY=0.01)
    one = stage.service.send(first, "Alpha " * 20)
    two = stage.service.send(second, "Omega " * 20)
    await asyncio.gather(one, two)
    await stage.idle()
    saved = [point.tokens for point in stage.save_points()]
    texts = ["".join(chr(token - 10) for token in tokens if token >= 10) for tokens in saved]
    assert len(texts) == 2
    assert all(("Alpha" in text) != ("Omega" in text) for text in texts)


@pytest.mark.parametrize(
    ("switches", "reason"),
    [
        ({"FAKE_HOLLOW_RESTORE": 1}, ReasonCode.HOLLOW),
        ({"FAKE_REFUSE_RESTORE": 1}, ReasonCode.REFUSED),
        ({"FAKE_DIE_DURING": "restore"}, ReasonCode.DIED_OVER_RESTORE),
    ],
)
async def test_a_restore_that_fails_becomes_an_ordinary_prefill(
    stage: Stage, switches: dict[str, object], reason: ReasonCode
) -> None:
    chat = await stage.answered_chat()
    stage.fake.set(**switches)
    await stage.restart()
    receipt = await stage.answered(chat, "And then?")
    assert (receipt.source, receipt.hollow) == (Source.COLD, reason is ReasonCode.HOLLOW)
    assert receipt.miss_reason == stage.of(RestoreFailed)[0].reason
    assert receipt.miss_reason.code is reason
    assert stage.of(Saved), "the fresh state must be saved again"


@pytest.mark.parametrize("how", ["abort", "kill"])
async def test_an_engine_that_dies_of_what_was_restored(stage: Stage, how: str) -> None:
    """What it crashed over is set aside, and the message read from its beginning; nobody blames what was killed."""
    chat = await stage.answered_chat()
    kept = [point.id for point in stage.save_points()]
    stage.fake.set(FAKE_DIE_DURING="begin", FAKE_DIE_HOW=how)
    await stage.restart()
    reply = await stage.ask(chat, "And then?", keep=False)
    if how == "kill":
        assert reply.receipt.source is not Source.COLD
        assert [point.id for point in stage.save_points()] == kept
    else:
        assert reply.receipt.source is Source.COLD
        assert reply.receipt.miss_reason == Reason(ReasonCode.FAILED_OVER_USE)
        assert not stage.save_points()
    assert not stage.errors()


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "foreign", "missing"])
async def test_a_damaged_block_never_reaches_the_engine(stage: Stage, damage: str) -> None:
    chat = await stage.answered_chat()
    await stage.runtime.close()
    for file in stage.kept().block_files():
        spoil(file, damage)
    await stage.restart()
    receipt = await stage.answered(chat, "And then?")
    assert receipt.source is Source.COLD
    assert receipt.miss_reason
    assert not stage.requests("/slots/0?action=restore")
    assert (await stage.answered(chat, "And now?")).source is Source.HOT


@pytest.mark.parametrize("switch", ["FAKE_EMPTY_SAVE", "FAKE_TRUNCATE_SAVE"])
async def test_a_bad_save_is_never_kept(stage: Stage, switch: str) -> None:
    chat = await stage.chat()
    stage.fake.set(**{switch: 1})
    await stage.answered(chat)
    assert not stage.save_points()
    assert stage.of(SaveSkipped)
    stage.fake.set(**{switch: None})
    await stage.answered(chat, "Once more.")
    assert len(stage.save_points()) == 1


@pytest.mark.parametrize("phase", ["prefill", "stream"])
async def test_the_engine_dies_while_it_answers(stage: Stage, phase: str) -> None:
    chat = await stage.answered_chat()
    stage.fake.set(FAKE_DIE_DURING=phase, FAKE_DIE_TIMES=2 if phase == "prefill" else 1, FAKE_TOKEN_DELAY=0.001)
    reply = await stage.ask(chat, "What now, after all that has been said and done?")
    assert reply is None
    assert "crashed" in stage.errors()[0].lower() or "died" in stage.errors()[0].lower(), stage.errors()
    branch = await stage.messages(chat)
    assert branch[2].content.startswith("What now")
    if phase == "stream":
        assert branch[3].state is MessageState.INTERRUPTED
        assert branch[3].content.startswith("You said:")
    else:
        assert len(branch) == 3
    again = await stage.service.retry(chat)  # the engine came back by itself
    await stage.idle()
    assert again.receipt.source is Source.WARM or again.receipt.miss_reason == Reason(ReasonCode.NOT_WORTH_IT)


@pytest.mark.parametrize(
    "switches",
    [
        {"FAKE_DIE_DURING": "prefill", "FAKE_DIE_HOW": "abort"},
        {"FAKE_DIE_DURING": "prefill", "FAKE_DIE_HOW": "kill"},
        {"FAKE_LOSE_GPU": "CUDA error: unspecified launch failure"},  # as after sleep: /health is well
        {"FAKE_LOSE_GPU": "Compute error."},
    ],
)
async def test_an_engine_lost_before_the_first_word_costs_nothing_but_time(
    stage: Stage, switches: dict[str, object]
) -> None:
    chat = await stage.answered_chat()
    first = stage.engine.engine_pid
    stage.fake.set(**switches)
    receipt = await stage.answered(chat, "What now, after all that has been said and done?")
    assert receipt.source is Source.WARM  # what was saved before serves the engine after it
    assert receipt.engine_wait_ms > 0 or "FAKE_LOSE_GPU" in switches
    assert stage.engine.engine_pid != first
    assert not stage.errors()
    branch = await stage.messages(chat)
    assert [message.state for message in branch] == [MessageState.COMPLETE] * 4


async def test_the_engine_dies_while_it_saves(stage: Stage) -> None:
    chat = await stage.chat()
    stage.fake.set(FAKE_DIE_DURING="save")
    receipt = await stage.answered(chat)
    assert receipt.source is Source.COLD
    assert stage.of(SaveSkipped)
    assert not stage.save_points()
    assert (await stage.answered(chat, "Still there?")).source is Source.COLD
    assert len(stage.save_points()) == 1


async def test_stop_keeps_what_came_and_saves_it(stage: Stage) -> None:
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


async def test_time_saved_for_a_stopped_and_continued_reply_counts_each_restore_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RestoreCost, "is_worth", lambda self, gain, size: gain >= MIN_GAIN)

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
    assert continued.saved_ms == first.saved_ms, "stopping had lost nothing"
    await stage.answered(await stage.chat(), "Something quite different.")
    _message, restored = await stopped(lambda: stage.service.continue_reply(message))
    assert restored.source is Source.WARM
    assert (restored.saved_ms or 0.0) >= first.saved_ms, "what was spared before still counts"


async def test_stop_before_the_first_token_leaves_the_question(stage: Stage) -> None:
    chat = await stage.chat()
    stage.fake.set(FAKE_HOLD_DURING="prefill")
    future = stage.service.send(chat, "word " * 300)
    await stage.until(lambda: stage.of(Prefilling))
    stage.service.stop(chat)
    assert await stage.resume(future) is None
    assert [m.role for m in await stage.messages(chat)] == [Role.USER]


async def test_deleting_a_conversation_in_the_middle_of_its_reply(stage: Stage) -> None:
    chat = await stage.chat()
    future = await stage.writing(chat)
    deleting = asyncio.create_task(stage.service.recently_deleted.purge_chat(chat))
    await asyncio.sleep(0)
    await stage.resume(deleting)
    await future
    await stage.idle()
    assert await stage.service.conversations() == []
    assert stage.save_points() == []


async def test_thinking_is_kept_and_sent_back(stage: Stage) -> None:
    chat = await stage.chat()
    stage.fake.set(FAKE_THINKING="Hm, a river.")
    await stage.answered(chat)
    stage.fake.set(FAKE_THINKING=None)
    await stage.answered(chat, "More.")
    sent = stage.requests("/v1/chat/completions")[-1]["messages"]
    assert sent[1]["reasoning_content"] == "Hm, a river."


async def test_no_engine_at_all_is_said_in_words(tmp_path: Path, fake_engine: FakeEngine, smollm2: Path) -> None:
    fake_engine.set(FAKE_EXIT_AT_START="1:error: failed to load model")
    async with Stage(tmp_path / "home", fake_engine, smollm2) as stage:
        chat = await stage.chat()
        assert await stage.ask(chat, QUESTION) is None
        assert stage.errors()
        fake_engine.set(FAKE_EXIT_AT_START=None)
        reply = await stage.service.retry(chat)
        assert reply is not None


async def test_a_long_history_is_tokenised_once(stage: Stage) -> None:
    chat = await stage.answered_chat("A long story. " * 80)
    await stage.answered(chat, "And then?")  # whether prompts can be cut was tried by now
    before = len(stage.requests("/tokenize"))
    await stage.service.context.usage(chat)
    await stage.answered(chat, "And then?")
    await stage.service.context.usage(chat)
    asked = [len(str(body["content"])) for body in stage.requests("/tokenize")[before:]]
    assert max(asked) < 200
    assert len(asked) <= 5


async def test_the_receipt_learns_what_came_after_the_reply(stage: Stage) -> None:
    chat = await stage.chat()
    first = await stage.answered(chat)
    assert (first.settle_ms, first.save_ms) == (None, None), "not known yet"
    stored = (await stage.messages(chat))[-1].receipt
    assert stored.settle_ms is not None
    assert stored.save_ms is not None
    assert min(stored.settle_ms, stored.save_ms) > 0
    assert stage.events.index(stage.of(Saved)[-1]) < max(
        n for n, one in enumerate(stage.events) if one == MessagesChanged(chat)
    )
