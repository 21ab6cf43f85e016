"""Rewriting and comparing never raise, whatever a program sends, and change only the text a rule targets."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvchat.gateway.diagnosis.prompts import Prompt
from kvchat.gateway.diagnosis.rules import RULES
from kvchat.gateway.dialects.request import Dialect, ParsedRequest
from kvchat.gateway.rewriting import PromptRewriter, tokens_saved
from tests.gateway import agents

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
_ANY = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
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
_BODY = st.dictionaries(
    st.sampled_from(
        ["messages", "input", "prompt", "system", "instructions", "tools", "chat_template_kwargs", "model"]
    ),
    _ANY | st.lists(_TURN, max_size=5) | _WORDS,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(_BODY, _BODY)
def test_no_body_raises(first: dict[str, Any], second: dict[str, Any]) -> None:
    rewriter = PromptRewriter()
    for body in (first, second, first):
        before = json.dumps(body)
        request = ParsedRequest(Dialect.CHAT, before.encode(), body)
        rewritten, changes = rewriter.rewrite("any", request, RULES)
        assert json.dumps(body) == before
        assert changes or rewritten is request
        text = json.dumps(rewritten.body)
        divergence = rewriter.diagnose("any", "model", Prompt([ord(letter) for letter in text], text, rewritten.body))
        assert divergence is None or divergence.cause
        tokens_saved(changes, text, 1, 100)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=8), _ANY, max_size=5))
def test_rules_change_nothing_else(others: dict[str, Any]) -> None:
    body = others | agents.claude_code(tools=[{"name": "b"}, {"name": "a"}])
    rewritten, changes = PromptRewriter().rewrite(
        "claude-cli", ParsedRequest(Dialect.MESSAGES, json.dumps(body).encode(), body), RULES
    )
    assert len(changes) == 1
    assert json.loads(rewritten.raw) == body | {"system": body["system"][1:]}
