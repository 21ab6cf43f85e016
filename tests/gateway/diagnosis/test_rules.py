"""The rules on requests of each program's shape: what they change, and that they change nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from datetime import datetime, timedelta

import pytest

from kvchat.gateway.diagnosis import rules
from kvchat.gateway.diagnosis.prompts import Prompt
from kvchat.gateway.diagnosis.rules import RULES
from kvchat.gateway.rewriting import PromptRewriter, Treated, tokens_spared
from tests.gateway import agents
from tests.gateway.agents import Body, assistant, rendered, user

DAY = datetime(2026, 11, 22, 9, 12)


class Clock:
    def __init__(self) -> None:
        self.now = DAY

    def __call__(self) -> datetime:
        return self.now


def treat(
    rewriter: PromptRewriter, body: Body, rules: Collection[str] = tuple(RULES), spaces: int | None = None
) -> Treated:
    return rewriter.treat("program", json.dumps(body, ensure_ascii=False, indent=spaces).encode(), body, rules)


def spared_by(treated: Treated, prompt: Prompt, cached: int) -> dict[str, int]:
    return tokens_spared(treated.changes, prompt.text, len(prompt), cached)


def test_the_billing_header_is_left_out() -> None:
    rewriter = PromptRewriter()
    raw, off = b"{}", agents.claude_code()
    assert rewriter.treat("program", raw, off, ()) == Treated(raw, off), "no rule is on"
    one, other = (treat(rewriter, agents.claude_code(cch=cch), ["billing-header"]) for cch in ("fa690", "0aaa9"))
    assert one.raw == other.raw
    assert [block["text"][:15] for block in one.body["system"]] == ["You are Claude ", "Rule 0: do one "]
    (change,) = other.changes
    assert "cch=0aaa9" in change.before
    assert not change.after
    assert change.differs
    assert json.loads(one.raw) == one.body

    header = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch=eb6c6;\n"
    body = agents.claude_code() | {"system": header + "You are Claude Code."}
    assert treat(PromptRewriter(), body).body["system"] == "You are Claude Code."
    alone = agents.claude_code() | {"system": [{"type": "text", "text": header}]}
    assert treat(PromptRewriter(), alone).body["system"] == [{"type": "text", "text": ""}]


def test_the_first_date_is_held_for_a_day() -> None:
    clock = Clock()
    rewriter = PromptRewriter(clock=clock)
    first = treat(rewriter, agents.opencode(), ["hold-clock"])
    assert not first.changes
    clock.now += timedelta(hours=20)
    second = treat(rewriter, agents.opencode(date="Mon Nov 23 2026"), ["hold-clock"])
    assert second.raw == first.raw
    (change,) = second.changes
    assert (change.before.strip(), change.after.strip()) == (
        "Today's date: Mon Nov 23 2026",
        "Today's date: Sun Nov 22 2026",
    )
    assert change.differs
    clock.now += timedelta(hours=5)
    assert not treat(rewriter, agents.opencode(date="Mon Nov 23 2026"), ["hold-clock"]).changes


def test_the_clocks_of_other_programs_are_held_too() -> None:
    for make, one, other in (
        (agents.claude_code, {"date": "2026-11-22"}, {"date": "2026-11-23"}),
        (agents.codex, {"date": "2026-11-22"}, {"date": "2026-11-23"}),
        (agents.cline, {"time": "9:12:15 AM"}, {"time": "9:14:02 AM"}),
    ):
        rewriter = PromptRewriter(clock=Clock())
        first, second = treat(rewriter, make(**one), ["hold-clock"]), treat(rewriter, make(**other), ["hold-clock"])
        assert first.raw == second.raw, make
        assert len(second.changes) == 1


def test_a_date_that_is_no_clock_is_left_alone() -> None:
    rewriter = PromptRewriter(clock=Clock())
    for day in ("2026-12-24", "2027-01-31"):
        body = {"messages": [{"role": "system", "content": f"The date of the release is {day}."}, user("When?")]}
        assert not treat(rewriter, body, ["hold-clock"]).changes
    for day in ("2026-11-22", "2026-11-23"):  # what was said in the conversation stays what was said
        body = {"messages": [user("Hello"), assistant("Hi"), user(f"Today's date is {day}.")]}
        assert not treat(rewriter, body, ["hold-clock"]).changes


def test_what_a_rule_has_spared_is_counted_once_the_engine_says_so() -> None:
    rewriter = PromptRewriter()
    prompts = []
    for cch in ("fa690", "0aaa9"):
        treated = treat(rewriter, agents.claude_code(cch=cch), RULES)
        prompts.append((treated, rendered(dict(treated.body))))
    (first, cold), (second, warm) = prompts
    assert spared_by(first, cold, 0) == {}
    assert spared_by(second, warm, len(warm) - 4) == {"billing-header": len(warm) - 4}
    same = treat(rewriter, agents.claude_code(cch="0aaa9"), RULES)
    assert spared_by(same, warm, len(warm)) == {}


def test_a_held_clock_spares_what_stands_behind_it() -> None:
    rewriter = PromptRewriter(clock=Clock())
    treat(rewriter, agents.opencode(), ["hold-clock"])
    treated = treat(rewriter, agents.opencode(date="Mon Nov 23 2026"), ["hold-clock"])
    prompt = rendered(dict(treated.body))
    spared = spared_by(treated, prompt, len(prompt))["hold-clock"]
    behind = prompt.text[prompt.text.index("Today's date") :]
    assert spared == len(prompt) - (len(prompt.text) - len(behind)) * len(prompt) // len(prompt.text)


class Counted:
    """A pattern that counts how much it was looked for in."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern, self.looked_at = pattern, 0

    def search(self, text: str) -> re.Match[str] | None:
        self.looked_at += len(text)
        return self.pattern.search(text)


def test_a_long_line_of_dates_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of 279 KB took 29 s, for before each of its dates all of the line was looked at."""
    monkeypatch.setattr(rules, "_TELLS", counted := Counted(rules._TELLS))
    for line in ("On 2026-11-22 at 09:12 it rained, ", "Deadline 2027-01-02, "):
        body = agents.opencode()
        body["messages"][0]["content"] = line * 500
        counted.looked_at = 0
        treat(PromptRewriter(), body, ["hold-clock"])
        assert counted.looked_at <= 20 * len(line) * 500

    rewriter = PromptRewriter()
    (change,) = treat(rewriter, agents.claude_code(cch="x" * 100_000), ["billing-header"]).changes
    assert len(change.before) <= 500, "no more is remembered than can be shown"


def test_what_stands_behind_very_much_stays_as_it_is() -> None:
    clock = Clock()
    rewriter, told = PromptRewriter(clock=clock), "Today's date is {}.\n" + "x" * 300_000 + "\nToday's date is {}."
    for day in ("2026-11-22", "2026-11-23"):
        body = agents.opencode()
        body["messages"][0]["content"] = told.format(day, day)
        treated = treat(rewriter, body, ["hold-clock"]).body["messages"][0]["content"]
        assert treated == told.format("2026-11-22", day)
        clock.now += timedelta(hours=15)
