"""Prefix medicine at work: what comes in is mended, and it is said why more of it had to be read than need be."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace

from kvchat.gateway.dialects.asked import Asked, Form
from kvchat.gateway.dialects.prompts import Prompt as Rendered
from kvchat.gateway.medicine import Medicine, Prompt, Treated
from kvchat.gateway.requests import Passage
from kvchat.gateway.totals import Sum, Total

Rules = Callable[[str], Collection[str]]  # the names of those that are on for a program
LOST = "its memory"  # begins what the store says of a prompt that was known once


def no_rules(_: str) -> Collection[str]:
    """None are on."""
    return ()


class Mending:
    """Belongs to the event loop's thread. What programs ask is remembered in memory alone."""

    def __init__(self, rules: Rules = no_rules) -> None:
        self._rules, self._medicine = rules, Medicine()

    def treated(self, asked: Asked, passage: Passage) -> Asked:
        """The request as it is to be rendered and passed on."""
        rules = self._rules(passage.program)
        if not rules or asked.form in (Form.PLAIN, Form.COMPLETION):  # those have no template
            return asked
        treated = self._medicine.treat(passage.program, asked.raw, asked.body, rules)
        passage.changes = treated.changes
        return replace(asked, raw=treated.raw, body=dict(treated.body)) if treated.changes else asked

    def compare(self, asked: Asked, rendered: Rendered, passage: Passage, model: str) -> None:
        """Say where the prompt parts from those before it. `model`: what ids, and states, mean."""
        if rendered.ids:
            prompt = Prompt(rendered.ids, rendered.text, asked.body)
            passage.parting = self._medicine.compare(passage.program, model, prompt)

    def prove(self, asked: Asked, rendered: Rendered, passage: Passage) -> None:
        """What the rules have spared, now that the engine has said what it had."""
        if passage.changes and passage.cached is not None and rendered.ids:
            treated = Treated(asked.raw, asked.body, passage.changes)
            prompt = Prompt(rendered.ids, rendered.text, asked.body)
            passage.mended = self._medicine.credits(treated, prompt, passage.cached)

    def forget(self, program: str) -> None:
        """Nothing of what a program has asked is known any more."""
        self._medicine.forget(program)


def total_of(passage: Passage, ms: Callable[[int], float]) -> Total:
    """A request that was answered, as it is added up; `ms`: what reading so many tokens takes."""
    prompt, cached = passage.prompt or 0, passage.cached or 0
    total = Total(1, prompt, cached, passage.saved_ms, time.time())
    parted = passage.broken
    if parted is not None:
        total.misses[parted.about] = Sum(1, prompt - cached, passage.read_ms)
    elif passage.miss.startswith(LOST):
        total.misses[passage.miss] = Sum(1, prompt - cached, passage.read_ms)
    total.mended |= {rule: Sum(1, tokens, ms(tokens)) for rule, tokens in passage.mended.items()}
    return total
