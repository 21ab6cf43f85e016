"""Applies the enabled rules to requests, and finds out why more of a prompt than necessary was processed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from kvchat.engine.api.errors import EngineRefused
from kvchat.gateway.diagnosis import causes
from kvchat.gateway.diagnosis.prompts import Divergence, Prompt, RecentPrompts
from kvchat.gateway.diagnosis.rules import RULES, Change, RuleState, edited, located
from kvchat.gateway.dialects.request import Form, ParsedRequest
from kvchat.gateway.pending_request import PendingRequest
from kvchat.gateway.pending_request import Prompt as Rendered
from kvchat.gateway.records import Cost, RequestRecord, Total, is_lost
from kvchat.kvstore.savepoint import Miss, StoreRefused, Tokens, common_prefix
from kvchat.session.lease import Lease
from kvchat.system.concurrency import run_in_thread_if_large
from kvchat.text.reasons import Reason, ReasonCode
from kvchat.text.search import common_prefix_length

_MOST_TOLD = 500  # characters recorded of the old and new text


Rules = Callable[[str], Collection[str]]  # names of a program's enabled rules
MUCH_TO_MEND = 20_000  # bytes; rewriting a larger body takes longer than switching threads
BEFORE, BEHIND, LEAST_FOUND = 64, 160, 40  # tokens before and after a divergence; characters to match


@dataclass(frozen=True)
class Treated:
    raw: bytes
    body: Mapping[str, Any]
    changes: tuple[Change, ...] = ()


class PromptRewriter:
    """Applies rules and remembers prompts, in memory only. Event loop thread only."""

    def __init__(self, rules: Rules = lambda program: (), clock: Callable[[], datetime] = datetime.now) -> None:
        """`clock` returns the local time, as programs state the local date in prompts."""
        self._rules, self._clock = rules, clock
        self._recent = RecentPrompts()
        self._held: dict[str, RuleState] = {}
        self._treating = asyncio.Lock()  # one request at a time, in order

    async def treated(self, asked: ParsedRequest, record: RequestRecord) -> ParsedRequest:
        rules = self._rules(record.program)
        if not rules or asked.form in (Form.PLAIN, Form.COMPLETION):  # these use no template
            return asked
        async with self._treating:
            much = len(asked.raw) > MUCH_TO_MEND
            treated = await run_in_thread_if_large(much, self.treat, record.program, asked.raw, asked.body, rules)
        record.changes = treated.changes
        return replace(asked, raw=treated.raw, body=dict(treated.body)) if treated.changes else asked

    def treat(self, program: str, raw: bytes, body: Mapping[str, Any], rules: Collection[str]) -> Treated:
        """Apply the program's enabled rules; return the same objects if nothing changed. Never raises."""
        wanted = [name for name in RULES if name in rules]  # fixed order
        if not wanted:
            return Treated(raw, body)
        held, now = self._held.setdefault(program, RuleState()), self._clock()
        try:
            text, changes = raw.decode(), list[Change]()
            for name in wanted:
                if done := list(RULES[name].changes(located(text), held, now)):
                    text = edited(text, [edit for edit, _ in done])
                    changes += [_short(change) for _, change in done]
            after = located(text).value if changes else body
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return Treated(raw, body)  # not a known request shape: the engine reports the error
        return Treated(text.encode(), after, tuple(changes)) if changes else Treated(raw, body)

    async def compare(self, work: PendingRequest, lease: Lease) -> None:
        """Record where the prompt diverges from earlier ones; after a restart, from stored ones."""
        rendered, record, model = work.prompt, work.record, lease.engine.fingerprint.model
        if not rendered.ids:
            return
        prompt = await run_in_thread_if_large(work.asked.is_large, Prompt, rendered.ids, rendered.text, work.asked.body)
        record.whole, whose = not lease.engine.can_cut, (record.program, model)
        if self._recent.closest(whose, prompt) is None:
            with contextlib.suppress(StoreRefused, EngineRefused):
                earlier = await _kept(lease, rendered)
                record.unheard = earlier is None
                if earlier is not None:
                    self._recent.keep(whose, earlier, None)
        record.divergence = self.diagnosed(*whose, prompt)

    def diagnosed(self, program: str, model: str, prompt: Prompt) -> Divergence | None:
        """Return where and why a prompt diverges from the program's closest one, and remember it.

        None if it extends that one, or if none is similar. Prompts are compared per `model`.
        """
        whose = program, model
        before = self._recent.closest(whose, prompt)
        goes_on = before is not None and prompt.goes_on_from(before)
        self._recent.keep(whose, prompt, before if goes_on else None)
        if before is None or goes_on:
            return None
        try:
            return causes.divergence(before, prompt)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return Divergence(before.shares(prompt), len(prompt), Reason(ReasonCode.OTHER_PROMPT))

    def forget(self, program: str | None = None) -> None:
        self._recent.forget(program)
        for name in [name for name in self._held if program in (None, name)]:
            del self._held[name]


def tokens_spared(changes: Iterable[Change], text: str, tokens: int, cached: int) -> dict[str, int]:
    """Estimate the tokens each rule saved in a prompt of `tokens` tokens, of which `cached` were cached.

    Tokens found after the first point of divergence are credited to the rule that applied there.
    """
    places: dict[str, int] = {}
    for change in changes:
        found = text.find(change.needle) if change.needle else 0
        if change.differs and found >= 0:
            token = found * tokens // max(1, len(text))
            places[change.rule] = min(token, places.get(change.rule, token))
    first = min(places, key=places.__getitem__, default="")
    spared = cached - places.get(first, cached)
    return {first: spared} if spared > 0 else {}


def _short(change: Change) -> Change:
    before, after, needle = (text[:_MOST_TOLD] for text in (change.before, change.after, change.needle))
    return replace(change, before=before, after=after, needle=needle)


async def _kept(lease: Lease, rendered: Rendered) -> Prompt | None:
    """Return the program's closest stored prompt; None if there is none or this one extends it.

    Only the text around the divergence is detokenized by the engine. Raises StoreRefused and EngineRefused.
    """
    ids, store = rendered.ids, lease.slots.store
    if store.problem is not None or not rendered.text:
        return None
    plan = await asyncio.to_thread(
        store.restorer.find, lease.engine.fingerprint, ids, can_cut=True, conversation_id=lease.owner
    )
    if isinstance(plan, Miss) or plan.save_point.conversation_id != lease.owner:
        return None
    before = plan.save_point.tokens
    at = common_prefix(before, ids)
    if at in (len(before), len(ids)):
        return None
    around = slice(max(0, at - BEFORE), at + BEHIND)
    theirs, ours = await _text_of(lease, before[around]), await _text_of(lease, ids[around])
    shared = common_prefix_length(theirs, ours)
    place = rendered.text.find(ours[: shared + LEAST_FOUND])
    if place < 0 or not ours:
        return None
    return Prompt(before, rendered.text[: place + shared] + theirs[shared:])


async def _text_of(lease: Lease, ids: Tokens) -> str:
    async with lease.engine.engine.forward("/detokenize", json.dumps({"tokens": ids}).encode()) as answer:
        told = json.loads(await answer.aread()) if answer.status_code == 200 else {}
    return str(told.get("content", "")).strip("\N{REPLACEMENT CHARACTER}")  # from a split character


def total_of(record: RequestRecord, ms: Callable[[int], float]) -> Total:
    prompt, cached, parted = record.prompt or 0, record.cached or 0, record.broken
    total = Total(1, prompt, cached, record.saved_ms, time.time())
    if why := parted.cause if parted else record.miss if is_lost(record.miss) else None:
        total.misses[why.code] = Cost(1, prompt - cached, record.read_ms)
    total.mended |= {rule: Cost(1, tokens, ms(tokens)) for rule, tokens in record.mended.items()}
    return total
