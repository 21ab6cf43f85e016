"""State of slots, and shared by them: the engine's context, its time beside the window, its rows, unfinished saves."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from kvchat.engine.api.wire import ChatChunk, PromptProgress
from kvchat.kvstore.savepoint import Tokens, audience_of
from kvchat.session import slots as slots_module
from kvchat.session.exchange import Exchange, PromptRequest
from kvchat.session.host import ReadyEngine
from kvchat.session.lease import Lease
from kvchat.session.proof import LoadedState
from kvchat.session.slot import Slot, SlotContents
from kvchat.session.slots import CONTEXT_MARGIN, SaveProgress, Slots
from tests.session.test_allocator import make_slots, run_loop

CONTEXT = 1000
PROMPT = tuple(range(1, 101))


class Engine:
    """Records the slots whose erasing has started, and finished. An answer hangs once `processed` tokens are."""

    generation, context_size, keeps_memory = 1, CONTEXT, False

    def __init__(self, *, can_cut: bool = True, processed: int | None = None) -> None:
        self.erased, self.finished, self.slot = list[int](), list[int](), 0
        self.can_cut, self.processed = can_cut, processed

    def for_slot(self, number: int) -> Engine:
        other = copy.copy(self)
        other.slot = number
        return other

    @property
    def engine(self) -> Engine:
        return self

    async def erase_slot(self) -> None:
        self.erased.append(self.slot)
        await run_loop(3)
        self.finished.append(self.slot)

    async def chat(self, *_: object) -> AsyncIterator[ChatChunk]:
        if self.processed is not None:
            yield ChatChunk(progress=PromptProgress(len(PROMPT), 0, self.processed))
        await asyncio.Event().wait()


def make_filled_slots(count: int, *token_counts: int) -> tuple[Slots, Engine]:
    slots = make_slots(count, **{f"owner {n}": tuple(range(tokens)) for n, tokens in enumerate(token_counts)})
    for slot in slots.all_slots:
        slot.generation = 1
    return slots, Engine()


async def reserve(slots: Slots, slot: Slot, engine: Any, tokens: int) -> None:
    await slots.reserve_room(slot, cast(ReadyEngine, engine), tokens)


async def test_the_least_recently_used_slots_are_erased_until_there_is_room() -> None:
    slots, engine = make_filled_slots(4, 300, 300, 300)
    async with slots.acquire("new") as slot:
        assert slot is slots.all_slots[3]
        await reserve(slots, slot, engine, 400 - CONTEXT_MARGIN)
        assert engine.erased == [0]
        assert slots.owners() == ["owner 2", "owner 1"]
        await reserve(slots, slot, engine, CONTEXT)
        assert {*engine.erased} == {0, 1, 2}, "a prompt may be as long as the whole context"


async def test_a_cancelled_waiter_does_not_cancel_the_erasing_others_wait_for() -> None:
    slots, engine = make_filled_slots(3, 900)
    async with slots.acquire("a") as a, slots.acquire("b") as b:
        first = asyncio.create_task(reserve(slots, a, engine, 400))
        await run_loop(1)
        second = asyncio.create_task(reserve(slots, b, engine, 400))
        await run_loop(1)
        assert engine.erased == [0]
        first.cancel()
        await asyncio.wait_for(second, 60)
    assert first.cancelled()
    assert engine.finished == [0]


async def test_waiting_for_exclusive_use_releases_reserved_room() -> None:
    slots, engine = make_filled_slots(2)

    async def change_engine() -> None:
        async with slots.acquire("a") as slot:
            await reserve(slots, slot, engine, 700)
            await run_loop()
            async with slots.exclusive(slot):
                pass

    async def reply() -> None:
        async with slots.acquire("b") as slot:
            await run_loop(3)
            await reserve(slots, slot, engine, 700)
            await run_loop()

    await asyncio.wait_for(asyncio.gather(change_engine(), reply()), 60)


async def test_a_growing_reply_erases_unused_slots_before_the_engine_does() -> None:
    slots, engine = make_filled_slots(2, 500)
    async with slots.acquire("new") as slot:
        await reserve(slots, slot, engine, 400)
        slots.note_growth(slot, cast(ReadyEngine, engine), 400)
        assert slots.owners() == ["owner 0"]
        slots.note_growth(slot, cast(ReadyEngine, engine), 450)
        assert slots.owners() == []
        await run_loop()
        assert engine.erased == [0]


@pytest.mark.parametrize("seed", range(20))
async def test_the_slots_never_hold_more_than_the_context(seed: int) -> None:
    dice, (slots, engine), finished = random.Random(seed), make_filled_slots(3, 200, 300), list[str]()

    async def turns(owner: str, *, window: bool) -> None:
        for _ in range(4):
            async with slots.acquire(owner, from_window=window) as slot:
                tokens = dice.randrange(1, CONTEXT)
                await reserve(slots, slot, engine, tokens)
                others = [other for other in slots.all_slots if other is not slot]
                held = sum(other.claimed_tokens or other.max_tokens_held(1) for other in others)
                assert held + tokens <= max(CONTEXT, tokens)
                await run_loop(dice.randrange(8))
                slot.set_contents(SlotContents(owner, tuple(range(tokens)), is_exact=True))
        finished.append(owner)

    owners = [("a", True), ("b", True), ("c", True), ("program", False), ("program", False)]
    await asyncio.wait_for(asyncio.gather(*(turns(owner, window=window) for owner, window in owners)), 60)
    assert len(finished) == len(owners)


async def test_programs_process_their_prompts_step_by_step_in_turn() -> None:
    slots, order = make_slots(3), list[str]()

    async def process(name: str) -> None:
        async with slots.acquire("program", from_window=False) as slot:
            for _ in range(3):
                async with slots.program_step(slot) as may_continue:
                    assert may_continue
                    order.append(name)
                    await run_loop(2)

    await asyncio.wait_for(asyncio.gather(process("a"), process("b")), 60)
    assert order == ["a", "b"] * 3


async def test_a_window_request_waits_for_one_program_step_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "STEP_INTERVAL_S", 0.01)
    slots, steps = make_slots(2), list[int]()

    async def process() -> None:
        async with slots.acquire("program", from_window=False) as slot:
            for number in range(6):
                async with slots.program_step(slot):
                    steps.append(number)
                    await run_loop(2)

    processing = asyncio.create_task(process())
    await run_loop(3)
    async with slots.acquire("chat") as slot:
        before = len(steps)
        await asyncio.sleep(0.05)
        assert len(steps) <= before + 1, "none before the first token"
        slot.is_streaming = True
        slots.notify_change()
        while len(steps) < before + 3:  # noqa: ASYNC110 - some while the reply streams: nobody starves
            await asyncio.sleep(0.01)
    await asyncio.wait_for(processing, 60)


async def test_a_program_leaves_the_room_that_the_window_needs() -> None:
    slots, engine = make_filled_slots(2)
    log = list[str]()

    async def process() -> None:
        while True:
            async with slots.acquire("program", from_window=False) as slot:
                await reserve(slots, slot, engine, 900)
                for _ in range(4):
                    async with slots.program_step(slot) as may_continue:
                        if not may_continue:
                            log.append("left")
                            break
                        await run_loop(2)
                else:
                    log.append("processed")
                    return

    processing = asyncio.create_task(process())
    await run_loop(3)
    async with asyncio.timeout(60), slots.acquire("chat") as slot:
        await reserve(slots, slot, engine, 500)
        log.append("answered")
    await asyncio.wait_for(processing, 60)
    assert log == ["left", "answered", "processed"]


def lease_program(slots: Slots, number: int, tokens: Tokens, engine: Engine) -> Lease:
    slot, owner = slots.all_slots[number], f"program/{number}"
    slot.generation, slot.claimed_tokens, slot.audience = 1, 1, audience_of(owner)
    slot.contents = SlotContents(owner, tokens, is_exact=True)
    return Lease(slots, slot, cast(Any, engine), owner, lambda event: None)


async def release(slots: Slots, slot: Slot) -> None:
    slot.mark_released()
    slots.notify_change()
    await run_loop()


async def test_isolating_waits_for_a_slot_in_use_with_more_of_the_prompt() -> None:
    slots, engine = make_slots(3), Engine()
    other = lease_program(slots, 2, (*PROMPT, 7, 8), engine)
    own = lease_program(slots, 1, PROMPT[:-1], engine)
    isolating = asyncio.create_task(own.isolate_slot(PROMPT))
    await run_loop()
    assert not isolating.done()
    await release(slots, other.slot)
    await isolating
    assert engine.erased == [2]


async def test_of_two_slots_with_the_same_prompt_the_first_continues() -> None:
    slots, engine = make_slots(3), Engine()
    first, second = (lease_program(slots, n, PROMPT[:-1], engine) for n in (0, 1))
    isolating = [asyncio.create_task(lease.isolate_slot(PROMPT)) for lease in (second, first)]
    await run_loop()
    assert [task.done() for task in isolating] == [False, True]
    await release(slots, first.slot)
    await asyncio.gather(*isolating)
    assert engine.erased == [0]


async def test_isolating_waits_for_no_slot_that_differs_earlier_or_is_unknown() -> None:
    slots, engine = make_slots(3), Engine()
    lease_program(slots, 0, (*PROMPT[:-2], 7), engine)
    own = lease_program(slots, 1, PROMPT[:-1], engine)
    slots.all_slots[2].audience = "nobody"
    for prompt in (PROMPT, ()):
        await own.isolate_slot(prompt)
        assert engine.erased == [2]


@pytest.mark.parametrize(
    ("can_cut", "processed", "kept"),
    [(True, None, 40), (False, None, None), (False, 60, 60)],  # if it cannot be cut, it may hold any number
)
async def test_a_slot_claims_only_what_is_known_after_a_stop(
    can_cut: bool, processed: int | None, kept: int | None
) -> None:
    lease = lease_program(make_slots(1), 0, PROMPT[:40], Engine(can_cut=can_cut, processed=processed))
    exchange = Exchange(lease.slots, lease.slot, cast(Any, None), lease.owner)
    exchange.lease, exchange.prompt, exchange.loaded = lease, PROMPT, LoadedState(40, None, None)
    asking = asyncio.ensure_future(exchange.ask(PromptRequest([]), lambda chunk: None))
    await run_loop()
    asking.cancel()
    await asyncio.wait([asking])
    contents = lease.slot.contents
    assert (contents and contents.tokens) == (PROMPT[:kept] if kept else None)


def test_pending_saves_are_measured_from_the_first_and_from_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = SaveProgress()
    with saves.track_save(20_000_000_000, tmp_path / "1.slot"):
        start = saves.pending_save()
        assert start.description.startswith("20 GB, about ")
        monkeypatch.setattr(slots_module, "file_size", lambda _: 15_000_000_000)
        assert saves.pending_save().seconds < start.seconds
    assert saves.pending_save().bytes == 20_000_000_000
    with saves.track_absorb():
        assert saves.pending_save() is not None
    assert saves.pending_save() is None
    first, second = (saves.track_save(1000, tmp_path / f"{n}.slot") for n in (1, 2))
    first.__enter__()
    second.__enter__()
    assert saves.pending_save().bytes == 2000
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    with saves.track_absorb():
        assert saves.pending_save() is not None
    assert saves.pending_save() is None, "of two at a time the first to end is not reported afterwards"


def test_processing_before_a_save_counts_as_progress() -> None:
    saves = SaveProgress()
    with saves.track_prefill(20_000_000_000) as note_progress:
        assert saves.pending_save().description.startswith("20 GB, about ")
        before = saves.activity_snapshot()
        assert saves.activity_snapshot() == before, "a hung engine is not waited for"
        note_progress("half of it")
        assert saves.activity_snapshot() != before
    assert saves.pending_save() is None
