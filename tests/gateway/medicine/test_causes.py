"""Why a prompt was read again: two requests of one program, and what is said of where they part."""

from __future__ import annotations

import copy
import json
import re
from sys import getsizeof
from typing import Any

import numpy as np
import pytest

from kvchat.gateway.medicine import MENDED_BY, Medicine, Parting, Prompt, causes, recent
from kvchat.words.language import retold, speak
from tests.gateway import agents
from tests.gateway.agents import Body, assistant, rendered, user

pytestmark = pytest.mark.usefixtures("catalogues")
ENGLISH = re.compile(r"\b(the|an?|was|were|added|removed|anew|more|earlier|messages?|user|assistant|list|put|went)\b")
FIRST, THIRD = (causes.Place(causes.MESSAGE, at, f"message {at + 1} (user)") for at in (0, 2))
LONG = "x = 1  # " + "and so on " * 400


def parting(one: Prompt, other: Prompt) -> Parting | None:
    medicine = Medicine()
    assert medicine.compare("program", "model", one) is None
    return medicine.compare("program", "model", other)


def in_german(cause: str) -> str:
    """A cause as who speaks German reads it: names and the field's words apart, nothing of it is English."""
    speak("de")
    told = retold(cause)
    speak("en")
    assert told != cause == retold(cause)
    assert not ENGLISH.search(re.sub(r"\*[^*]+\*|<.*>", "", told)), told
    return told


def why(one: Body, other: Body) -> tuple[str, str]:
    found = parting(rendered(one), rendered(other))
    assert found is not None
    assert MENDED_BY.get(found.about, "") == found.rule
    assert in_german(found.cause)
    assert in_german(found.about)
    return found.cause, found.rule


def test_nothing_is_said_of_a_prompt_that_goes_on() -> None:
    one = agents.opencode(user("Hello"))
    other = agents.opencode(user("Hello"), assistant("Good morning."), user("And now?"))
    assert parting(rendered(one), rendered(other)) is None
    assert parting(rendered(one), rendered(one)) is None


def test_nothing_is_said_of_another_kind_of_request() -> None:
    title = {"messages": [user("Generate a title for this conversation:\nhow do parsers recover?")]}
    assert parting(rendered(agents.opencode()), rendered(title)) is None


@pytest.mark.parametrize(
    ("one", "other", "cause", "rule"),
    [
        (agents.opencode(), agents.opencode(date="Mon Nov 23 2026"), "the date in the system prompt", "hold-clock"),
        (agents.opencode(), agents.opencode(folder="/tmp/x"), "the working folder in the system prompt", ""),
        (agents.claude_code(), agents.claude_code(cch="0aaa9"), "the billing header", "billing-header"),
        (agents.claude_code(), agents.claude_code(date="2026-11-23"), "the date in message 1 (user)", "hold-clock"),
        (agents.codex(), agents.codex(folder="/tmp/x"), "the working folder in message 1 (user)", ""),
        (agents.codex(), agents.codex(date="2026-11-23"), "the date in message 1 (user)", "hold-clock"),
        (agents.cline(), agents.cline(time="9:14:02 AM"), "the date in message 1 (user)", "hold-clock"),
        (
            agents.aider(user("Go")),
            agents.aider(user("Go"), repository="src/lexer.py:"),
            "the map of the repository",
            "",
        ),
    ],
)
def test_what_stands_there_is_told_by_its_name(one: Body, other: Body, cause: str, rule: str) -> None:
    assert why(one, other) == (cause, rule)


def test_tools_are_told_by_what_happened_to_them() -> None:
    before = agents.opencode()
    added, gone, anew, other = (copy.deepcopy(before) for _ in range(4))
    added["tools"].insert(2, agents.function("browser"))
    del gone["tools"][3]
    anew["tools"][4]["function"]["description"] = "Lists what is there"
    other["tools"].reverse()
    assert why(before, added) == ("tool list changed: *browser* added", "")
    found = parting(rendered(before), rendered(added))
    assert found is not None
    assert found.about == "tool list changed"
    assert why(gone, {**before, "tools": [*before["tools"], agents.function("browser")]}) == (
        "tool list changed: *grep*, *browser* added",
        "",
    )
    assert why({**gone, "tools": [*gone["tools"], agents.function("browser")]}, before) == (
        "tool list changed: *grep* added; *browser* removed",
        "",
    )
    assert why(before, gone) == ("tool list changed: *grep* removed", "")
    assert why(before, anew) == ("tool list changed: *list* described anew", "")
    assert why(before, other) == ("tools listed in another order", "")


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        ("tool list changed: *grep2*, *list* added", "Werkzeugliste geändert: *grep2*, *list* hinzugefügt"),
        (
            "tool list changed: *a*, *b*, *c* and 1,002 more added; *d* removed",
            "Werkzeugliste geändert: *a*, *b*, *c* und 1.002 weitere hinzugefügt; *d* entfernt",
        ),
        ("message 3 (user) was edited", "Nachricht 3 (Nutzer) wurde bearbeitet"),
        ("the time in message 12 (somebody)", "die Uhrzeit in Nachricht 12 (somebody)"),
        ("other options of the request: top_p, v1.5", "andere Optionen der Anfrage: top_p, v1.5"),
    ],
)
def test_causes_with_names_are_told_in_the_language_in_force(cause: str, told: str) -> None:
    assert in_german(cause) == told


@pytest.mark.parametrize("place", [causes._SYSTEM, causes._TOOLS, causes._TEMPLATE, FIRST, THIRD])
@pytest.mark.parametrize(
    ("before", "after"), [("2026-11-22", "2026-11-23"), ("9:14:02", "9:14:03"), ("/a/b", "/c"), ("cwd /a/b", "cwd /c")]
)
def test_wherever_a_clock_or_a_path_stands_that_is_told_too(place: causes.Place, before: str, after: str) -> None:
    found = causes._of_the_line(before, after, place)
    assert found is not None
    assert in_german(found.words)
    assert in_german(found.about or found.words)


def test_reasoning_that_the_template_drops_is_told_from_what_the_program_leaves_out() -> None:
    thought = assistant(LONG, reasoning_content="The parser loses its place here.")
    looked = {"role": "tool", "content": LONG}
    in_the_loop = agents.opencode(user("Fix it"), thought, looked)
    asked = agents.opencode(user("Fix it"), thought, looked, assistant("Done."), user("Thanks. And the lexer?"))
    assert why(in_the_loop, asked) == ("reasoning of earlier turns was dropped by the template", "")
    left_out = agents.opencode(user("Fix it"), assistant(LONG), looked, assistant("Done."))
    assert why(in_the_loop, left_out) == ("reasoning of earlier turns was left out by the program", "")


def test_what_happens_to_earlier_messages() -> None:
    turns: list[Any] = [user(f"Question {number}: {LONG}") for number in range(6)]
    before = agents.opencode(*turns)

    def told(*new: Any) -> str:
        return why(before, agents.opencode(*new))[0]

    reminded = [*turns[:4], user(turns[4]["content"] + "\n<system-reminder>Plan only.</system-reminder>"), turns[5]]
    assert told(*reminded) == "a <system-reminder> that moves"
    assert told(turns[0], *turns[3:]) == "2 earlier messages left out"
    assert told(turns[0], user("Edited: " + LONG), *turns[2:]) == "message 2 (user) was edited"
    assert told(turns[0], user("Hold on"), *turns[1:]) == "something was put in before message 2 (user)"
    assert (
        told(turns[0], user("A summary of what was done: " + LONG)) == "earlier messages were summarised (compaction)"
    )
    cleared = user("[Old tool result content cleared]")
    assert told(turns[0], cleared, *turns[2:]) == "old results of tools were cleared, from message 2 (user) on"
    assert told(*turns[:5], user("Otherwise: " + LONG)) == "the conversation went another way from message 6 (user) on"
    assert told(user("Something else altogether")) == "another conversation begins"


def test_what_only_the_template_does() -> None:
    body = agents.opencode()
    found = parting(rendered(body, day="Current date: 2026-11-22\n"), rendered(body, day="Current date: 2026-11-23\n"))
    assert found is not None
    assert (found.cause, found.rule) == ("the date that the model’s template adds", "")
    harder = {**body, "reasoning_effort": "high"}
    found = parting(rendered(body, day="Reasoning: medium\n"), rendered(harder, day="Reasoning: high\n"))
    assert found is not None
    assert found.cause == "other options of the request: reasoning_effort"


def test_the_place_is_told_in_tokens_with_both_texts() -> None:
    one, other = rendered(agents.opencode()), rendered(agents.opencode(date="Mon Nov 23 2026"))
    found = parting(one, other)
    assert found is not None
    assert 0 < found.at < found.of == len(other)
    assert "Sun Nov 22 2026" in found.before
    assert "Mon Nov 23 2026" in found.after
    left = found.of - found.at
    words = f"token {found.at:,} of {found.of:,}: the date in the system prompt; {left:,} tokens read again, 41 s"
    assert found.sentence(left, 41.0) == words


def test_the_closest_before_is_taken_not_the_last() -> None:
    medicine = Medicine()
    long = [user(LONG), assistant("Yes.")]
    for body in (agents.opencode(*long), agents.opencode(user("Another thread " + LONG))):
        medicine.compare("program", "model", rendered(body))
    assert medicine.compare("program", "model", rendered(agents.opencode(*long, user("More")))) is None
    found = medicine.compare("program", "model", rendered(agents.opencode(user(LONG), assistant("No."), user("More"))))
    assert found is not None
    assert found.cause == "message 2 (assistant) was edited"
    assert medicine.compare("other", "model", rendered(agents.opencode(user(LONG), user("?")))) is None
    assert medicine.compare("program", "other", rendered(agents.opencode(user(LONG), user("?")))) is None


def test_without_the_rendered_text_the_bodies_say_it() -> None:
    one, other = rendered(agents.opencode()), rendered(agents.opencode(user("Something else " + LONG)))
    for prompt in (one, other):
        prompt.text = ""
    found = parting(one, other)
    assert found is not None
    assert found.cause == "another conversation begins"


@pytest.mark.parametrize(
    ("one", "other", "cause"),
    [
        (agents.opencode(), agents.opencode(date="Mon Nov 23 2026"), "the date in the system prompt"),
        (agents.opencode(), agents.opencode(tools=[agents.function("browser")]), "tool list changed"),
        (agents.opencode(user(LONG)), agents.opencode(user("Else " + LONG)), "another conversation begins"),
    ],
)
def test_of_a_state_in_the_store_only_its_text_is_known(one: Body, other: Body, cause: str) -> None:
    before = rendered(one)
    found = parting(Prompt(before.ids, before.text), rendered(other))
    assert found is not None
    assert found.cause == cause


def test_nothing_stays_of_programs_that_asked_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "MOST_BYTES", 50_000)
    prompts = recent.RecentPrompts()
    for number in range(100):
        prompts.keep((f"program-{number}", "a model"), Prompt(range(100)), None)
    assert prompts.closest(("program-99", "a model"), Prompt(range(100))) is not None
    assert prompts.closest(("program-1", "a model"), Prompt(range(100))) is None
    assert len(prompts._kept) <= 12


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
