"""Order and selection of the chats in the sidebar."""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import Enum
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from kvchat.words.language import N_, _

if TYPE_CHECKING:
    from kvchat.chat.record.messages import Conversation


class Order(Enum):
    """Order of the chats; those kept on top come first."""

    USED = N_("Last used first")
    CREATED = N_("Newest first")
    NAME = N_("By name")


@dataclass(frozen=True)
class Arrangement:
    """A view of the chats: all that are not archived, one folder's, or the archive."""

    order: Order = Order.USED
    folder: str | None = None
    archive: bool = False

    @property
    def words(self) -> str:
        return _("Archive") if self.archive else self.folder or _("All chats")


def as_text(arrangement: Arrangement) -> str:
    return json.dumps({**asdict(arrangement), "order": arrangement.order.name})


def from_text(text: str) -> Arrangement:
    """Return the stored arrangement; the default if it cannot be read."""
    try:
        kept = json.loads(text)
        folder = kept["folder"]
        return Arrangement(Order[kept["order"]], None if folder is None else str(folder), bool(kept["archive"]))
    except (ValueError, LookupError, TypeError):
        return Arrangement()


_KEYS: dict[Order, Callable[[Conversation], Any]] = {
    Order.USED: lambda chat: 0,  # they come in that order, which no clock decides
    Order.CREATED: lambda chat: -chat.created_at.timestamp(),
    Order.NAME: lambda chat: chat.title.casefold(),
}


def arranged(chats: Sequence[Conversation], by: Arrangement) -> list[Conversation]:
    """Return the chats shown, in order. chats: the last used first"""
    shown = [c for c in chats if c.archived == by.archive and by.folder in (None, c.folder)]
    return sorted(sorted(shown, key=_KEYS[by.order]), key=lambda chat: not chat.on_top)


@dataclass(frozen=True)
class Heading:
    """Heading above chats: when they were used, or made."""

    id: str  # no chat's
    title: str


_AGES = (  # days back to which each goes, and what is said of it
    (0, N_("Today")),
    (1, N_("Yesterday")),
    (7, N_("Last 7 days")),
    (30, N_("Last 30 days")),
)
_EARLIER, _ON_TOP = N_("Earlier"), N_("Kept on top")


def with_headings(
    chats: Sequence[Conversation], order: Order, now: datetime | None = None
) -> Sequence[Conversation | Heading]:
    """Return the chats in their order, below headings that say when; without headings where ordered by name."""
    if order is Order.NAME:
        return chats
    now = now or datetime.now().astimezone()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    top = bisect(chats, False, key=lambda chat: not chat.on_top)
    ages = [-at for at in _times(chats[top:], order, now.timestamp())]
    ends, words = [top], [_ON_TOP]
    for days, said in _AGES:
        last = -(midnight - timedelta(days=days)).timestamp()
        ends.append(top + bisect(ages, last))
        words.append(said)
    rows: list[Conversation | Heading] = []
    for said, begin, end in zip([*words, _EARLIER], [0, *ends], [*ends, len(chats)], strict=True):
        if begin < end:
            rows += [Heading(f"# {said}", _(said)), *chats[begin:end]]
    return rows


def _times(chats: Sequence[Conversation], order: Order, now: float) -> list[float]:
    """Return when each chat was used, or made, in seconds since 1970: never later than the chat above it, or `now`.

    A clock may have been wrong. A time before that of a chat further down, or in the future, gives way to its
    neighbor's.
    """
    times = [(chat.updated_at if order is Order.USED else chat.created_at).timestamp() for chat in chats]
    latest = 0.0
    for place in reversed(range(len(times))):
        if times[place] <= now:
            times[place] = latest = max(latest, times[place])
    return list(accumulate(times, min, initial=now))[1:]


def folders_of(chats: Sequence[Conversation]) -> list[str]:
    return sorted({chat.folder for chat in chats if chat.folder}, key=str.casefold)
