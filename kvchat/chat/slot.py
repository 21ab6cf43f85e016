"""The slot and what is known to be in it: load the best state, prove it, settle at the turn boundary, save.

Every method but `holds` must be called with `SlotKeeper.lock` held: one lock over restore, request and save, so that
two conversations never mix.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from kvchat.chat.events import (
    EventBus,
    Restored,
    RestoreFailed,
)
from kvchat.chat.finishing import Finishing
from kvchat.chat.interruption import YieldingLock
from kvchat.chat.prompt import BOUNDARY_PROBES
from kvchat.chat.rates import Rates
from kvchat.chat.restorer import Restorer
from kvchat.chat.room import ReadyEngine
from kvchat.chat.saver import Saver
from kvchat.chat.slot_state import EARLY_TOKENS, Loaded, SlotContents, Verdict, judged
from kvchat.engine.speaking.vision import FIRST_ID
from kvchat.engine.speaking.wire import ChatMessage, PromptProgress, Timings
from kvchat.kvstore.savepoint import Miss, SavePoint, Tokens, common_prefix
from kvchat.kvstore.store import SavePointStore

NEXT = -1  # stands for the first token of whatever comes after a boundary

NEEDS_PROJECTOR = "what is kept of it goes on with pictures, and the model was loaded without its sight"
NOT_WORTH_IT = "reading it again takes no longer than loading it"
NO_RESTORING = "chats cannot be remembered with this engine and model"


class SlotKeeper:
    """Keeps the one slot's contents in line with the store."""

    def __init__(self, store: SavePointStore, events: EventBus) -> None:
        self.lock = YieldingLock()
        self._store = store
        self._events = events
        self._restorer = Restorer(store, events)
        self.finishing = Finishing()
        self._saver = Saver(store, events, self.finishing)
        self._contents: SlotContents | None = None
        self._rates = Rates()
        self._rated = ""  # the model they are about

    def holds(self, generation: int | None = None) -> str | None:
        """The conversation whose state is in the slot (of that engine process, if given)."""
        contents = self._contents
        if contents is None or (generation is not None and contents.generation != generation):
            return None
        return contents.conversation_id

    @property
    def rates(self) -> Rates:
        """What this machine was measured at; to be looked at, not changed."""
        return self._rates

    async def load(self, host: ReadyEngine, conversation_id: str, prompt: Tokens) -> Loaded:
        """Make the slot hold the state that leaves the least of `prompt` to prefill.

        Never raises for a bad save point: that is set aside and the prompt is simply prefilled. Raises EngineGone if
        the engine dies over it.
        """
        if host.fingerprint.model != self._rated:  # what was measured with another model says nothing of this one
            self._rated, self._rates.prefill_ms_per_token = host.fingerprint.model, None
        held = self._held(host, prompt)
        contents = self._contents
        unproved = contents.unproved if contents and held else None
        if contents and contents.exact and contents.conversation_id == conversation_id and held == len(contents.tokens):
            return Loaded(held, unproved, miss_reason=None)  # its own turn boundary: nothing can leave less
        if not host.saves:
            return Loaded(held, unproved, miss_reason=None if held else NO_RESTORING)
        plan = await asyncio.to_thread(
            self._store.find, host.fingerprint, prompt, can_cut=host.can_cut, conversation_id=conversation_id
        )
        if isinstance(plan, Miss):
            return Loaded(held, unproved, miss_reason=None if held else plan.reason)
        if not self._rates.tries(plan.tokens_used - held, plan.bytes):
            return Loaded(held, unproved, miss_reason=None if held else NOT_WORTH_IT)
        if not host.sees and min(plan.save_point.tokens) <= FIRST_ID:  # the engine would refuse a good state
            return Loaded(held, unproved, miss_reason=None if held else NEEDS_PROJECTOR)
        outcome = await self._restorer.restore(host, conversation_id, plan, self.forget)
        if isinstance(outcome, Miss):
            self._events.publish(RestoreFailed(conversation_id, outcome.reason))
            return Loaded(0, None, miss_reason=outcome.reason)
        self._rates.learn_restore(outcome.bytes, outcome.ms)
        tokens = plan.save_point.tokens[: outcome.n_tokens]
        self._saver.marked = plan.save_point.id
        host.engine.rows.mark(outcome.n_tokens)
        self._contents = SlotContents(host.generation, conversation_id, tokens, exact=True, unproved=outcome)
        self._events.publish(Restored(conversation_id, outcome.bytes, outcome.n_tokens, outcome.ms))
        return Loaded(plan.tokens_used, outcome, miss_reason=None)

    async def load_boundary(self, host: ReadyEngine, conversation_id: str, boundary: Tokens) -> Loaded:
        """As `load`, for whatever comes after a turn boundary.

        A state that cannot be cut serves only prompts that are longer: the boundary alone would find an older one.
        """
        return await self.load(host, conversation_id, (*boundary, NEXT))

    async def prove(self, conversation_id: str, loaded: Loaded, cached: int, prompt: int) -> Verdict:
        """Judge a load by the request that followed: `cached` of its `prompt` tokens came from the engine's cache.

        A hollow restore is set aside.
        """
        if self._contents:
            self._contents = replace(self._contents, unproved=None)
        verdict = judged(loaded, cached, prompt)
        if verdict.hollow and loaded.restore and verdict.miss_reason:
            await self._restorer.set_aside(loaded.restore.save_point, verdict.miss_reason)
            self._events.publish(RestoreFailed(conversation_id, verdict.miss_reason, hollow=True))
        return verdict

    def note(self, host: ReadyEngine, conversation_id: str, tokens: Tokens, *, exact: bool = False) -> None:
        """The slot now holds at least these tokens of this conversation."""
        self._contents = SlotContents(host.generation, conversation_id, tokens, exact)

    def note_request(self, host: ReadyEngine, conversation_id: str, prompt: Tokens, loaded: Loaded) -> None:
        """A request with this prompt is going out: the engine may cut the slot back to what both begin with."""
        known = prompt[: loaded.expected_cached]
        self._contents = SlotContents(host.generation, conversation_id, known, exact=False, unproved=loaded.restore)

    def forget(self) -> None:
        """Nothing is known of the slot any more."""
        self._contents = None

    async def boundary(self, host: ReadyEngine, history: Sequence[ChatMessage]) -> Tokens:
        """The turn boundary after `history`: the tokens every possible next user message will begin with."""
        first, second = [
            await host.engine.prompt_tokens([*history, ChatMessage("user", probe)]) for probe in BOUNDARY_PROBES
        ]
        return first[: common_prefix(first, second)]

    async def settle(
        self,
        host: ReadyEngine,
        conversation_id: str,
        boundary: Tokens,
        progress: Callable[[PromptProgress], None] = lambda progress: None,
    ) -> Timings:
        """Make the slot hold exactly these tokens, a turn boundary or just before; what that took.

        May be cancelled at any point.
        """
        contents = self._contents
        if contents and contents.exact and contents.tokens == boundary and contents.generation == host.generation:
            return Timings(cache_n=len(boundary), prompt_n=0, prompt_ms=0.0, predicted_n=0, predicted_ms=0.0)
        if contents:  # cancelled from here on, this much is still there
            self.note(host, conversation_id, boundary[: common_prefix(contents.tokens, boundary)])
        timings = await host.engine.prefill(boundary, progress)
        self.note(host, conversation_id, boundary, exact=True)
        return timings

    async def can_return(self, host: ReadyEngine, conversation_id: str, boundary: Tokens) -> bool:
        """Whether the slot can be brought back to a boundary, without reading, after something else was said there."""
        if host.can_cut:
            return True
        plan = await asyncio.to_thread(
            self._store.find, host.fingerprint, (*boundary, NEXT), can_cut=False, conversation_id=conversation_id
        )
        return not isinstance(plan, Miss) and plan.tokens_used == len(boundary)

    def early_boundary(self, host: ReadyEngine, boundary: Tokens) -> Tokens | None:
        """Where a sliding-window model has to be saved as well, just before the boundary; None for other models."""
        return boundary[:-EARLY_TOKENS] if host.slides and len(boundary) > EARLY_TOKENS else None

    async def save(
        self,
        host: ReadyEngine,
        conversation_id: str,
        boundary: Tokens,
        *,
        message_id: str | None = None,
        tell: bool = True,
    ) -> SavePoint | None:
        """Save the settled slot and hand the file to the store; None, and an event that says why, if it was not kept.

        `message_id`: the last message in it, with which it goes. `tell` false: nothing is said of one that was kept.
        Raises EngineGone if the engine dies while saving.
        """
        prefill_ms = self._rates.prefill_ms(len(boundary))
        return await self._saver.save(host, conversation_id, boundary, prefill_ms, message_id=message_id, tell=tell)

    def learn_prefill(self, tokens: int, ms: float) -> None:
        """A request read so many tokens in so long."""
        self._rates.learn_prefill(tokens, ms)

    def recall_prefill(self, ms_per_token: float | None) -> None:
        """What an earlier run measured with this model holds until this one has measured."""
        if self._rates.prefill_ms_per_token is None:
            self._rates.prefill_ms_per_token = ms_per_token

    async def absorb(self) -> None:
        """Let the store take apart what was saved. Not under the lock: the slot goes on meanwhile."""
        await self._saver.absorb()

    async def discard(self, conversation_id: str) -> None:
        """The conversation is gone: nothing of it stays in the store."""
        await asyncio.to_thread(self._store.delete_conversation, conversation_id)
        if self.holds() == conversation_id:
            self.forget()

    async def discard_messages(self, conversation_id: str, message_ids: Collection[str]) -> None:
        """These messages are gone: nothing of them stays in the store."""
        await asyncio.to_thread(self._store.delete_messages, conversation_id, message_ids)

    def _held(self, host: ReadyEngine, prompt: Tokens) -> int:
        """How many of the prompt's tokens the slot can serve as it is."""
        contents = self._contents
        if contents is None or contents.generation != host.generation:
            self._contents = None
            return 0
        return _usable(contents.tokens, prompt, host.can_cut, exact=contents.exact)


def _usable(state: Tokens, prompt: Tokens, can_cut: bool, *, exact: bool) -> int:
    """How many of the prompt's tokens a state can serve: all that are shared, or, where it cannot be cut, all or none.

    Of a slot whose tail is not known (`exact` false) only the engine can tell; it is taken to extend.
    """
    shared = common_prefix(state, prompt)
    if can_cut or shared == len(state):
        return shared
    return 0
