from __future__ import annotations

from datetime import UTC, datetime

import pytest

from kvchat.chat.record.messages import Message, MessageState, Role, ends_with_reply, prompt_messages
from kvchat.chat.record.titles import TITLE_LENGTH, title_from
from kvchat.engine.speaking.wire import ChatMessage


def message(role: Role, content: str, thinking: str = "") -> Message:
    return Message("id", "chat", None, role, content, thinking, MessageState.COMPLETE, datetime.now(UTC))


def test_roles_alternate_whatever_happened() -> None:
    branch = [
        message(Role.SYSTEM, "s"),
        message(Role.USER, "a"),
        message(Role.ASSISTANT, "  "),
        message(Role.USER, "b"),
        message(Role.ASSISTANT, "c", "thought"),
    ]
    assert prompt_messages(branch) == [
        ChatMessage("system", "s"),
        ChatMessage("user", "a\n\nb"),
        ChatMessage("assistant", "c", "thought"),
    ]
    assert ends_with_reply(branch)
    assert not ends_with_reply(branch[:2])
    assert not ends_with_reply([])


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Hello there", "Hello there"),
        ("  two\n\nlines\t of words ", "two lines of words"),
        ("", "New chat"),
        (
            "How does the second proof of the theorem use the lemma of chapter three?",
            "How does the second proof of the theorem use…",
        ),
        ("字" * 100, "字" * TITLE_LENGTH + "…"),
        ("x" * 100, "x" * TITLE_LENGTH + "…"),
    ],
)
def test_a_title_is_the_first_words(text: str, title: str) -> None:
    assert title_from(text) == title
