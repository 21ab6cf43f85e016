"""Two builds of the engine on one home: what one has saved and the other restores, and what it must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvchat.session.proof import Source
from kvchat.words.reasons import Reason, ReasonCode
from tests.e2e.restarts import GREEDY, SYSTEM, App, receipt
from tests.models import tiny_model

pytestmark = pytest.mark.e2e

OLD, NEW = "llama-server", "embedded"  # b11434 and b11549


@pytest.mark.parametrize("architecture", ["llama", "deepseek2"])
async def test_plain_attention_moves_between_builds(tmp_path: Path, architecture: str) -> None:
    model = tiny_model(architecture)
    old, new = App(tmp_path / "home", model, OLD), App(tmp_path / "home", model, NEW)
    chat = await old.new(SYSTEM)
    await old.once(lambda runtime: runtime.chat.send(chat, "Which is the longest bridge?", GREEDY))
    second = await new.once(lambda runtime: runtime.chat.send(chat, "And the shortest?", GREEDY))
    third = await old.once(lambda runtime: runtime.chat.send(chat, "Thank you.", GREEDY))  # from what the new one saved
    again = await new.once(lambda runtime: runtime.chat.retry(chat, GREEDY))
    for reply in (second, third, again):
        assert receipt(reply).source is Source.DISK, receipt(reply)
        assert receipt(reply).cached_tokens >= 0.98 * receipt(reply).prompt_tokens, receipt(reply)
    assert again.content == third.content


async def test_recurrent_state_stays_with_its_build(tmp_path: Path) -> None:
    model = tiny_model("qwen35")
    old, new = App(tmp_path / "home", model, OLD), App(tmp_path / "home", model, NEW)
    chat = await old.new(SYSTEM)
    await old.once(lambda runtime: runtime.chat.send(chat, "Which is the longest bridge?", GREEDY))
    second = receipt(await new.once(lambda runtime: runtime.chat.send(chat, "And the shortest?", GREEDY)))
    assert (second.source, second.cached_tokens) == (Source.COLD, 0)
    assert second.miss_reason == Reason(ReasonCode.OTHER_SETTINGS, {"settings": (Reason(ReasonCode.BUILD),)})
    back = receipt(await old.once(lambda runtime: runtime.chat.retry(chat, GREEDY)))
    assert back.source is Source.DISK
