"""Dates and times in a text: where they stand, and whether one of them tells the time it is now."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,?\s+)?"
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:\s?[AP]M)?(?:\s?Z|\s?[+-]\d{2}:?\d{2})?"
_DATE = (
    rf"\d{{4}}-\d{{1,2}}-\d{{1,2}}|\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{4}}|\d{{4}}/\d{{1,2}}/\d{{1,2}}|\d{{4}}年\d{{1,2}}月\d{{1,2}}日"
    rf"|{_DAY}{_MONTH}\s+\d{{1,2}}(?:st|nd|rd|th)?,?\s+\d{{4}}|{_DAY}\d{{1,2}}(?:st|nd|rd|th)?\s+{_MONTH},?\s+\d{{4}}"
)
CLOCK = re.compile(rf"(?<![\w.])(?:(?:{_DATE})(?:(?:T|,?\s+(?:at\s+)?){_TIME})?|{_TIME})(?!\w)", re.IGNORECASE)
_BEFORE = 200  # characters of a line before a clock that may say what it tells
_MOST = 100  # clocks of a text
_TELLS = re.compile(r"date|time|today|now|day|clock|日期|时间|今天", re.IGNORECASE)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def masked(text: str) -> str:
    """The text without what its clocks say: equal for two that differ in nothing else."""
    return CLOCK.sub("⏲", text)


def telling_now(text: str, now: datetime) -> list[re.Match[str]]:
    """The dates and times that tell when the text was written, which was `now` give or take a day for the zones.

    A deadline, or a time in an example, is not among them: the line must say that it tells the date or the time, and
    a date must be today's.
    """
    days = [now + timedelta(days=shift) for shift in (-1, 0, 1)]
    found: list[re.Match[str]] = []
    for match in CLOCK.finditer(text):
        if len(found) >= _MOST:
            break
        near = text[max(0, match.start() - _BEFORE) : match.start()]
        line, above = near[near.rfind("\n") + 1 :], near[-80:]
        if not _TELLS.search(line or above):
            continue
        if has_date(match.group()):
            if any(_is_day(match.group(), day) for day in days):
                found.append(match)
        elif _says_time(line) or (found and match.start() - len(line) <= found[-1].end()):
            found.append(match)
    return found


def has_date(clock: str) -> bool:
    """Whether it tells more than a time of the day."""
    return re.search(r"\d{4}", clock) is not None and not re.fullmatch(_TIME, clock, re.IGNORECASE)


def _says_time(line: str) -> bool:
    return re.search(r"(current|local|now|it is).{0,24}$|^\W*time\W*$", line, re.IGNORECASE) is not None


def _is_day(clock: str, day: datetime) -> bool:
    numbers = [int(number) for number in re.findall(r"\d+", clock)]
    month = _MONTHS[day.month - 1] in clock.lower() or day.month in numbers
    return day.year in numbers and day.day in numbers and month
