"""Text of the programs window about requests and programs. Pure functions on values; no Qt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from kvchat.chat.record.messages import Receipt
from kvchat.chat.turn.receipts import where_told
from kvchat.gateway.requests import Passage, Stage, Sum, Total
from kvchat.kvstore.savepoint import program_of
from kvchat.session.proof import Source
from kvchat.words.language import N_, _, beside, ended, listed, number, several
from kvchat.words.wording import brief, moment_of, percent, roughly, since, tokens_short

_STAGES = {
    Stage.QUEUED: N_("waits"),
    Stage.LOADING: N_("loading what is remembered"),
    Stage.READING: N_("reading"),
    Stage.ANSWERING: N_("answering"),
}
_ENDED = {Stage.FAILED: N_("failed"), Stage.LEFT: N_("left by the program")}
_LEAST_SAVED_MS = 1000.0


def stage_of(passage: Passage) -> str:
    if passage.stage is Stage.READING and passage.prompt:
        left = passage.prompt - (passage.found or 0)
        return _("reading, {read} of {left} tokens", read=number(passage.read), left=number(left))
    return _(_STAGES.get(passage.stage, _ENDED.get(passage.stage, "")))


def holder_of(owner: str, titles: Mapping[str, str]) -> str:
    return program_of(owner) or titles.get(owner, _("a chat"))


def program_line(total: Total, now: datetime) -> str:
    parts = [several(total.requests, "{count} request", "{count} requests")]
    if total.last_at:
        parts.append(_("the last one {when}", when=since(datetime.fromtimestamp(total.last_at, UTC), now)))
    if total.saved_ms >= _LEAST_SAVED_MS:
        parts.append(_("{time} saved", time=roughly(total.saved_ms / 1000)))
    return beside(parts)


def found_share(total: Total) -> str:
    """Return the share of its prompts that was found; empty without prompts."""
    return _("{share} found", share=percent(total.share)) if total.prompt else ""


def all_together(totals: Sequence[Total]) -> str:
    prompt, cached = sum(one.prompt for one in totals), sum(one.cached for one in totals)
    programs = several(len(totals), "{count} program", "{count} programs")
    requests = sum(one.requests for one in totals)
    words = several(requests, "{count} request of {programs}", "{count} requests of {programs}", programs=programs)
    if not prompt:
        return ended(words)
    share = percent(cached / prompt)
    return _("{words}; {share} of what they sent did not have to be read again.", words=words, share=share)


def told_of(one: Sum) -> str:
    """Return how often something happened, and how long it took."""
    return listed((f"{number(one.times)}×", roughly(one.ms / 1000) if one.ms >= _LEAST_SAVED_MS else ""))


def request_title(passage: Passage) -> str:
    at = datetime.fromtimestamp(passage.at).astimezone()
    today = at.date() == datetime.now().date()
    when, model = f"{at:%H:%M:%S}" if today else moment_of(at), passage.model or _("the model in use")
    return beside((when, model))


def request_line(passage: Passage) -> str:
    if passage.stage in _ENDED:
        status = f" ({passage.status})" if passage.status >= 400 else ""
        return f"{_(_ENDED[passage.stage])}{status}"
    parts = [_("{tokens} tokens", tokens=tokens_short(passage.prompt)) if passage.prompt else _("no prompt")]
    if passage.first_ms is not None:
        first_ms = brief(_first_word_ms(passage))
        # Of an answer in one piece some dialects do not tell how long writing it took.
        known = passage.stream or passage.write_ms
        parts.append(
            _("first word after {first_ms}", first_ms=first_ms) if known else _("answered after {time}", time=first_ms)
        )
    if passage.why:
        parts.append(passage.why.words)
    return beside(parts)


def receipt_of(passage: Passage) -> Receipt | None:
    """Return a request's receipt, like a reply's; None if it was never answered from a prompt."""
    if passage.stage is not Stage.DONE or passage.prompt is None or passage.cached is None:
        return None
    first = _first_word_ms(passage)
    waited, writing = first - passage.queue_ms, ((passage.total_ms or 0.0) - first) / 1000
    predicted = passage.predicted or 0
    return Receipt(
        ttft_ms=max(0.0, waited),
        restore_ms=passage.restore_ms,
        prefill_ms=passage.read_ms,
        first_token_ms=max(0.0, waited - passage.restore_ms - passage.read_ms),
        prompt_tokens=passage.prompt,
        cached_tokens=passage.cached,
        predicted_tokens=predicted,
        tokens_per_second=predicted / writing if (passage.stream or passage.write_ms) and writing > 0 else 0.0,
        source=source_of(passage),
        miss_reason=passage.why,
        queue_wait_ms=passage.queue_ms,
        saved_ms=passage.saved_ms or None,
    )


def _first_word_ms(passage: Passage) -> float:
    """Return the time until the engine had the first word, also of an answer that was sent in one piece."""
    return max(0.0, (passage.first_ms or passage.total_ms or 0.0) - passage.write_ms)


def source_of(passage: Passage) -> Source:
    return next((one for one in Source if one.value == passage.source), Source.COLD)


def chip_of(passage: Passage) -> str:
    """Return where its prompt came from, in a word; empty if that is not known."""
    receipt = receipt_of(passage)
    return where_told(receipt) if receipt else ""
