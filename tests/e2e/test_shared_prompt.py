"""Chats that begin alike start warm even after a restart: with a document at the front, with a system prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvchat.chat.attachments import document_of_text
from kvchat.kvstore.savepoint import common_prefix
from kvchat.session.proof import Source
from tests.e2e.restarts import GREEDY, SYSTEM, App, receipt
from tests.models import tiny_model
from tests.store_contents import StoreContents

pytestmark = pytest.mark.e2e

DOCUMENT = document_of_text("river.md", "\n".join(f"{n}. The river bends at stone {n * 7 % 101}." for n in range(60)))


@pytest.mark.parametrize(
    ("architecture", "engine"), [("qwen35", "embedded"), ("mamba", "llama-server"), ("gemma3", "llama-server")]
)
async def test_the_third_chat_with_a_system_prompt_starts_warm(tmp_path: Path, architecture: str, engine: str) -> None:
    """Where states cannot be cut, the second chat saves where the prompt ends."""
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


async def test_the_same_document_in_another_chat_is_warm(tmp_path: Path, smollm2: Path) -> None:
    app = App(tmp_path / "home", smollm2, "llama-server")
    cold = App(tmp_path / "cold", smollm2, "llama-server")
    replies = []
    for app_used, question in (
        (app, "How many bends?"),
        (app, "Which stone is first?"),
        (cold, "Which stone is first?"),
    ):
        chat = await app_used.new()
        replies.append(
            await app_used.once(
                lambda runtime, c=chat, q=question: runtime.chat.send(c, q, GREEDY, attachments=(DOCUMENT,))
            )
        )
    first, second, alone = (receipt(reply) for reply in replies)
    assert (first.source, second.source, alone.source) == (Source.COLD, Source.DISK, Source.COLD)
    assert second.cached_tokens >= 0.95 * second.prompt_tokens, second
    assert replies[1].content == replies[2].content
