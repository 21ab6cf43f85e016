"""How kvchat says things: what it does, in plain words, and sizes, times and counts. The one place for both.

What the words mean stands in ARCHITECTURE.md, Words.
"""

from __future__ import annotations

from datetime import datetime

MEMORY_OF_CHATS, STORAGE = "Memory of chats", "Storage"  # what is kept so that chats need not be read again; its place
CHATS_READY = "chats kept ready, up to"  # staged in the computer's memory; a size follows
ALWAYS_KEEP, NEVER_KEEP = "Always keep its memory", "Never keep its memory"
TIME_SAVED = "Time saved"  # the page that adds it up
NUMBERS = "Speed and token counts"
STYLE = "Creativity and style"
# Where what a reply went on from came from, the best first.
STILL_LOADED, REMEMBERED, READ_AGAIN = "still loaded", "remembered", "read again"
READ_AHEAD = "read ahead"  # before Send, while the user looked or wrote
FIRST_REPLY, READ = "first reply", "read"  # and not again: there was nothing to remember, or next to nothing of use


# What the field says, and what the window says instead. The field's terms stay in the details, on the command line and
# in `doctor`, where experts look for them.
IN_PLAIN_WORDS = {
    "KV cache": MEMORY_OF_CHATS,
    "save point": MEMORY_OF_CHATS,
    "slot": "the engine",
    "staging": CHATS_READY.partition(",")[0],
    "prefill": "reading",
    "restore": "loading",
    "TTFT": "first word after",
    "hot": STILL_LOADED,
    "warm": REMEMBERED,
    "cold": READ_AGAIN,
    "hollow restore": f"{READ_AGAIN}: what was loaded was not used",
    "pinned": ALWAYS_KEEP,
    "never saved": NEVER_KEEP,
    "quota": "limit",
    "prune": "shrink",
    "sampling": STYLE,
    "projector": "what a model sees with",
}


SAME_NIGHT_H = 6  # hours; after midnight the evening before is not yet "yesterday"


def size(count: float) -> str:
    """Bytes in decimal units, as a file manager shows them: "136 MB", "3.1 GB"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        value = count / scale
        if value >= 0.9995:  # 999,960,000 rounds to 1 GB, not to 1000 MB
            return f"{value:.0f} {unit}" if value >= 10 and unit != "GB" else f"{value:.1f} {unit}".replace(".0 ", " ")
    return f"{count:.0f} bytes"


def size_of(count: int, whole: int) -> str:
    """As in "3.1 of 20 GB": both in the unit of the second, unless the first would vanish in it."""
    few, all_ = size(count), size(whole)
    same_unit = few.split()[-1] == all_.split()[-1]
    return f"{few.split()[0] if same_unit else few} of {all_}"


def several(count: int, one: str, many: str = "") -> str:
    """A count of things: "1 chat", "1,204 chats". `many` where it is not `one` with an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def duration(ms: float) -> str:
    """A time in words: "21 ms", "0.31 s", "34.6 s", "2 min 5 s"."""
    if ms < 100:
        return f"{ms:.0f} ms"
    if ms < 10_000:
        return f"{ms / 1000:.2f} s"
    if ms < 100_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(round(ms / 1000), 60)
    return f"{minutes} min {seconds} s"


def brief(ms: float) -> str:
    """A time at a glance: "0.3 s", "35 s", "2 min"."""
    if ms < 95:
        return "under 0.1 s"
    return f"{ms / 1000:.1f} s" if ms < 9_950 else rough_duration(ms / 1000)


def rough_duration(seconds: float) -> str:
    """A time that nobody wants to know exactly, in words: "8 s", "5 min", "1 h 20 min"."""
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return " ".join(part for part in (f"{hours} h" if hours else "", f"{minutes} min" if minutes else "") if part)


def roughly(seconds: float) -> str:
    """An estimated time, marked as one and no finer than it is known: "about 36 s", "about 3 min", "about 2 h"."""
    if seconds < 1:
        return "less than a second"
    if seconds < 90:
        return f"about {seconds:.0f} s"
    if seconds < 90 * 60:
        return f"about {seconds / 60:.0f} min"
    return f"about {seconds / 3600:.0f} h"


def energy(watt_hours: float) -> str:
    """An estimated energy: "40 Wh", "1.3 kWh"."""
    return f"{watt_hours:.0f} Wh" if watt_hours < 999.5 else f"{watt_hours / 1000:.1f} kWh"


def since(moment: datetime, now: datetime) -> str:
    """How long ago, in the coarse words a person would use."""
    days, minutes = (now.date() - moment.date()).days, int((now - moment).total_seconds() // 60)
    if days == 0 or minutes < 60 * SAME_NIGHT_H:
        if minutes < 1:
            return "just now"
        return f"{minutes} min ago" if minutes < 60 else f"{minutes // 60} h ago"
    if days == 1:
        return "yesterday"
    return f"{days} days ago" if days < 14 else moment.strftime("%d %b %Y")


def day(when: float) -> str:
    """The day of a moment in seconds since 1970, where this computer is: "22 November"."""
    local = datetime.fromtimestamp(when)
    return f"{local.day} {local:%B}"


def moment_of(at: datetime) -> str:
    """A moment to the minute, where this computer is: "22 November 2026, 14:05"."""
    local = at.astimezone()
    return f"{local.day} {local:%B %Y, %H:%M}"


def per_second(rate: float) -> str:
    """How fast tokens come or are read: "4.3 tokens/s", "41 tokens/s", "2,140 tokens/s"."""
    return f"{rate:,.0f} tokens/s" if rate >= 10 else f"{rate:.1f} tokens/s"


def timestamp(at: datetime) -> str:
    """A moment to the minute, where this computer is, in figures that sort: "2026-11-22 14:05"."""
    return f"{at.astimezone():%Y-%m-%d %H:%M}"


def tokens_short(count: int) -> str:
    """A count of tokens for a narrow place: "812", "5.9K", "32K" (32,768), "131K"."""
    if count < 1000:
        return str(count)
    if count % 1024 == 0:
        return f"{count // 1024}K"
    return f"{count / 1000:.1f}K".replace(".0K", "K") if count < 100_000 else f"{count / 1000:.0f}K"


def one_line(text: str) -> str:
    """`text` without line breaks and runs of spaces."""
    return " ".join(text.split())
