"""Does restoring work here: how far it goes with one engine, model and set of flags, and how that is known. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from kvchat.words.language import N_, _, sentences
from kvchat.words.reasons import Reason, ReasonCode

HOLLOW_LIMIT = 2  # so many hollow restores in a row, and a proved strategy is given up for a more careful one


class Strategy(Enum):
    """How states are saved and restored, the most useful first; what each can do is said in `Finding.words`."""

    PLAIN = "plain"  # a state can be cut back to any prefix
    FULL_WINDOW = "full window"  # a sliding window that --swa-full keeps whole: as SETTLE
    COMPLETE = "complete"  # a sliding window: as SETTLE, and the engine is given a row that it saved without
    LONG = "long"  # as COMPLETE, and only chats longer than the window can be restored
    SETTLE = "settle"  # only a prompt that extends exactly what was saved can use it
    NONE = "none"  # restoring does not work; nothing is saved

    @property
    def can_cut(self) -> bool:
        """Whether a state can be cut back to any prefix."""
        return self is Strategy.PLAIN  # after a restore --swa-full reaches back no further than the window (b11434)

    @property
    def saves(self) -> bool:
        """Whether saving is of any use."""
        return self is not Strategy.NONE

    @property
    def more_careful(self) -> Strategy:
        """The next one that asks less of the engine."""
        return _MORE_CAREFUL.get(self, Strategy.NONE)


_MORE_CAREFUL = {
    Strategy.PLAIN: Strategy.SETTLE,
    Strategy.FULL_WINDOW: Strategy.COMPLETE,
    Strategy.COMPLETE: Strategy.LONG,
}


@dataclass(frozen=True)
class Finding:
    """What is known of restoring with one engine build, model and set of flags."""

    strategy: Strategy
    proved: bool  # by the self-test or a restore since; else assumed from the model's architecture
    reason: Reason | None = None  # why it is not what the architecture promises, or not proved
    hollow: int = 0  # hollow restores since the last one that held

    @property
    def words(self) -> str:
        """What it means for the user, in sentences."""
        if not self.strategy.saves:
            words = _("Chats cannot be remembered here: they are read again, and nothing is kept of them.")
        elif self.proved:
            words = _("Chats are remembered here: {how}.", how=_(_REACH[self.strategy]))
        else:
            words = _("Chats should be remembered here, as the first will show: {how}.", how=_(_REACH[self.strategy]))
        return sentences(words, self.reason.in_a_sentence if self.reason else "")

    def after_restore(self, *, hollow: bool) -> Finding:
        """What is known after one more restore in a real turn."""
        if not hollow:
            return replace(self, proved=True, hollow=0)
        reason = Reason(ReasonCode.UNUSED)
        if self.proved:
            if self.hollow + 1 < HOLLOW_LIMIT:
                return replace(self, hollow=self.hollow + 1)
            reason = Reason(ReasonCode.UNUSED_AGAIN, {"count": HOLLOW_LIMIT})
        return Finding(self.strategy.more_careful, proved=False, reason=reason)


_REACH = {
    Strategy.PLAIN: N_("any part of one can be used again"),
    Strategy.FULL_WINDOW: N_("each as it was after any of its replies (--swa-full is on)"),
    Strategy.COMPLETE: N_("each as it was after any of its replies"),
    Strategy.LONG: N_("each as it was after any of its replies, once it is longer than the model’s sliding window"),
    Strategy.SETTLE: N_("each as it was after any of its replies"),
}
