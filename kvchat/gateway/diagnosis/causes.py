"""Causes of divergence of two prompts, from the part of the body at that point and its text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvchat.gateway.diagnosis.prompts import NOTHING_KNOWN, Contents, Divergence, Message, Prompt
from kvchat.gateway.diagnosis.rules import BILLING_HEADER, CLOCK, HOLD_CLOCK, has_date, masked
from kvchat.text.reasons import Reason, ReasonCode
from kvchat.text.search import common_prefix_length

_AROUND = 160  # characters of context on either side
_SNIPPET = 80  # characters used to find a body part in the prompt
_LEAST_SNIPPET = 12  # fewer match anywhere
_MOST_NAMES, _LONGEST_NAME = 3, 60
_BILLING = "x-anthropic-billing-header"
_THINKS = re.compile(r"<think|</think|<\|channel\|?>\s*(?:analysis|thought)|\[THINK]|<reasoning>|<seed:think>|◁think▷")
_FOLDER = re.compile(r"working (?:directory|folder)|workspace|\bcwd\b|root folder|project (?:root|path)", re.IGNORECASE)
_PATH = re.compile(r"(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\<>\"'`]+)+[/\\]?")
_GIT = re.compile(r"git ?status|current branch|recent commits|main branch", re.IGNORECASE)
_CLEARED = re.compile(r"\[[^\]]{0,60}\b(?:cleared|removed|omitted|truncated|compacted)\b[^\]]{0,60}]", re.IGNORECASE)
_SUMMARY = re.compile(
    r"continued from a previous conversation|\bsummar(?:y|ise|ize)|compacted|condensed", re.IGNORECASE
)
_REMINDER = "<system-reminder>"
_KNOWN_MESSAGES = (
    (re.compile(r"summaries of some files present in my git repo", re.IGNORECASE), ReasonCode.REPOSITORY_MAP),
    (re.compile(r"added these files to the chat|read-?only files", re.IGNORECASE), ReasonCode.FILES_IN_CHAT),
    (re.compile(r"<environment_context>|<environment_details>|<env>"), ReasonCode.SURROUNDINGS),
)
RULE_BY_CAUSE = {  # rewriting rule by cause
    ReasonCode.BILLING_HEADER: BILLING_HEADER,
    ReasonCode.DATE_IN_SYSTEM: HOLD_CLOCK,
    ReasonCode.DATE_IN_FIRST: HOLD_CLOCK,
    ReasonCode.TIME_IN_SYSTEM: HOLD_CLOCK,
    ReasonCode.TIME_IN_FIRST: HOLD_CLOCK,
}
SYSTEM, TOOLS, FIRST, MESSAGE, TEMPLATE = "system", "tools", "first", "message", "template"


@dataclass(frozen=True)
class Place:
    kind: str
    number: int = 0  # message index from 0
    role: str = ""

    def cause(self, code: ReasonCode) -> Reason:
        return Reason(code, {"number": self.number + 1, "role": self.role[:_LONGEST_NAME]})


_TEMPLATE, _SYSTEM, _TOOLS = Place(TEMPLATE), Place(SYSTEM), Place(TOOLS)


def divergence(old: Prompt, new: Prompt) -> Divergence:
    at = common_prefix_length(old.text, new.text)
    place = _place(old.contents, new, at)
    before, after = old.text[max(0, at - _AROUND) : at + _AROUND], new.text[max(0, at - _AROUND) : at + _AROUND]
    cause = _of_the_line(_line(old.text, at), _line(new.text, at), place) or _of_the_part(old, new, at, place)
    return Divergence(old.shares(new), len(new), cause, before, after)


def _place(before: Contents, new: Prompt, at: int) -> Place:
    """Find the part of the body that contains this character of the rendered prompt."""
    now, text = new.contents, new.text
    if not text:
        return _first_difference(before, now, -1)
    begun = 0  # start of the message search
    for system in now.system:
        start = text.find(system.strip()[:_SNIPPET])
        if 0 <= start <= at <= start + len(system) and before.system != now.system:
            return _SYSTEM
        begun = max(begun, start + len(system)) if start <= at else begun
    number, known = 0, False  # candidate message; True once an earlier one was found
    for place, message in enumerate(now.messages):
        said = message.text.strip()
        found = text.find(said[:_SNIPPET], begun) if len(said) >= _LEAST_SNIPPET else -1
        if found > at:
            break
        if found >= 0:
            within = at <= found + len(message.text)
            begun, known, number = found + 1, True, place if within else place + 1
            if within:
                break
    return _first_difference(before, now, number if known else -1)


def _first_difference(before: Contents, now: Contents, number: int) -> Place:
    """Find the first difference in the bodies, from message `number` on; -1: before the first message."""
    if before == NOTHING_KNOWN:  # only the text of a stored state is known
        return _SYSTEM if number < 0 and not now.tools else _TOOLS if number < 0 else _message(now, number)
    if number < 0 and before.tools != now.tools:
        return _TOOLS
    if number <= 0 and before.system != now.system:
        return _SYSTEM
    for place in range(max(0, number), min(len(before.messages), len(now.messages))):
        if before.messages[place] != now.messages[place]:
            return _message(now, place)
    if before.tools != now.tools:
        return _TOOLS
    return _TEMPLATE


def _message(now: Contents, number: int) -> Place:
    if number >= len(now.messages):
        return _TEMPLATE
    return Place(MESSAGE if number else FIRST, number, now.messages[number].role)


def _of_the_line(before: str, after: str, place: Place) -> Reason | None:
    if _BILLING in before or _BILLING in after:
        return Reason(ReasonCode.BILLING_HEADER)
    if before == after:
        return None
    if masked(before) == masked(after):
        clocks = zip(CLOCK.findall(before), CLOCK.findall(after), strict=False)
        said = next((clock for clock, other in clocks if clock != other), "")
        what = "date" if has_date(said) else "time"
    elif _PATH.sub("/", before) == _PATH.sub("/", after):
        what = "folder" if _FOLDER.search(before) else "path"
    else:
        return None
    code = ReasonCode(f"{what}-in-{place.kind}")
    return place.cause(code) if place.kind == MESSAGE else Reason(code)


def _of_the_part(old: Prompt, new: Prompt, at: int, place: Place) -> Reason:
    before, now = old.contents, new.contents
    if place.kind == TOOLS:
        return _of_tools(before, now)
    if place.kind == SYSTEM:
        if _GIT.search(new.text[max(0, at - 600) : at + _AROUND]):
            return Reason(ReasonCode.GIT_STATUS)
        return Reason(ReasonCode.SYSTEM_CHANGED)
    if place.kind in (FIRST, MESSAGE):
        return _of_messages(before.messages, now.messages, place)
    names = {*before.options, *now.options}
    if changed := sorted(name for name in names if before.options.get(name) != now.options.get(name)):
        return Reason(ReasonCode.OTHER_OPTIONS, {"options": tuple(changed)})
    if _THINKS.search(old.text[max(0, at - 40) : at + _AROUND]):
        return Reason(ReasonCode.TEMPLATE_DROPS_REASONING)
    return Reason(ReasonCode.TEMPLATE_REWORDS)


def _of_tools(before: Contents, now: Contents) -> Reason:
    if not before.tools:
        return Reason(ReasonCode.TOOLS_CHANGED)
    theirs, ours = dict(before.tools), dict(now.tools)
    added, gone = [name for name in ours if name not in theirs], [name for name in theirs if name not in ours]
    other = [] if added or gone else [name for name in ours if ours[name] != theirs[name]]
    codes = ReasonCode.TOOLS_ADDED, ReasonCode.TOOLS_REMOVED, ReasonCode.TOOLS_REDESCRIBED
    changes = []
    for code, names in zip(codes, (added, gone, other), strict=True):
        shown: list[object] = [name[:_LONGEST_NAME] for name in names[:_MOST_NAMES]]
        if len(names) > _MOST_NAMES:
            shown.append(Reason(ReasonCode.MORE, {"count": len(names) - _MOST_NAMES}))
        if names:
            changes.append(Reason(code, {"tools": tuple(shown)}))
    if changes:
        return Reason(ReasonCode.TOOLS_CHANGED, {"changes": tuple(changes)})
    reordered = [name for name, _ in before.tools] != [name for name, _ in now.tools]
    return Reason(ReasonCode.TOOLS_REORDERED if reordered else ReasonCode.TOOLS_CHANGED)


def _of_messages(before: tuple[Message, ...], now: tuple[Message, ...], place: Place) -> Reason:
    number = place.number
    ours = now[number]
    theirs = before[number] if number < len(before) else Message("", "")
    if theirs.text == ours.text and theirs.reasoning != ours.reasoning:
        return Reason(ReasonCode.PROGRAM_DROPS_REASONING)
    if theirs.text.count(_REMINDER) != ours.text.count(_REMINDER) and number < len(before):
        return Reason(ReasonCode.REMINDER_MOVES)
    if _CLEARED.search(ours.text) and not _CLEARED.search(theirs.text):
        return place.cause(ReasonCode.RESULTS_CLEARED)
    if number == 0 and (len(now) == 1 or now[1:2] != before[1:2]) and not _SUMMARY.search(ours.text[:2_000]):
        known = (code for marks, code in _KNOWN_MESSAGES if marks.search(ours.text))
        return Reason(next(known, ReasonCode.OTHER_CONVERSATION))
    if len(now) < len(before) and ours in before[number + 1 :]:
        return Reason(ReasonCode.LEFT_OUT, {"count": before.index(ours, number + 1) - number})
    if _SUMMARY.search(ours.text[:2_000]) and not _SUMMARY.search(theirs.text[:2_000]):
        return Reason(ReasonCode.SUMMARISED)
    for marks, code in _KNOWN_MESSAGES:
        if marks.search(ours.text) or marks.search(theirs.text):
            return Reason(code)
    if theirs in now[number + 1 :]:
        return place.cause(ReasonCode.PUT_IN)
    if number >= len(before) - 1:
        return place.cause(ReasonCode.OTHER_WAY)
    return place.cause(ReasonCode.EDITED)


def _line(text: str, at: int) -> str:
    start, end = text.rfind("\n", max(0, at - 400), at) + 1, text.find("\n", at)
    return text[start or max(0, at - 400) : min(len(text) if end < 0 else end, at + 400)]
