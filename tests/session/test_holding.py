"""What a slot's holder does to those of others: no engine, no store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

from kvchat.kvstore.audience import audience_of
from kvchat.kvstore.savepoint import Tokens
from kvchat.kvstore.store import BlockStore
from kvchat.session.lease import Lease
from kvchat.session.slot import Slot, SlotContents
from kvchat.session.slots import Slots

PROMPT = tuple(range(1, 101))


@dataclass
class Erasing:
    """An engine of which slots are erased."""

    erased: list[int] = field(default_factory=list)
    number: int = 0

    def on_slot(self, place: int, owner: str = "") -> Erasing:
        return Erasing(self.erased, place)

    @property
    def engine(self) -> Erasing:
        return self

    @property
    def generation(self) -> int:
        return 1

    async def erase_slot(self) -> None:
        self.erased.append(self.number)


def held(slots: Slots, number: int, owner: str, tokens: Tokens, engine: Erasing) -> Lease:
    """A program's slot, in its hands."""
    slot = slots.all[number]
    slot.of_process(1)
    slot.claim, slot.audience = 1, audience_of(owner)
    slot.contents = SlotContents(1, owner, tokens, exact=True)
    return Lease(slots, slot, cast(Any, engine), owner, lambda event: None)


def pool() -> Slots:
    slots = Slots(cast(BlockStore, None))
    slots.all = [Slot(number) for number in range(3)]
    return slots


async def moments() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def leave(slots: Slots, slot: Slot) -> None:
    slot.left()
    slots.move()
    await moments()


async def test_a_slot_with_more_of_the_prompt_is_waited_for_while_somebody_has_it() -> None:
    slots, engine = pool(), Erasing()
    theirs = held(slots, 2, "program/theirs", (*PROMPT, 7, 8), engine)
    mine = held(slots, 1, "program/mine", PROMPT[:-1], engine)
    asking = asyncio.create_task(mine.keep_to_its_slot(PROMPT))
    await moments()
    assert not asking.done()
    await leave(slots, theirs.slot)
    await asking
    assert engine.erased == [2]


async def test_of_two_with_the_same_prompt_the_first_goes_on() -> None:
    slots, engine = pool(), Erasing()
    one, two = (held(slots, n, f"program/{n}", PROMPT[:-1], engine) for n in (0, 1))
    asking = [asyncio.create_task(each.keep_to_its_slot(PROMPT)) for each in (two, one)]
    await moments()
    assert [task.done() for task in asking] == [False, True]
    await leave(slots, one.slot)
    await asyncio.gather(*asking)
    assert engine.erased == [0]


async def test_what_parts_before_and_what_cannot_be_known_is_not_waited_for() -> None:
    slots, engine = pool(), Erasing()
    held(slots, 0, "program/theirs", (*PROMPT[:-2], 7), engine)
    mine = held(slots, 1, "program/mine", PROMPT[:-1], engine)
    slots.all[2].audience = "nobody"  # what it holds is not known
    await mine.keep_to_its_slot(PROMPT)
    assert engine.erased == [2]
    await mine.keep_to_its_slot(())
    assert engine.erased == [2]
