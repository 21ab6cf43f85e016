"""What the disk panel's list shows of one conversation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from kvchat.kvstore.savepoint import ConversationUsage, PrunedConversation
from kvchat.ui.storage.usage_words import loss_of, split_of, use_of
from kvchat.words.wording import size


@dataclass(frozen=True)
class UsageRow:
    """One conversation in the list."""

    title: str
    usage: ConversationUsage
    loss: PrunedConversation | None  # what the prune in preview takes from it
    largest: int  # bytes of the largest conversation: a full bar
    seconds_saved: float = 0.0  # as its replies say

    @property
    def details(self) -> str:
        """The words below the bar."""
        return loss_of(self.loss) if self.loss else use_of(self.usage, datetime.now(UTC), self.seconds_saved)

    @property
    def spoken(self) -> str:
        """The row for who does not see it."""
        marks = [
            words for flag, words in ((self.usage.pinned, "always kept"), (self.usage.never_save, "never kept")) if flag
        ]
        return ", ".join([self.title, size(self.usage.bytes), split_of(self.usage), *marks, self.details])
