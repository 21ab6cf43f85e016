"""What the window says of shares and dates. Pure functions; sizes and times are kvchat.wording's."""

from __future__ import annotations

from datetime import datetime

from kvchat.wording import size


def size_of(count: int, whole: int) -> str:
    """As in "3.1 of 20 GB": both in the unit of the second, unless the first would vanish in it."""
    few, all_ = size(count), size(whole)
    same_unit = few.split()[-1] == all_.split()[-1]
    return f"{few.split()[0] if same_unit else few} of {all_}"


def since(moment: datetime, now: datetime) -> str:
    """How long ago, in the coarse words a person would use."""
    days = (now.date() - moment.date()).days
    if days == 0:
        minutes = int((now - moment).total_seconds() // 60)
        if minutes < 1:
            return "just now"
        return f"{minutes} min ago" if minutes < 60 else f"{minutes // 60} h ago"
    if days == 1:
        return "yesterday"
    return f"{days} days ago" if days < 14 else moment.strftime("%d %b %Y")
