"""How much disk the store may take: pure decisions on values. All sizes in bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from kvchat.kvstore.savepoint import StoreRefused
from kvchat.words.wording import size as size_in_words

GB = 1_000_000_000
DEFAULT_QUOTA, DEFAULT_CHATS = 20 * GB, 10
_USUAL_DISK = 256 * GB
SET_ASIDE_FILES = 3  # how many bad files are kept for a look
SET_ASIDE_SHARE = 0.10  # and how much of the quota they may take


@dataclass(frozen=True)
class Kept:
    """Something on disk that can be deleted to make room."""

    id: str
    size: int
    used_at: datetime


def default_quota(disk_bytes: int, chat_bytes: int = 0, kept_bytes: int = 0) -> int:
    """The quota where the user chose none: room for ten chats of `chat_bytes`, at least 20 GB, as the disk allows.

    The disk's share is a tenth of one of 256 GB. It grows by a fortieth with each doubling, up to a quarter, and
    shrinks so to a twentieth: a small disk is wanted for other things, a large one has room. `chat_bytes` is a long
    chat's with the model in use. What is kept already is allowed as far as the disk's share goes: to change to a
    smaller model is no reason to throw away the memory of chats with a larger one.
    """
    share = 0.1 + 0.025 * math.log2(max(disk_bytes, 1) / _USUAL_DISK)
    wanted = max(DEFAULT_QUOTA, DEFAULT_CHATS * chat_bytes, kept_bytes)
    return min(wanted, round(min(0.25, max(0.05, share)) * disk_bytes))


def prune_plan(kept: Iterable[Kept], quota: int, protected: str | None = None) -> tuple[str, ...]:
    """What to delete, least recently used first, until the rest fits the quota. `protected` is never in it."""
    oldest_first = sorted(kept, key=lambda one: (one.used_at, one.id))
    excess = sum(one.size for one in oldest_first) - quota
    plan: list[str] = []
    for one in oldest_first:
        if excess <= 0:
            break
        if one.id != protected:
            plan.append(one.id)
            excess -= one.size
    return tuple(plan)


def set_aside_plan(kept: Iterable[Kept], quota: int) -> tuple[str, ...]:
    """Which files set aside to delete, oldest first, so that at most 3 and 10 % of the quota remain."""
    oldest_first = sorted(kept, key=lambda one: (one.used_at, one.id))
    too_many = oldest_first[: max(0, len(oldest_first) - SET_ASIDE_FILES)]
    rest = oldest_first[len(too_many) :]
    return tuple(one.id for one in too_many) + prune_plan(rest, int(quota * SET_ASIDE_SHARE))


def check_room(size: int, still_to_write: int, free: int, quota: int, floor: int) -> None:
    """Raise StoreRefused if a save point of `size` bytes never fits the quota or passes the floor of free disk space.

    `still_to_write` is how much of it `free` does not know of yet: all before the engine saves, nothing afterwards.
    """
    if size > quota:
        raise StoreRefused(
            "Not saved: larger than the limit on the disk.",
            f"The memory of this chat takes {size_in_words(size)}, the limit is {size_in_words(quota)}.",
            "Raise the limit in the settings, under Storage.",
        )
    if free - still_to_write < floor:
        raise StoreRefused(
            "Not saved: the disk is nearly full.",
            f"{size_in_words(free)} are free, and {size_in_words(floor)} must stay free.",
            "Make room on the disk, or lower the floor in the settings.",
        )
