"""What slots share: the engine's context, and its time beside somebody at the window."""

from __future__ import annotations

import asyncio
import copy
import random
from typing import Any, cast

import pytest

from kvchat.session import slots as sharing
from kvchat.session.host import ReadyEngine
from kvchat.session.slot import Slot, SlotContents
from kvchat.session.slots import MARGIN, Slots
from tests.session.test_allocator import pool, steps

CONTEXT = 1000


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
        slot.of_process(1)
        slot.taken(window=True)
        slot.hold(SlotContents(1, f"owner {slot.number}", tuple(range(tokens)), exact=True))
    for slot in slots.all[len(held) :]:
        slot.of_process(1)
    return slots, Engine()


async def room(slots: Slots, slot: Slot, engine: Any, tokens: int) -> None:
    await slots.context.room(slot, cast(ReadyEngine, engine), tokens)


async def test_what_was_left_alone_longest_goes_until_there_is_room() -> None:
    slots, engine = filled(4, 300, 300, 300)
    async with slots.needed("new") as slot:
        assert slot is slots.all[3]
        await room(slots, slot, engine, 400 - MARGIN)
        assert engine.erased == [0]
        assert slots.owners() == ["owner 2", "owner 1"]
        await room(slots, slot, engine, CONTEXT)
        assert {*engine.erased} == {0, 1, 2}, "a prompt may be as long as the whole context"


async def test_a_cancelled_waiter_leaves_the_others_their_room() -> None:
    slots, engine = filled(3, 900)
    async with slots.needed("a") as of_a, slots.needed("b") as of_b:
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
    async with slots.needed("a") as of_a:
        await room(slots, of_a, engine, 600)

        async def second() -> None:
            async with slots.needed("b") as of_b:
                await room(slots, of_b, engine, 500)

        waiting = asyncio.create_task(second())
        await steps()
        assert not waiting.done()
    await asyncio.wait_for(waiting, 60)


async def test_two_that_wait_for_room_do_not_wait_for_each_other() -> None:
    slots, engine = filled(2, 450, 450)

    async def turn(owner: str) -> None:
        async with slots.needed(owner) as slot:
            await steps()
            await room(slots, slot, engine, 800)
            await steps()
            await room(slots, slot, engine, 900)  # more than it was
            await steps()

    await asyncio.wait_for(asyncio.gather(turn("owner 0"), turn("owner 1")), 60)


async def test_who_waits_for_all_slots_is_in_nobodys_way() -> None:
    slots, engine = filled(2)

    async def grows() -> None:
        async with slots.needed("a") as slot:
            await room(slots, slot, engine, 700)
            await steps()
            async with slots.alone(slot):
                pass

    async def other() -> None:
        async with slots.needed("b") as slot:
            await steps(3)
            await room(slots, slot, engine, 700)
            await steps()

    await asyncio.wait_for(asyncio.gather(grows(), other()), 60)


async def test_a_reply_that_grows_puts_out_what_nobody_uses_before_the_engine_does() -> None:
    slots, engine = filled(2, 500)
    async with slots.needed("new") as slot:
        await room(slots, slot, engine, 400)
        slots.context.grows(slot, cast(ReadyEngine, engine), 400)
        assert slots.owners() == ["owner 0"]
        slots.context.grows(slot, cast(ReadyEngine, engine), 450)
        assert slots.owners() == []
        await steps()
        assert engine.erased == [0]


@pytest.mark.parametrize("seed", range(20))
async def test_never_more_than_there_is(seed: int) -> None:
    dice, (slots, engine), finished = random.Random(seed), filled(3, 200, 300), list[str]()

    async def turn(owner: str, *, window: bool) -> None:
        for _ in range(4):
            async with slots.needed(owner, window=window) as slot:
                tokens = dice.randrange(1, CONTEXT)
                await room(slots, slot, engine, tokens)
                held = sum(one.claim or one.held(1) for one in slots.all if one is not slot)
                assert held + tokens <= max(CONTEXT, tokens)
                await steps(dice.randrange(8))
                slot.hold(SlotContents(1, owner, tuple(range(tokens)), exact=True))
        finished.append(owner)

    owners = [("a", True), ("b", True), ("c", True), ("program", False), ("program", False)]
    await asyncio.wait_for(asyncio.gather(*(turn(owner, window=window) for owner, window in owners)), 60)
    assert len(finished) == len(owners)


async def test_programs_read_step_by_step_in_turn() -> None:
    slots, order = pool(3), list[str]()

    async def reads(name: str) -> None:
        async with slots.needed("program", window=False) as slot:
            for _ in range(3):
                async with slots.context.step(slot) as may:
                    assert may
                    order.append(name)
                    await steps(2)

    await asyncio.wait_for(asyncio.gather(reads("a"), reads("b")), 60)
    assert order == ["a", "b"] * 3


async def test_a_send_at_the_window_waits_for_one_step_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "STEP_EVERY_S", 0.01)
    slots, order = pool(2), list[str]()

    async def reads() -> None:
        async with slots.needed("program", window=False) as slot:
            for _ in range(6):
                async with slots.context.step(slot):
                    order.append("step")
                    await steps(2)

    reading = asyncio.create_task(reads())
    await steps(3)
    async with slots.needed("chat") as slot:
        begun = order.count("step")
        await asyncio.sleep(0.05)
        assert order.count("step") <= begun + 1, "none while the first word is waited for"
        slots.talks(slot)
        while order.count("step") < begun + 3:  # noqa: ASYNC110 - and now and then while the reply is written: nobody starves
            await asyncio.sleep(0.01)
    await asyncio.wait_for(reading, 60)


async def test_a_program_that_reads_leaves_the_room_that_the_window_needs() -> None:
    slots, engine = filled(2)
    log = list[str]()

    async def reads() -> None:
        while True:
            async with slots.needed("program", window=False) as slot:
                await room(slots, slot, engine, 900)
                for _ in range(4):
                    async with slots.context.step(slot) as may:
                        if not may:
                            log.append("gave way")
                            break
                        await steps(2)
                else:
                    log.append("read")
                    return

    reading = asyncio.create_task(reads())
    await steps(3)
    async with asyncio.timeout(60), slots.needed("chat") as slot:
        await room(slots, slot, engine, 500)
        log.append("answered")
    await asyncio.wait_for(reading, 60)
    assert log == ["gave way", "answered", "read"]
