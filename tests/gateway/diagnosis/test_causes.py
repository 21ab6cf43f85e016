"""Causes of divergence between two requests of one program."""

import copy
import json
from dataclasses import asdict
from sys import getsizeof
from typing import Any

import numpy as np
import pytest

from kvchat.gateway.diagnosis import prompts
from kvchat.gateway.diagnosis.causes import RULE_BY_CAUSE
from kvchat.gateway.diagnosis.prompts import Divergence, Prompt
from kvchat.gateway.rewriting import PromptRewriter
from kvchat.text.reasons import Reason, ReasonCode, parse_reason
from tests.gateway import agents
from tests.gateway.agents import Body, assistant, rendered, user

LONG = "x = 1  # " + "and so on " * 400


def divergence(first: Prompt, second: Prompt) -> Divergence | None:
    rewriter = PromptRewriter()
    assert rewriter.diagnose("program", "model", first) is None
    return rewriter.diagnose("program", "model", second)


def cause_of(first: Body, second: Body) -> Reason:
    result = divergence(rendered(first), rendered(second))
    assert parse_reason(json.loads(json.dumps(asdict(result.cause)))) == result.cause
    assert Reason(result.cause.code).text, "there is a sentence without values"
    return result.cause


def message(number: int, code: ReasonCode, role: str = "user") -> Reason:
    return Reason(code, {"number": number, "role": role})


def test_no_divergence_from_an_extended_or_unrelated_prompt() -> None:
    first = agents.opencode(user("Hello"))
    second = agents.opencode(user("Hello"), assistant("Good morning."), user("And now?"))
    assert divergence(rendered(first), rendered(second)) is None
    assert divergence(rendered(first), rendered(first)) is None
    title = {"messages": [user("Generate a title for this conversation:\nhow do parsers recover?")]}
    assert divergence(rendered(agents.opencode()), rendered(title)) is None


@pytest.mark.parametrize(
    ("first", "second", "cause", "rule"),
    [
        (agents.opencode(), agents.opencode(date="Mon Nov 23 2026"), ReasonCode.DATE_IN_SYSTEM, "hold-clock"),
        (agents.opencode(), agents.opencode(folder="/tmp/x"), ReasonCode.FOLDER_IN_SYSTEM, ""),
        (agents.claude_code(), agents.claude_code(version="2.1.178"), ReasonCode.BILLING_HEADER, "billing-header"),
        (agents.claude_code(), agents.claude_code(date="2026-11-23"), ReasonCode.DATE_IN_FIRST, "hold-clock"),
        (agents.codex(), agents.codex(folder="/tmp/x"), ReasonCode.FOLDER_IN_FIRST, ""),
        (agents.codex(), agents.codex(date="2026-11-23"), ReasonCode.DATE_IN_FIRST, "hold-clock"),
        (agents.cline(), agents.cline(time="9:14:02 AM"), ReasonCode.DATE_IN_FIRST, "hold-clock"),
        (agents.aider(user("Go")), agents.aider(user("Go"), repository="src/lexer.py:"), ReasonCode.REPOSITORY_MAP, ""),
    ],
)
def test_known_causes(first: Body, second: Body, cause: ReasonCode, rule: str) -> None:
    assert cause_of(first, second) == Reason(cause)
    assert RULE_BY_CAUSE.get(cause, "") == rule


def test_changed_tools() -> None:
    before = agents.opencode()
    browser = agents.function("browser")
    added, removed, redefined, reordered = (copy.deepcopy(before) for _ in range(4))
    added["tools"].insert(2, browser)
    del removed["tools"][3]
    redefined["tools"][4]["function"]["description"] = "Lists what is there"
    reordered["tools"].reverse()
    with_browser = [body | {"tools": [*body["tools"], browser]} for body in (before, removed)]
    assert cause_of(before, added) == tools((ReasonCode.TOOLS_ADDED, "browser"))
    assert cause_of(removed, with_browser[0]) == tools((ReasonCode.TOOLS_ADDED, "grep", "browser"))
    assert cause_of(with_browser[1], before) == tools(
        (ReasonCode.TOOLS_ADDED, "grep"), (ReasonCode.TOOLS_REMOVED, "browser")
    )
    assert cause_of(before, removed) == tools((ReasonCode.TOOLS_REMOVED, "grep"))
    assert cause_of(before, redefined) == tools((ReasonCode.TOOLS_REDESCRIBED, "list"))
    assert cause_of(before, reordered) == Reason(ReasonCode.TOOLS_REORDERED)
    many = before | {"tools": [*before["tools"], *(agents.function(f"more{number}") for number in range(5))]}
    assert cause_of(before, many).english == "tool list changed: more0, more1, more2, 2 more added"


def tools(*changes: tuple[ReasonCode, *tuple[str, ...]]) -> Reason:
    return Reason(
        ReasonCode.TOOLS_CHANGED, {"changes": tuple(Reason(code, {"tools": tuple(names)}) for code, *names in changes)}
    )


def test_dropped_reasoning() -> None:
    reasoned = assistant(LONG, reasoning_content="The parser loses its place here.")
    result = {"role": "tool", "content": LONG}
    unfinished = agents.opencode(user("Fix it"), reasoned, result)
    continued = agents.opencode(user("Fix it"), reasoned, result, assistant("Done."), user("Thanks. And the lexer?"))
    assert cause_of(unfinished, continued) == Reason(ReasonCode.TEMPLATE_DROPS_REASONING)
    left_out = agents.opencode(user("Fix it"), assistant(LONG), result, assistant("Done."))
    assert cause_of(unfinished, left_out) == Reason(ReasonCode.PROGRAM_DROPS_REASONING)


def test_changed_messages() -> None:
    turns: list[Any] = [user(f"Question {number}: {LONG}") for number in range(6)]
    before = agents.opencode(*turns)

    def cause_after(*new: Any) -> Reason:
        return cause_of(before, agents.opencode(*new))

    reminded = [*turns[:4], user(turns[4]["content"] + "\n<system-reminder>Plan only.</system-reminder>"), turns[5]]
    assert cause_after(*reminded) == Reason(ReasonCode.REMINDER_MOVES)
    assert cause_after(turns[0], *turns[3:]) == Reason(ReasonCode.LEFT_OUT, {"count": 2})
    assert cause_after(turns[0], user("Edited: " + LONG), *turns[2:]) == message(2, ReasonCode.EDITED)
    assert cause_after(turns[0], user("Hold on"), *turns[1:]) == message(2, ReasonCode.PUT_IN)
    summarised = cause_after(turns[0], user("A summary of what was done: " + LONG))
    assert summarised == Reason(ReasonCode.SUMMARISED)
    cleared = user("[Old tool result content cleared]")
    assert cause_after(turns[0], cleared, *turns[2:]) == message(2, ReasonCode.RESULTS_CLEARED)
    assert cause_after(*turns[:5], user("Otherwise: " + LONG)) == message(6, ReasonCode.OTHER_WAY)
    assert cause_after(user("Something else altogether")) == Reason(ReasonCode.OTHER_CONVERSATION)


def test_template_changes() -> None:
    body = agents.opencode()
    result = divergence(
        rendered(body, day="Current date: 2026-11-22\n"), rendered(body, day="Current date: 2026-11-23\n")
    )
    assert result.cause == Reason(ReasonCode.DATE_IN_TEMPLATE)
    high_effort = {**body, "reasoning_effort": "high"}
    result = divergence(rendered(body, day="Reasoning: medium\n"), rendered(high_effort, day="Reasoning: high\n"))
    assert result.cause == Reason(ReasonCode.OTHER_OPTIONS, {"options": ("reasoning_effort",)})


def test_sentence_has_the_place_in_tokens() -> None:
    first, second = rendered(agents.opencode()), rendered(agents.opencode(date="Mon Nov 23 2026"))
    result = divergence(first, second)
    assert 0 < result.shared_tokens < result.prompt_tokens == len(second)
    assert "Sun Nov 22 2026" in result.earlier_text
    assert "Mon Nov 23 2026" in result.new_text
    left = result.prompt_tokens - result.shared_tokens
    place = f"token {result.shared_tokens:,} of {result.prompt_tokens:,}"
    sentence = f"the prompt changed at {place}: the date in the system prompt; {left:,} tokens reprocessed, 41 s"
    assert result.sentence(left, 41.0) == sentence


def test_closest_earlier_prompt_is_compared() -> None:
    rewriter, long = PromptRewriter(), [user(LONG), assistant("Yes.")]

    def cause_after(*turns: Any, program: str = "program", model: str = "model") -> Divergence | None:
        return rewriter.diagnose(program, model, rendered(agents.opencode(*turns)))

    cause_after(*long)
    cause_after(user("Another thread " + LONG))
    assert cause_after(*long, user("More")) is None
    result = cause_after(user(LONG), assistant("No."), user("More"))
    assert result.cause == message(2, ReasonCode.EDITED, "assistant")
    assert cause_after(user(LONG), user("?"), program="second") is None
    assert cause_after(user(LONG), user("?"), model="second") is None


@pytest.mark.parametrize(
    ("first", "second", "cause"),
    [
        (agents.opencode(), agents.opencode(date="Mon Nov 23 2026"), ReasonCode.DATE_IN_SYSTEM),
        (agents.opencode(), agents.opencode(tools=[agents.function("browser")]), ReasonCode.TOOLS_CHANGED),
        (agents.opencode(user(LONG)), agents.opencode(user("Else " + LONG)), ReasonCode.OTHER_CONVERSATION),
    ],
)
def test_cause_from_the_text_of_a_stored_state(first: Body, second: Body, cause: ReasonCode) -> None:
    before = rendered(first)
    result = divergence(Prompt(before.ids, before.text), rendered(second))
    assert result.cause == Reason(cause)


def test_old_prompts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "MAX_BYTES", 50_000)
    recent = prompts.RecentPrompts()
    for number in range(100):
        recent.add((f"program-{number}", "a model"), Prompt(range(100)))
    assert recent.closest(("program-99", "a model"), Prompt(range(100))) is not None
    assert recent.closest(("program-1", "a model"), Prompt(range(100))) is None
    assert len(recent._prompts) <= 12


def size_of(value: Any) -> int:
    """Return the memory used by the texts, lists and arrays of a value, each counted once."""
    if isinstance(value, str | int | float | None):
        return getsizeof(value)
    if isinstance(value, np.ndarray):
        return value.nbytes
    parts = value if isinstance(value, dict | tuple | list) else vars(value)
    return sum(map(size_of, parts.values() if isinstance(parts, dict) else parts))


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,%s"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "%s"}},
        {"type": "tool_result", "content": [{"type": "image", "source": {"data": "%s"}}]},
    ],
    ids=lambda block: block["type"],
)
def test_pictures_are_remembered_as_hashes(block: dict[str, Any]) -> None:
    """A client that sent a picture with each request used 96 MB; 126 KB were counted."""
    first, second = (json.loads(json.dumps(block) % (letter * 2_000_000)) for letter in "AB")
    caption = "A picture of a heron. " * 500
    text = {"type": "text", "text": caption}
    bodies = [
        {"messages": [user("Hello"), {"role": "user", "content": [picture, text]}]} for picture in (first, second)
    ]
    first, second = (Prompt(range(3_000), caption, body) for body in bodies)
    assert size_of(vars(first)) < 100_000
    assert size_of(vars(first)) <= first.weight < 2 * size_of(vars(first)), "the weight that is counted"
    assert first.contents != second.contents, "their pictures differ"
    assert first.contents == Prompt(range(3_000), caption, bodies[0]).contents
