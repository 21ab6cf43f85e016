"""The slot allocator: no slot is used twice, nobody waits forever, and nothing computes while the engine changes."""

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
from kvchat.session import slot as slot_module
from kvchat.session import slots as slots_module
from kvchat.session.slot import Priority, Slot, SlotContents
from kvchat.session.slots import Slots


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_module, "SETTLE_WAIT_S", 0.0)
    monkeypatch.setattr(slots_module, "STEP_INTERVAL_S", 0.0)


def make_slots(count: int, **contents: Tokens) -> Slots:
    """Make slots, the first of which hold these owners' tokens."""
    slots = Slots(cast(BlockStore, None))
    slots.all_slots = [Slot(number) for number in range(count)]
    fill(slots, **contents)
    return slots


def fill(slots: Slots, **contents: Tokens) -> None:
    for slot, (owner, tokens) in zip(slots.all_slots, contents.items(), strict=False):
        slot.mark_acquired(from_window=True)
        slot.contents = SlotContents(owner, tokens, is_exact=True)


async def run_loop(count: int = 10) -> None:
    """Let other tasks run for `count` rounds of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def use_slot(slots: Slots, owner: str, prompt: Tokens = (1, 2, 3), *, window: bool = False) -> Slot:
    async with slots.acquire(owner, prompt, from_window=window) as slot:
        return slot


class Load:
    """Random use of the slots by many owners, and the invariants meanwhile."""

    def __init__(self, slots: Slots, seed: int) -> None:
        self.slots, self.random = slots, random.Random(seed)
        self.owners: Counter[str] = Counter()
        self.in_use: set[Slot] = set()
        self.computing: set[Slot] = set()
        self.engine_changes = False
        self.replies = 0

    async def pause(self) -> None:
        await run_loop(self.random.randrange(5))

    async def compute(self, slot: Slot) -> None:
        for _ in range(self.random.randrange(4)):
            assert not self.engine_changes
            self.computing.add(slot)
            try:
                await self.pause()
            finally:
                self.computing.discard(slot)

    @contextlib.contextmanager
    def using(self, slot: Slot, owner: str, *, window: bool = True) -> contextlib.AbstractContextManager[None]:
        assert slot not in self.in_use
        self.in_use.add(slot)
        self.owners[owner] += window
        assert self.owners[owner] <= 1
        try:
            yield
        finally:
            self.in_use.remove(slot)
            self.owners[owner] -= window

    async def change_engine(self, slot: Slot | None) -> None:
        async with self.slots.exclusive(slot):
            assert not self.computing
            self.engine_changes = True
            try:
                await self.pause()
            finally:
                self.engine_changes = False

    async def reply(self, owner: str, *, window: bool) -> None:
        await self.pause()
        async with self.slots.turn(owner, "a model") if window else contextlib.nullcontext():
            while not await self.answer(owner, window=window):
                pass  # it has yielded to the window
        self.replies += 1

    async def answer(self, owner: str, *, window: bool) -> bool:
        async with self.slots.acquire(owner, from_window=window) as slot:
            with self.using(slot, owner, window=window):
                if self.random.random() < 0.3:
                    await self.change_engine(slot)
                for _ in range(0 if window else self.random.randrange(4)):
                    async with self.slots.program_step(slot) as may_continue:
                        if not may_continue:
                            await self.pause()
                            return False
                        await self.compute(slot)
                await self.compute(slot)
                if window:
                    slot.is_streaming = True
                    self.slots.notify_change()
                    await self.compute(slot)
                if self.random.random() < 0.2:  # it needs more room
                    await self.change_engine(slot)
                    await self.compute(slot)
                slot.contents = SlotContents(owner, (1, 2, 3), is_exact=True)
                stopped = asyncio.Event()
                with self.slots.settling(slot, stopped.set):
                    for _ in range(self.random.randrange(20)):
                        if stopped.is_set():
                            break
                        await self.compute(slot)
        return True

    async def background(self, priority: Priority, owner: str) -> None:
        async def work(slot: Slot, may_continue: Callable[[], bool]) -> None:
            with self.using(slot, owner):
                if priority is Priority.ENLARGE_CONTEXT:
                    await self.change_engine(slot)
                while may_continue() and self.random.random() < 0.8:
                    await self.compute(slot)

        await self.pause()
        concurrent = priority is Priority.PREPARE and self.random.random() < 0.5
        await self.slots.run_background(priority, owner, work, wait=self.random.random() < 0.5, concurrent=concurrent)

    async def cancelled_replies(self, owner: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.random.random() / 200):
                while True:
                    await self.reply(owner, window=True)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("seed", range(20))
async def test_every_reply_is_given_whatever_the_order(count: int, seed: int) -> None:
    slots = make_slots(count)
    load = Load(slots, seed)
    replies = [load.reply(f"chat {n}", window=True) for n in range(6)]
    replies += [load.reply("program", window=False) for _ in range(4)]
    others = [load.background(priority, f"chat {n % 3}") for n, priority in enumerate([*Priority][:5] * 2)]
    others += [load.change_engine(None), slots.wait_until_released(["chat 1", "chat 2"])]
    others += [load.cancelled_replies(f"cancelled {n}") for n in range(3)]
    async with asyncio.timeout(20):
        await asyncio.gather(*replies, *others)
    assert load.replies >= len(replies)
    assert slots.is_idle


async def test_a_chat_gets_its_own_slot_and_another_the_least_recently_used() -> None:
    slots = make_slots(3, a=(1, 2), b=(3, 4))
    async with slots.acquire("b") as b, slots.acquire("c") as c, slots.acquire("a") as a:
        assert [a, b, c] == slots.all_slots
    slots.all_slots[2].contents = SlotContents("c", (5,), is_exact=True)
    async with slots.acquire("a"):
        pass
    async with slots.acquire("d") as d:
        assert slots.slot_of("b") is d, "a was used since"


SHARED, ONE, OTHER = tuple(range(100)), tuple(range(200, 260)), tuple(range(300, 360))


@pytest.mark.parametrize(
    ("prompt", "window", "number"),
    [
        ((*SHARED, *OTHER, 7), False, 1),
        ((*range(900, 1000), 7), False, 2),  # nothing of it is in any: an empty one
        ((*SHARED[:40], 7), True, 2),  # too little of it for what would be discarded
    ],
)
async def test_a_prompt_gets_the_slot_with_most_of_it(prompt: Tokens, window: bool, number: int) -> None:
    slots = make_slots(3, one=SHARED + ONE, other=SHARED + OTHER)
    assert await use_slot(slots, "new", prompt, window=window) is slots.all_slots[number]


async def settle(slots: Slots, owner: str, stopped: asyncio.Event, *, window: bool = True) -> None:
    async with slots.acquire(owner, from_window=window) as slot:
        slot.contents = SlotContents(owner, tuple(range(100)), is_exact=True)
        with slots.settling(slot, stopped.set):
            await stopped.wait()


async def test_programs_wait_longer_for_settling_than_the_window() -> None:
    """The settling state would take long to process again."""
    slots, stopped = make_slots(1), asyncio.Event()
    slots.restore_cost.speed.learn(100, 100_000.0, 0)
    settling = asyncio.create_task(settle(slots, "a", stopped, window=False))
    await run_loop()
    program = asyncio.create_task(use_slot(slots, "b", ()))
    await asyncio.sleep(0.05)
    assert not stopped.is_set()
    async with asyncio.timeout(5):
        await asyncio.gather(settling, program, use_slot(slots, "b", (), window=True))


async def test_settling_continues_beside_another_chat_until_its_slot_is_needed() -> None:
    slots, stopped = make_slots(2), asyncio.Event()
    settling = asyncio.create_task(settle(slots, "a", stopped))
    await run_loop()
    async with slots.acquire("b"):
        await asyncio.sleep(0.01)
        assert not stopped.is_set()
        async with asyncio.timeout(5), slots.acquire("c"):
            assert stopped.is_set()
    await settling


async def test_a_request_that_extends_a_settling_state_waits_for_its_slot() -> None:
    """In an empty slot the state would have to be restored, and the context would hold it twice."""
    slots, stopped, prompt = make_slots(2), asyncio.Event(), tuple(range(100))
    async with asyncio.timeout(5):
        async with slots.acquire("program", prompt, from_window=False) as slot:
            with slots.settling(slot, stopped.set):
                following = asyncio.create_task(use_slot(slots, "program", (*prompt, 7)))
                other = await asyncio.create_task(use_slot(slots, "program", (*prompt[:40], 7)))
                await stopped.wait()
                assert not following.done()
        assert [await following, other] == slots.all_slots


async def test_settling_is_hurried_not_dropped_if_another_program_is_next() -> None:
    slots, stopped, prompt = make_slots(1), asyncio.Event(), tuple(range(1000))
    ends, order = list[str](), list[str]()

    def end(reason: str) -> None:
        ends.append(reason)
        stopped.set()

    async def program(name: str) -> None:
        await use_slot(slots, name, (*prompt, 7))
        order.append(name)

    async with asyncio.timeout(5):
        async with slots.acquire("one", prompt, from_window=False) as slot:
            fill(slots, one=prompt)
            with slots.settling(slot, partial(end, "superseded"), partial(end, "hurried")):
                waiting = [asyncio.create_task(program(name)) for name in ("two", "one")]
                await stopped.wait()
        await asyncio.gather(*waiting)
    assert (order, ends[0]) == (["two", "one"], "hurried")


async def test_programs_use_every_slot_if_the_window_is_not_used() -> None:
    slots = make_slots(2)
    async with asyncio.timeout(5), slots.acquire("one", from_window=False) as slot:
        async with slots.acquire("two", from_window=False):
            assert not slots.is_window_active
        with slots.settling(slot, lambda: None):
            assert await use_slot(slots, "two") is not slot


async def test_the_window_goes_first_and_keeps_one_of_several_slots() -> None:
    slots, order, release = make_slots(2), list[str](), asyncio.Event()
    await use_slot(slots, "chat", (), window=True)

    async def program(name: str) -> None:
        async with slots.acquire("program", from_window=False):
            order.append(name)
            await release.wait()

    waiting = [asyncio.create_task(program(name)) for name in ("one", "two")]
    await run_loop()
    assert order == ["one"], "the other slot is the window's"
    async with asyncio.timeout(5), slots.acquire("chat"):
        order.append("chat")
    release.set()
    await asyncio.gather(*waiting)
    assert order == ["one", "chat", "two"]


async def test_restoring_may_run_beside_a_reply_but_not_processing() -> None:
    slots = make_slots(2)

    async def work(slot: Slot, may_continue: Callable[[], bool]) -> bool:
        return may_continue()

    async with slots.acquire("a"):
        assert await slots.run_background(Priority.PREPARE, "b", work, wait=False, concurrent=True) is True
        assert await slots.run_background(Priority.PREPARE, "b", work, wait=False) is None


async def test_requests_wait_for_a_slot_if_an_engine_has_fewer() -> None:
    class Engine:
        can_cut, slots = True, (0,)

    slots, order = make_slots(2), list[tuple[str, int, int]]()

    async def turn(owner: str) -> None:
        async with slots.acquire(owner) as slot:
            await run_loop()
            async with slots.exclusive(slot):
                slots.match_engine(Engine(), slot)  # type: ignore[arg-type]
            for delay in (0, 20):
                await run_loop(delay)
                order.append((owner, slot.number, len(slots.all_slots)))

    async with asyncio.timeout(5):
        await asyncio.gather(turn("a"), turn("b"))
    assert order == [("a", 0, 1), ("a", 0, 1), ("b", 0, 1), ("b", 0, 1)]


async def test_turns_run_one_per_chat_in_order_unless_one_is_moved_to_the_front() -> None:
    slots, order, blocking = make_slots(1), list[str](), list[str]()

    async def turn(owner: str, name: str) -> None:
        async with slots.turn(owner, "a model", blocking.append):
            order.append(name)
            await run_loop(20)

    async with asyncio.timeout(5):
        turns = [asyncio.create_task(turn(owner, f"{owner}{n}")) for n, owner in enumerate("abac")]
        await run_loop()
        assert (slots.blocking_chat("b"), slots.blocking_chat("a")) == ("a", None)
        slots.move_to_front("c")
        await asyncio.gather(*turns)
    assert order == ["a0", "c3", "b1", "a2"]
    assert blocking[:2] == ["a", "a"]


async def test_turns_with_another_model_wait_and_are_not_overtaken() -> None:
    slots, order, release = make_slots(2), list[str](), asyncio.Event()

    async def turn(owner: str, model: str) -> None:
        async with slots.turn(owner, model):
            order.append(owner)
            await release.wait()

    models = {"a": "small", "b": "large", "c": "small"}
    turns = [asyncio.create_task(turn(owner, model)) for owner, model in models.items()]
    await run_loop()
    assert order == ["a"], "c would make b wait forever"
    release.set()
    async with asyncio.timeout(5):
        await asyncio.gather(*turns)
    assert order == ["a", "b", "c"]
