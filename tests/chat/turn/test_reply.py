"""A reply while it is being made."""

from __future__ import annotations

from kvchat.chat.turn.reply import Draft
from kvchat.engine.speaking.wire import ChatChunk


def test_thinking_is_timed_from_its_first_token_to_the_first_of_the_reply() -> None:
    draft = Draft()
    draft.take(ChatChunk(thinking="Let me"), now=10.0)
    draft.take(ChatChunk(thinking=" think"), now=15.0)
    assert draft.thinking_ms is None
    draft.take(ChatChunk(text="Yes"), now=22.3)
    draft.take(ChatChunk(text="."), now=30.0)
    assert draft.thinking_ms == 12_300.0
