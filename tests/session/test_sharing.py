"""State shared by slots: the engine's context, its time beside the window, its rows, and unfinished saves."""

from __future__ import annotations

import asyncio
import copy
import os
import random
from pathlib import Path
from typing import Any, cast

import pytest

from kvchat.kvstore.savepoint import Tokens, audience_of
from kvchat.session import slots as sharing
from kvchat.session.host import ReadyEngine
from kvchat.session.lease import Lease
from kvchat.session.slot import Slot, SlotContents
from kvchat.session.slots import ROOM_MARGIN, SaveProgress, Slots
from tests.session.test_allocator import pool, steps

CONTEXT = 1000
PROMPT = tuple(range(1, 101))


class Engine:
    """Keeps count of what is in its slots, and of what was erased."""

    generation, context_size = 1, CONTEXT

    def __init__(self) -> None:
        self.erased, self.done, self.slot = list[int](), list[int](), 0

    def on_slot(self, place: int) -> Engine:
        other = copy.copy(self)
        other.slot = place
        return other

    @property
    def engine(self) -> Engine:
        return self

    async def erase_slot(self) -> None:
        self.erased.append(self.slot)
        await steps(3)
        self.done.append(self.slot)


def filled(count: int, *held: int) -> tuple[Slots, Engine]:
    slots = pool(count)
    for slot, tokens in zip(slots.all, held, strict=False):
        slot.set_generation(1)
        slot.mark_taken(window=True)
        slot.set_contents(SlotContents(1, f"owner {slot.number}", tuple(range(tokens)), exact=True))
    for slot in slots.all[len(held) :]:
        slot.set_generation(1)
    return slots, Engine()


async def room(slots: Slots, slot: Slot, engine: Any, tokens: int) -> None:
    await slots.reserve_room(slot, cast(ReadyEngine, engine), tokens)


async def test_what_was_left_alone_longest_goes_until_there_is_room() -> None:
    slots, engine = filled(4, 300, 300, 300)
    async with slots.acquire("new") as slot:
        assert slot is slots.all[3]
        await room(slots, slot, engine, 400 - ROOM_MARGIN)
        assert engine.erased == [0]
        assert slots.owners() == ["owner 2", "owner 1"]
        await room(slots, slot, engine, CONTEXT)
        assert {*engine.erased} == {0, 1, 2}, "a prompt may be as long as the whole context"


async def test_a_cancelled_waiter_leaves_the_others_their_room() -> None:
    slots, engine = filled(3, 900)
    async with slots.acquire("a") as of_a, slots.acquire("b") as of_b:
        first = asyncio.create_task(room(slots, of_a, engine, 400))
        await steps(1)
        second = asyncio.create_task(room(slots, of_b, engine, 400))
        await steps(1)
        assert engine.erased == [0]
        first.cancel()
        await asyncio.wait_for(second, 60)
    assert first.cancelled()
    assert engine.done == [0], "what was begun to be erased is erased"


async def test_room_that_somebody_needs_is_waited_for() -> None:
    slots, engine = filled(2)
    async with slots.acquire("a") as of_a:
        await room(slots, of_a, engine, 600)

        async def second() -> None:
            async with slots.acquire("b") as of_b:
                await room(slots, of_b, engine, 500)

        waiting = asyncio.create_task(second())
        await steps()
        assert not waiting.done()
    await asyncio.wait_for(waiting, 60)


async def test_two_that_wait_for_room_do_not_wait_for_each_other() -> None:
    slots, engine = filled(2, 450, 450)

    async def turn(owner: str) -> None:
        async with slots.acquire(owner) as slot:
            await steps()
            await room(slots, slot, engine, 800)
            await steps()
            await room(slots, slot, engine, 900)  # more than it was
            await steps()

    await asyncio.wait_for(asyncio.gather(turn("owner 0"), turn("owner 1")), 60)


async def test_who_waits_for_all_slots_is_in_nobodys_way() -> None:
    slots, engine = filled(2)

    async def note_growth() -> None:
        async with slots.acquire("a") as slot:
            await room(slots, slot, engine, 700)
            await steps()
            async with slots.exclusive(slot):
                pass

    async def other() -> None:
        async with slots.acquire("b") as slot:
            await steps(3)
            await room(slots, slot, engine, 700)
            await steps()

    await asyncio.wait_for(asyncio.gather(note_growth(), other()), 60)


async def test_a_reply_that_grows_puts_out_what_nobody_uses_before_the_engine_does() -> None:
    slots, engine = filled(2, 500)
    async with slots.acquire("new") as slot:
        await room(slots, slot, engine, 400)
        slots.note_growth(slot, cast(ReadyEngine, engine), 400)
        assert slots.owners() == ["owner 0"]
        slots.note_growth(slot, cast(ReadyEngine, engine), 450)
        assert slots.owners() == []
        await steps()
        assert engine.erased == [0]


@pytest.mark.parametrize("seed", range(20))
async def test_never_more_than_there_is(seed: int) -> None:
    dice, (slots, engine), finished = random.Random(seed), filled(3, 200, 300), list[str]()

    async def turn(owner: str, *, window: bool) -> None:
        for _ in range(4):
            async with slots.acquire(owner, window=window) as slot:
                tokens = dice.randrange(1, CONTEXT)
                await room(slots, slot, engine, tokens)
                held = sum(one.claimed_tokens or one.max_tokens_held(1) for one in slots.all if one is not slot)
                assert held + tokens <= max(CONTEXT, tokens)
                await steps(dice.randrange(8))
                slot.set_contents(SlotContents(1, owner, tuple(range(tokens)), exact=True))
        finished.append(owner)

    owners = [("a", True), ("b", True), ("c", True), ("program", False), ("program", False)]
    await asyncio.wait_for(asyncio.gather(*(turn(owner, window=window) for owner, window in owners)), 60)
    assert len(finished) == len(owners)


async def test_programs_read_step_by_step_in_turn() -> None:
    slots, order = pool(3), list[str]()

    async def set_prompt(name: str) -> None:
        async with slots.acquire("program", window=False) as slot:
            for _ in range(3):
                async with slots.program_step(slot) as may:
                    assert may
                    order.append(name)
                    await steps(2)

    await asyncio.wait_for(asyncio.gather(set_prompt("a"), set_prompt("b")), 60)
    assert order == ["a", "b"] * 3


async def test_a_send_at_the_window_waits_for_one_step_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "STEP_INTERVAL_S", 0.01)
    slots, order = pool(2), list[str]()

    async def set_prompt() -> None:
        async with slots.acquire("program", window=False) as slot:
            for _ in range(6):
                async with slots.program_step(slot):
                    order.append("step")
                    await steps(2)

    track_prefill = asyncio.create_task(set_prompt())
    await steps(3)
    async with slots.acquire("chat") as slot:
        begun = order.count("step")
        await asyncio.sleep(0.05)
        assert order.count("step") <= begun + 1, "none while the first word is waited for"
        slot.is_streaming = True
        slots.notify_change()
        while order.count("step") < begun + 3:  # noqa: ASYNC110 - and now and then while the reply is written: nobody starves
            await asyncio.sleep(0.01)
    await asyncio.wait_for(track_prefill, 60)


async def test_a_program_that_reads_leaves_the_room_that_the_window_needs() -> None:
    slots, engine = filled(2)
    log = list[str]()

    async def set_prompt() -> None:
        while True:
            async with slots.acquire("program", window=False) as slot:
                await room(slots, slot, engine, 900)
                for _ in range(4):
                    async with slots.program_step(slot) as may:
                        if not may:
                            log.append("gave way")
                            break
                        await steps(2)
                else:
                    log.append("read")
                    return

    track_prefill = asyncio.create_task(set_prompt())
    await steps(3)
    async with asyncio.timeout(60), slots.acquire("chat") as slot:
        await room(slots, slot, engine, 500)
        log.append("answered")
    await asyncio.wait_for(track_prefill, 60)
    assert log == ["gave way", "answered", "read"]


def held(slots: Slots, number: int, owner: str, tokens: Tokens, engine: Engine) -> Lease:
    """A program's slot, in its hands."""
    slot = slots.all[number]
    slot.set_generation(1)
    slot.claimed_tokens, slot.audience = 1, audience_of(owner)
    slot.contents = SlotContents(1, owner, tokens, exact=True)
    return Lease(slots, slot, cast(Any, engine), owner, lambda event: None)


async def leave(slots: Slots, slot: Slot) -> None:
    slot.mark_released()
    slots.notify_change()
    await steps()


async def test_a_slot_with_more_of_the_prompt_is_waited_for_while_somebody_has_it() -> None:
    slots, engine = pool(3), Engine()
    theirs = held(slots, 2, "program/theirs", (*PROMPT, 7, 8), engine)
    mine = held(slots, 1, "program/mine", PROMPT[:-1], engine)
    asking = asyncio.create_task(mine.isolate_slot(PROMPT))
    await steps()
    assert not asking.done()
    await leave(slots, theirs.slot)
    await asking
    assert engine.erased == [2]


async def test_of_two_with_the_same_prompt_the_first_goes_on() -> None:
    slots, engine = pool(3), Engine()
    one, two = (held(slots, n, f"program/{n}", PROMPT[:-1], engine) for n in (0, 1))
    asking = [asyncio.create_task(each.isolate_slot(PROMPT)) for each in (two, one)]
    await steps()
    assert [task.done() for task in asking] == [False, True]
    await leave(slots, one.slot)
    await asyncio.gather(*asking)
    assert engine.erased == [0]


async def test_what_parts_before_and_what_cannot_be_known_is_not_waited_for() -> None:
    slots, engine = pool(3), Engine()
    held(slots, 0, "program/theirs", (*PROMPT[:-2], 7), engine)
    mine = held(slots, 1, "program/mine", PROMPT[:-1], engine)
    slots.all[2].audience = "nobody"  # what it holds is not known
    await mine.isolate_slot(PROMPT)
    assert engine.erased == [2]
    await mine.isolate_slot(())
    assert engine.erased == [2]


def test_it_is_said_of_the_first_save_too_and_goes_by_what_is_written(tmp_path: Path) -> None:
    save_progress, file = SaveProgress(), tmp_path / "1.slot"
    with save_progress.track_save(20_000_000_000, file):
        begun = save_progress.pending_save()
        assert begun.description.startswith("20 GB, about ")
        file.touch()
        os.truncate(file, 15_000_000_000)
        going = save_progress.pending_save()
        assert going.seconds < begun.seconds
    saved = save_progress.pending_save()
    assert saved.bytes == 20_000_000_000
    with save_progress.track_absorb():
        assert save_progress.pending_save() is not None
    assert save_progress.pending_save() is None
    first, second = (
        save_progress.track_save(1000, tmp_path / "1.slot"),
        save_progress.track_save(1000, tmp_path / "2.slot"),
    )
    first.__enter__()
    second.__enter__()
    assert save_progress.pending_save().bytes == 2000
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    with save_progress.track_absorb():
        assert save_progress.pending_save() is not None
    assert save_progress.pending_save() is None, "of two at a time the first to end is not told of afterwards"


def test_what_is_read_before_it_is_saved_counts_and_is_no_standstill() -> None:
    save_progress = SaveProgress()
    with save_progress.track_prefill(20_000_000_000) as tell:
        left = save_progress.pending_save()
        assert left.description.startswith("20 GB, about ")
        before = save_progress.progress()
        assert save_progress.progress() == before, "an engine that hangs is not waited for"
        tell("half of it")
        assert save_progress.progress() != before
    assert save_progress.pending_save() is None
