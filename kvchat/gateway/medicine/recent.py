"""The last prompts of each program, in memory: what a new one is compared with."""

from __future__ import annotations

from collections import OrderedDict

from kvchat.gateway.medicine.partings import Prompt

MOST_OF_ONE = 24  # prompts of one program and model: one for each of its threads, the title's and the helpers' too
MOST_BYTES = 96_000_000  # of all together
_ALIKE = 0.2  # of the shorter prompt; below that it is another kind of request
_CLEAR = 0.5  # of the prompt shared from its beginning: what stands elsewhere need not be looked at

Whose = tuple[str, str]  # program and model


class RecentPrompts:
    """Bounded; what was used last stays. A prompt that goes on from another takes its place."""

    def __init__(self) -> None:
        self._kept: dict[Whose, OrderedDict[int, Prompt]] = {}
        self._number = 0

    def closest(self, whose: Whose, prompt: Prompt) -> Prompt | None:
        """The one that shares most of its beginning with this, else the one most like it; None: nothing is."""
        best, most = None, _ALIKE
        kept = list(reversed(self._kept.get(whose, OrderedDict()).values()))
        for one in kept:
            share = one.shares(prompt) / max(1, min(len(one), len(prompt)))
            if share > most:
                best, most = one, share
        if most >= _CLEAR:
            return best
        for one in kept:
            alike = one.likeness(prompt)
            if alike > most:
                best, most = one, alike
        return best

    def keep(self, whose: Whose, prompt: Prompt, instead: Prompt | None) -> None:
        """Keep a prompt, `instead` of one that it goes on from."""
        kept = self._kept.setdefault(whose, OrderedDict())
        for number, one in list(kept.items()):
            if one is instead:
                del kept[number]
        self._number += 1
        kept[self._number] = prompt
        while len(kept) > MOST_OF_ONE:
            kept.popitem(last=False)
        while sum(one.weight for some in self._kept.values() for one in some.values()) > MOST_BYTES:
            oldest = min(self._kept, key=lambda one: next(iter(self._kept[one])))
            self._kept[oldest].popitem(last=False)
            if not self._kept[oldest]:  # any program may have asked once
                del self._kept[oldest]

    def forget(self, program: str | None) -> None:
        """Forget a program, or all."""
        for whose in [whose for whose in self._kept if program in (None, whose[0])]:
            del self._kept[whose]
