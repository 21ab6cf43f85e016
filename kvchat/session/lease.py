"""What one owner does in a slot: load the best state, prove it, settle at the turn boundary, save."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from kvchat.engine.speaking.vision import FIRST_ID
from kvchat.engine.speaking.wire import ChatMessage, PromptProgress, Timings
from kvchat.kvstore.savepoint import Miss, RestorePlan, Tokens, common_prefix
from kvchat.session.events import Restored, RestoreFailed
from kvchat.session.proof import Loaded, Verdict, judged
from kvchat.session.slot import SlotContents
from kvchat.session.slot_files import SlotFiles

NEXT = -1  # stands for the first token of whatever comes after a boundary
# Two next messages that differ from their very first character: what both prompts share ends before either begins.
BOUNDARY_PROBES = ("A", "7")

NEEDS_PROJECTOR = "what is kept of it goes on with pictures, and the model was loaded without its sight"
NOT_WORTH_IT = "reading it again takes no longer than loading it"
NO_RESTORING = "chats cannot be remembered with this engine and model"


class Lease(SlotFiles):
    """A slot in an owner's hands, on one engine process; as long as the slot's lock is held."""

    async def load(self, prompt: Tokens) -> Loaded:
        """Make the slot hold the state that leaves the least of `prompt` to prefill.

        Never raises for a bad save point: that is set aside and the prompt is simply prefilled. Raises EngineGone if
        the engine dies over it.
        """
        rates, slot = self.slots.rates, self.slot
        rates.measure(self.engine.fingerprint.model)
        contents = slot.known(self.engine)
        held = contents.serves(prompt, self.engine.can_cut) if contents else 0
        unproved = contents.unproved if contents and held else None
        if contents and contents.exact and contents.owner == self.owner and held == len(contents.tokens):
            return Loaded(held, unproved, miss_reason=None)  # its own turn boundary: nothing can leave less
        plan = await self._plan(prompt, held)
        if isinstance(plan, Miss):
            return Loaded(held, unproved, miss_reason=None if held else plan.reason)
        outcome = await self.restore(plan)
        if isinstance(outcome, Miss):
            self._tell(RestoreFailed(outcome.reason))
            return Loaded(0, None, miss_reason=outcome.reason)
        rates.learn_restore(outcome.bytes, outcome.ms)
        tokens = plan.save_point.tokens[: outcome.n_tokens]
        slot.contents = SlotContents(self.engine.generation, self.owner, tokens, exact=True, unproved=outcome)
        self._tell(Restored(outcome.bytes, outcome.n_tokens, outcome.ms))
        return Loaded(plan.tokens_used, outcome, miss_reason=None)

    async def load_boundary(self, boundary: Tokens) -> Loaded:
        """As `load`, for whatever comes after a turn boundary.

        A state that cannot be cut serves only prompts that are longer: the boundary alone would find an older one.
        """
        return await self.load((*boundary, NEXT))

    async def prove(self, loaded: Loaded, cached: int, prompt: int) -> Verdict:
        """Judge a load by the request that followed: `cached` of its `prompt` tokens came from the engine's cache.

        A hollow restore is set aside.
        """
        self.slot.proved()
        verdict = judged(loaded, cached, prompt)
        if verdict.hollow and loaded.restore and verdict.miss_reason:
            await self.set_aside(loaded.restore.save_point, verdict.miss_reason)
            self._tell(RestoreFailed(verdict.miss_reason, hollow=True))
        return verdict

    def note(self, tokens: Tokens, *, exact: bool = False, loaded: Loaded | None = None) -> None:
        """The slot now holds at least these tokens; `loaded` if nothing has proved yet that it does."""
        unproved = loaded.restore if loaded else None
        self.slot.contents = SlotContents(self.engine.generation, self.owner, tokens, exact, unproved)

    async def boundary(self, history: Sequence[ChatMessage]) -> Tokens:
        """The turn boundary after `history`: the tokens every possible next user message will begin with."""
        first, second = [
            await self.engine.engine.prompt_tokens([*history, ChatMessage("user", probe)]) for probe in BOUNDARY_PROBES
        ]
        return first[: common_prefix(first, second)]

    async def settle(
        self, boundary: Tokens, progress: Callable[[PromptProgress], None] = lambda progress: None
    ) -> Timings:
        """Make the slot hold exactly these tokens, a turn boundary or just before; what that took.

        May be cancelled at any point.
        """
        held = self.slot.known(self.engine)
        if held and held.exact and held.tokens == boundary:
            return Timings(cache_n=len(boundary), prompt_n=0, prompt_ms=0.0, predicted_n=0, predicted_ms=0.0)
        if held:  # cancelled from here on, this much is still there
            self.note(boundary[: common_prefix(held.tokens, boundary)])
        timings = await self.engine.engine.prefill(boundary, progress)
        self.note(boundary, exact=True)
        return timings

    async def can_return(self, boundary: Tokens) -> bool:
        """Whether the slot can be brought back to a boundary, without reading, after something else was said there."""
        if self.engine.can_cut:
            return True
        plan = await self._found((*boundary, NEXT))
        return not isinstance(plan, Miss) and plan.tokens_used == len(boundary)

    async def _plan(self, prompt: Tokens, held: int) -> RestorePlan | Miss:
        """What to restore in place of a slot that serves `held` tokens, or why nothing."""
        if not self.engine.saves:
            return Miss(NO_RESTORING)
        plan = await self._found(prompt)
        if isinstance(plan, Miss):
            return plan
        if not self.slots.rates.tries(plan.tokens_used - held, plan.bytes):
            return Miss(NOT_WORTH_IT)
        if not self.engine.sees and min(plan.save_point.tokens) <= FIRST_ID:  # the engine would refuse a good state
            return Miss(NEEDS_PROJECTOR)
        return plan

    async def _found(self, prompt: Tokens) -> RestorePlan | Miss:
        engine, owner = self.engine, self.owner
        return await asyncio.to_thread(
            self._store.find, engine.fingerprint, prompt, can_cut=engine.can_cut, conversation_id=owner
        )
