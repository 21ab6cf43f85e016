"""Rules that rewrite changing text, so that a program's prompts keep their prefix. Each is off until enabled.

A rule replaces texts in the request's body and reports the old and new texts. Its state is in memory only.
"""

import copy
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from kvchat.gateway.diagnosis.prompts import SYSTEM_ROLES
from kvchat.text.language import N_

Body = dict[str, Any]
Path = tuple[str | int, ...]  # keys and indexes of a value in a body

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,?\s+)?"
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:\s?[AP]M)?(?:\s?Z|\s?[+-]\d{2}:?\d{2})?"
_DATE = (
    rf"\d{{4}}-\d{{1,2}}-\d{{1,2}}|\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{4}}|\d{{4}}/\d{{1,2}}/\d{{1,2}}|\d{{4}}年\d{{1,2}}月\d{{1,2}}日"
    rf"|{_DAY}{_MONTH}\s+\d{{1,2}}(?:st|nd|rd|th)?,?\s+\d{{4}}|{_DAY}\d{{1,2}}(?:st|nd|rd|th)?\s+{_MONTH},?\s+\d{{4}}"
)
TIMESTAMP = re.compile(rf"(?<![\w.])(?:(?:{_DATE})(?:(?:T|,?\s+(?:at\s+)?){_TIME})?|{_TIME})(?!\w)", re.IGNORECASE)
_LABEL = re.compile(r"date|time|today|now|day|clock|日期|时间|今天", re.IGNORECASE)
_LABEL_CHARS = 200  # characters before a timestamp searched for its label
_MAX_TIMESTAMPS = 100  # per text
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def mask_timestamps(text: str) -> str:
    return TIMESTAMP.sub("⏲", text)


def current_timestamps(text: str, now: datetime) -> list[re.Match[str]]:
    """Find the timestamps in `text` that state the current date or time.

    The text before a timestamp must label it as a date or time, and a date must be within a day of `now` (because of
    time zones). This excludes deadlines and examples.
    """
    days = [now + timedelta(days=shift) for shift in (-1, 0, 1)]
    current: list[re.Match[str]] = []
    for match in TIMESTAMP.finditer(text):
        if len(current) >= _MAX_TIMESTAMPS:
            break
        near = text[max(0, match.start() - _LABEL_CHARS) : match.start()]
        line, above = near[near.rfind("\n") + 1 :], near[-80:]
        if not _LABEL.search(line or above):
            continue
        if has_date(match.group()):
            stamp, numbers = match.group().lower(), {int(number) for number in re.findall(r"\d+", match.group())}
            if any(
                {day.year, day.day} <= numbers and (day.month in numbers or _MONTHS[day.month - 1] in stamp)
                for day in days
            ):
                current.append(match)
        else:
            is_labeled = re.search(r"(current|local|now|it is).{0,24}$|^\W*time\W*$", line, re.IGNORECASE)
            if is_labeled or (current and match.start() - len(line) <= current[-1].end()):
                current.append(match)
    return current


def has_date(timestamp: str) -> bool:
    return re.search(r"\d{4}", timestamp) is not None and not re.fullmatch(_TIME, timestamp, re.IGNORECASE)


BILLING_HEADER, HOLD_CLOCK = "billing-header", "hold-clock"
HOLD_TIME = timedelta(hours=24)
_MAX_REMEMBERED = 200  # texts per program
_MAX_SEARCHED = 200_000  # characters of a request searched for timestamps
_MAX_SHOWN = 500  # characters recorded of the old and new text
_BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*\n?")


@dataclass(frozen=True)
class PromptChange:
    rule: str
    location: str
    original: str
    rewritten: str
    would_diverge: bool  # from the previous request: without the rule the prompt would have diverged here
    anchor: str = ""  # text at that place in the rendered prompt; empty: its start


@dataclass
class RuleState:
    timestamps: OrderedDict[int, tuple[datetime, list[str]]] = field(default_factory=OrderedDict)  # by masked text
    texts: OrderedDict[tuple[str, str], int] = field(default_factory=OrderedDict)  # hash of the last original text

    def has_changed(self, rule: str, location: str, text: str) -> bool:
        """Store the text and return True if it differs from the previous one at `location`."""
        last = self.texts.pop((rule, location), None)
        self.texts[rule, location] = hash(text)
        _trim(self.texts)
        return last is not None and last != hash(text)


@dataclass(frozen=True)
class Rule:
    name: str  # as stored
    title: str
    description: str  # one sentence
    # Returns the body, copied where it changed. May raise anything if the body is not a valid request.
    apply: Callable[[Body, RuleState, datetime], tuple[Body, list[PromptChange]]]


def _remove_billing_header(body: Body, state: RuleState, now: datetime) -> tuple[Body, list[PromptChange]]:
    path: Path
    for where, path, text in _texts(N_("the system prompt"), ("system",), body.get("system")):
        match = _BILLING.search(text)
        if match is None:
            continue
        differs = state.has_changed(BILLING_HEADER, "", match.group())
        change = PromptChange(BILLING_HEADER, where, match.group().strip()[:_MAX_SHOWN], "", differs)
        value: Any = _BILLING.sub("", text)
        blocks = body["system"]
        if isinstance(blocks, list) and len(blocks) > 1 and not value.strip():
            path, value = (
                ("system",),
                [block for block in blocks if not (isinstance(block, dict) and block.get("text") == text)],
            )
        return _replaced(body, path, value), [change]
    return body, []


def _hold_clock(body: Body, state: RuleState, now: datetime) -> tuple[Body, list[PromptChange]]:
    """For 24 hours, replace dates and times in the system prompt and first message with those first sent."""
    left, changes = _MAX_SEARCHED, []
    for where, path, whole in list(_fixed_texts(body)):
        text = whole[:left]
        left -= len(text)
        matches = current_timestamps(text, now)
        if not matches:
            continue
        key, stamps = hash((where, mask_timestamps(text))), [match.group() for match in matches]
        since, first = state.timestamps.get(key, (now, stamps))
        if now - since >= HOLD_TIME or len(first) != len(stamps):
            since, first = now, stamps
        state.timestamps[key] = since, first
        state.timestamps.move_to_end(key)
        _trim(state.timestamps)
        differs = state.has_changed(HOLD_CLOCK, str(key), repr(stamps))
        pairs = [(match, old) for match, old in zip(matches, first, strict=True) if match.group() != old]
        if not pairs:
            continue
        match, old = pairs[0]
        before, after = (_line(text, match, stamp)[:_MAX_SHOWN] for stamp in (match.group(), old))
        changes.append(PromptChange(HOLD_CLOCK, where, before, after, differs, after.strip()))
        for match, old in reversed(pairs):
            whole = whole[: match.start()] + old + whole[match.end() :]
        body = _replaced(body, path, whole)
    return body, changes


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            BILLING_HEADER,
            N_("Remove the billing header"),
            N_(
                "Claude Code starts each request with a header that changes every time. This rule "
                "removes it from the prompt."
            ),
            _remove_billing_header,
        ),
        Rule(
            HOLD_CLOCK,
            N_("Freeze the date"),
            N_(
                "The model sees the date and time of the app’s first prompt for 24 hours, so its "
                "date can be up to a day old."
            ),
            _hold_clock,
        ),
    )
}


def _fixed_texts(body: Body) -> Iterator[tuple[str, Path, str]]:
    for name in ("system", "instructions"):
        yield from _texts(N_("the system prompt"), (name,), body.get(name))
    listed = "messages" if "messages" in body else "input"
    messages = body.get(listed)
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        role = message.get("role") if isinstance(message, dict) and "content" in message else None
        path = listed, number, "content"
        if role == "user":
            yield from _texts(N_("the first message"), path, message["content"])
            return
        if isinstance(role, str) and role in SYSTEM_ROLES:
            yield from _texts(N_("the system prompt"), path, message["content"])


def _texts(location: str, path: Path, content: Any) -> Iterator[tuple[str, Path, str]]:
    if isinstance(content, str):
        yield location, path, content
    for number, block in enumerate(content if isinstance(content, list) else ()):
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            yield location, (*path, number, "text"), block["text"]


def _replaced(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    copied = copy.copy(value)
    copied[path[0]] = _replaced(value[path[0]], path[1:], new)
    return copied


def _line(text: str, match: re.Match[str], timestamp: str) -> str:
    start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
    rest = text[match.end() : len(text) if end < 0 else end]
    return f"{text[max(start, match.start() - 120) : match.start()]}{timestamp}{rest[:120]}"


def _trim(remembered: OrderedDict[Any, Any]) -> None:
    while len(remembered) > _MAX_REMEMBERED:
        remembered.popitem(last=False)
