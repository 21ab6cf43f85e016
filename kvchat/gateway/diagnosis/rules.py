"""Rules that rewrite what breaks a program's prefix, each off until switched on.

A rule replaces a place in the body's text and reports both texts; every other byte stays as it came. Its state is
in memory only.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from kvchat.gateway.diagnosis.prompts import SYSTEM_ROLES
from kvchat.text.language import N_

_SPACE = re.compile(r"[ \t\n\r]*")
_decode = json.JSONDecoder().raw_decode


@dataclass(frozen=True)
class JsonSpan:
    text: str
    start: int
    end: int

    @property
    def value(self) -> Any:
        return _decode(self.text, self.start)[0]

    @property
    def source(self) -> str:
        return self.text[self.start : self.end]

    def members(self) -> dict[str, JsonSpan]:
        """Return an object's values, the last one for a repeated name; empty for other types."""
        found: dict[str, JsonSpan] = {}
        if self.text[self.start] != "{":
            return found
        at = _skip(self.text, self.start + 1)
        while self.text[at] == '"':
            name, end = _decode(self.text, at)
            at = _skip(self.text, _skip(self.text, end) + 1)
            _, end = _decode(self.text, at)
            found[name] = JsonSpan(self.text, at, end)
            at = self._next(end)
        return found

    def items(self) -> list[JsonSpan]:
        found: list[JsonSpan] = []
        if self.text[self.start] != "[":
            return found
        at = _skip(self.text, self.start + 1)
        while self.text[at] != "]":
            _, end = _decode(self.text, at)
            found.append(JsonSpan(self.text, at, end))
            at = self._next(end)
        return found

    def _next(self, end: int) -> int:
        at = _skip(self.text, end)
        return _skip(self.text, at + 1) if self.text[at] == "," else at


Edit = tuple[int, int, str]  # start, end, new text


def located(text: str) -> JsonSpan:
    start = _skip(text, 0)
    return JsonSpan(text, start, _decode(text, start)[1])


def edited(text: str, edits: Iterable[Edit]) -> str:
    pieces, at = list[str](), 0
    for start, end, new in sorted(edits):
        pieces += [text[at:start], new]
        at = end
    return "".join([*pieces, text[at:]])


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,?\s+)?"
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:\s?[AP]M)?(?:\s?Z|\s?[+-]\d{2}:?\d{2})?"
_DATE = (
    rf"\d{{4}}-\d{{1,2}}-\d{{1,2}}|\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{4}}|\d{{4}}/\d{{1,2}}/\d{{1,2}}|\d{{4}}年\d{{1,2}}月\d{{1,2}}日"
    rf"|{_DAY}{_MONTH}\s+\d{{1,2}}(?:st|nd|rd|th)?,?\s+\d{{4}}|{_DAY}\d{{1,2}}(?:st|nd|rd|th)?\s+{_MONTH},?\s+\d{{4}}"
)
CLOCK = re.compile(rf"(?<![\w.])(?:(?:{_DATE})(?:(?:T|,?\s+(?:at\s+)?){_TIME})?|{_TIME})(?!\w)", re.IGNORECASE)
_BEFORE = 200  # characters before a clock searched for its label
_MOST = 100  # clocks per text
_TELLS = re.compile(r"date|time|today|now|day|clock|日期|时间|今天", re.IGNORECASE)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def masked(text: str) -> str:
    return CLOCK.sub("⏲", text)


def telling_now(text: str, now: datetime) -> list[re.Match[str]]:
    """Find statements of the current date or time: `now`, plus or minus a day for time zones.

    Skips deadlines and examples: the line must label the value as the current date or time, and a date must be
    today's.
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
            clock, numbers = match.group().lower(), {int(number) for number in re.findall(r"\d+", match.group())}
            if any(
                {day.year, day.day} <= numbers and (day.month in numbers or _MONTHS[day.month - 1] in clock)
                for day in days
            ):
                found.append(match)
        else:
            says_time = re.search(r"(current|local|now|it is).{0,24}$|^\W*time\W*$", line, re.IGNORECASE)
            if says_time or (found and match.start() - len(line) <= found[-1].end()):
                found.append(match)
    return found


def has_date(clock: str) -> bool:
    return re.search(r"\d{4}", clock) is not None and not re.fullmatch(_TIME, clock, re.IGNORECASE)


BILLING_HEADER, HOLD_CLOCK = "billing-header", "hold-clock"
HELD_FOR = timedelta(hours=24)
_MOST_HELD = 200
_LOOKED_AT = 200_000  # characters of a request searched for clocks
_BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*\n?")


@dataclass(frozen=True)
class Rule:
    name: str  # as stored
    title: str
    words: str  # one sentence
    # Yields edits to a body. May raise anything if the body is not a valid request.
    changes: Callable[[JsonSpan, RuleState, datetime], Iterator[tuple[Edit, Change]]]


@dataclass(frozen=True)
class Change:
    rule: str
    where: str
    before: str
    after: str
    differs: bool  # from the previous request: without the rule the prompt would have diverged here
    needle: str = ""  # text at that place in the rendered prompt; empty: its start


@dataclass
class RuleState:
    clocks: OrderedDict[int, tuple[datetime, list[str]]] = field(default_factory=OrderedDict)  # by masked text
    told: OrderedDict[tuple[str, str], int] = field(default_factory=OrderedDict)  # hash of the original text

    def differs(self, rule: str, where: str, before: str) -> bool:
        """True if this text differs from the last one there; remembers it."""
        last = self.told.pop((rule, where), None)
        self.told[rule, where] = hash(before)
        _trim(self.told)
        return last is not None and last != hash(before)


def billing_header(body: JsonSpan, held: RuleState, now: datetime) -> Iterator[tuple[Edit, Change]]:
    """Remove the billing header, or its block if nothing else is in it."""
    system = body.members().get("system")
    if system is None:
        return
    blocks = system.items()
    for number, block in enumerate(blocks):
        text = block.members().get("text")
        if text is None or not (match := _BILLING.search(text.value)):
            continue
        change = _without_header(held, match.group())
        rest = _BILLING.sub("", text.value)
        if rest.strip() or len(blocks) == 1:
            yield (text.start, text.end, json.dumps(rest, ensure_ascii=False)), change
        elif number + 1 < len(blocks):
            yield (block.start, blocks[number + 1].start, ""), change
        else:
            yield (blocks[number - 1].end, block.end, ""), change
        return
    if system.source.startswith('"') and (match := _BILLING.search(system.value)):
        rest = json.dumps(_BILLING.sub("", system.value), ensure_ascii=False)
        yield (system.start, system.end, rest), _without_header(held, match.group())


def hold_clock(body: JsonSpan, held: RuleState, now: datetime) -> Iterator[tuple[Edit, Change]]:
    """Keep the first date and time in the system prompt and the first message for 24 hours."""
    left = _LOOKED_AT
    for where, place in _fixed_texts(body):
        whole = place.value
        text, rest = whole[:left], whole[left:]
        left -= len(text)
        clocks = telling_now(text, now)
        if not clocks:
            continue
        key, said = hash((where, masked(text))), [match.group() for match in clocks]
        since, first = held.clocks.get(key, (now, said))
        if now - since >= HELD_FOR or len(first) != len(said):
            since, first = now, said
        held.clocks[key] = since, first
        held.clocks.move_to_end(key)
        _trim(held.clocks)
        differs = held.differs(HOLD_CLOCK, str(key), repr(said))
        pairs = [(match, kept) for match, kept in zip(clocks, first, strict=True) if match.group() != kept]
        if not pairs:
            continue
        before, after = (_line(text, pairs[0][0], said) for said in (pairs[0][0].group(), pairs[0][1]))
        change = Change(HOLD_CLOCK, where, before, after, differs, after.strip())
        new = edited(text, [(*match.span(), kept) for match, kept in pairs]) + rest
        yield (place.start, place.end, json.dumps(new, ensure_ascii=False)), change


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
            billing_header,
        ),
        Rule(
            HOLD_CLOCK,
            N_("Freeze the date"),
            N_(
                "The model sees the date and time of the app’s first prompt for 24 hours, so its "
                "date can be up to a day old."
            ),
            hold_clock,
        ),
    )
}


def _without_header(held: RuleState, header: str) -> Change:
    differs = held.differs(BILLING_HEADER, "", header)
    return Change(BILLING_HEADER, N_("the system prompt"), header.strip(), "", differs)


def _fixed_texts(body: JsonSpan) -> Iterator[tuple[str, JsonSpan]]:
    members = body.members()
    for name in ("system", "instructions"):
        if name in members:
            yield from ((N_("the system prompt"), text) for text in _texts(members[name]))
    turns = members.get("messages", members.get("input"))
    for turn in turns.items() if turns else []:
        parts = turn.members()
        role = parts["role"].value if "role" in parts else ""
        if role in SYSTEM_ROLES and "content" in parts:
            yield from ((N_("the system prompt"), text) for text in _texts(parts["content"]))
        elif role == "user" and "content" in parts:
            yield from ((N_("the first message"), text) for text in _texts(parts["content"]))
            return


def _texts(content: JsonSpan) -> Iterator[JsonSpan]:
    if content.source.startswith('"'):
        yield content
    for block in content.items():
        text = block.members().get("text")
        if text is not None and text.source.startswith('"'):
            yield text


def _line(text: str, match: re.Match[str], said: str) -> str:
    start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
    rest = text[match.end() : len(text) if end < 0 else end]
    return f"{text[max(start, match.start() - 120) : match.start()]}{said}{rest[:120]}"


def _trim(held: OrderedDict[Any, Any]) -> None:
    while len(held) > _MOST_HELD:
        held.popitem(last=False)
