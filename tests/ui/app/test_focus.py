"""The composer has keyboard focus after every mouse action, and gets the typed text."""

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QInputMethodEvent, QInputMethodQueryEvent
from PySide6.QtWidgets import QApplication, QFileDialog, QPushButton, QToolButton, QWidget
from pytestqt.qtbot import QtBot

from kvchat.chat.record.messages import MessageState, Role
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.rendering.code_view import CodeView
from kvchat.ui.rendering.text_page import TextPage
from tests.ui.staged_runtime import StagedRuntime, a_receipt
from tests.ui.waiting import until
from tests.ui.windows import button, child

LEFT = Qt.MouseButton.LeftButton


@pytest.fixture
def furnished(runtime: StagedRuntime) -> StagedRuntime:
    """Add a question and a reply with text and code."""
    runtime.chat.add("Lakes", id="lakes")
    runtime.chat.write("lakes", Role.USER, "Which lake is deepest?")
    runtime.chat.write("lakes", Role.ASSISTANT, "This.\n\n```python\nprint(1)\n```\n", receipt=a_receipt())
    return runtime


async def opened(window: MainWindow) -> None:
    window.activateWindow()
    await until(lambda: window.isActiveWindow() and len(window.transcript.views) == 2)


def focused() -> QWidget | None:
    return QApplication.focusWidget()


async def at_home(window: MainWindow, qtbot: QtBot) -> None:
    """Assert that the composer has focus and receives typed text."""
    await until(lambda: focused() is window.composer.editor, f"the composer's turn, now {focused()}")
    before = window.composer.draft
    qtbot.keyClicks(focused(), " x")
    assert window.composer.draft == before + " x"
    window.composer.set_draft(before)


async def test_after_every_button_of_a_message(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    await opened(window)
    reply = window.transcript.views[furnished.chat.said("lakes")[1].id]
    code = child(reply, CodeView)
    for pressed in (code.copy_button, button(reply, "Copy the reply"), button(reply, "Regenerate the reply")):
        qtbot.mouseClick(pressed, LEFT)
        assert pressed is not code.copy_button or focused() is pressed, "a mouse gives it the keyboard"
        await at_home(window, qtbot)


async def test_after_an_edit_given_up_and_after_one_sent(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    await opened(window)
    question = window.transcript.views[furnished.chat.said("lakes")[0].id]
    for key in (Qt.Key.Key_Escape, Qt.Key.Key_Return):
        qtbot.mouseClick(button(question, "Edit this message"), LEFT)
        assert question.editor is not None
        await until(lambda: question.editor is not None and question.editor.field.hasFocus())
        qtbot.keyClicks(question.editor.field, "Two words")
        assert "Two words" in question.editor.field.toPlainText()
        qtbot.keyClick(question.editor.field, key)
        await at_home(window, qtbot)


async def test_after_stop(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    await opened(window)
    window.composer.insert_text("Continue")
    qtbot.keyClick(window.composer.editor, Qt.Key.Key_Return)
    await until(lambda: furnished.chat.is_answering("lakes"))
    furnished.chat.say("One")
    await until(lambda: furnished.chat.said("lakes")[-1].content == "One")
    qtbot.mouseClick(window.composer.send_button, LEFT)
    await until(lambda: window.composer.send_button.accessibleName() == "Send")
    assert furnished.chat.said("lakes")[-1].state is MessageState.STOPPED
    await at_home(window, qtbot)
    window.composer.insert_text("Again")
    qtbot.keyClick(window.composer.editor, Qt.Key.Key_Return)
    await until(lambda: furnished.chat.is_answering("lakes"))
    furnished.chat.say("Two")
    await until(lambda: furnished.chat.said("lakes")[-1].content == "Two")
    window.composer.send_button.setFocus()
    qtbot.keyClick(window.composer.send_button, Qt.Key.Key_Space)  # by key: the button is off then
    await at_home(window, qtbot)


async def test_after_attaching(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    await opened(window)
    qtbot.mouseClick(window.composer.attach_button, LEFT)
    dialog = child(window, QFileDialog)
    dialog.reject()
    window.activateWindow()  # as a window manager does
    await at_home(window, qtbot)


async def test_after_a_dialog_from_a_menu(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    await opened(window)
    window.header.menu_button.setFocus()
    sheet = window.keyboard.open_sheet()
    await until(lambda: focused() is not None and focused().window() is sheet)
    sheet.close()
    window.activateWindow()  # as a window manager does
    await at_home(window, qtbot)


async def test_what_is_typed_elsewhere_goes_into_the_message(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    await opened(window)
    page = window.transcript
    reply = page.views[furnished.chat.said("lakes")[1].id]
    places = [
        page,
        *reply.texts,
        window.header.menu_button,
        window.composer.attach_button,
        child(reply, QToolButton),
    ]
    for i, place in enumerate(places):
        assert place is not None
        place.setFocus()
        assert focused() is place
        for letter in "ab c":
            qtbot.keyClicks(focused(), letter)
        assert window.composer.draft == "ab c" * (i + 1)
        assert focused() is window.composer.editor


async def test_what_an_input_method_writes_goes_into_the_message(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    await opened(window)
    text = child(window.transcript, TextPage)
    for place in (text, window.header.menu_button):
        place.setFocus()
        assert place.testAttribute(Qt.WidgetAttribute.WA_InputMethodEnabled)
        asked = QInputMethodQueryEvent(Qt.InputMethodQuery.ImEnabled | Qt.InputMethodQuery.ImCursorRectangle)
        QApplication.sendEvent(place, asked)
        assert asked.value(Qt.InputMethodQuery.ImEnabled)
        rectangle = asked.value(Qt.InputMethodQuery.ImCursorRectangle)
        corner = window.composer.editor.mapFromGlobal(place.mapToGlobal(rectangle.topLeft()))
        assert window.composer.editor.rect().contains(corner.toPoint()), "the candidates stand beside the message"
        QApplication.sendEvent(place, QInputMethodEvent("ni", []))
        assert focused() is place, "a change of the keyboard would end what is being composed"
        done = QInputMethodEvent()
        done.setCommitString("你")
        QApplication.sendEvent(place, done)
        assert focused() is window.composer.editor
    assert window.composer.draft == "你你"


async def test_fields_keep_what_is_typed_in_them(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    await opened(window)
    window.find_bar.start_search()
    qtbot.keyClicks(focused(), "lake")
    assert window.find_bar.field.text() == "lake"
    window.sidebar.search_panel.focus()
    qtbot.keyClicks(focused(), "deep")
    assert not window.composer.draft


async def test_space_still_presses_what_tab_has_reached(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    await opened(window)
    view = child(window.transcript, CodeView)
    view.copy_button.setFocus(Qt.FocusReason.TabFocusReason)
    qtbot.keyClick(view.copy_button, Qt.Key.Key_Space)
    assert QApplication.clipboard().text() == "print(1)"
    assert focused() is view.copy_button, "whoever goes by Tab goes on from there"


async def test_nothing_goes_into_a_message_that_is_not_to_be_seen(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    await opened(window)
    window.show_first_start()
    place = next(
        candidate
        for candidate in window.first_start.findChildren(QPushButton)
        if candidate.isVisible() and candidate.isEnabled()
    )
    place.setFocus()
    qtbot.keyClicks(place, "abc")
    assert not window.composer.draft
    assert focused() is place
