"""Sizes, times and counts for people, and labels that several windows share."""

from collections.abc import Iterable
from datetime import date, datetime
from typing import NamedTuple

from kvchat.text.language import N_, _, format_number, pgettext, plural

# Texts here are translated by `_`.
MEMORY_OF_CHATS = N_("Chat memory")  # saved state that avoids reprocessing chats
STORAGE = N_("Storage")
ALWAYS_KEEP, NEVER_KEEP = N_("Always keep chat memory"), N_("Never keep chat memory")
VERIFY_MEMORY = N_("Verify imported memory")
TIME_SAVED = N_("Time saved")  # page with the total
NUMBERS = N_("Speed and token counts")
SAMPLING = N_("Sampling")
# Where a reply's starting state came from, best first.
STILL_LOADED, REMEMBERED, REPROCESSED = N_("still loaded"), N_("remembered"), N_("reprocessed")
READ_AHEAD = N_("processed ahead")  # before Send, while the user read or typed
FIRST_REPLY, READ = N_("first reply"), N_("processed")  # first processing: nothing, or almost nothing, was saved

_MONTHS = (
    *(N_("January"), N_("February"), N_("March"), N_("April"), N_("May"), N_("June"), N_("July")),
    *(N_("August"), N_("September"), N_("October"), N_("November"), N_("December")),
)
_SHORT_MONTHS = (
    *(N_("Jan"), N_("Feb"), N_("Mar"), N_("Apr"), N_("May"), N_("Jun")),
    *(N_("Jul"), N_("Aug"), N_("Sep"), N_("Oct"), N_("Nov"), N_("Dec")),
)
SAME_NIGHT_H = 6  # hours; after midnight the evening before is not yet "yesterday"


def format_size(count: float) -> str:
    """Format bytes in decimal units, as a file manager does: "136 MB", "3.1 GB"."""
    return _in_unit(count, _unit(count))


def format_size_of(count: int, whole: int) -> str:
    """Format a part of a whole, such as "3.1 of 20 GB".

    Both have the unit of the whole, unless the part would round to 0.
    """
    few, all_ = _unit(count), _unit(whole)
    part = _figure(count, few) if few == all_ else _in_unit(count, few)
    return _("{part} of {whole}", part=part, whole=_in_unit(whole, all_))


_SCALES = {"GB": 1e9, "MB": 1e6, "KB": 1e3}
_SIZE_FORMATS = {"GB": N_("{figure} GB"), "MB": N_("{figure} MB"), "KB": N_("{figure} KB"), "": N_("{figure} bytes")}


def _unit(count: float) -> str:
    """Return the unit to display. Values that round to 1000 get the next unit: 999,960,000 bytes are 1 GB."""
    return next((unit for unit, scale in _SCALES.items() if count / scale >= 0.9995), "")


def _figure(count: float, unit: str) -> str:
    value = count / _SCALES[unit] if unit else count
    whole = not unit or (value >= 10 and unit != "GB") or f"{value:.1f}".endswith(".0")
    return format_number(value, 0 if whole else 1, grouped=False)


def _in_unit(count: float, unit: str) -> str:
    return _(_SIZE_FORMATS[unit], figure=_figure(count, unit))


def format_duration(ms: float) -> str:
    """Return e.g. "21 ms", "0.31 s", "34.6 s", "2 min 5 s"."""
    if ms < 100:
        return _("{ms} ms", ms=format_number(ms))
    if ms < 100_000:
        return _("{seconds} s", seconds=format_number(ms / 1000, 2 if ms < 10_000 else 1))
    minutes, seconds = divmod(round(ms / 1000), 60)
    return _("{minutes} min {seconds} s", minutes=minutes, seconds=seconds)


def format_brief_duration(ms: float) -> str:
    """Format a short time: "0.3 s", "35 s", "2 min"."""
    if ms < 95:
        return _("under {seconds} s", seconds=format_number(0.1, 1))
    seconds = ms / 1000
    return _("{seconds} s", seconds=format_number(seconds, 1)) if ms < 9_950 else format_rough_duration(seconds)


def format_rough_duration(seconds: float) -> str:
    """Return e.g. "8 s", "5 min", "1 h 20 min"."""
    if seconds < 59.5:
        return _("{seconds} s", seconds=max(1, round(seconds)))
    hours, minutes = divmod(round(seconds / 60), 60)
    text = N_("{hours} h {minutes} min") if hours and minutes else N_("{hours} h") if hours else N_("{minutes} min")
    return _(text, hours=hours, minutes=minutes)


class TimeRange(NamedTuple):
    """Estimated time range in seconds; both ends are equal if the estimate is precise."""

    minimum: float
    maximum: float


def sum_times(times: Iterable[TimeRange | None]) -> TimeRange | None:
    """Return the sum of the times; None if any is unknown, or there are none."""
    ranges = list(times)
    known = [time for time in ranges if time]
    return TimeRange(*map(sum, zip(*known, strict=True))) if known and len(known) == len(ranges) else None


def format_estimate(time: float | TimeRange) -> str:
    """Format an estimate given in seconds: "about 36 s", "about 2 h", "1 to 3 min"."""
    least, most = time if isinstance(time, TimeRange) else (time, time)
    if most < 1:
        return _("less than a second")
    unit = 1 if most < 90 else 60 if most < 90 * 60 else 3600
    first, last = max(1, round(least / unit)), round(most / unit)
    if first >= last:
        text = {1: N_("about {seconds} s"), 60: N_("about {minutes} min"), 3600: N_("about {hours} h")}[unit]
        return _(text, seconds=format_number(last), minutes=format_number(last), hours=format_number(last))
    text = {1: N_("{least} to {most} s"), 60: N_("{least} to {most} min"), 3600: N_("{least} to {most} h")}[unit]
    return _(text, least=format_number(first), most=format_number(last))


def format_age(moment: datetime, now: datetime) -> str:
    days, minutes = (now.date() - moment.date()).days, int((now - moment).total_seconds() // 60)
    if days == 0 or minutes < 60 * SAME_NIGHT_H:
        if minutes < 1:
            return _("just now")
        if minutes < 60:
            return _("{minutes} min ago", minutes=minutes)
        return _("{hours} h ago", hours=minutes // 60)
    if days == 1:
        return _("yesterday")
    return plural(days, "{count} day ago", "{count} days ago") if days < 14 else format_date(moment)


def format_day(when: date | float) -> str:
    """Format a date: "22 November". A number is a time in seconds since 1970, whose local date is used."""
    day = when if isinstance(when, date) else datetime.fromtimestamp(when)
    return _("{day} {month}", day=day.day, month=_(_MONTHS[day.month - 1]))


def format_short_day(day: date) -> str:
    """Format a date in short form: "22 Nov"."""
    text = pgettext("month in few letters", "{day} {month}")
    return text.format(day=day.day, month=_(_SHORT_MONTHS[day.month - 1]))


def format_date(day: date) -> str:
    text = pgettext("month in few letters", "{day} {month} {year}")
    return text.format(day=f"{day.day:02}", month=_(_SHORT_MONTHS[day.month - 1]), year=day.year)


def format_datetime(at: datetime) -> str:
    local = at.astimezone()
    text = _("{day} {month} {year}, {time}")
    return text.format(day=local.day, month=_(_MONTHS[local.month - 1]), year=local.year, time=f"{local:%H:%M}")


def format_percent(share: float) -> str:
    return _("{number}%", number=f"{100 * share:.0f}")


def format_rate(rate: float) -> str:
    """Return e.g. "4.3 tokens/s", "41 tokens/s", "2,140 tokens/s"."""
    return _("{rate} tokens/s", rate=format_number(rate, 0 if rate >= 10 else 1))


def format_timestamp(at: datetime) -> str:
    """Format a local time to the minute, so that texts sort by time: "2026-11-22 14:05"."""
    return f"{at.astimezone():%Y-%m-%d %H:%M}"


def format_tokens(count: int) -> str:
    """Format a token count in short: "812", "5.9K", "32K" (32,768), "131K"."""
    if count < 1000:
        return str(count)
    thousands = count / 1024 if count % 1024 == 0 else count / 1000
    whole = count % 1024 == 0 or count >= 100_000 or f"{thousands:.1f}".endswith(".0")
    return _("{count}K", count=round(thousands) if whole else format_number(thousands, 1))


def one_line(text: str) -> str:
    return " ".join(text.split())
