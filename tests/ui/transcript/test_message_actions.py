"""A message's footer: actions by touch and keyboard, the time, and the model."""

from dataclasses import replace

from PySide6.QtCore import QPoint
from PySide6.QtGui import QPointingDevice
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget

from kvchat.chat.record.messages import Role
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.transcript.footer import MessageActions
from kvchat.ui.transcript.reply_view import ReplyView
from kvchat.ui.widgets.layouts import ElidedLabel
from tests.ui.staged_runtime import StagedRuntime, a_receipt
from tests.ui.waiting import until
from tests.ui.windows import child

_screen: list[QPointingDevice] = []  # keeps a reference: Qt never forgets a device


def seen(window: MainWindow, row: int) -> bool:
    view = window.transcript.views[window.transcript.messages[row].id]
    actions = view.findChild(MessageActions)
    return actions is not None and actions.is_shown


def tap(widget: QWidget, place: QPoint) -> None:
    """Tap a touch screen: Qt gets the same events as from a real one."""
    if not _screen:
        _screen.append(QTest.createTouchDevice())
    QTest.touchEvent(widget, _screen[0], False).press(0, place, widget).commit(False)
    QTest.touchEvent(widget, _screen[0], False).release(0, place, widget).commit(False)


async def test_a_tap_shows_what_can_be_done_and_a_second_one_does_it(
    furnished: StagedRuntime, window: MainWindow
) -> None:
    """Without the pointer ever hovering: Qt turns an unhandled tap into a click."""
    for role, words in ((Role.ASSISTANT, "Hello."), (Role.USER, "How high?"), (Role.ASSISTANT, "Eight metres.")):
        furnished.chat.write("d", role, words)
    window.chat.open(None)
    window.chat.open("d")
    assert window.chat._load_task is not None
    await window.chat._load_task  # or messages still loading would be shown again
    await until(lambda: len(window.transcript.messages) == 4 and len(window.transcript.views) == 4)
    assert [seen(window, row) for row in range(4)] == [False, False, False, True]
    reply, question = (window.transcript.views[window.transcript.messages[row].id] for row in (1, 2))
    actions = child(reply, MessageActions)
    copy, edit = actions.buttons[:2]
    tap(edit, edit.rect().center())
    await until(lambda: [seen(window, row) for row in range(4)] == [False, True, False, True])
    await until(lambda: actions.was_painted)
    assert reply.editor is None, "the first tap pressed an unseen button"
    QApplication.clipboard().clear()
    tap(copy, copy.rect().center())
    assert QApplication.clipboard().text() == "Hello."
    assert seen(window, 1), "the finger is still there, though the keyboard went back to the composer"
    tap(edit, edit.rect().center())
    assert reply.editor is not None
    tap(question, QPoint(20, 10))
    await until(lambda: [seen(window, row) for row in range(4)] == [False, False, True, True])


LONG = "Ein-Modell-mit-einem-sehr-langen-Namen-" * 6


def replies(window: MainWindow) -> list[ReplyView]:
    return [view for view in window.transcript.views.values() if isinstance(view, ReplyView)]


async def test_each_reply_says_which_model_wrote_it(furnished: StagedRuntime, window: MainWindow) -> None:
    """Even if figures are hidden; replies of earlier versions have no model name."""
    names = ["SmolLM2-135M-Instruct", LONG, ""]
    for name in names:
        furnished.chat.write("d", Role.USER, "Who are you?")
        furnished.chat.write("d", Role.ASSISTANT, "A model.", receipt=a_receipt(model_name=name))
    window.chat.open("a")
    window.chat.open("d")
    await until(lambda: len(replies(window)) == 3)
    receipts = [view.receipt for view in replies(window)]
    assert [receipt.text for receipt in receipts if receipt] == [
        "0.3 s · remembered · SmolLM2-135M-Instruct",
        f"0.3 s · remembered · {LONG}",
        "0.3 s · remembered",
    ]
    assert all(view.width() <= window.transcript.width() for view in replies(window))
    await furnished.apply_settings(replace(furnished.settings, show_numbers=False))
    await until(lambda: replies(window) and not any(view.receipt for view in replies(window)))
    shown = [view.footer.findChild(ElidedLabel) for view in replies(window) if view.footer]
    assert [label.full_text if label else "" for label in shown] == names
