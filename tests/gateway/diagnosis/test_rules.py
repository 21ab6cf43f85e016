"""The rules, applied to each program's requests, change the intended text and nothing else."""

import json
import time
from collections.abc import Collection
from datetime import datetime, timedelta

import pytest

from kvchat.gateway.diagnosis.prompts import Prompt
from kvchat.gateway.diagnosis.rules import RULES, PromptChange
from kvchat.gateway.dialects.request import Dialect, ParsedRequest
from kvchat.gateway.rewriting import PromptRewriter, tokens_saved
from tests.gateway import agents
from tests.gateway.agents import Body, assistant, rendered, user


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 22, 9, 12)

    def __call__(self) -> datetime:
        return self.now


def rewrite(
    rewriter: PromptRewriter, body: Body, rules: Collection[str] = tuple(RULES)
) -> tuple[Body, tuple[PromptChange, ...]]:
    request = ParsedRequest(Dialect.CHAT, json.dumps(body, ensure_ascii=False).encode(), body)
    rewritten, changes = rewriter.rewrite("program", request, rules)
    assert json.loads(rewritten.raw) == rewritten.body
    assert changes or rewritten is request
    return rewritten.body, changes


def test_billing_header_is_removed() -> None:
    rewriter = PromptRewriter()
    assert rewrite(rewriter, agents.claude_code(), ())[1] == (), "no rule is on"
    first, (second, (change,)) = (rewrite(rewriter, agents.claude_code(cch=cch)) for cch in ("fa690", "0aaa9"))
    assert first[0] == second
    assert [block["text"][:15] for block in second["system"]] == ["You are Claude ", "Rule 0: do one "]
    assert "cch=0aaa9" in change.original
    assert not change.rewritten
    assert change.would_diverge
    header = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch=eb6c6;\n"
    for system, expected in (
        (header + "You are Claude Code.", "You are Claude Code."),
        ([{"type": "text", "text": header}], [{"type": "text", "text": ""}]),
    ):
        assert rewrite(PromptRewriter(), agents.claude_code() | {"system": system})[0]["system"] == expected


def test_first_date_is_held_for_a_day() -> None:
    clock = Clock()
    rewriter, next_day = PromptRewriter(clock=clock), agents.opencode(date="Mon Nov 23 2026")
    first, changes = rewrite(rewriter, agents.opencode(), ["hold-clock"])
    assert not changes
    clock.now += timedelta(hours=20)
    second, (change,) = rewrite(rewriter, next_day, ["hold-clock"])
    assert second == first
    shown = "Today's date: Mon Nov 23 2026", "Today's date: Sun Nov 22 2026"
    assert (change.original.strip(), change.rewritten.strip(), change.would_diverge) == (*shown, True)
    clock.now += timedelta(hours=5)
    assert not rewrite(rewriter, next_day, ["hold-clock"])[1]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (agents.claude_code(date="2026-11-22"), agents.claude_code(date="2026-11-23")),
        (agents.codex(date="2026-11-22"), agents.codex(date="2026-11-23")),
        (agents.cline(time="9:12:15 AM"), agents.cline(time="9:14:02 AM")),
    ],
)
def test_timestamps_of_other_programs_are_held(first: Body, second: Body) -> None:
    rewriter = PromptRewriter(clock=Clock())
    assert rewrite(rewriter, first, ["hold-clock"]) == (first, ())
    body, changes = rewrite(rewriter, second, ["hold-clock"])
    assert (body, len(changes)) == (first, 1)


@pytest.mark.parametrize(
    ("messages", "days"),
    [
        ([agents.system("The date of the release is {}."), user("When?")], ("2026-12-24", "2027-01-31")),
        # Conversation history is left alone.
        ([user("Hello"), assistant("Hi"), user("Today's date is {}.")], ("2026-11-22", "2026-11-23")),
    ],
)
def test_other_dates_are_left_alone(messages: list[Body], days: tuple[str, str]) -> None:
    rewriter = PromptRewriter(clock=Clock())
    for day in days:
        body = json.loads(json.dumps({"messages": messages}).replace("{}", day))
        assert not rewrite(rewriter, body, ["hold-clock"])[1]


def test_saved_tokens_are_counted_from_the_engines_count() -> None:
    def saved(rewritten: tuple[Body, tuple[PromptChange, ...]], prompt: Prompt, cached: int) -> dict[str, int]:
        return tokens_saved(rewritten[1], prompt.text, len(prompt), cached)

    rewriter = PromptRewriter(clock=Clock())
    first, second, same = (rewrite(rewriter, agents.claude_code(cch=cch)) for cch in ("fa690", "0aaa9", "0aaa9"))
    cold, warm = rendered(first[0]), rendered(second[0])
    assert saved(first, cold, 0) == {}
    assert saved(second, warm, len(warm) - 4) == {"billing-header": len(warm) - 4}
    assert saved(same, warm, len(warm)) == {}
    rewrite(rewriter, agents.opencode(), ["hold-clock"])
    held = rewrite(rewriter, agents.opencode(date="Mon Nov 23 2026"), ["hold-clock"])
    prompt = rendered(held[0])
    before = prompt.text.index("Today's date") * len(prompt) // len(prompt.text)
    assert saved(held, prompt, len(prompt)) == {"hold-clock": len(prompt) - before}


def test_long_line_of_dates_is_searched_once() -> None:
    """A line of 279 KB took 29 s: all of it was searched before each of its dates."""
    body = agents.opencode()
    body["messages"][0]["content"] = "Deadline 2027-01-02, " * 9_000
    began = time.process_time()
    rewrite(PromptRewriter(), body, ["hold-clock"])
    assert time.process_time() - began < 5
    _, (change,) = rewrite(PromptRewriter(), agents.claude_code(cch="x" * 100_000), ["billing-header"])
    assert len(change.original) <= 500, "no more is recorded than can be shown"


def test_dates_after_very_long_text_stay() -> None:
    clock = Clock()
    rewriter, text = PromptRewriter(clock=clock), "Today's date is {}.\n" + "x" * 300_000 + "\nToday's date is {}."
    for day in ("2026-11-22", "2026-11-23"):
        body = agents.opencode()
        body["messages"][0]["content"] = text.format(day, day)
        rewritten, _ = rewrite(rewriter, body, ["hold-clock"])
        assert rewritten["messages"][0]["content"] == text.format("2026-11-22", day)
        clock.now += timedelta(hours=15)
