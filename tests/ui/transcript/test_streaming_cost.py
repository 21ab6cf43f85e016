"""What a streaming reply costs the whole process: the window on Qt's loop, the real runtime, an engine of 200 tokens/s.

CPU time is counted, of all threads, what is written to the database included; it is printed (-s). A busy machine makes
it larger only by what others drive out of the caches. What is asserted is what makes it small.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from kvchat.chat.events import Event, ReplyDelta
from kvchat.engine.speaking.transport import PAUSE_S
from kvchat.settings import Settings
from kvchat.ui.base.theme import Look
from kvchat.ui.transcript.reply_view import ReplyView
from tests.engine_fixtures import FakeEngine
from tests.ui.windows import begun

pytestmark = pytest.mark.slow

TOKENS_PER_S = 200
PARAGRAPH = "The quick brown fox jumps over the **lazy** dog, and `then` it goes on a while, and so on. " * 3
REPLY = "\n\n".join(f"## Heading {i}\n\n- one\n- two\n- three" if i % 7 == 0 else PARAGRAPH for i in range(45))


async def test_a_streaming_reply_is_cheap(tmp_path: Path, fake_engine: FakeEngine, smollm2: Path, look: Look) -> None:
    fake_engine.set(FAKE_REPLY=REPLY, FAKE_TOKEN_DELAY=1 / TOKENS_PER_S)
    settings = Settings(
        model_path=str(smollm2), engine_path=str(fake_engine.path), context_size=65_536, free_floor_bytes=0
    )
    came: list[tuple[float, float]] = []  # seconds on the clock, seconds of CPU
    gulps, gulping = 0, False  # a gulp: what the event loop takes in without anything else in between

    def swallow() -> None:
        nonlocal gulping
        gulping = False

    def hear(event: Event) -> None:
        nonlocal gulps, gulping
        if isinstance(event, ReplyDelta):
            came.append((time.monotonic(), time.process_time()))
            if not gulping:
                gulps, gulping = gulps + 1, True
                asyncio.get_running_loop().call_soon(swallow)

    async with begun(tmp_path / "home", settings, look) as shown:
        shown.window.resize(1000, 760)
        runtime = shown.runtime
        runtime.events.subscribe(hear)
        chat = await runtime.chat.new_conversation()
        shown.window.chat.open(chat.id)
        reply = await runtime.chat.send(chat.id, "Go on")
        assert reply is not None
        assert reply.content == REPLY
        view = shown.window.transcript.views[reply.id]
        assert isinstance(view, ReplyView)
        assert view.text == REPLY
        await runtime.chat.idle()
    (began, before), (ended, after) = came[0], came[-1]
    print(
        f"\n{len(came):,} tokens in {ended - began:.1f} s: {(after - before) / len(came) * TOKENS_PER_S:.1%} of a core"
        f" at {TOKENS_PER_S} tokens/s"
    )
    assert gulps < 1.2 * (ended - began) / PAUSE_S + 5, "the event loop woke up for nearly every token"
