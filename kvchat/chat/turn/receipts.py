"""Receipts as text (at a glance, in a sentence, in full), and daily totals of the time saved."""

import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from enum import Enum
from functools import cached_property
from pathlib import Path

from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Message, Receipt, Role
from kvchat.session.proof import MIN_SHARE, PROVED_SHARE, Source, Verdict
from kvchat.text.formatting import (
    FIRST_REPLY,
    READ,
    READ_AHEAD,
    REMEMBERED,
    REPROCESSED,
    STILL_LOADED,
    format_brief_duration,
    format_duration,
    format_rate,
    format_size,
)
from kvchat.text.language import N_, _, format_number, join_list, join_parts, plural, punctuation
from kvchat.text.reasons import Reason, ReasonCode
from kvchat.text.safe_text import safe_prose

SOURCE_LABELS = {
    Source.AHEAD: READ_AHEAD,
    Source.HOT: STILL_LOADED,
    Source.WARM: REMEMBERED,
    Source.DISK: REMEMBERED,
    Source.COLD: REPROCESSED,
}
_PARTIAL_LABELS = {
    Source.AHEAD: N_("partly processed ahead"),
    Source.HOT: N_("partly still loaded"),
    Source.WARM: N_("partly remembered"),
    Source.DISK: N_("partly remembered"),
}
IMPORTED_LABEL = N_("imported memory, not verified")
UNUSED_MEMORY = N_("the loaded memory was not used")
_SOURCE_DETAILS = {  # technical terms
    Source.AHEAD: N_("ahead: processed before Send"),
    Source.HOT: N_("hot: still in the engine"),
    Source.WARM: N_("warm: restored from memory"),
    Source.DISK: N_("restored from disk, confirmed by the engine’s token count"),
    Source.COLD: N_("cold: processed from the beginning"),
}
_MIN_WAIT_MS = 500.0  # not shown if shorter
_MIN_SAVING_MS = 100.0  # smaller savings are not shown


class Phase(Enum):
    LOADING = N_("Loading")
    READING = N_("Processing")
    FIRST_TOKEN = N_("First token")
    WRITING = N_("Generating")
    SETTLING = N_("Finalizing")  # bringing the slot to the turn boundary
    SAVING = N_("Saving")


@dataclass(frozen=True)
class PhaseSpan:
    phase: Phase
    ms: float
    before_send: bool = False  # not part of the wait

    @property
    def label(self) -> str:
        return _(_AHEAD_LABELS.get(self.phase, self.phase.value) if self.before_send else self.phase.value)


_AHEAD_LABELS = {Phase.LOADING: N_("Loaded ahead"), Phase.READING: N_("Processed ahead")}


def timeline(receipt: Receipt) -> tuple[PhaseSpan, ...]:
    writing = 1000 * receipt.predicted_tokens / receipt.tokens_per_second if receipt.tokens_per_second else 0.0
    steps = (
        PhaseSpan(Phase.LOADING, receipt.restore_ms if receipt.prefetched else 0.0, before_send=True),
        PhaseSpan(Phase.READING, receipt.read_ahead_ms, before_send=True),
        PhaseSpan(Phase.LOADING, 0.0 if receipt.prefetched else receipt.restore_ms),
        PhaseSpan(Phase.READING, receipt.prefill_ms),
        PhaseSpan(Phase.FIRST_TOKEN, receipt.first_token_ms),
        PhaseSpan(Phase.WRITING, writing),
        PhaseSpan(Phase.SETTLING, receipt.settle_ms or 0.0),
        PhaseSpan(Phase.SAVING, receipt.save_ms or 0.0),
    )
    return tuple(step for step in steps if step.ms > 0)


def source_label(verdict: Verdict, cached: int, prompt: int, earlier: int = 0) -> str:
    if verdict.miss_reason == Reason(ReasonCode.FIRST_REPLY):
        return _(FIRST_REPLY)
    if verdict.miss_reason == Reason(ReasonCode.NOTHING_ALIKE):  # a program's first request
        return _(READ)
    most = PROVED_SHARE if verdict.source is Source.AHEAD else 0.5
    if verdict.source is Source.COLD or cached >= max(most * prompt, PROVED_SHARE * earlier):
        return _(SOURCE_LABELS[verdict.source])
    return _(_PARTIAL_LABELS[verdict.source]) if cached >= MIN_SHARE * prompt else _(READ)


def receipt_verdict(receipt: Receipt) -> Verdict:
    return Verdict(receipt.source, receipt.hollow, receipt.miss_reason)


def receipt_source_label(receipt: Receipt) -> str:
    return source_label(receipt_verdict(receipt), receipt.cached_tokens, receipt.prompt_tokens, receipt.earlier_tokens)


def receipt_line(receipt: Receipt) -> str:
    where = receipt_source_label(receipt)
    if receipt.hollow:
        where = f"{where}: {_(UNUSED_MEMORY)}"
    foreign = [_(IMPORTED_LABEL)] if receipt.imported else []
    return join_parts(
        (format_brief_duration(receipt.ttft_ms), where, *foreign, *_wait_labels(receipt), receipt_model(receipt))
    )


def receipt_model(receipt: Receipt) -> str:
    return safe_prose(receipt.model_name)


def receipt_sentence(receipt: Receipt) -> str:
    read = receipt.prompt_tokens - receipt.cached_tokens
    parts = [format_duration(receipt.ttft_ms)]
    if receipt.hollow:
        again = plural(read, "reprocessed {count} token", "reprocessed {count} tokens")
        parts.append(f"{again}: {_(UNUSED_MEMORY)}")
    elif receipt.source is Source.COLD:
        parts.append(plural(read, "processed {count} token", "processed {count} tokens"))
        if receipt.miss_reason:
            parts.append(receipt.miss_reason.text)
    else:
        done = [plural(read, "processed {count} new token", "processed {count} new tokens")]
        ahead, before = receipt.read_ahead_tokens, receipt.cached_tokens - receipt.read_ahead_tokens
        if before and (receipt.source is Source.HOT or (receipt.source is Source.AHEAD and not receipt.restore_ms)):
            done.append(_("{tokens} still loaded", tokens=format_number(before)))
        elif before and receipt.source is Source.DISK:
            done.append(_("remembered {tokens} from disk", tokens=format_number(before)))
        elif before:
            done.append(_("remembered {tokens}", tokens=format_number(before)))
        if ahead:
            done.append(_("{tokens} processed ahead", tokens=format_number(ahead)))
        parts.append(join_list(done))
        if receipt.saved_ms is not None and receipt.saved_ms >= _MIN_SAVING_MS:
            saved_s = receipt.saved_ms / 1000  # round to the estimate's precision
            time = (
                _("{seconds} s", seconds=f"{saved_s:.0f}") if 10 <= saved_s < 100 else format_duration(receipt.saved_ms)
            )
            parts.append(_("saved about {time}", time=time))
    return join_parts([*parts, *_wait_labels(receipt)])


def receipt_details(receipt: Receipt) -> tuple[tuple[str, str], ...]:
    read, cached = receipt.prompt_tokens - receipt.cached_tokens, receipt.cached_tokens
    full = _(UNUSED_MEMORY) if receipt.hollow else _(_SOURCE_DETAILS[receipt.source])
    written, prompt = _format_tokens(receipt.predicted_tokens), _format_tokens(receipt.prompt_tokens)
    if receipt.tokens_per_second:
        written = _("{tokens} at {speed}", tokens=written, speed=format_rate(receipt.tokens_per_second))
    reused = format_number(cached)
    prompt = _("{tokens}: {read} processed, {kept} remembered", tokens=prompt, read=format_number(read), kept=reused)
    ahead = _(
        "{tokens} in {time}",
        tokens=_format_tokens(receipt.read_ahead_tokens),
        time=format_duration(receipt.read_ahead_ms),
    )
    ahead = _("{what} (before you pressed Send, not counted)", what=ahead)
    reading = _("{time} for {tokens}", time=format_duration(receipt.prefill_ms), tokens=_format_tokens(read))
    restore = format_duration(receipt.restore_ms) if receipt.restore_ms else _("nothing to load")
    if receipt.restore_ms and receipt.restored_bytes:
        restore = _("{size} in {time}", size=format_size(receipt.restored_bytes), time=restore)
    if receipt.restore_ms and receipt.prefetched:
        restore = _("{what} (before you pressed Send, not counted)", what=restore)
    lines = [
        (_("Time to first token"), format_duration(receipt.ttft_ms)),
        ("  " + _("Loading (restore)"), restore),
        *([("  " + _("Processed ahead"), ahead)] if receipt.read_ahead_tokens else []),
        ("  " + _("Processing (prefill)"), reading),
        ("  " + _("First token and overhead"), format_duration(receipt.first_token_ms)),
        (_("Prompt"), prompt),
        (_("Reply"), written),
        *([(_("Model"), receipt_model(receipt))] if receipt.model_name else []),
        (_("Source"), f"{receipt_source_label(receipt)}{punctuation('; ')}{full}"),
    ]
    if receipt.imported:
        lines.append(
            (_("Imported memory"), _("This memory was imported with the chat, and kvchat has not verified it."))
        )
    if receipt.settle_ms is not None:
        settled = format_duration(receipt.settle_ms)
        text = _("finalized in {time}, not saved", time=settled)
        if receipt.save_ms is not None:
            text = _("finalized in {time}, saved in {saved}", time=settled, saved=format_duration(receipt.save_ms))
        lines.append((_("After the reply"), text))
    if receipt.queue_wait_ms >= _MIN_WAIT_MS:
        lines.append((_("Waited for another reply (not counted)"), format_duration(receipt.queue_wait_ms)))
    if receipt.engine_wait_ms >= _MIN_WAIT_MS:
        lines.append((_("Waited for the engine to start (not counted)"), format_duration(receipt.engine_wait_ms)))
    if receipt.saved_ms is not None:
        lines.append((_("Time saved (estimate)"), format_duration(receipt.saved_ms)))
    if receipt.miss_reason:
        lines.append((_("Reason for processing"), receipt.miss_reason.text))
    return tuple(lines)


@dataclass(frozen=True)
class TurnStep:
    """One round of a turn: a reply and the execution of its tool calls."""

    receipt: Receipt | None
    calls: int = 0
    tool_ms: float = 0.0  # without waiting for permission


def turn_steps(branch: Sequence[Message], reply: Message) -> tuple[TurnStep, ...]:
    """Return the rounds of the turn that this reply ends; empty if the turn called no tools."""
    steps: list[TurnStep] = []
    for message in branch:
        if message.role is Role.USER:
            steps.clear()
        elif message.role is Role.TOOL and steps:
            step = steps[-1]
            steps[-1] = replace(step, calls=step.calls + 1, tool_ms=step.tool_ms + (message.tool_ms or 0.0))
        elif message.role is Role.ASSISTANT:
            steps.append(TurnStep(message.receipt))
        if message.id == reply.id:
            break
    return tuple(steps) if len(steps) > 1 else ()


def step_details(steps: Sequence[TurnStep]) -> tuple[tuple[str, str], ...]:
    """Return a line for each round of a turn with tool calls."""
    lines = []
    for number, step in enumerate(steps, start=1):
        parts = []
        if (receipt := step.receipt) is not None:
            read, kept = receipt.prompt_tokens - receipt.cached_tokens, receipt.cached_tokens
            parts.append(_("{read} processed, {kept} remembered", read=format_number(read), kept=format_number(kept)))
        if step.calls:
            calls = plural(step.calls, "{count} tool call", "{count} tool calls")
            parts.append(_("{calls} in {time}", calls=calls, time=format_duration(step.tool_ms)))
        lines.append((_("Step {number}", number=format_number(number)), join_parts(parts)))
    return tuple(lines)


def turn_line(receipt: Receipt, steps: Sequence[TurnStep]) -> str:
    """Return the summary of a turn: its first step, which the user waited for, and the number of tool calls."""
    first = next((step.receipt for step in steps if step.receipt), receipt)
    calls = sum(step.calls for step in steps)
    return join_parts(
        [receipt_line(first), *([plural(calls, "{count} tool call", "{count} tool calls")] if calls else [])]
    )


def _wait_labels(receipt: Receipt) -> list[str]:
    queued, started = receipt.queue_wait_ms, receipt.engine_wait_ms
    return [
        *([_("waited {time} for another reply", time=format_brief_duration(queued))] if queued >= _MIN_WAIT_MS else []),
        *(
            [_("waited {time} for the engine to start", time=format_brief_duration(started))]
            if started >= _MIN_WAIT_MS
            else []
        ),
    ]


def _format_tokens(count: int) -> str:
    return plural(count, "{count} token", "{count} tokens")


MAX_DAYS, MIN_DAYS = 90, 14  # including today; fewer would plot as one wide bar
_PARTIAL = "partly"  # some of the previous reply's prompt was not reused
_KIND_LABELS = {
    Source.HOT.value: STILL_LOADED,
    Source.AHEAD.value: READ_AHEAD,
    Source.WARM.value: REMEMBERED,
    Source.DISK.value: N_("remembered from disk"),
    _PARTIAL: N_("partly reprocessed"),
    "": FIRST_REPLY,
    Source.COLD.value: REPROCESSED,
}
REPLY_KINDS = tuple(_KIND_LABELS.values())  # sources of replies, fastest first
_QUERY = """
    SELECT date(created_at, 'unixepoch', 'localtime') AS day,
        CASE WHEN receipt ->> '$.source' <> 'cold'
            AND receipt ->> '$.cached_tokens' < ? * (receipt ->> '$.earlier_tokens')
        THEN ? ELSE receipt ->> '$.source' END AS source,
        receipt ->> '$.miss_reason.code' = ? AS first, count(*),
        total(receipt ->> '$.saved_ms') / 1000, total(receipt ->> '$.ttft_ms') / 1000
    FROM messages WHERE receipt IS NOT NULL AND created_at >= ? AND json_valid(receipt)
    GROUP BY 1, 2, 3 HAVING day <= ? ORDER BY 1
"""


@dataclass(frozen=True)
class DailyReplies:
    """The replies of one day whose prompts had the same source (`kind`). Times in seconds."""

    day: date
    kind: str  # one of REPLY_KINDS
    count: int
    saved_s: float  # estimated
    first_token_s: float  # total time from Send to the first token


@dataclass(frozen=True)
class ReplyStatistics:
    replies: tuple[DailyReplies, ...]
    today: date

    @cached_property
    def days(self) -> tuple[date, ...]:
        first = min((replies.day for replies in self.replies), default=self.today)
        back = min(max((self.today - first).days, MIN_DAYS - 1), MAX_DAYS - 1)
        return tuple(self.today - timedelta(days=ago) for ago in range(back, -1, -1))

    @cached_property
    def count(self) -> int:
        return sum(replies.count for replies in self.replies)

    def day_totals(self, day: date) -> tuple[int, float]:
        that_day = [replies for replies in self.replies if replies.day == day]
        return sum(replies.count for replies in that_day), sum(replies.saved_s for replies in that_day)

    def kind_totals(self, kind: str) -> tuple[int, float, float]:
        some = [replies for replies in self.replies if replies.kind == kind]
        count = sum(replies.count for replies in some)
        waited_s = sum(replies.first_token_s for replies in some)
        return count, sum(replies.saved_s for replies in some), waited_s / max(count, 1)


def read_statistics(file: Path, today: date | None = None) -> ReplyStatistics:
    """Sum the receipts in the chats' file, on a separate connection. Raises StorageFailed."""
    today = today or date.today()
    since = datetime.combine(today - timedelta(days=MAX_DAYS - 1), datetime.min.time()).timestamp()
    with closing(Database(file)) as database:
        rows = database.rows(_QUERY, (PROVED_SHARE, _PARTIAL, ReasonCode.FIRST_REPLY, since, today.isoformat()))
    sums: defaultdict[tuple[date, str], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for day, source, first, *figures in rows:
        kind = FIRST_REPLY if first else _KIND_LABELS.get(source or " ")
        if kind and all(map(math.isfinite, figures)):
            key = date.fromisoformat(day), kind
            sums[key] = [a + b for a, b in zip(sums[key], figures, strict=True)]
    return ReplyStatistics(
        tuple(DailyReplies(*key, int(count), *seconds) for key, (count, *seconds) in sums.items()), today
    )
