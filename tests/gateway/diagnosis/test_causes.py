"""Why a prompt was read again: two requests of one program, and what is said of where they part."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from sys import getsizeof
from typing import Any

import numpy as np
import pytest

from kvchat.gateway.diagnosis import causes, prompts
from kvchat.gateway.diagnosis.causes import RULE_BY_CAUSE
from kvchat.gateway.diagnosis.prompts import Divergence, Prompt
from kvchat.gateway.rewriting import PromptRewriter
from kvchat.text.reasons import Reason, ReasonCode, reason_of
from tests.gateway import agents
from tests.gateway.agents import Body, assistant, rendered, user

FIRST, THIRD = causes.Place(causes.FIRST, 0, "user"), causes.Place(causes.MESSAGE, 2, "user")
LONG = "x = 1  # " + "and so on " * 400


def divergence(one: Prompt, other: Prompt) -> Divergence | None:
    rewriter = PromptRewriter()
    assert rewriter.diagnose("program", "model", one) is None
    return rewriter.diagnose("program", "model", other)


def why(one: Body, other: Body) -> Reason:
    found = divergence(rendered(one), rendered(other))
    assert reason_of(json.loads(json.dumps(asdict(found.cause)))) == found.cause
    assert Reason(found.cause.code).text, "it can be told without numbers and names"
    return found.cause


def message(number: int, code: ReasonCode, role: str = "user") -> Reason:
    return Reason(code, {"number": number, "role": role})


def test_nothing_is_said_of_a_prompt_that_goes_on_or_is_of_another_kind() -> None:
    one = agents.opencode(user("Hello"))
    other = agents.opencode(user("Hello"), assistant("Good morning."), user("And now?"))
    assert divergence(rendered(one), rendered(other)) is None
    assert divergence(rendered(one), rendered(one)) is None
    title = {"messages": [user("Generate a title for this conversation:\nhow do parsers recover?")]}
    assert divergence(rendered(agents.opencode()), rendered(title)) is None


@pytest.mark.parametrize(
    ("one", "other", "cause", "rule"),
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
def test_what_stands_there_is_told_by_its_name(one: Body, other: Body, cause: ReasonCode, rule: str) -> None:
    assert why(one, other) == Reason(cause)
    assert RULE_BY_CAUSE.get(cause, "") == rule


def test_tools_are_told_by_what_happened_to_them() -> None:
    before = agents.opencode()
    added, gone, anew, other = (copy.deepcopy(before) for _ in range(4))
    added["tools"].insert(2, agents.function("browser"))
    del gone["tools"][3]
    anew["tools"][4]["function"]["description"] = "Lists what is there"
    other["tools"].reverse()
    assert why(before, added) == tools((ReasonCode.TOOLS_ADDED, "browser"))
    assert why(gone, {**before, "tools": [*before["tools"], agents.function("browser")]}) == tools(
        (ReasonCode.TOOLS_ADDED, "grep", "browser")
    )
    assert why({**gone, "tools": [*gone["tools"], agents.function("browser")]}, before) == tools(
        (ReasonCode.TOOLS_ADDED, "grep"), (ReasonCode.TOOLS_REMOVED, "browser")
    )
    assert why(before, gone) == tools((ReasonCode.TOOLS_REMOVED, "grep"))
    assert why(before, anew) == tools((ReasonCode.TOOLS_REDESCRIBED, "list"))
    assert why(before, other) == Reason(ReasonCode.TOOLS_REORDERED)
    many = {**before, "tools": [*before["tools"], *(agents.function(f"more{number}") for number in range(5))]}
    assert why(before, many).english == "tool list changed: more0, more1, more2, 2 more added"


def tools(*changes: tuple[ReasonCode, *tuple[str, ...]]) -> Reason:
    return Reason(
        ReasonCode.TOOLS_CHANGED, {"changes": tuple(Reason(code, {"tools": tuple(names)}) for code, *names in changes)}
    )


@pytest.mark.parametrize("place", [causes._SYSTEM, causes._TOOLS, causes._TEMPLATE, FIRST, THIRD])
@pytest.mark.parametrize(
    ("before", "after"), [("2026-11-22", "2026-11-23"), ("9:14:02", "9:14:03"), ("/a/b", "/c"), ("cwd /a/b", "cwd /c")]
)
def test_wherever_a_clock_or_a_path_stands_that_is_told_too(place: causes.Place, before: str, after: str) -> None:
    found = causes._cause_in_line(before, after, place)
    assert found.code.endswith(place.kind)


def test_reasoning_that_the_template_drops_is_told_from_what_the_program_leaves_out() -> None:
    thought = assistant(LONG, reasoning_content="The parser loses its place here.")
    looked = {"role": "tool", "content": LONG}
    in_the_loop = agents.opencode(user("Fix it"), thought, looked)
    asked = agents.opencode(user("Fix it"), thought, looked, assistant("Done."), user("Thanks. And the lexer?"))
    assert why(in_the_loop, asked) == Reason(ReasonCode.TEMPLATE_DROPS_REASONING)
    left_out = agents.opencode(user("Fix it"), assistant(LONG), looked, assistant("Done."))
    assert why(in_the_loop, left_out) == Reason(ReasonCode.PROGRAM_DROPS_REASONING)


def test_what_happens_to_earlier_messages() -> None:
    turns: list[Any] = [user(f"Question {number}: {LONG}") for number in range(6)]
    before = agents.opencode(*turns)

    def told(*new: Any) -> Reason:
        return why(before, agents.opencode(*new))

    reminded = [*turns[:4], user(turns[4]["content"] + "\n<system-reminder>Plan only.</system-reminder>"), turns[5]]
    assert told(*reminded) == Reason(ReasonCode.REMINDER_MOVES)
    assert told(turns[0], *turns[3:]) == Reason(ReasonCode.LEFT_OUT, {"count": 2})
    assert told(turns[0], user("Edited: " + LONG), *turns[2:]) == message(2, ReasonCode.EDITED)
    assert told(turns[0], user("Hold on"), *turns[1:]) == message(2, ReasonCode.PUT_IN)
    summarised = told(turns[0], user("A summary of what was done: " + LONG))
    assert summarised == Reason(ReasonCode.SUMMARISED)
    cleared = user("[Old tool result content cleared]")
    assert told(turns[0], cleared, *turns[2:]) == message(2, ReasonCode.RESULTS_CLEARED)
    assert told(*turns[:5], user("Otherwise: " + LONG)) == message(6, ReasonCode.OTHER_WAY)
    assert told(user("Something else altogether")) == Reason(ReasonCode.OTHER_CONVERSATION)


def test_what_only_the_template_does() -> None:
    body = agents.opencode()
    found = divergence(
        rendered(body, day="Current date: 2026-11-22\n"), rendered(body, day="Current date: 2026-11-23\n")
    )
    assert found.cause == Reason(ReasonCode.DATE_IN_TEMPLATE)
    harder = {**body, "reasoning_effort": "high"}
    found = divergence(rendered(body, day="Reasoning: medium\n"), rendered(harder, day="Reasoning: high\n"))
    assert found.cause == Reason(ReasonCode.OTHER_OPTIONS, {"options": ("reasoning_effort",)})


def test_the_place_is_told_in_tokens_with_both_texts() -> None:
    one, other = rendered(agents.opencode()), rendered(agents.opencode(date="Mon Nov 23 2026"))
    found = divergence(one, other)
    assert 0 < found.at < found.of == len(other)
    assert "Sun Nov 22 2026" in found.before
    assert "Mon Nov 23 2026" in found.after
    left = found.of - found.at
    place = f"token {found.at:,} of {found.of:,}"
    words = f"the prompt changed at {place}: the date in the system prompt; {left:,} tokens reprocessed, 41 s"
    assert found.sentence(left, 41.0) == words


def test_the_closest_before_is_taken_not_the_last() -> None:
    rewriter, long = PromptRewriter(), [user(LONG), assistant("Yes.")]

    def told(*turns: Any, program: str = "program", model: str = "model") -> Divergence | None:
        return rewriter.diagnose(program, model, rendered(agents.opencode(*turns)))

    told(*long)
    told(user("Another thread " + LONG))
    assert told(*long, user("More")) is None
    found = told(user(LONG), assistant("No."), user("More"))
    assert found.cause == message(2, ReasonCode.EDITED, "assistant")
    assert told(user(LONG), user("?"), program="other") is None
    assert told(user(LONG), user("?"), model="other") is None


@pytest.mark.parametrize(
    ("one", "other", "cause"),
    [
        (agents.opencode(), agents.opencode(date="Mon Nov 23 2026"), ReasonCode.DATE_IN_SYSTEM),
        (agents.opencode(), agents.opencode(tools=[agents.function("browser")]), ReasonCode.TOOLS_CHANGED),
        (agents.opencode(user(LONG)), agents.opencode(user("Else " + LONG)), ReasonCode.OTHER_CONVERSATION),
    ],
)
def test_of_a_state_in_the_store_only_its_text_is_known(one: Body, other: Body, cause: ReasonCode) -> None:
    before = rendered(one)
    found = divergence(Prompt(before.ids, before.text), rendered(other))
    assert found.cause == Reason(cause)


def test_without_the_rendered_text_the_bodies_say_it() -> None:
    one, other = rendered(agents.opencode()), rendered(agents.opencode(user("Something else " + LONG)))
    one.text = other.text = ""
    assert divergence(one, other).cause == Reason(ReasonCode.OTHER_CONVERSATION)


def test_nothing_stays_of_programs_that_asked_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "MAX_BYTES", 50_000)
    recent = prompts.RecentPrompts()
    for number in range(100):
        recent.add((f"program-{number}", "a model"), Prompt(range(100)))
    assert recent.closest(("program-99", "a model"), Prompt(range(100))) is not None
    assert recent.closest(("program-1", "a model"), Prompt(range(100))) is None
    assert len(recent._prompts) <= 12


def kept_of(value: Any) -> int:
    """What the texts, lists and arrays of a value take in memory, each once."""
    if isinstance(value, str | int | float | None):
        return getsizeof(value)
    if isinstance(value, np.ndarray):
        return value.nbytes
    parts = value if isinstance(value, dict | tuple | list) else vars(value)
    return sum(map(kept_of, parts.values() if isinstance(parts, dict) else parts))


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,%s"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "%s"}},
        {"type": "input_image", "image_url": "data:image/png;base64,%s"},
        {"type": "tool_result", "content": [{"type": "image", "source": {"data": "%s"}}]},
        {"type": "input_audio", "input_audio": {"data": "%s", "format": "wav"}},
        {"type": "file", "file": {"file_data": "%s"}},
    ],
    ids=lambda block: block["type"],
)
def test_of_pictures_nothing_is_remembered_but_a_hash(block: dict[str, Any]) -> None:
    """Seen with a client that sends a picture with each request: 126 KB counted, 96 MB held."""
    one, other = (json.loads(json.dumps(block) % (letter * 2_000_000)) for letter in "AB")
    said = "A picture of a heron. " * 500
    words = {"type": "text", "text": said}
    bodies = [{"messages": [user("Hello"), {"role": "user", "content": [of, words]}]} for of in (one, other)]
    first, second = (Prompt(range(3_000), said, body) for body in bodies)
    assert kept_of(vars(first)) < 100_000
    assert kept_of(vars(first)) <= first.weight < 2 * kept_of(vars(first)), "that is what is counted"
    assert first.contents != second.contents, "the picture is another one"
    assert first.contents == Prompt(range(3_000), said, bodies[0]).contents
