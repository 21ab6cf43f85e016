"""A reply in progress."""

import time
from types import SimpleNamespace
from typing import cast

import pytest

from kvchat.chat.events import Event, EventBus, ReplyDelta
from kvchat.chat.record.messages import Role, new_message
from kvchat.chat.turn.reply import ReplyWriter
from kvchat.chat.turn_context import TurnContext
from kvchat.engine.api.wire import ChatChunk


def test_thinking_time(monkeypatch: pytest.MonkeyPatch) -> None:
    events, published = EventBus(), list[Event]()
    events.subscribe(published.append)
    writer = ReplyWriter(
        new_message("chat", Role.ASSISTANT, ""), 9.0, cast(TurnContext, SimpleNamespace(events=events))
    )
    chunks = {10.0: "Let me", 15.0: " think", 22.3: "", 30.0: ""}
    for now, thinking in chunks.items():
        monkeypatch.setattr(time, "perf_counter", lambda now=now: now)
        writer.add_chunk(ChatChunk(thinking=thinking, text="" if thinking else "Yes"))
    assert [e.thinking_ms for e in published if isinstance(e, ReplyDelta)] == [None, None, 12_300.0, 12_300.0]
