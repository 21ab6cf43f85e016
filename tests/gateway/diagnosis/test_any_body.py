"""Whatever a program sends, treating and comparing it never raises, and only what a rule is about is changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvchat.gateway.diagnosis.prompts import Prompt
from kvchat.gateway.diagnosis.rules import RULES, edited, located
from kvchat.gateway.rewriting import PromptRewriter, tokens_spared
from tests.gateway import agents

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
_ANY = st.recursive(
    _SCALARS, lambda one: st.lists(one, max_size=4) | st.dictionaries(st.text(max_size=6), one, max_size=4)
)
_NAMES = st.sampled_from(
    ["role", "content", "text", "type", "tool_calls", "reasoning_content", "function", "name", "thinking", "output"]
)
_WORDS = st.sampled_from(
    ["user", "assistant", "system", "tool", "text", "thinking", "function_call", "x-anthropic-billing-header: cch=1;"]
)
_TURN = st.dictionaries(
    _NAMES, _WORDS | _ANY | st.lists(st.dictionaries(_NAMES, _WORDS | _ANY, max_size=3), max_size=3)
)
_OTHERS = st.text(max_size=8).filter(lambda name: name not in ("system", "tools"))  # names that no rule is about
_BODY = st.dictionaries(
    st.sampled_from(
        ["messages", "input", "prompt", "system", "instructions", "tools", "chat_template_kwargs", "model"]
    ),
    _ANY | st.lists(_TURN, max_size=5) | _WORDS,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(_BODY, _BODY, st.sampled_from([None, 0, 2]), st.booleans())
def test_nothing_raises(one: dict[str, Any], other: dict[str, Any], indent: int | None, plain: bool) -> None:
    rewriter = PromptRewriter()
    for body in (one, other, one):
        raw = json.dumps(body, indent=indent, ensure_ascii=plain).encode("utf-8", "surrogatepass")
        treated = rewriter.treat("any", raw, body, RULES)
        assert treated.changes or treated.raw is raw
        text = json.dumps(body)
        divergence = rewriter.diagnosed("any", "model", Prompt([ord(letter) for letter in text], text, treated.body))
        assert divergence is None or divergence.cause
        tokens_spared(treated.changes, text, 1, 100)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(_ANY, st.sampled_from([None, 0, 3]), st.booleans())
def test_places_are_those_of_the_values(value: Any, indent: int | None, plain: bool) -> None:
    text = f" \n{json.dumps(value, indent=indent, ensure_ascii=plain)}\t"
    whole = located(text)
    assert whole.value == value
    for name, member in whole.members().items():
        assert json.loads(member.source) == member.value == value[name]
    assert [item.value for item in whole.items()] == (value if isinstance(value, list) else [])


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.dictionaries(_OTHERS, _ANY, max_size=5), st.sampled_from([None, 1]))
def test_what_no_rule_is_about_stays_byte_for_byte(others: dict[str, Any], indent: int | None) -> None:
    body = others | agents.claude_code(tools=[{"name": "b"}, {"name": "a"}])
    raw = json.dumps(body, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass")
    treated = PromptRewriter().treat("claude-cli", raw, body, ["billing-header", "hold-clock"])
    after = json.loads(treated.raw.decode("utf-8", "surrogatepass")) if treated.changes else body
    assert {name: after[name] for name in body if name not in ("system", "tools")} == {
        name: body[name] for name in body if name not in ("system", "tools")
    }
    if treated.changes:
        text = raw.decode()
        start, end = (located(text).members()["system"].start, located(text).members()["tools"].end)
        changed = treated.raw.decode()
        assert changed.startswith(text[:start])
        assert changed.endswith(text[end:])


def test_edits_are_made_from_any_order() -> None:
    assert edited("abcdef", [(4, 6, "Z"), (0, 1, ""), (2, 2, "-")]) == "b-cdZ"
