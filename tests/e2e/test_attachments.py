"""Documents at the front: asked again in another chat, after a restart, they are not read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvchat.chat.attachments import document_of_text
from kvchat.session.proof import Source
from tests.e2e.restarts import GREEDY, App, receipt

pytestmark = pytest.mark.e2e

DOCUMENT = document_of_text("river.md", "\n".join(f"{n}. The river bends at stone {n * 7 % 101}." for n in range(60)))


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
