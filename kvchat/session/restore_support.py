"""Findings about restoring with one engine, model and set of flags, and the file that keeps them.

A failure may have had another cause, so it is tested again after a week, or when the user asks.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from kvchat.kvstore.savepoint import Fingerprint
from kvchat.system.files import atomic_write, read_json
from kvchat.text.language import N_, _, join_sentences
from kvchat.text.reasons import Reason, ReasonCode, parse_reason

HOLLOW_LIMIT = 2  # hollow restores in a row until a proved strategy is replaced by a more careful one


class Strategy(Enum):
    """Ways to save and restore states, most useful first; `RestoreFinding.description` explains each."""

    PLAIN = "plain"  # a state can be cut back to any prefix
    FULL_WINDOW = "full window"  # sliding window kept whole by --swa-full: like SETTLE
    COMPLETE = "complete"  # sliding window: like SETTLE, plus the row the engine did not save
    LONG = "long"  # like COMPLETE, but only for chats longer than the window
    SETTLE = "settle"  # only for prompts that extend exactly what was saved
    NONE = "none"  # restoring does not work; nothing is saved

    @property
    def can_cut(self) -> bool:
        return self is Strategy.PLAIN  # after a restore --swa-full reaches only as far as the window (b11434)

    @property
    def supports_saving(self) -> bool:
        return self is not Strategy.NONE

    @property
    def more_careful(self) -> Strategy:
        next_steps = {
            Strategy.PLAIN: Strategy.SETTLE,
            Strategy.FULL_WINDOW: Strategy.COMPLETE,
            Strategy.COMPLETE: Strategy.LONG,
        }
        return next_steps.get(self, Strategy.NONE)


@dataclass(frozen=True)
class RestoreFinding:
    strategy: Strategy
    proved: bool  # by the self-test or a later restore; else assumed from the architecture
    reason: Reason | None = None  # why it differs from the architecture's, or is unproved
    hollow: int = 0  # hollow restores since the last proved one

    @property
    def description(self) -> str:
        if not self.strategy.supports_saving:
            text = N_("With this engine and model, kvchat saves no chat memory and reprocesses chats instead.")
        elif self.proved:
            text = N_("Chat memory works with this engine and model: {how}.")
        else:
            text = N_("Chat memory should work with this engine and model (not confirmed yet): {how}.")
        description = _(text, how=_(_STRATEGY_TEXT.get(self.strategy, "")))
        return join_sentences(description, self.reason.as_sentence if self.reason else "")

    def after_restore(self, *, was_used: bool) -> RestoreFinding:
        if was_used:
            return replace(self, proved=True, hollow=0)
        reason = Reason(ReasonCode.UNUSED)
        if self.proved:
            if self.hollow + 1 < HOLLOW_LIMIT:
                return replace(self, hollow=self.hollow + 1)
            reason = Reason(ReasonCode.UNUSED_AGAIN, {"count": HOLLOW_LIMIT})
        return RestoreFinding(self.strategy.more_careful, proved=False, reason=reason)


_STRATEGY_TEXT = {
    Strategy.PLAIN: N_("any part of a chat can be reused"),
    Strategy.FULL_WINDOW: N_("chat memory can be restored at the end of any reply (--swa-full is on)"),
    Strategy.COMPLETE: N_("chat memory can be restored at the end of any reply"),
    Strategy.LONG: N_(
        "for chats longer than the model’s sliding window, chat memory can be restored at the end of any reply"
    ),
    Strategy.SETTLE: N_("chat memory can be restored at the end of any reply"),
}


RETEST_AFTER_S = 7 * 86_400.0  # if restoring does not work
_MAX_ROWS, _MAX_BYTES = 200, 4_000_000  # newest entries kept; a larger file is not ours


@dataclass(frozen=True)
class FindingKey:
    fingerprint: Fingerprint  # model, KV types and every flag that changes what a state means
    build: str  # of the engine


class FindingStore:
    """Findings on disk. If the file cannot be read or written, the self-test runs again."""

    def __init__(self, file: Path, notify: Callable[[str, str], object]) -> None:
        """`notify` takes a title and a sentence for the user."""
        self._file, self._notify = file, notify

    async def find(self, subject: FindingKey) -> RestoreFinding | None:
        """Return the finding of an earlier test; None if there is none or a retest is due."""
        for row in await asyncio.to_thread(_read_rows, self._file):
            if _matches(row, subject):
                finding = _finding(row)
                works = finding is None or finding.strategy.supports_saving
                return finding if works or row["found_at"] >= time.time() - RETEST_AFTER_S else None
        return None

    async def forget(self, subject: FindingKey) -> None:
        await asyncio.to_thread(_update, self._file, lambda row: not _matches(row, subject))

    async def learn(self, subject: FindingKey, finding: RestoreFinding, previous: RestoreFinding | None = None) -> None:
        """Store a finding. Notify the user if restoring does not work, or works less well than promised."""
        await asyncio.to_thread(store_finding, self._file, subject, finding, time.time())
        if not finding.strategy.supports_saving:
            self._notify(_("Chat memory does not work with this engine"), finding.description)
        elif finding.strategy is Strategy.LONG and previous is None:
            self._notify(_("Chat memory does not work for short chats with this engine"), finding.description)
        elif previous is not None and previous.strategy is not finding.strategy:
            self._notify(_("Chat memory did not work as expected"), finding.description)


def newest_finding(file: Path, model: str) -> tuple[RestoreFinding, str] | None:
    """Return the last finding for a model, by its identity, and its engine build, or None."""
    row = next((row for row in _read_rows(file) if row["fingerprint"].get("model") == model), None)
    finding = _finding(row) if row else None
    return (finding, row["build"]) if row and finding else None


def forget_model(file: Path, model: str) -> None:
    _update(file, lambda row: row["fingerprint"].get("model") != model)


def store_finding(file: Path, subject: FindingKey, finding: RestoreFinding, found_at: float) -> None:
    """Store a finding, replacing an older one; `found_at` in seconds since 1970."""
    new = {"found_at": found_at, **asdict(subject), **asdict(finding), "strategy": finding.strategy.value}
    _update(file, lambda row: not _matches(row, subject), new)


def _update(file: Path, keep_row: Callable[[dict[str, Any]], bool], *new: dict[str, Any]) -> None:
    before = _read_rows(file)
    rows = [*new, *filter(keep_row, before)][:_MAX_ROWS]
    if rows != before:
        with suppress(OSError):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with atomic_write(file, private=True) as written:
                written.write_text(json.dumps(rows, indent=1), "utf-8")


def _read_rows(file: Path) -> list[dict[str, Any]]:
    types = {"fingerprint": dict, "build": str, "found_at": int | float}
    with suppress(OSError, ValueError):
        rows = read_json(file, _MAX_BYTES)
        dicts = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        return [row for row in dicts if all(isinstance(row.get(name), kind) for name, kind in types.items())]
    return []


def _matches(row: dict[str, Any], subject: FindingKey) -> bool:
    return bool(row["build"] == subject.build and row["fingerprint"] == asdict(subject.fingerprint))


def _finding(row: dict[str, Any]) -> RestoreFinding | None:
    with suppress(KeyError, ValueError, TypeError):
        strategy = Strategy(row["strategy"])
        return RestoreFinding(strategy, bool(row["proved"]), parse_reason(row["reason"]), int(row["hollow"]))
    return None
