"""Looks after a ready engine: does it still answer, also after the computer slept, and can it still compute?"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from kvchat.engine.running import failure
from kvchat.engine.running.log import EngineLog
from kvchat.engine.speaking.client import LlamaServerClient
from kvchat.engine.speaking.errors import EngineError, EngineFailure, EngineGone, EngineSilent
from kvchat.words.language import _


@dataclass(frozen=True)
class WatchPolicy:
    """How closely an engine is watched. Times in seconds; patient, because a busy computer is no fault."""

    every_s: float = 10.0
    answer_s: float = 20.0  # how long one answer to /health may take
    misses: int = 4  # so many in a row, and it hangs
    asleep_s: float = 30.0  # the clock on the wall went so much further than ours: the computer slept
    stuck_s: float = 300.0  # twice as long without the end of a batch, or of a save, hangs: some grammars never end
    silence_s: float = 600.0  # a reply without a sign for so long hangs; a prefill tells of each batch
    worried_every_s: float = 2.0  # words were coming and stopped: it is asked at once, and hangs within a minute
    worried_answer_s: float = 12.0


class Watch:
    """Over one process, from its being ready to its end."""

    def __init__(self, policy: WatchPolicy, log: EngineLog, wall: Callable[[], float] = time.time) -> None:
        """`wall` is the clock that goes on while the computer sleeps."""
        self._policy = policy
        self._log = log
        self._wall = wall
        self._reported: EngineFailure | None = None
        self._worried = False
        self._news = asyncio.Event()

    def report(self, error: EngineError) -> None:
        """A request went wrong; what only a new process can heal ends the watch."""
        reason = failure.ailing(error)
        if reason is not None and self._reported is None:
            self._reported = reason
            self._news.set()

    def worry(self) -> None:
        """Words were coming, and for some time none has: ask the engine now rather than in its turn."""
        if not self._worried:
            self._worried = True
            self._news.set()

    async def until_ailing(self, client: LlamaServerClient) -> EngineFailure:
        """Wait until the process is of no more use; the reason. Cancel it when the process ended by itself."""
        stuck = asyncio.create_task(self._until_stuck(client), name="engine-loop-watch")
        stuck.add_done_callback(lambda _: self._news.set())
        try:
            return await self._until_reported_or_silent(client, stuck)
        finally:
            stuck.cancel()
            await asyncio.wait({stuck})

    async def _until_stuck(self, client: LlamaServerClient) -> None:
        """Wait until the engine's loop has taken no question for so long that none of its batches can be the reason."""
        misses = 0
        while misses < 2:  # a single one may be the computer's falling asleep
            asked_at = time.monotonic()
            try:
                await client.wait_for_loop(self._policy.stuck_s)
                misses, client.life.seen_at = 0, asked_at
            except EngineSilent:
                misses += 1
                continue
            except EngineError:  # it answers, or the watch will see that it does not
                misses, client.life.seen_at = 0, None
            await asyncio.sleep(self._policy.every_s)

    async def _until_reported_or_silent(self, client: LlamaServerClient, stuck: asyncio.Task[None]) -> EngineFailure:
        misses = 0
        while misses < self._policy.misses:
            before, pause = self._wall(), self._policy.worried_every_s if self._worried else self._policy.every_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._news.wait()
            self._news.clear()
            if self._reported is not None:
                return self._reported
            if stuck.done():
                break
            if self._wall() - before - pause > self._policy.asleep_s:
                self._log.note(_("kvchat: the computer slept; asking the engine whether it still answers"))
                misses = 0  # what it missed before was its falling asleep
            misses = 0 if await self._answers(client) else misses + 1
            self._worried = self._worried and misses > 0
        return failure.hangs()

    async def _answers(self, client: LlamaServerClient) -> bool:
        try:
            await client.health(self._policy.worried_answer_s if self._worried else self._policy.answer_s)
        except EngineGone:
            return False
        except EngineError:
            return True  # whatever it says, it answers
        return True
