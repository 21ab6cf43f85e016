"""A continued or regenerated reply looks the same while it streams as after a restart."""

import asyncio

import pytest

from kvchat.chat.record.messages import MessageState, Role
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.theme import Look
from kvchat.ui.rendering.text_page import TextPage
from kvchat.ui.transcript.footer import MessageRequest, RequestKind
from kvchat.ui.transcript.reply_view import ReplyView
from kvchat.ui.transcript.transcript import Transcript
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until

REPLIES = {
    "lists": "First:\n\n1. one\n2. two\n   - nested\n   - again\n3. three\n\n   more of three\n\n- [ ] task\n- [x] ok",
    "code in a list": "- item:\n\n  ```c\n  int x;\n  ```\n\n  after\n- next",
    "a long table": "| a | b |\n|---|---|\n" + "".join(f"| r{i} | word |\n" for i in range(62)) + "\nAfter.",
    "maths": "So $x^2$ and\n\n$$\n\\sum_k k\n$$\n\nand \\(y\\).\n\n\\[\nz\n\\]\n",
    "late definitions": "See [here][r] and this[^n].\n\nMore.\n\n[r]: https://example.org\n\n[^n]: A note.\n\nThe end.",
}
SPLITS = (0.2, 0.63, 0.97)


async def seen(page: Transcript, id: str) -> list[object]:
    """Return a reply's visible parts with texts, styles and positions, and its height."""
    view = page.views[id]
    assert isinstance(view, ReplyView)
    view.render_now()
    while not view.is_complete:
        view.render_now()
    page._arrange(nearby=view.rows)
    while any(text.formulas.pending for text in view.texts if isinstance(text, TextPage)):
        await asyncio.sleep(0.005)
        page._show_formulas()
    parts: list[object] = [view.text, view.thinking, [text.toPlainText() for text in view.texts]]
    for row in view.rows:
        words = row.text.document().toHtml() if isinstance(row.text, TextPage) else ""
        parts.append((row.part.blocks, type(row.widget), row.widget.geometry(), row.widget.isHidden(), words))
    return [*parts, view.footer is None, view.size()]


@pytest.mark.slow
@pytest.mark.parametrize("name", REPLIES)
async def test_stop_and_continue_look_as_after_a_restart(
    runtime: StagedRuntime, window: MainWindow, look: Look, name: str
) -> None:
    chat, text, page = runtime.chat, REPLIES[name], window.transcript

    async def is_as_in_a_window_opened_now(*, ended: bool = True) -> None:
        id = chat.said("lakes")[-1].id
        streaming = MessageState.STREAMING
        await until(lambda: id in page.views and (page.views[id].message.state is not streaming or not ended))
        fresh = Transcript(look)
        fresh.resize(page.size())
        fresh.show()
        fresh.show_conversation(await chat.messages("lakes"))
        if (turn := window.chat.turn_of()).live_id:
            fresh.show_live_reply(turn.live_id, turn.live_text, turn.live_thinking, turn.live_thinking_ms)
        assert await seen(page, id) == await seen(fresh, id)
        fresh.deleteLater()

    async def grows(begin: int, end: int, size: int) -> None:
        for number, at in enumerate(range(begin, end, size)):
            chat.say(text[at : min(at + size, end)])
            if number % 12 == 0 and name != "late definitions":  # read at once, they are found a line sooner
                await until(lambda: window.chat.turn_of().live_text == text[: min(at + size, end)])  # noqa: B023
                await is_as_in_a_window_opened_now(ended=False)
        await until(lambda: window.chat.turn_of().live_text == text[:end])

    for number, share in enumerate(SPLITS):
        at = round(len(text) * share)
        chat.add("Lakes", id="lakes")
        chat.write("lakes", Role.USER, "Which?")
        window.chat.open("lakes")
        window.chat.retry()
        chat.say(thinking="Hm, which one?" if number % 2 else "")
        await grows(0, at, 17)
        window.chat.stop()
        await is_as_in_a_window_opened_now()
        for request in (RequestKind.CONTINUE, RequestKind.REGENERATE):
            page.message_requested.emit(MessageRequest(request, chat.said("lakes")[-1]))
            await grows(at if request is RequestKind.CONTINUE else 0, len(text), 11)
            chat.finish()
            await is_as_in_a_window_opened_now()
        await chat.recently_deleted.purge_chat("lakes")
        window.chat.open(None)
