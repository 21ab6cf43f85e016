"""Rewriting of requests by enabled rules, and diagnosis of prompts that had to be reprocessed."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import datetime

from kvchat.engine.api.errors import EngineRefused
from kvchat.gateway.diagnosis import causes
from kvchat.gateway.diagnosis.prompts import Divergence, Prompt, RecentPrompts
from kvchat.gateway.diagnosis.rules import RULES, PromptChange, RuleState
from kvchat.gateway.dialects.request import Dialect, ParsedRequest
from kvchat.gateway.pending_request import PendingRequest, RenderedPrompt
from kvchat.gateway.records import RequestRecord
from kvchat.kvstore.savepoint import RestoreMiss, StoreRefused, common_prefix
from kvchat.session.lease import Lease
from kvchat.system.concurrency import run_in_thread_if_large
from kvchat.text.reasons import Reason, ReasonCode
from kvchat.text.search import common_prefix_length

RuleLookup = Callable[[str], Collection[str]]  # names of a program's enabled rules
THREAD_BYTES = 20_000  # rewriting a larger body takes longer than switching threads
TOKENS_BEFORE, TOKENS_AFTER = 64, 160  # detokenized around a divergence
MIN_MATCH_CHARS = 40  # after a divergence, to find it in the rendered prompt
_INVALID_BODY = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


class PromptRewriter:
    """Rewrites programs' prompts by rules and remembers recent prompts, in memory only. Event loop thread only."""

    def __init__(
        self, enabled_rules: RuleLookup = lambda program: (), clock: Callable[[], datetime] = datetime.now
    ) -> None:
        """`clock` returns the local time, because programs put the local date into prompts."""
        self._enabled_rules, self._clock = enabled_rules, clock
        self._recent = RecentPrompts()
        self._states: dict[str, RuleState] = {}  # by program
        self._rewriting = asyncio.Lock()  # one request at a time, in order

    async def rewrite_in_order(self, request: ParsedRequest, record: RequestRecord) -> ParsedRequest:
        rules = self._enabled_rules(record.program)
        if not rules or request.dialect in (Dialect.PLAIN, Dialect.COMPLETION):  # these use no template
            return request
        async with self._rewriting:
            large = len(request.raw) > THREAD_BYTES
            request, record.changes = await run_in_thread_if_large(large, self.rewrite, record.program, request, rules)
        return request

    def rewrite(
        self, program: str, request: ParsedRequest, rules: Collection[str]
    ) -> tuple[ParsedRequest, tuple[PromptChange, ...]]:
        """Apply `rules`; return the request and its changes. An invalid request is returned unchanged."""
        state, now = self._states.setdefault(program, RuleState()), self._clock()
        body, changes = request.body, list[PromptChange]()
        try:
            for rule in RULES.values():  # fixed order
                if rule.name in rules:
                    body, more = rule.apply(body, state, now)
                    changes += more
            raw = json.dumps(body).encode() if changes else request.raw
        except _INVALID_BODY:  # not a known request shape: the engine reports the error
            return request, ()
        return (replace(request, raw=raw, body=body) if changes else request), tuple(changes)

    async def compare(self, pending: PendingRequest, lease: Lease) -> None:
        """Record where the prompt diverges from a recent prompt or, if none is similar, a stored one."""
        rendered, record, request = pending.prompt, pending.record, pending.request
        if not rendered.ids:
            return
        chat = request.body if request.dialect is Dialect.COMPLETION else request.chat
        prompt = await run_in_thread_if_large(request.is_large, Prompt, rendered.ids, rendered.text, chat)
        record.cannot_cut_states = not lease.engine.can_cut
        key = record.program, lease.engine.fingerprint.model
        if self._recent.closest(key, prompt) is None:
            with contextlib.suppress(StoreRefused, EngineRefused):
                stored = await _closest_stored_prompt(lease, rendered)
                record.is_unlike_stored = stored is None
                if stored is not None:
                    self._recent.add(key, stored)
        record.divergence = self.diagnose(*key, prompt)

    def diagnose(self, program: str, model: str, prompt: Prompt) -> Divergence | None:
        """Return where and why `prompt` diverges from the program's closest earlier prompt for `model`; remember it.

        None if it extends the earlier prompt, or if no earlier prompt is similar.
        """
        before = self._recent.closest((program, model), prompt)
        extends = before is not None and prompt.extends_or_precedes(before)
        self._recent.add((program, model), prompt, before if extends else None)
        if before is None or extends:
            return None
        try:
            return causes.find_divergence(before, prompt)
        except _INVALID_BODY:
            return Divergence(before.shared_tokens(prompt), len(prompt), Reason(ReasonCode.OTHER_PROMPT))

    def forget(self, program: str) -> None:
        self._recent.forget(program)
        self._states.pop(program, None)


def tokens_saved(changes: Iterable[PromptChange], text: str, tokens: int, cached: int) -> dict[str, int]:
    """Estimate how many prompt tokens each rule kept from being reprocessed.

    `text` is the rendered prompt and `tokens` its token count, `cached` of which were cached. Cached tokens after the
    first avoided divergence are credited to the rule that avoided it.
    """
    places: dict[str, int] = {}
    for change in changes:
        position = text.find(change.anchor) if change.anchor else 0
        if change.would_diverge and position >= 0:
            token = position * tokens // max(1, len(text))
            places[change.rule] = min(token, places.get(change.rule, token))
    first = min(places, key=places.__getitem__, default="")
    saved = cached - places.get(first, cached)
    return {first: saved} if saved > 0 else {}


async def _closest_stored_prompt(lease: Lease, rendered: RenderedPrompt) -> Prompt | None:
    """Return the program's closest stored prompt, or None if there is none or `rendered` extends it.

    The engine detokenizes only the text around the divergence. Raises StoreRefused and EngineRefused.
    """
    ids, store = rendered.ids, lease.slots.store
    if store.problem is not None or not rendered.text:
        return None
    plan = await asyncio.to_thread(
        store.restorer.find, lease.engine.fingerprint, ids, can_cut=True, conversation_id=lease.owner
    )
    if isinstance(plan, RestoreMiss) or plan.save_point.conversation_id != lease.owner:
        return None
    stored = plan.save_point.tokens
    at = common_prefix(stored, ids)
    if at in (len(stored), len(ids)):
        return None
    texts = []
    for tokens in (stored, ids):
        body = json.dumps({"tokens": tokens[max(0, at - TOKENS_BEFORE) : at + TOKENS_AFTER]}).encode()
        async with lease.engine.engine.forward("/detokenize", body) as response:
            answer = json.loads(await response.aread()) if response.status_code == 200 else {}
        texts.append(str(answer.get("content", "")).strip("\N{REPLACEMENT CHARACTER}"))  # from a split character
    theirs, ours = texts
    shared = common_prefix_length(theirs, ours)
    start = rendered.text.find(ours[: shared + MIN_MATCH_CHARS])
    if start < 0 or not ours:
        return None
    return Prompt(stored, rendered.text[: start + shared] + theirs[shared:])
