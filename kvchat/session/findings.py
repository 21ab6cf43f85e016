"""Findings about restoring, kept in a file, so that the self-test runs once per model and engine build.

That it does not work may have had another reason: it is tried again after a week, and when the user asks for it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvchat.kvstore.savepoint import Fingerprint
from kvchat.session.restore_support import Finding, Strategy
from kvchat.system.files import read_json, whole_file
from kvchat.words.language import _
from kvchat.words.reasons import reason_of

RETEST_AFTER_S = 7 * 86_400.0  # where restoring does not work
_MOST, _MOST_BYTES = 200, 4_000_000  # the newest are kept; a larger file is not of our making


@dataclass(frozen=True)
class Subject:
    """What a finding is about: it holds for nothing else."""

    fingerprint: Fingerprint  # model, KV types and every flag that changes what a state means
    build: str  # of the engine


class Findings:
    """The findings on disk. A file that cannot be read or written costs another self-test and no more."""

    def __init__(self, file: Path, tell: Callable[[str, str], object], clock: Callable[[], float] = time.time) -> None:
        """`tell` has a title and a sentence for the user; `clock` tells seconds since 1970."""
        self._file, self._tell, self._clock = file, tell, clock

    async def known(self, subject: Subject) -> Finding | None:
        """Return the finding of an earlier test; None without one, or if it is time to test again."""
        for row in await asyncio.to_thread(_read, self._file):
            if _is_about(row, subject):
                finding = _finding(row)
                works = finding is None or finding.strategy.saves
                return finding if works or row["found_at"] >= self._clock() - RETEST_AFTER_S else None
        return None

    async def forget(self, subject: Subject) -> None:
        """Try it out again when an engine comes up next."""
        await asyncio.to_thread(_keep, self._file, lambda row: not _is_about(row, subject))

    async def learn(self, subject: Subject, finding: Finding, before: Finding | None = None) -> None:
        """Keep a finding. The user is told when restoring turns out not to work, or less well than it seemed."""
        await asyncio.to_thread(store_finding, self._file, subject, finding, self._clock())
        if not finding.strategy.saves:
            self._tell(_("Chats cannot be remembered here"), finding.words)
        elif finding.strategy is Strategy.LONG and before is None:
            self._tell(_("Short chats cannot be remembered here"), finding.words)
        elif before is not None and before.strategy is not finding.strategy:
            self._tell(_("Remembering chats did not work as expected"), finding.words)


def newest_finding(file: Path, model: str) -> tuple[Finding, str] | None:
    """The last finding for a model, by its identity, and the engine build it is about; None without one."""
    row = next((row for row in _read(file) if row["fingerprint"].get("model") == model), None)
    finding = _finding(row) if row else None
    return (finding, row["build"]) if row and finding else None


def forget_model(file: Path, model: str) -> None:
    """Forget every finding for a model, by its identity."""
    _keep(file, lambda row: row["fingerprint"].get("model") != model)


def store_finding(file: Path, subject: Subject, finding: Finding, found_at: float) -> None:
    """Keep a finding in place of an older one; `found_at` in seconds since 1970."""
    new = {"found_at": found_at, **asdict(subject), **asdict(finding), "strategy": finding.strategy.value}
    _keep(file, lambda row: not _is_about(row, subject), new)


def _keep(file: Path, wanted: Callable[[dict[str, Any]], bool], *new: dict[str, Any]) -> None:
    """Write these and what is wanted of the others, where that is not what is there."""
    there = _read(file)
    rows = [*new, *filter(wanted, there)][:_MOST]
    if rows != there:
        with suppress(OSError):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with whole_file(file, private=True) as written:
                written.write_text(json.dumps(rows, indent=1), "utf-8")


def _read(file: Path) -> list[dict[str, Any]]:
    """The newest first, without what makes no sense."""
    with suppress(OSError, ValueError):
        rows = read_json(file, _MOST_BYTES)
        return [row for row in rows if _makes_sense(row)] if isinstance(rows, list) else []
    return []


def _makes_sense(row: object) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("fingerprint"), dict):
        return False
    return isinstance(row.get("build"), str) and isinstance(row.get("found_at"), int | float)


def _is_about(row: dict[str, Any], subject: Subject) -> bool:
    return bool(row["build"] == subject.build and row["fingerprint"] == asdict(subject.fingerprint))


def _finding(row: dict[str, Any]) -> Finding | None:
    with suppress(KeyError, ValueError, TypeError):
        strategy = Strategy(row["strategy"])
        return Finding(strategy, bool(row["proved"]), reason_of(row["reason"]), int(row["hollow"]))
    return None
