"""Tab through the window by real keys: messages in page order, regardless of when their widgets were made."""

from dataclasses import replace

import pytest
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtWidgets import QApplication, QTextBrowser, QWidget
from pytestqt.qtbot import QtBot

from kvchat.chat.record.messages import MessageState, Role
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.rendering.text_page import LinkDialog
from kvchat.ui.transcript.footer import MessageActions
from kvchat.ui.transcript.reply_view import ReplyView
from kvchat.ui.transcript.transcript import Transcript
from tests.ui.staged_runtime import StagedRuntime, a_receipt
from tests.ui.waiting import until
from tests.ui.windows import child

CODE = "See [the lake](https://example.org/lake) and [the map](https://example.org/map).\n\n```python\nprint(1)\n```"


@pytest.fixture
def furnished(runtime: StagedRuntime) -> StagedRuntime:
    """Add two turns, the second with links and code."""
    chat = runtime.chat
    chat.add("Lakes", id="lakes")
    for question, answer in (("Which lake is deepest?", "Baikal."), ("And the largest?", CODE)):
        chat.write("lakes", Role.USER, question)
        chat.write("lakes", Role.ASSISTANT, answer, receipt=a_receipt())
    return runtime


async def opened(window: MainWindow, count: int = 4) -> Transcript:
    page = window.transcript
    await until(lambda: len(page.messages) == count and len(page.views) >= min(count, 10), f"{count} messages")
    window.activateWindow()
    await until(window.isActiveWindow)
    return page


def focused() -> QWidget:
    widget = QApplication.focusWidget()
    assert widget is not None
    return widget


def tab(qtbot: QtBot, times: int = 1, *, back: bool = False) -> list[str]:
    """Press Tab `times` times; return the names of the focused widgets, or the texts of the focused links."""
    names = []
    for _ in range(times):
        qtbot.keyClick(focused(), Qt.Key.Key_Backtab if back else Qt.Key.Key_Tab)
        widget = focused()
        link = widget.textCursor().selectedText() if isinstance(widget, QTextBrowser) else ""
        names.append(link or widget.accessibleName())
    return names


QUESTION = ["Copy this message", "Edit this message", "Delete this message and everything after it"]
REPLY = ["Copy the reply", "Edit the reply", "Regenerate the reply", "Regenerate with another model"]
AFTER = ["Fork into a new chat", "Delete the reply and everything after it"]
RECEIPT = "Statistics: 0.3 s · remembered, details collapsed"
AS_THEY_STAND = [
    *("You: Which lake is deepest?", *QUESTION),
    *("Reply", RECEIPT, *REPLY, *AFTER),
    *("You: And the largest?", *QUESTION),
    *("Reply", "the lake", "the map", "Copy this code", "Code", RECEIPT, *REPLY, "Continue the reply", *AFTER),
]


async def test_tab_goes_through_the_messages_and_on_to_the_composer(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    page = await opened(window)
    window.header.menu_button.setFocus()
    there = tab(qtbot, 2 + len(AS_THEY_STAND) + 3)
    assert there == ["Chat", *AS_THEY_STAND, "Attach files", "Attach a screenshot", "Tools", "Message"]
    assert tab(qtbot)[0] == "New chat", "and round the window"
    window.composer.focus()
    back = tab(qtbot, len(AS_THEY_STAND) + 5, back=True)
    assert (back[:3], back[-2:]) == (["Tools", "Attach a screenshot", "Attach files"], ["Chat", "More"])
    text = AS_THEY_STAND.index("the lake") - 1
    from_below = [*AS_THEY_STAND[:text], "the lake", "the map", "Reply", *AS_THEY_STAND[text + 3 :]]
    assert back[3:-2] == from_below[::-1], "from below, too, a text comes before its links"
    page.views[page.messages[3].id].texts[0].setFocus()
    assert tab(qtbot, 2) == ["the lake", "the map"]
    qtbot.keyClick(focused(), Qt.Key.Key_Return)
    (dialog,) = window.findChildren(LinkDialog)
    assert dialog.url == "https://example.org/map"
    dialog.reject()


@pytest.mark.slow
async def test_messages_that_had_no_widgets_come_in_their_order_and_into_sight(
    runtime: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    runtime.chat.add("Long", id="long")
    for number in range(40):
        runtime.chat.write("long", Role.USER, f"Question {number}?")
        runtime.chat.write("long", Role.ASSISTANT, f"Answer {number}. " * (1 + 90 * (number % 3)))
    window.chat.open("long")
    page = await opened(window, 80)
    ids = [message.id for message in page.messages]
    window.composer.focus()
    tab(qtbot, back=True)
    for back in (True, False):
        seen: list[str] = []
        while page.isAncestorOf(QApplication.focusWidget()) or not seen:
            tab(qtbot, back=back)
            if focused() is page:
                break
            if page.isAncestorOf(focused()):
                place = QRect(focused().mapTo(page.viewport(), QPoint(0, 0)), focused().size())
                assert page.viewport().rect().intersects(place)
                seen.append(next(id for id, view in page.views.items() if view.isAncestorOf(focused())))
        steps = [id for id, before in zip(seen, ["", *seen], strict=False) if id != before]
        assert steps == (ids[::-1] if back else ids)


async def test_a_part_with_the_keys_that_turns_into_another_gives_them_to_the_page(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    page = await opened(window)
    live = replace(page.messages[3], id="live", state=MessageState.STREAMING, content="", receipt=None)
    page.update_messages([*page.messages, live])
    page.show_live_reply("live", "See [the lake](https://example.org/lake) ``", "")
    view = page.views["live"]
    assert isinstance(view, ReplyView)
    view.render_now()
    view.texts[0].setFocus()
    page.show_live_reply("live", "```python\nprint(1)\n```\n", "")
    view.render_now()
    assert focused() is page
    assert tab(qtbot)[0] in AS_THEY_STAND
    child(page.views[page.messages[3].id], MessageActions).buttons[0].setFocus()
    page.update_messages(page.messages[:3])
    assert focused() is page
    assert tab(qtbot)[0] == AS_THEY_STAND[0]
