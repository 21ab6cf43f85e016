"""Who has which slot: never two at a time, nobody waits for ever, and nobody computes beside a change of the engine."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest

from kvchat.kvstore.savepoint import Tokens
from kvchat.kvstore.store import BlockStore
from kvchat.session import slot_request
from kvchat.session import slots as sharing
from kvchat.session.slot import Slot, SlotContents
from kvchat.session.slot_request import Priority
from kvchat.session.slots import Slots


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_request, "SETTLE_WAIT_S", 0.0)
    monkeypatch.setattr(sharing, "STEP_INTERVAL_S", 0.0)


def pool(count: int) -> Slots:
    slots = Slots(cast(BlockStore, None))
    slots.all = [Slot(number) for number in range(count)]
    return slots


def hold(slots: Slots, **owners: tuple[int, ...]) -> None:
    """Have the first slots hold these."""
    for slot, (owner, tokens) in zip(slots.all, owners.items(), strict=False):
        slot.mark_taken(window=True)
        slot.contents = SlotContents(1, owner, tokens, exact=True)


async def steps(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Crowd:
    """Owners that do this and that at once, and what must hold meanwhile."""

    def __init__(self, slots: Slots, seed: int) -> None:
        self.slots, self.random = slots, random.Random(seed)
        self.owners: Counter[str] = Counter()
        self.programs = 0
        self.in_hands: set[Slot] = set()
        self.computing: set[Slot] = set()  # the engine, by whom in which slot
        self.changing = False
        self.done = 0

    async def pause(self) -> None:
        await steps(self.random.randrange(5))

    async def compute(self, slot: Slot) -> None:
        for _ in range(self.random.randrange(4)):
            assert not self.changing, "the engine is being changed"
            self.computing.add(slot)
            try:
                await self.pause()
            finally:
                self.computing.discard(slot)

    @contextlib.contextmanager
    def having(self, slot: Slot, owner: str, *, window: bool = True) -> contextlib.AbstractContextManager[None]:
        assert slot not in self.in_hands
        self.in_hands.add(slot)
        self.owners[owner] += window
        assert self.owners[owner] <= 1
        self.programs += not window
        try:
            yield
        finally:
            self.in_hands.remove(slot)
            self.owners[owner] -= window
            self.programs -= not window

    async def change(self, slot: Slot | None) -> None:
        async with self.slots.exclusive(slot):
            assert not self.computing
            self.changing = True
            try:
                await self.pause()
            finally:
                self.changing = False

    async def reply(self, owner: str, *, window: bool) -> None:
        await self.pause()
        async with self.slots.turn(owner, "a model") if window else contextlib.nullcontext():
            while not await self.answered(owner, window=window):
                pass  # it has given way to the window
        self.done += 1

    async def answered(self, owner: str, *, window: bool) -> bool:
        async with self.slots.acquire(owner, window=window) as slot:
            with self.having(slot, owner, window=window):
                if self.random.random() < 0.3:
                    await self.change(slot)
                for _ in range(0 if window else self.random.randrange(4)):
                    async with self.slots.program_step(slot) as may:
                        if not may:
                            await self.pause()
                            return False
                        await self.compute(slot)
                await self.compute(slot)
                if window:
                    slot.is_streaming = True
                    self.slots.notify_change()
                    await self.compute(slot)
                if self.random.random() < 0.2:  # it needs more room
                    await self.change(slot)
                    await self.compute(slot)
                slot.contents = SlotContents(1, owner, (1, 2, 3), exact=True)
                ended = asyncio.Event()
                with self.slots.settling(slot, ended.set):
                    for _ in range(self.random.randrange(20)):
                        if ended.is_set():
                            break
                        await self.compute(slot)
        return True

    async def spare(self, priority: Priority, owner: str) -> None:
        async def work(slot: Slot, wanted: Callable[[], bool]) -> None:
            with self.having(slot, owner):
                if priority is Priority.ENLARGE_CONTEXT:
                    await self.change(slot)
                while wanted() and self.random.random() < 0.8:
                    await self.compute(slot)

        await self.pause()
        concurrent = priority is Priority.PREPARE and self.random.random() < 0.5
        await self.slots.run_background(priority, owner, work, wait=self.random.random() < 0.5, concurrent=concurrent)

    async def impatient(self, owner: str) -> None:
        """Goes away again at any moment."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.random.random() / 200):
                while True:
                    await self.reply(owner, window=True)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("seed", range(25))
async def test_whatever_comes_when_every_reply_is_given(count: int, seed: int) -> None:
    slots = pool(count)
    crowd = Crowd(slots, seed)
    replies = [crowd.reply(f"chat {n}", window=True) for n in range(6)]
    replies += [crowd.reply("program", window=False) for _ in range(4)]
    spare = [crowd.spare(priority, f"chat {n % 3}") for n, priority in enumerate([*Priority][:5] * 2)]
    rest = [crowd.change(None), slots.wait_until_released(["chat 1", "chat 2"])]
    rest += [crowd.impatient(f"one who leaves {n}") for n in range(3)]
    async with asyncio.timeout(20):
        await asyncio.gather(*replies, *spare, *rest)
    assert crowd.done >= len(replies)
    assert slots.is_idle


async def test_nothing_new_is_begun_while_one_waits_for_all_slots() -> None:
    slots, order = pool(2), list[str]()

    async def turn(owner: str) -> None:
        async with slots.acquire(owner):
            order.append(owner)
            await steps(30)
            order.append(f"end of {owner}")

    async def stop() -> None:
        await steps()
        async with slots.exclusive():
            order.append("stopped")

    async def late() -> None:
        await steps(15)
        await turn("b")

    async with asyncio.timeout(5):
        await asyncio.gather(turn("a"), stop(), late())
    assert order == ["a", "end of a", "stopped", "b", "end of b"]


async def test_a_chat_gets_the_slot_that_holds_it_and_another_the_one_left_alone_longest() -> None:
    slots = pool(3)
    hold(slots, a=(1, 2), b=(3, 4))
    async with slots.acquire("b") as of_b, slots.acquire("c") as of_c, slots.acquire("a") as of_a:
        assert (of_a, of_b, of_c) == (slots.all[0], slots.all[1], slots.all[2])
    slots.all[2].contents = SlotContents(1, "c", (5,), exact=True)
    async with slots.acquire("a"):
        pass
    async with slots.acquire("d") as of_d:
        assert slots.slot_of("b") is of_d, "a was used since"


async def test_a_prompt_goes_where_most_of_it_is() -> None:
    slots = pool(3)
    shared, one, other = tuple(range(100)), tuple(range(200, 260)), tuple(range(300, 360))
    hold(slots, one=shared + one, other=shared + other)
    async with slots.acquire("program", (*shared, *other, 7), window=False) as slot:
        assert slot is slots.all[1]
    async with slots.acquire("program", (*range(900, 1000), 7), window=False) as slot:
        assert slot is slots.all[2], "an empty one, for nothing of it is in any"
    async with slots.acquire("new", (*shared[:40], 7)) as slot:
        assert slot is slots.all[2], "too little of it for what would be thrown away"
    slots = pool(2)  # where states cannot be cut only what is extended serves
    hold(slots, one=tuple(range(100)), other=tuple(range(60)))
    slots._can_cut = False
    async with slots.acquire("program", (*range(80), 7), window=False) as slot:
        assert slot is slots.all[1]


async def test_other_programs_wait_longer_for_settling_than_the_window() -> None:
    """What they would take away takes long to be read again."""
    slots, ended = pool(1), asyncio.Event()
    slots.restore_cost.speed.learn(100, 100_000.0, 0)

    async def settles() -> None:
        async with slots.acquire("a", window=False) as slot:
            hold(slots, a=tuple(range(100)))
            with slots.settling(slot, ended.set):
                await ended.wait()

    async def wants(window: bool) -> None:
        async with slots.acquire("b", window=window):
            pass

    task = asyncio.create_task(settles())
    await steps()
    program = asyncio.create_task(wants(False))
    await asyncio.sleep(0.05)
    assert not ended.is_set()
    async with asyncio.timeout(5):
        await asyncio.gather(task, program, wants(True))


async def test_what_goes_on_from_what_is_settling_waits_for_its_slot_though_another_is_empty() -> None:
    """It would have to be restored there, and the context would hold it twice."""
    slots, ended, prompt = pool(2), asyncio.Event(), tuple(range(100))
    async with asyncio.timeout(5):
        async with slots.acquire("program", prompt, window=False) as slot:
            with slots.settling(slot, ended.set):
                follows = asyncio.create_task(first_slot(slots, "program", (*prompt, 7)))
                other = await asyncio.create_task(first_slot(slots, "program", (*prompt[:40], 7)))
                await ended.wait()
                assert not follows.done()
        assert (await follows, other) == (slots.all[0], slots.all[1])


async def test_what_is_settling_is_not_lost_where_another_has_the_slot_before_its_next_request() -> None:
    slots, ended, order, prompt = pool(1), list[str](), list[str](), tuple(range(1000))
    over = asyncio.Event()

    def end(how: str) -> None:
        ended.append(how)
        over.set()

    async def program(name: str) -> None:
        async with slots.acquire(name, (*prompt, 7), window=False):
            order.append(name)

    async with asyncio.timeout(5):
        async with slots.acquire("one", prompt, window=False) as slot:
            hold(slots, one=prompt)
            with slots.settling(slot, partial(end, "for its next"), partial(end, "for another")):
                waiting = [asyncio.create_task(program(name)) for name in ("two", "one")]
                await over.wait()
        await asyncio.gather(*waiting)
    assert order == ["two", "one"]
    assert ended[0] == "for another"


async def test_programs_have_every_slot_where_nobody_is_at_the_window() -> None:
    slots = pool(2)
    async with asyncio.timeout(5), slots.acquire("one", window=False) as slot:
        async with slots.acquire("two", window=False):
            assert not slots.is_window_active
        with slots.settling(slot, lambda: None):
            assert await first_slot(slots, "two") is not slot


async def first_slot(slots: Slots, owner: str, prompt: Tokens = (1, 2, 3)) -> Slot:
    async with slots.acquire(owner, prompt, window=False) as slot:
        return slot


async def test_the_window_goes_first_and_has_a_slot_of_several() -> None:
    slots, order = pool(2), list[str]()
    go = asyncio.Event()
    async with slots.acquire("chat"):
        pass

    async def program(name: str) -> None:
        async with slots.acquire("program", window=False):
            order.append(name)
            await go.wait()

    waiting = [asyncio.create_task(program(name)) for name in ("one", "two")]
    await steps()
    assert order == ["one"], "the other slot is the window's"
    async with asyncio.timeout(5), slots.acquire("chat"):
        order.append("chat")
    go.set()
    await asyncio.gather(*waiting)
    assert order == ["one", "chat", "two"]


async def test_settling_goes_on_beside_another_chat_and_ends_where_its_slot_is_needed() -> None:
    slots, ended = pool(2), asyncio.Event()

    async def settles() -> None:
        async with slots.acquire("a") as slot:
            with slots.settling(slot, ended.set):
                await ended.wait()

    task = asyncio.create_task(settles())
    await steps()
    async with slots.acquire("b"):
        await asyncio.sleep(0.01)
        assert not ended.is_set()
        async with asyncio.timeout(5), slots.acquire("c"):
            assert ended.is_set()
    await task


async def test_a_restore_goes_on_beside_a_reply_and_reading_does_not() -> None:
    slots = pool(2)

    async def work(slot: Slot, wanted: Callable[[], bool]) -> bool:
        return wanted()

    async with slots.acquire("a"):
        assert await slots.run_background(Priority.PREPARE, "b", work, wait=False, concurrent=True) is True
        assert await slots.run_background(Priority.PREPARE, "b", work, wait=False) is None


async def test_fewer_slots_than_before_are_shared_by_those_that_wait() -> None:
    class Engine:
        can_cut, slots = True, (0,)

    slots, order = pool(2), list[tuple[str, int, int]]()

    async def turn(owner: str) -> None:
        async with slots.acquire(owner) as slot:
            await steps()
            async with slots.exclusive(slot):
                slots.match_engine(Engine(), slot)  # type: ignore[arg-type]
            order.append((owner, slot.number, len(slots.all)))
            await steps(20)
            order.append((owner, slot.number, len(slots.all)))

    async with asyncio.timeout(5):
        await asyncio.gather(turn("a"), turn("b"))
    assert order == [("a", 0, 1), ("a", 0, 1), ("b", 0, 1), ("b", 0, 1)]


async def test_turns_are_one_in_each_chat_first_come_first_served_unless_one_is_put_first() -> None:
    slots, order, told = pool(1), list[str](), list[str]()

    async def turn(owner: str, name: str) -> None:
        async with slots.turn(owner, "a model", told.append):
            order.append(name)
            await steps(20)

    async with asyncio.timeout(5):
        turns = [asyncio.create_task(turn(owner, f"{owner}{n}")) for n, owner in enumerate("abac")]
        await steps()
        assert (slots.blocking_chat("b"), slots.blocking_chat("a")) == ("a", None)
        slots.move_to_front("c")
        await asyncio.gather(*turns)
    assert order == ["a0", "c3", "b1", "a2"]
    assert told[:2] == ["a", "a"]


async def test_turns_with_another_model_wait_until_there_is_nobody_with_the_first() -> None:
    slots, order, go = pool(2), list[str](), asyncio.Event()

    async def turn(owner: str, model: str) -> None:
        async with slots.turn(owner, model):
            order.append(owner)
            await go.wait()

    turns = [asyncio.create_task(turn(*one)) for one in (("a", "small"), ("b", "large"), ("c", "small"))]
    await steps()
    assert order == ["a"], "c would have it wait for ever"
    go.set()
    async with asyncio.timeout(5):
        await asyncio.gather(*turns)
    assert order == ["a", "b", "c"]
