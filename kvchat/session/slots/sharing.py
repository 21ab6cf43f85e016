"""What the slots of one engine share: its context, and its time.

With `--kv-unified` a prompt may be as long as the whole context, whatever lies in the other slots. When it is full the
engine purges idle slots, the first of them first, whatever they are worth; where that is not enough, all requests that
run fail, and a restore is refused in the words of a bad file (all measured on b11434). So room is made before: what
nobody uses now is erased, what was left alone longest first; and where those that are answered leave too little, it is
waited for. What a reply may come to is reserved only in part (`ReadyEngine.reserve`): of two that both grow beyond
that one is asked again, alone (`Exchange.answer`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from kvchat.engine.speaking.errors import EngineError
from kvchat.session.host import ReadyEngine
from kvchat.session.slots.allocator import Allocator
from kvchat.session.slots.slot import Slot

MARGIN = 32  # tokens: what the engine keeps may be a little more than what is known
STEP_EVERY_S = 5.0  # so often a step of a program's prompt is read while a reply at the window is being written


class SharedContext:
    """Who has how much of it. Belongs to the event loop's thread."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._waiting: list[Slot] = []  # for room, those of the window first
        self._erasing: set[asyncio.Task[None]] = set()

    def crowded(self, slot: Slot) -> bool:
        """Whether a program is to leave this slot: somebody at the window waits for one, or for room that it takes."""
        waited_for = self._allocator.kept_from_the_window or any(other.window for other in self._waiting)
        return not slot.window and (slot.leaving or waited_for)

    async def room(self, slot: Slot, engine: ReadyEngine, tokens: int) -> None:
        """Once there is room for so many tokens in the slot, for its holder. Raises EngineGone and EngineRefused."""
        slot.claim = 0
        self._waiting.append(slot)
        self._waiting.sort(key=lambda one: not one.window)
        self._allocator.move()
        try:
            while self._waiting[0] is not slot or not self._fits(slot, engine, tokens):
                await self._allocator.moved()
            slot.claim = tokens  # from now on: whoever sits at the window may come before the rest is done
            self._make_room(slot, engine)
            if (
                self._erasing
            ):  # shared with other waiters, whom a cancelled one must not harm: `gather` would cancel them
                await asyncio.wait(self._erasing)
        finally:
            self._waiting.remove(slot)
            self._allocator.move()

    def grows(self, slot: Slot, engine: ReadyEngine, tokens: int) -> None:
        """The holder of the slot has come to so many tokens: what nobody uses goes, if it is in the way."""
        if tokens > slot.claim:
            slot.claim = tokens + MARGIN
            self._make_room(slot, engine)

    def _fits(self, slot: Slot, engine: ReadyEngine, tokens: int) -> bool:
        """Whether it does beside those that are answered. Alone it always does: the engine says what is too long."""
        claimed = sum(other.claim for other in self._others(slot))
        return not claimed or claimed + tokens + MARGIN <= engine.context_size

    def _make_room(self, slot: Slot, engine: ReadyEngine) -> None:
        """Begin to erase what nobody uses now and has to go, so that there is room for what the slot claims."""
        claimed = sum(other.claim for other in self._others(slot))
        idle = [other for other in self._others(slot) if not other.claim and other.held(engine.generation)]
        idle.sort(key=lambda other: -other.used_at)
        room = engine.context_size - claimed - slot.claim - MARGIN
        for other in idle:
            room -= other.held(engine.generation)
            if room < 0:
                other.emptied()
                task = asyncio.ensure_future(self._erase(other, engine))
                self._erasing.add(task)
                task.add_done_callback(self._erasing.discard)

    async def _erase(self, slot: Slot, engine: ReadyEngine) -> None:
        with contextlib.suppress(EngineError):  # whoever asks it next is told
            await engine.on_slot(slot.number).engine.erase_slot()

    def _others(self, slot: Slot) -> list[Slot]:
        return [other for other in self._allocator.all if other is not slot]


class Steps:
    """In which programs' prompts are read: one at a time, each program in its turn, and the window before all."""

    def __init__(self, allocator: Allocator, context: SharedContext) -> None:
        self._allocator, self._context = allocator, context
        self._turn = asyncio.Lock()  # first come, first served

    @contextlib.asynccontextmanager
    async def step(self, slot: Slot) -> AsyncIterator[bool]:
        """Around a step in a program's slot, once it is its turn: not while the window waits for a first word.

        False: not at all now, for the window needs the room that the slot takes: leave that, and begin again.
        """
        async with self._turn:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None) as patience:
                    while (waits := list(self._allocator.at_the_window())) and not self._context.crowded(slot):
                        if not all(waits):
                            patience.reschedule(None)
                        elif patience.when() is None:
                            patience.reschedule(asyncio.get_running_loop().time() + STEP_EVERY_S)
                        await self._allocator.moved()
            slot.leaving = self._context.crowded(slot)
            yield not slot.leaving
