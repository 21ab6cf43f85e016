"""A reply that is stopped and goes on, or is made anew, looks while it runs as it does after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest
from PySide6.QtCore import QSize

from kvchat.chat.record.messages import MessageState, Role
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.theme import Look
from kvchat.ui.rendering.code_view import CodeView
from kvchat.ui.rendering.text_page import TextPage
from kvchat.ui.transcript.footer import MessageRequest, Request
from kvchat.ui.transcript.reply_view import ReplyView
from kvchat.ui.transcript.transcript import Transcript
from tests.ui.fake_runtime import FakeRuntime
from tests.ui.waiting import until

REPLIES = {
    "prose": "# Lakes\n\nBaikal is **deep**. It is\nold, too: see [here](https://example.org).\n\nThe end.",
    "lists": "First:\n\n1. one\n2. two\n   - nested\n   - again\n3. three\n\n   more of three\n\n- [ ] task\n- [x] ok",
    "code": "Look:\n\n```python\ndef f(x):\n    return x\n\n\nprint(f(1))\n```\n\nand `so` on:\n\n~~~\n``` text\n~~~\n",
    "code in a list": "- item:\n\n  ```c\n  int x;\n  ```\n\n  after\n- next",
    "table": "| a | b |\n|---|--:|\n| one | 1 |\n| two | 2 |\n\nAfter it.",
    "a long table": "| a | b |\n|---|---|\n" + "".join(f"| r{i} | word |\n" for i in range(62)) + "\nAfter.",
    "maths": "So $x^2$ and\n\n$$\n\\sum_k k\n$$\n\nand \\(y\\).\n\n\\[\nz\n\\]\n",
    "late definitions": "See [here][r] and this[^n].\n\nMore.\n\n[r]: https://example.org\n\n[^n]: A note.\n\nThe end.",
}
SPLITS = (0.2, 0.63, 0.97)


def pieces(text: str, size: int = 17) -> Iterator[str]:
    for at in range(0, len(text), size):
        yield text[at : at + size]


async def seen(page: Transcript, id: str) -> list[object]:
    """What of a reply is to be seen: its parts with their words, looks and places, and how tall it is."""
    view = page.views[id]
    assert isinstance(view, ReplyView)
    view.render_now()
    while not view.complete:
        view.render_now()
    pages = [part for part in view.column.parts if isinstance(part, TextPage)]
    while any(page.formulas.awaited for page in pages):
        await asyncio.sleep(0.005)
        view.show_formulas()
    parts: list[object] = [view.text, view.thinking, [text.toPlainText() for text in view.texts]]
    for part in view.column.parts:
        words = part.text if isinstance(part, CodeView) else part.document().toHtml()
        blocks = part.blocks if isinstance(part, TextPage) else ()
        parts.append((type(part), part.geometry(), part.isHidden(), blocks, words))
    return [*parts, view.footer is None, view.size()]


def ended(page: Transcript, id: str) -> bool:
    return page.views[id].message.state is not MessageState.STREAMING


async def restarted(runtime: FakeRuntime, look: Look, id: str, size: QSize) -> list[object]:
    """The same reply in a window that is opened now."""
    page = Transcript(look)
    page.resize(size)
    page.show()
    page.show_conversation(await runtime.chat.messages("lakes"))
    look_now = await seen(page, id)
    page.deleteLater()
    return look_now


@pytest.mark.slow
@pytest.mark.parametrize("name", REPLIES)
async def test_stop_and_continue_look_as_after_a_restart(
    runtime: FakeRuntime, window: MainWindow, look: Look, name: str
) -> None:
    chat, text = runtime.chat, REPLIES[name]
    page = window.transcript

    async def grows(at: int) -> None:
        """The reply that runs comes to its end, looked at now and then and in the end."""
        for i, piece in enumerate(pieces(text[at:], 7)):
            chat.say("lakes", piece)
            id = chat.said("lakes")[-1].id
            await until(partial(page.views.__contains__, id))
            if i % 12 == 0 and name != "late definitions":  # read at once, they are found a line sooner
                fresh = await restarted(runtime, look, id, page.size())
                assert await seen(page, id) == fresh, f"going on from {at}, piece {i}"
        chat.finish("lakes", None)
        id = chat.said("lakes")[-1].id
        await until(partial(ended, page, id))
        assert await seen(page, id) == await restarted(runtime, look, id, page.size())

    for number, share in enumerate(SPLITS):
        at = round(len(text) * share)
        chat.add("Lakes", id="lakes")
        chat.write("lakes", Role.USER, "Which?")
        window.chat.open("lakes")
        window.chat.retry()
        chat.say("lakes", thinking="Hm, which one?" if number % 2 else "")
        for piece in pieces(text[:at]):
            chat.say("lakes", piece)
        id = chat.said("lakes")[-1].id
        await until(partial(page.views.__contains__, id))
        assert await seen(page, id) == await restarted(runtime, look, id, page.size())
        window.chat.stop()
        await until(partial(ended, page, id))
        assert await seen(page, id) == await restarted(runtime, look, id, page.size())
        page.message_requested.emit(MessageRequest(Request.CONTINUE, chat.said("lakes")[-1]))
        await grows(at)
        page.message_requested.emit(MessageRequest(Request.REGENERATE, chat.said("lakes")[-1]))
        chat.say("lakes", text[:at])
        await grows(at)
        await chat.delete("lakes")
        window.chat.open(None)
