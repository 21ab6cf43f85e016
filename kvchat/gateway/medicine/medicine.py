"""What the gateway asks at two places: before a request is rendered, and when its prompt is known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from kvchat.gateway.medicine import causes
from kvchat.gateway.medicine.located import edited, located
from kvchat.gateway.medicine.partings import Parting, Prompt
from kvchat.gateway.medicine.recent import RecentPrompts
from kvchat.gateway.medicine.rules import RULES, Change, Held, apply
from kvchat.words.reasons import Reason, ReasonCode

_MOST_TOLD = 500  # characters of what stood in a request, and of what stands there instead


@dataclass(frozen=True)
class Treated:
    """A request as it is rendered and passed on, and what was changed in it."""

    raw: bytes
    body: Mapping[str, Any]
    changes: tuple[Change, ...] = ()


class Medicine:
    """Remembers in memory alone. Nothing of it raises: without it a request goes on as it came."""

    def __init__(self, clock: Callable[[], datetime] = datetime.now) -> None:
        """`clock` tells the local time: programs tell models the day it is where they run."""
        self._clock = clock
        self._recent = RecentPrompts()
        self._held: dict[str, Held] = {}

    def treat(self, program: str, raw: bytes, body: Mapping[str, Any], rules: Collection[str]) -> Treated:
        """The request after the rules that are switched on for the program: the same objects where none had to do."""
        wanted = [name for name in RULES if name in rules]  # in one order
        if not wanted:
            return Treated(raw, body)
        held, now = self._held.setdefault(program, Held()), self._clock()
        try:
            text, changes = raw.decode(), list[Change]()
            for name in wanted:
                if done := apply(name, located(text), held, now):
                    text = edited(text, [edit for edit, _ in done])
                    changes += [_short(change) for _, change in done]
            after = located(text).value if changes else body
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return Treated(raw, body)  # no request of a known shape: the engine says what is wrong with it
        return Treated(text.encode(), after, tuple(changes)) if changes else Treated(raw, body)

    def knows(self, program: str, model: str, prompt: Prompt) -> bool:
        """Whether the program has asked anything like it before, as far as is remembered."""
        return self._recent.closest((program, model), prompt) is not None

    def remember(self, program: str, model: str, prompt: Prompt) -> None:
        """The program has asked this before, in another run."""
        self._recent.keep((program, model), prompt, None)

    def compare(self, program: str, model: str, prompt: Prompt) -> Parting | None:
        """Where and why a prompt parts from the closest of the program's before it, which is remembered with it.

        None where it goes on from one, or where there was nothing like it. `model`: prompts of another are others.
        """
        whose = program, model
        before = self._recent.closest(whose, prompt)
        goes_on = before is not None and prompt.goes_on_from(before)
        self._recent.keep(whose, prompt, before if goes_on else None)
        if before is None or goes_on:
            return None
        try:
            return causes.parting(before, prompt)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return Parting(before.shares(prompt), len(prompt), Reason(ReasonCode.OTHER_PROMPT))

    def credits(self, treated: Treated, prompt: Prompt, cached: int) -> dict[str, int]:
        """About how many tokens each rule has spared a request, of which the engine had `cached`.

        What was found behind the place where the prompt would have parted goes to the rule that stands first.
        """
        places: dict[str, int] = {}
        for change in treated.changes:
            found = prompt.text.find(change.needle) if change.needle else 0
            if change.differs and found >= 0:
                token = found * len(prompt) // max(1, len(prompt.text))
                places[change.rule] = min(token, places.get(change.rule, token))
        if not places:
            return {}
        first = min(places, key=lambda rule: places[rule])
        spared = cached - places[first]
        return {first: spared} if spared > 0 else {}

    def forget(self, program: str | None = None) -> None:
        """Forget a program, or all."""
        self._recent.forget(program)
        for name in [name for name in self._held if program in (None, name)]:
            del self._held[name]


def _short(change: Change) -> Change:
    """The change as it is remembered with the request."""
    before, after, needle = (text[:_MOST_TOLD] for text in (change.before, change.after, change.needle))
    return replace(change, before=before, after=after, needle=needle)
