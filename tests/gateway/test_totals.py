"""Stored totals of requests by day."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from kvchat.gateway.records import MAX_DAYS, MAX_PROGRAMS, DailyTotals, ProgramTotal, TokenCost
from kvchat.text.reasons import ReasonCode
from tests.systems import has_mode

NOON = datetime(2026, 11, 22, 12)


def total(days: int = 0, **others: TokenCost) -> ProgramTotal:
    at = (NOON + timedelta(days=days)).timestamp()
    return ProgramTotal(1, 1000, 900, 4000.0, at, {ReasonCode.DATE_IN_SYSTEM: TokenCost(1, 100, 400.0)}, dict(others))


def test_totals_survive_a_restart(tmp_path: Path) -> None:
    totals = DailyTotals(tmp_path / "programs.json")
    totals.count("zed", total())
    totals.count("zed", total(1, rule=TokenCost(1, 50, 200.0)))
    totals.count("codex", total())
    totals.write(totals.as_text())
    for kept in (totals, DailyTotals(tmp_path / "programs.json")):
        zed = kept.by_program()["zed"]
        assert (zed.requests, zed.prompt, zed.cached, zed.saved_ms, zed.cached_share) == (2, 2000, 1800, 8000.0, 0.9)
        assert zed.misses == {ReasonCode.DATE_IN_SYSTEM: TokenCost(2, 200, 800.0)}
        assert zed.saved_by_rule == {"rule": TokenCost(1, 50, 200.0)}
        assert zed.last_at == (NOON + timedelta(days=1)).timestamp()
        assert set(kept.by_program()) == {"zed", "codex"}
    assert has_mode(tmp_path / "programs.json", 0o600)
    totals.forget("zed")
    assert set(totals.by_program()) == {"codex"}


def test_totals_stay_small(tmp_path: Path) -> None:
    totals = DailyTotals(tmp_path / "programs.json")
    for day in range(MAX_DAYS + 10):
        totals.count("zed", total(day))
    assert totals.by_program()["zed"].requests == MAX_DAYS
    for number in range(MAX_PROGRAMS + 10):
        totals.count(f"program {number}", total(MAX_DAYS + 9))
    assert len(totals.by_program()) <= MAX_PROGRAMS + 1
    assert totals.by_program()["other"].requests == 11


@pytest.mark.parametrize(
    "raw",
    [
        *("not JSON", "[]", "7", '{"2026-11-22": 3}'),
        *(
            f'{{"2026-11-22": {{"zed": {{{zed}}}}}}}'
            for zed in ('"requests": "many"', '"requests": true', '"requests": -1', '"misses": {"a": 1}')
        ),
        '{"2026-11-22": {"zed": {"misses": {"a": {"times": []}}}}}',
    ],
)
def test_invalid_file_counts_as_empty(tmp_path: Path, raw: str) -> None:
    (tmp_path / "programs.json").write_text(raw)
    totals = DailyTotals(tmp_path / "programs.json")
    assert totals.by_program() == {}
    totals.count("zed", total())
    totals.write(totals.as_text())
    assert json.loads((tmp_path / "programs.json").read_text())["2026-11-22"]["zed"]["requests"] == 1
