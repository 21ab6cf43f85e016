"""Why two prompts part, in words a user understands: by the part of the body that stands there, and what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from kvchat.gateway.medicine.body import NOTHING_KNOWN, Contents, Message
from kvchat.gateway.medicine.clocks import CLOCK, has_date, masked
from kvchat.gateway.medicine.partings import Parting, Prompt
from kvchat.gateway.medicine.rules import BILLING_HEADER, HOLD_CLOCK
from kvchat.words.comparing import shared_text
from kvchat.words.language import N_

_AROUND = 160  # characters of each text that are told
_SNIPPET = 80  # characters by which a part of the body is found in the prompt
_LEAST_SNIPPET = 12  # fewer may stand anywhere
_MOST_NAMES, _LONGEST_NAME = 3, 60
_TOOLS_CHANGED = N_("tool list changed")
_BILLING = "x-anthropic-billing-header"
_THINKS = re.compile(r"<think|</think|<\|channel\|?>\s*(?:analysis|thought)|\[THINK]|<reasoning>|<seed:think>|◁think▷")
_FOLDER = re.compile(r"working (?:directory|folder)|workspace|\bcwd\b|root folder|project (?:root|path)", re.IGNORECASE)
_PATH = re.compile(r"(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\<>\"'`]+)+[/\\]?")
_GIT = re.compile(r"git ?status|current branch|recent commits|main branch", re.IGNORECASE)
_CLEARED = re.compile(r"\[[^\]]{0,60}\b(?:cleared|removed|omitted|truncated|compacted)\b[^\]]{0,60}]", re.IGNORECASE)
_SUMMARY = re.compile(
    r"continued from a previous conversation|\bsummar(?:y|ise|ize)|compacted|condensed", re.IGNORECASE
)
_REMINDER, _MOVES = "<system-reminder>", N_("a <system-reminder> that moves")
_WERE_CLEARED = N_("old results of tools were cleared")
_KNOWN_MESSAGES = (
    (re.compile(r"summaries of some files present in my git repo", re.IGNORECASE), N_("the map of the repository")),
    (re.compile(r"added these files to the chat|read-?only files", re.IGNORECASE), N_("the files in the chat")),
    (
        re.compile(r"<environment_context>|<environment_details>|<env>"),
        N_("what the program tells of its surroundings"),
    ),
)
_OTHER, _OTHER_WAY = N_("another conversation begins"), N_("the conversation went another way")
# Of causes as they are added up, the rule that mends each.
MENDED_BY = {
    N_("the billing header"): BILLING_HEADER,
    **{
        f"the {what} in the {where}": HOLD_CLOCK
        for what in ("date", "time")
        for where in (N_("system prompt"), N_("first message"))
    },
}
# What is made of parts below, for the catalogue: causes are kept in English, see `retold`.
_MADE = (
    N_("the date in the system prompt"),
    N_("the date in the first message"),
    N_("the date in a message"),
    N_("the date in message …"),
    N_("the time in the system prompt"),
    N_("the time in the first message"),
    N_("the time in a message"),
    N_("the time in message …"),
    N_("the working folder in the system prompt"),
    N_("the working folder in the first message"),
    N_("the working folder in a message"),
    N_("the working folder in message …"),
    N_("the path of a file in the system prompt"),
    N_("the path of a file in the first message"),
    N_("the path of a file in a message"),
    N_("the path of a file in message …"),
    N_("the date in the tool list"),
    N_("the time in the tool list"),
    N_("the working folder in the tool list"),
    N_("the working folder in the template"),
    N_("the path of a file in the tool list"),
    N_("the path of a file in the template"),
    N_("the date that the model’s template adds"),
    N_("the time that the model’s template adds"),
    N_("… earlier message left out"),
    N_("… earlier messages left out"),
    N_("something was put in before message …"),
    N_("message … was edited"),
    N_("old results of tools were cleared, from message … on"),
    N_("the conversation went another way from message … on"),
    N_("… added"),
    N_("… removed"),
    N_("… described anew"),
    N_("… and … more added"),
    N_("… and … more removed"),
    N_("… and … more described anew"),
    *(N_("system"), N_("developer"), N_("user"), N_("assistant"), N_("tool")),  # whose message it is
)
SYSTEM, TOOLS, MESSAGE, TEMPLATE = "system", "tools", "message", "template"


@dataclass(frozen=True)
class Place:
    """A part of the body, and its words."""

    kind: str
    number: int = 0  # of a message, from 0
    words: str = N_("the prompt")

    @property
    def kind_words(self) -> str:
        """Without its number."""
        if self.kind != MESSAGE:
            return self.words
        return N_("a message") if self.number else N_("the first message")


class Cause(NamedTuple):
    """Why, in words; what would mend it, and the same without names and numbers, where the words have some."""

    words: str
    rule: str = ""
    about: str = ""


_TEMPLATE = Place(TEMPLATE, 0, N_("the template"))
_SYSTEM, _TOOLS = Place(SYSTEM, 0, N_("the system prompt")), Place(TOOLS, 0, N_("the tool list"))


def parting(old: Prompt, new: Prompt) -> Parting:
    """Where and why a prompt parts from one before, which it does not go on from."""
    at = shared_text(old.text, new.text)
    place = _place(old.contents, new, at)
    before, after = old.text[max(0, at - _AROUND) : at + _AROUND], new.text[max(0, at - _AROUND) : at + _AROUND]
    cause = _of_the_line(_line(old.text, at), _line(new.text, at), place) or _of_the_part(old, new, at, place)
    about = cause.about or cause.words
    return Parting(
        old.shares(new), len(new), cause.words, cause.rule, about, before, after, about in (_OTHER, _OTHER_WAY)
    )


def _place(before: Contents, new: Prompt, at: int) -> Place:
    """The part of the body that stands at this character of the rendered prompt."""
    now, text = new.contents, new.text
    if not text:
        return _first_difference(before, now, -1)
    begun = 0  # where the search for messages begins
    for system in now.system:
        start = text.find(system.strip()[:_SNIPPET])
        if 0 <= start <= at <= start + len(system) and before.system != now.system:
            return _SYSTEM
        begun = max(begun, start + len(system)) if start <= at else begun
    number, known = 0, False  # the message that may stand there; whether one before it was found
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
    """What differs first in the bodies, of the messages from `number` on; -1: it stands before the first of them."""
    if before == NOTHING_KNOWN:  # of what a state in the store stands for only its text is known
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
    return Place(MESSAGE, number, f"message {number + 1} ({now.messages[number].role[:_LONGEST_NAME]})")


def _of_the_line(before: str, after: str, place: Place) -> Cause | None:
    """What is known by the lines that differ; None where they say nothing of it."""
    if _BILLING in before or _BILLING in after:
        return Cause(N_("the billing header"), BILLING_HEADER)
    if before == after:
        return None
    if masked(before) == masked(after):
        said = next(
            (one for one, other in zip(CLOCK.findall(before), CLOCK.findall(after), strict=False) if one != other), ""
        )
        told = "date" if has_date(said) else "time"
        if place.kind == TEMPLATE:
            return Cause(f"the {told} that the model’s template adds")
        fixed = place.kind == SYSTEM or (place.kind == MESSAGE and place.number == 0)
        return Cause(f"the {told} in {place.words}", HOLD_CLOCK if fixed else "", f"the {told} in {place.kind_words}")
    if _PATH.sub("/", before) == _PATH.sub("/", after):
        what = N_("working folder") if _FOLDER.search(before) else N_("path of a file")
        return Cause(f"the {what} in {place.words}", "", f"the {what} in {place.kind_words}")
    return None


def _of_the_part(old: Prompt, new: Prompt, at: int, place: Place) -> Cause:
    before, now = old.contents, new.contents
    if place.kind == TOOLS:
        return _of_tools(before, now)
    if place.kind == SYSTEM:
        if _GIT.search(new.text[max(0, at - 600) : at + _AROUND]):
            return Cause(N_("the git status in the system prompt"))
        return Cause(N_("the system prompt was changed"))
    if place.kind == MESSAGE:
        return _of_messages(before.messages, now.messages, place)
    if changed := sorted(
        name for name in {*before.options, *now.options} if _option(before, name) != _option(now, name)
    ):
        return Cause(f"other options of the request: {', '.join(changed)}", "", N_("other options of the request"))
    if _THINKS.search(old.text[max(0, at - 40) : at + _AROUND]):
        return Cause(N_("reasoning of earlier turns was dropped by the template"))
    return Cause(N_("the template put the same messages in other words"))


def _option(one: Contents, name: str) -> object:
    return one.options.get(name)


def _of_tools(before: Contents, now: Contents) -> Cause:
    """What happened to the tool list."""
    if not before.tools:
        return Cause(_TOOLS_CHANGED)
    theirs, ours = dict(before.tools), dict(now.tools)
    added, gone = [name for name in ours if name not in theirs], [name for name in theirs if name not in ours]
    changes = [f"{_named(names)} {what}" for names, what in ((added, "added"), (gone, "removed")) if names]
    if changes:
        return Cause(f"tool list changed: {'; '.join(changes)}", "", _TOOLS_CHANGED)
    other = [name for name in ours if ours[name] != theirs[name]]
    if other:
        return Cause(f"tool list changed: {_named(other)} described anew", "", _TOOLS_CHANGED)
    if [name for name, _ in before.tools] != [name for name, _ in now.tools]:
        return Cause(N_("tools listed in another order"))
    return Cause(_TOOLS_CHANGED)


def _named(names: list[str]) -> str:
    shown = ", ".join(f"*{name[:_LONGEST_NAME]}*" for name in names[:_MOST_NAMES])
    return f"{shown} and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else shown


def _of_messages(before: tuple[Message, ...], now: tuple[Message, ...], place: Place) -> Cause:
    """What happened to the message that is another one."""
    number = place.number
    ours = now[number]
    theirs = before[number] if number < len(before) else Message("", "")
    if theirs.text == ours.text and theirs.reasoning != ours.reasoning:
        return Cause(N_("reasoning of earlier turns was left out by the program"))
    if theirs.text.count(_REMINDER) != ours.text.count(_REMINDER) and number < len(before):
        return Cause(_MOVES)
    if _CLEARED.search(ours.text) and not _CLEARED.search(theirs.text):
        return Cause(f"{_WERE_CLEARED}, from {place.words} on", "", _WERE_CLEARED)
    if number == 0 and (len(now) == 1 or now[1:2] != before[1:2]) and not _SUMMARY.search(ours.text[:2_000]):
        known = next((words for marks, words in _KNOWN_MESSAGES if marks.search(ours.text)), "")
        return Cause(known or _OTHER)
    if len(now) < len(before) and ours in before[number + 1 :]:
        left_out = before.index(ours, number + 1) - number
        words = f"{left_out:,} earlier message{'' if left_out == 1 else 's'} left out"
        return Cause(words, "", N_("earlier messages left out"))
    if _SUMMARY.search(ours.text[:2_000]) and not _SUMMARY.search(theirs.text[:2_000]):
        return Cause(N_("earlier messages were summarised (compaction)"))
    for marks, words in _KNOWN_MESSAGES:
        if marks.search(ours.text) or marks.search(theirs.text):
            return Cause(words)
    if theirs in now[number + 1 :]:
        return Cause(f"something was put in before {place.words}", "", N_("something was put in before a message"))
    if number >= len(before) - 1:
        return Cause(f"{_OTHER_WAY} from {place.words} on", "", _OTHER_WAY)
    return Cause(f"{place.words} was edited", "", N_("an earlier message was edited"))


def _line(text: str, at: int) -> str:
    """The line around a character, as far as it is near."""
    start, end = text.rfind("\n", max(0, at - 400), at) + 1, text.find("\n", at)
    return text[start or max(0, at - 400) : min(len(text) if end < 0 else end, at + 400)]
