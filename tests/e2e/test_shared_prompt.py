"""Models whose states cannot be cut: the third chat with one system prompt starts warm, even after a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvchat.kvstore.savepoint import common_prefix
from kvchat.session.proof import Source
from tests.e2e.restarts import GREEDY, SYSTEM, App, receipt
from tests.store_contents import StoreContents

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("architecture", "engine"), [("qwen35", "embedded"), ("mamba", "llama-server"), ("gemma3", "llama-server")]
)
async def test_the_third_chat_with_a_system_prompt_starts_warm(
    tmp_path: Path, tiny_model: Callable[[str], Path], architecture: str, engine: str
) -> None:
    app = App(tmp_path / "home", tiny_model(architecture), engine)
    replies = []
    for question in ("Which is the longest bridge?", "And the shortest?", "How many notes are there?"):
        chat = await app.new(SYSTEM)
        replies.append(await app.once(lambda runtime, c=chat, q=question: runtime.chat.send(c, q, GREEDY)))
    first, second, third = (receipt(reply) for reply in replies)
    assert (first.source, second.source, third.source) == (Source.COLD, Source.COLD, Source.DISK)

    saved = {point.conversation_id: point.tokens for point in StoreContents(tmp_path / "home").save_points()}
    shared = common_prefix(saved[replies[1].conversation_id], saved[replies[2].conversation_id])
    assert third.cached_tokens >= 0.98 * shared, (third, shared)
    assert shared > 0.9 * third.prompt_tokens

    # What the second chat read on the way to its save point was read, not cached.
    assert second.cached_tokens == 0
    assert second.prefill_ms <= second.ttft_ms

    cold = App(tmp_path / "cold", tiny_model(architecture), engine)
    chat = await cold.new(SYSTEM)
    assert (await cold.once(lambda runtime: runtime.chat.send(chat, question, GREEDY))).content == replies[2].content
