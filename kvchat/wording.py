"""Sizes, times and counts in words: one place decides how kvchat says a number, and how a text stands on one line."""

from __future__ import annotations

from datetime import datetime


def size(count: float) -> str:
    """Bytes in decimal units, as a file manager shows them: "136 MB", "3.1 GB"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        value = count / scale
        if value >= 0.9995:  # 999,960,000 rounds to 1 GB, not to 1000 MB
            return f"{value:.0f} {unit}" if value >= 10 and unit != "GB" else f"{value:.1f} {unit}".replace(".0 ", " ")
    return f"{count:.0f} bytes"


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


def rough_duration(seconds: float) -> str:
    """A time that nobody wants to know exactly, in words: "8 s", "5 min", "1 h 20 min"."""
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return " ".join(part for part in (f"{hours} h" if hours else "", f"{minutes} min" if minutes else "") if part)


def day(when: float) -> str:
    """The day of a moment in seconds since 1970, where this computer is: "22 November"."""
    local = datetime.fromtimestamp(when)
    return f"{local.day} {local:%B}"


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
