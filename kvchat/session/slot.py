"""One engine slot: its known contents, and the plan for loading a prompt into it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

from kvchat.engine.speaking.pictures import FIRST_PICTURE_ID
from kvchat.kvstore.audience import readable_by
from kvchat.kvstore.savepoint import Miss, RestorePlan, SavePoint, Tokens, common_prefix
from kvchat.kvstore.store import BlockStore
from kvchat.session.host import ReadyEngine
from kvchat.session.proof import NOTHING_AHEAD, NOTHING_LOADED, Loaded, ReadAhead, RestoreRecord
from kvchat.session.restore_cost import LEAST_GAIN
from kvchat.words.reasons import Reason, ReasonCode

TAIL = 16  # last tokens of a prompt: they start the reply; if processing is slow, the request reads them
_USES = itertools.count(1)


@dataclass(frozen=True)
class SlotContents:
    """Known contents of a slot: at least `tokens`; exactly those if `exact`."""

    generation: int
    owner: str
    tokens: Tokens
    exact: bool
    unproved: RestoreRecord | None = None
    ahead: ReadAhead = NOTHING_AHEAD  # of those tokens

    def serves(self, prompt: Tokens, can_cut: bool) -> int:
        """Count the prompt's tokens it can serve: the shared prefix or, if it cannot be cut, all or nothing.

        If the tail is unknown (`exact` false), only the engine can tell; assume the prompt extends it.
        """
        shared = common_prefix(self.tokens, prompt)
        return shared if can_cut or shared == len(self.tokens) else 0


class Slot:
    """One of the engine's sequences. Its owner holds it from restore to save: two owners never mix."""

    def __init__(self, number: int = 0) -> None:
        self.number = number  # index among kvchat's slots, from 0
        self.used_at = 0  # goes up at every slot use
        self.window = True  # the current or last owner is the window
        self.talks = False  # a reply is streaming
        self.leaving = False  # its program is about to release it
        self.claim = 0  # tokens its current owner may need; 0: no request in progress
        self.at_most = 0  # tokens the engine may hold beyond those known
        self.generation = 0  # of the engine process described here
        self.contents: SlotContents | None = None  # None: unknown
        self.audience: str | None = None  # of rows the engine may hold in it; None: it has none
        self.save_point = ""  # last save point saved from it or restored into it
        self.suspect: SavePoint | None = None  # restored into it; no request has finished since

    def taken(self, *, window: bool) -> None:
        self.used_at, self.window, self.talks = next(_USES), window, False

    def left(self) -> None:
        if self.claim:
            self.at_most = max(self.at_most, self.claim) if self.contents is None or not self.contents.exact else 0
        self.claim, self.talks, self.leaving = 0, False, False

    def of_process(self, generation: int) -> None:
        """Note which engine process the slot belongs to; a new one starts empty."""
        if generation != self.generation:
            self.generation, self.at_most, self.contents = generation, 0, None
            self.audience = self.suspect = None

    def held(self, generation: int) -> int:
        """Return the most tokens that engine process may hold in it."""
        if generation != self.generation:
            return 0
        return max(self.at_most, len(self.contents.tokens) if self.contents else 0)

    def holds(self, generation: int | None = None) -> str | None:
        contents = self.contents
        if contents is None or (generation is not None and contents.generation != generation):
            return None
        return contents.owner

    def serves(self, prompt: Tokens, can_cut: bool) -> int:
        return self.contents.serves(prompt, can_cut) if self.contents else 0

    def known(self, engine: ReadyEngine) -> SlotContents | None:
        if self.holds(engine.generation) is None:
            self.forget()
        return self.contents

    def readable(self, engine: ReadyEngine, owner: str) -> SlotContents | None:
        contents = self.known(engine)
        return contents if contents and self.is_readable_by(owner) else None

    def is_readable_by(self, owner: str) -> bool:
        return self.audience is None or self.audience in readable_by(owner)

    def proved(self) -> None:
        self.suspect = None
        if self.contents:
            self.contents = replace(self.contents, unproved=None)

    def hold(self, contents: SlotContents) -> None:
        self.contents = contents
        if contents.exact:
            self.at_most = 0

    def emptied(self) -> None:
        self.contents, self.at_most, self.suspect = None, 0, None

    def forget(self) -> None:
        if self.contents:
            self.at_most = max(self.at_most, len(self.contents.tokens))
        self.contents = None


@dataclass(frozen=True)
class Plan:
    as_it_is: Loaded  # without a restore; holds the miss reason if the slot has no prompt tokens
    restore: RestorePlan | None = None  # used if it leaves fewer tokens to process

    @property
    def had(self) -> int:
        return self.restore.tokens_used if self.restore else self.as_it_is.expected_cached


async def plan(
    store: BlockStore,
    engine: ReadyEngine,
    owner: str,
    contents: SlotContents | None,
    prompt: Tokens,
    worth: Callable[[int, int], bool],
) -> Plan:
    """Plan how to leave the least of the prompt to read, given the slot contents.

    `worth`: whether gaining tokens justifies restoring bytes (see RestoreCost).
    """
    as_it_is = unchanged(engine, contents, prompt)
    held = as_it_is.expected_cached
    if contents and contents.exact and contents.owner == owner and held == len(contents.tokens):
        return Plan(as_it_is)  # at or past its own turn boundary: nothing leaves less
    if held and held > len(prompt) - LEAST_GAIN:  # no restore can pay off: skip the search
        return Plan(as_it_is)
    if not engine.saves:
        miss = Reason(ReasonCode.NO_RESTORING)
    elif not engine.remembers(len(prompt)):
        miss = Reason(ReasonCode.TOO_SHORT)
    else:
        best = await found(store, engine, owner, prompt)
        if isinstance(best, Miss):
            miss = best.reason
        elif not worth(best.tokens_used - held, best.bytes):
            miss = Reason(ReasonCode.NOT_WORTH_IT)
        elif (
            not engine.vision and min(best.save_point.tokens) <= FIRST_PICTURE_ID
        ):  # engine without projector rejects it
            miss = Reason(ReasonCode.NEEDS_PROJECTOR)
        else:
            return Plan(as_it_is, best)
    return Plan(as_it_is if held else replace(as_it_is, miss_reason=miss))


def unchanged(engine: ReadyEngine, contents: SlotContents | None, prompt: Tokens) -> Loaded:
    """Return how these contents serve a prompt if nothing is loaded."""
    held = contents.serves(prompt, engine.can_cut) if contents else 0
    if not contents or not held:
        return NOTHING_LOADED
    return Loaded(held, contents.unproved, None, contents.ahead.within(len(contents.tokens), held))


async def found(store: BlockStore, engine: ReadyEngine, owner: str, prompt: Tokens) -> RestorePlan | Miss:
    """Return the save point with the most of a prompt, or why there is none."""
    return await asyncio.to_thread(
        store.restoring.find, engine.fingerprint, prompt, can_cut=engine.can_cut, conversation_id=owner
    )
