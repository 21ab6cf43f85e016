"""Self-test of restoring on a fresh engine with its own text, before the first turn.

It uses the same slot lease and block store code as every turn, on a store of its own, and leaves nothing behind:
not in the slot, the engine's slot folder or the user's store.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from kvchat.engine.api.errors import EngineError, EngineRefused
from kvchat.engine.api.wire import ChatMessage
from kvchat.kvstore import disk
from kvchat.kvstore.savepoint import Bounds, NotSaved, StoreRefused, Tokens
from kvchat.kvstore.store import BlockStore
from kvchat.session.events import SaveSkipped, SessionEvent
from kvchat.session.host import ReadyEngine
from kvchat.session.lease import Lease, reason_for_save_failure
from kvchat.session.proof import PROVED_SHARE
from kvchat.session.restore_support import RestoreFinding, Strategy
from kvchat.session.slots import Slots
from kvchat.text.reasons import Reason, ReasonCode

TEST_TOKENS = 96  # test tokens; restoring fewer than 32 is never worth it
WINDOW_MARGIN = 64  # tokens beyond the sliding window needed for a valid test
FOLLOWING_TOKENS = 4  # tokens appended after a restore
MAX_PREFILL_MS = 5000.0  # processing limit; beyond it the first real restore is the test
LIMIT_S, ERASE_S = 60.0, 5.0
SLOT_FILE_COPIES = 4  # slot file sizes that must fit: two saves, their blocks, a restore

_NAME = "self-test"


async def self_test(host: ReadyEngine) -> RestoreFinding:
    """Test which strategy works with this engine, starting with the one its architecture promises.

    Takes about a second. If it takes too long, the promised strategy is returned as unproved. Raises EngineGone if
    the test kills the engine.
    """
    promised = host.finding.strategy
    try:
        async with asyncio.timeout(LIMIT_S), _trial(host) as trial:
            return await trial.run(promised)
    except TimeoutError:
        return RestoreFinding(promised, proved=False, reason=Reason(ReasonCode.TOO_SLOW_TO_TRY))
    except (EngineRefused, StoreRefused, OSError) as error:
        reason = Reason(ReasonCode.NOT_TRIED, {"reason": reason_for_save_failure(error)})
        return RestoreFinding(promised, proved=False, reason=reason)


@contextlib.asynccontextmanager
async def _trial(host: ReadyEngine) -> AsyncIterator[_Trial]:
    """Create a trial with a temporary store, which is deleted even if this process is killed."""
    folder = await asyncio.to_thread(
        tempfile.TemporaryDirectory, dir=host.slot_path, prefix=f"{disk.engine_file_name()}-"
    )
    try:
        bounds = Bounds(quota=1 << 62, free_floor=0)
        store = await asyncio.to_thread(BlockStore, Path(folder.name), bounds, sync=False)
        try:
            yield _Trial(host, store)
        finally:
            await asyncio.to_thread(store.close)
    finally:
        await asyncio.to_thread(folder.cleanup)
        with contextlib.suppress(EngineError, TimeoutError):  # a stopped engine has nothing in its slot
            await asyncio.wait_for(host.engine.erase_slot(), ERASE_S)


class _Trial:
    def __init__(self, host: ReadyEngine, store: BlockStore) -> None:
        self._host = host
        self._slots = Slots(store)
        self._skipped = Reason(ReasonCode.NOTHING_HELD)

    def _on_event(self, event: SessionEvent) -> None:
        if isinstance(event, SaveSkipped):
            self._skipped = event.reason

    async def run(self, promised_strategy: Strategy) -> RestoreFinding:
        """Try the promised strategy, then more cautious ones. For a sliding window, try a shorter chat first."""
        window = self._host.window
        length = max(TEST_TOKENS, window + WINDOW_MARGIN) if window else TEST_TOKENS
        needed = length + 2 * FOLLOWING_TOKENS
        # Text without repetition, assuming a typical vocabulary.
        lines = (f"Item {number} weighs {number * 37 % 991} grams." for number in range(needed // 6 + 8))
        text = (await self._host.engine.prompt_tokens([ChatMessage("user", "\n".join(lines))]))[:needed]
        strategy, reason, proved = promised_strategy, None, True
        has_window = promised_strategy is Strategy.COMPLETE and window >= TEST_TOKENS
        if has_window and (fault := await self._find_fault(promised_strategy, text, TEST_TOKENS)):
            strategy, reason = (Strategy.LONG if window < self._host.limit else Strategy.NONE), fault
        if strategy.supports_saving and (obstacle := await self._find_obstacle(text, length)):
            proved, reason = False, reason or Reason(ReasonCode.NOT_TRIED, {"reason": obstacle})
        while proved and strategy.supports_saving and (fault := await self._find_fault(strategy, text, length)):
            strategy, reason = strategy.more_careful, fault
        if promised_strategy is Strategy.COMPLETE and strategy in (Strategy.LONG, Strategy.NONE):
            reason = Reason(ReasonCode.NEEDS_SWA_FULL, {"reason": reason})
        return RestoreFinding(strategy, proved, reason)

    async def _find_obstacle(self, text: Tokens, length: int) -> Reason | None:
        needed = length + 2 * FOLLOWING_TOKENS
        if len(text) < needed or needed >= self._host.context_size:
            return Reason(ReasonCode.WINDOW_AS_CONTEXT)
        if length > TEST_TOKENS:
            timings = await self._host.engine.prefill(text[-TEST_TOKENS:])
            if length * timings.prompt_ms / TEST_TOKENS > MAX_PREFILL_MS:
                return Reason(ReasonCode.TAKES_LONG)
        return None

    async def _find_fault(self, strategy: Strategy, text: Tokens, length: int) -> Reason | None:
        host = replace(self._host, finding=RestoreFinding(strategy, proved=False))
        lease = Lease(self._slots, self._slots.all_slots[0], host, _NAME, self._on_event)
        end = length + FOLLOWING_TOKENS
        saved, following, other = text[:length], text[length:end], text[end:]
        await self._save(lease, saved)
        hot = await host.engine.prefill(saved + following)
        if hot.cache_n < PROVED_SHARE * length:
            raise NotSaved(Reason(ReasonCode.NEVER_REUSES))
        if fault := await self._load_fault(lease, saved + following, length):
            return fault
        if not strategy.can_cut:
            return None
        half, quarter = length // 2, length // 4
        if fault := await self._load_fault(lease, saved[:half] + other, half):
            return Reason(ReasonCode.NO_PARTS, {"reason": fault})
        # Then test the engine's own reuse of its slot.
        lease.slot.forget()
        again = await host.engine.prefill(saved[:quarter] + following)
        if again.cache_n < PROVED_SHARE * quarter:
            return Reason(ReasonCode.NO_WAY_BACK, {"used": again.cache_n, "tokens": quarter})
        return None

    async def _save(self, lease: Lease, tokens: Tokens) -> None:
        lease.slot.forget()
        await lease.settle(tokens)
        point = await lease.save(tokens)
        if point is None:
            raise NotSaved(self._skipped)
        if SLOT_FILE_COPIES * point.size > await asyncio.to_thread(disk.free_bytes, lease.engine.slot_path):
            raise NotSaved(Reason(ReasonCode.LITTLE_ROOM))
        await self._slots.absorb()

    async def _load_fault(self, lease: Lease, prompt: Tokens, length: int) -> Reason | None:
        """Load into an empty slot, as at the start of a turn; return the fault, if any."""
        engine = lease.engine.engine
        await engine.erase_slot()
        lease.slot.forget()
        loaded = await lease.load(prompt)
        if loaded.restore is None:
            return loaded.miss_reason or Reason(ReasonCode.NOTHING_LOADED)
        timings = await engine.prefill(prompt)
        if timings.cache_n < PROVED_SHARE * length:
            return Reason(ReasonCode.USED_LESS, {"accepted": length, "used": timings.cache_n})
        return None
