"""Causes of a divergence between two prompts, found from the request part and text around it."""

import re
from dataclasses import dataclass

from kvchat.gateway.diagnosis.prompts import UNKNOWN_CONTENTS, Contents, Divergence, Message, Prompt
from kvchat.gateway.diagnosis.rules import BILLING_HEADER, HOLD_CLOCK, TIMESTAMP, has_date, mask_timestamps
from kvchat.text.reasons import Reason, ReasonCode
from kvchat.text.search import common_prefix_length

_CONTEXT_CHARS = 160  # on either side of the divergence
_SNIPPET = 80  # characters used to find a body part in the prompt
_MIN_SNIPPET = 12  # fewer match anywhere
_MAX_NAMES, _MAX_NAME = 3, 60  # tools shown; characters
_BILLING = "x-anthropic-billing-header"
_REASONING = re.compile(
    r"<think|</think|<\|channel\|?>\s*(?:analysis|thought)|\[THINK]|<reasoning>|<seed:think>|◁think▷"
)
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
class PromptPart:
    kind: str
    number: int = 0  # message index from 0
    role: str = ""

    def cause(self, code: ReasonCode) -> Reason:
        return Reason(code, {"number": self.number + 1, "role": self.role[:_MAX_NAME]})


_TEMPLATE, _SYSTEM, _TOOLS = PromptPart(TEMPLATE), PromptPart(SYSTEM), PromptPart(TOOLS)


def find_divergence(old: Prompt, new: Prompt) -> Divergence:
    at = common_prefix_length(old.text, new.text)
    place = _find_place(old.contents, new, at)
    start, end = max(0, at - _CONTEXT_CHARS), at + _CONTEXT_CHARS
    cause = _cause_in_line(_line(old.text, at), _line(new.text, at), place) or _cause_in_place(old, new, at, place)
    return Divergence(old.shared_tokens(new), len(new), cause, old.text[start:end], new.text[start:end])


def _find_place(old: Contents, new: Prompt, at: int) -> PromptPart:
    """Find the part of the request that contains character `at` of the rendered prompt."""
    now, text = new.contents, new.text
    search_start, candidate = 0, -1  # candidate: message index
    for system in now.system if text else ():
        start = text.find(system.strip()[:_SNIPPET])
        if 0 <= start <= at <= start + len(system) and old.system != now.system:
            return _SYSTEM
        if start <= at:
            search_start = max(search_start, start + len(system))
    for number, message in enumerate(now.messages if text else ()):
        snippet = message.text.strip()[:_SNIPPET]
        start = text.find(snippet, search_start) if len(snippet) >= _MIN_SNIPPET else -1
        if start > at:
            break
        if start >= 0:
            search_start, candidate = start + 1, number + 1
            if at <= start + len(message.text):
                candidate = number
                break
    return _first_difference(old, now, candidate)


def _first_difference(old: Contents, new: Contents, number: int) -> PromptPart:
    """Find the first part of the request that differs.

    `number`: index of the first message to compare; 0 includes the system prompt, -1 also the tools.
    """
    changed = number
    if old != UNKNOWN_CONTENTS:  # else only the text of a stored state is known
        if number < 0 and old.tools != new.tools:
            return _TOOLS
        if number <= 0 and old.system != new.system:
            return _SYSTEM
        pairs = list(zip(old.messages, new.messages, strict=False))
        differing = (place for place in range(max(0, number), len(pairs)) if pairs[place][0] != pairs[place][1])
        changed = next(differing, len(new.messages))
        if changed == len(new.messages) and old.tools != new.tools:
            return _TOOLS
    if changed < 0:
        return _TOOLS if new.tools else _SYSTEM
    if changed >= len(new.messages):
        return _TEMPLATE
    return PromptPart(MESSAGE if changed else FIRST, changed, new.messages[changed].role)


def _cause_in_line(old_line: str, new_line: str, place: PromptPart) -> Reason | None:
    if _BILLING in old_line or _BILLING in new_line:
        return Reason(ReasonCode.BILLING_HEADER)
    if old_line == new_line:
        return None
    if mask_timestamps(old_line) == mask_timestamps(new_line):
        pairs = zip(TIMESTAMP.findall(old_line), TIMESTAMP.findall(new_line), strict=False)
        old = next((stamp for stamp, other in pairs if stamp != other), "")
        changed = "date" if has_date(old) else "time"
    elif _PATH.sub("/", old_line) == _PATH.sub("/", new_line):
        changed = "folder" if _FOLDER.search(old_line) else "path"
    else:
        return None
    code = ReasonCode(f"{changed}-in-{place.kind}")
    return place.cause(code) if place.kind == MESSAGE else Reason(code)


def _cause_in_place(old: Prompt, new: Prompt, at: int, place: PromptPart) -> Reason:
    before, now = old.contents, new.contents
    if place.kind == TOOLS:
        return _cause_in_tools(before.tools, now.tools)
    if place.kind == SYSTEM:
        has_git = _GIT.search(new.text[max(0, at - 600) : at + _CONTEXT_CHARS])
        return Reason(ReasonCode.GIT_STATUS if has_git else ReasonCode.SYSTEM_CHANGED)
    if place.kind in (FIRST, MESSAGE):
        return _cause_in_messages(before.messages, now.messages, place)
    names = {*before.options, *now.options}
    if changed := sorted(name for name in names if before.options.get(name) != now.options.get(name)):
        return Reason(ReasonCode.OTHER_OPTIONS, {"options": tuple(changed)})
    if _REASONING.search(old.text[max(0, at - 40) : at + _CONTEXT_CHARS]):
        return Reason(ReasonCode.TEMPLATE_DROPS_REASONING)
    return Reason(ReasonCode.TEMPLATE_REWORDS)


def _cause_in_tools(old: tuple[tuple[str, str], ...], new: tuple[tuple[str, str], ...]) -> Reason:
    if not old:
        return Reason(ReasonCode.TOOLS_CHANGED)
    theirs, ours = dict(old), dict(new)
    added, removed = [name for name in ours if name not in theirs], [name for name in theirs if name not in ours]
    redefined = [] if added or removed else [name for name in ours if ours[name] != theirs[name]]
    codes = ReasonCode.TOOLS_ADDED, ReasonCode.TOOLS_REMOVED, ReasonCode.TOOLS_REDESCRIBED
    changes = []
    for code, names in zip(codes, (added, removed, redefined), strict=True):
        shown_names: list[object] = [name[:_MAX_NAME] for name in names[:_MAX_NAMES]]
        if len(names) > _MAX_NAMES:
            shown_names.append(Reason(ReasonCode.MORE, {"count": len(names) - _MAX_NAMES}))
        if names:
            changes.append(Reason(code, {"tools": tuple(shown_names)}))
    if changes:
        return Reason(ReasonCode.TOOLS_CHANGED, {"changes": tuple(changes)})
    reordered = [name for name, _ in old] != [name for name, _ in new]
    return Reason(ReasonCode.TOOLS_REORDERED if reordered else ReasonCode.TOOLS_CHANGED)


def _cause_in_messages(old: tuple[Message, ...], new: tuple[Message, ...], place: PromptPart) -> Reason:
    number = place.number
    ours = new[number]
    theirs = old[number] if number < len(old) else Message("", "")
    is_summary = _SUMMARY.search(ours.text[:2_000]) is not None
    if theirs.text == ours.text and theirs.reasoning != ours.reasoning:
        return Reason(ReasonCode.PROGRAM_DROPS_REASONING)
    if theirs.text.count(_REMINDER) != ours.text.count(_REMINDER) and number < len(old):
        return Reason(ReasonCode.REMINDER_MOVES)
    if _CLEARED.search(ours.text) and not _CLEARED.search(theirs.text):
        return place.cause(ReasonCode.RESULTS_CLEARED)
    if number == 0 and (len(new) == 1 or new[1:2] != old[1:2]) and not is_summary:
        known_codes = (code for pattern, code in _KNOWN_MESSAGES if pattern.search(ours.text))
        return Reason(next(known_codes, ReasonCode.OTHER_CONVERSATION))
    if len(new) < len(old) and ours in old[number + 1 :]:
        return Reason(ReasonCode.LEFT_OUT, {"count": old.index(ours, number + 1) - number})
    if is_summary and not _SUMMARY.search(theirs.text[:2_000]):
        return Reason(ReasonCode.SUMMARISED)
    for pattern, code in _KNOWN_MESSAGES:
        if pattern.search(ours.text) or pattern.search(theirs.text):
            return Reason(code)
    if theirs in new[number + 1 :]:
        return place.cause(ReasonCode.PUT_IN)
    if number >= len(old) - 1:
        return place.cause(ReasonCode.OTHER_WAY)
    return place.cause(ReasonCode.EDITED)


def _line(text: str, at: int) -> str:
    start, end = text.rfind("\n", max(0, at - 400), at) + 1, text.find("\n", at)
    return text[start or max(0, at - 400) : min(len(text) if end < 0 else end, at + 400)]
