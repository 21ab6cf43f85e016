"""The window around the page: hiding the sidebar, renaming chats, menus, narrow and full-screen windows."""

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLineEdit, QMenu
from pytestqt.qtbot import QtBot

from kvchat.chat.events import MessagesChanged
from kvchat.chat.record.messages import Role
from kvchat.errors import KvchatError
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.theme import Look
from kvchat.ui.settings.presets import ChatSettingsWindow, PresetDialog
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until
from tests.ui.windows import child, joined

LEFT = Qt.MouseButton.LeftButton
CTRL = Qt.KeyboardModifier.ControlModifier


@pytest.mark.parametrize("change", ["more", "fewer", "order", "same"])
async def test_a_list_that_changes_leaves_a_title_to_be_typed(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot, change: str
) -> None:
    view = window.sidebar.list
    where = view.visualRect(window.sidebar.model.index_of("d")).center()
    for click in (qtbot.mouseClick, qtbot.mouseDClick):  # a double click alone is only the second half
        click(view.viewport(), LEFT, pos=where)
    editor = child(view, QLineEdit)
    qtbot.keyClicks(editor, "Half a ti")
    match change:
        case "more":
            furnished.chat.add("New")
        case "fewer":
            await furnished.chat.recently_deleted.delete(["b", "c"])
        case "order":
            await furnished.chat.arrange(["a"], "on_top", True)
    await window.chat.conversations.reload()
    assert view.findChild(QLineEdit) is editor
    assert editor.text() == "Half a ti"
    qtbot.keyClicks(editor, "tle")
    qtbot.keyClick(editor, Qt.Key.Key_Return)
    await until(lambda: furnished.chat.by_id["d"].title == "Half a title")
    assert window.chat.current == "d"


async def test_a_double_click_on_the_title_renames(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    header = window.header
    await until(lambda: header.title.full_text == "Chat d")
    qtbot.mouseDClick(header.title, LEFT)
    qtbot.keyClicks(header.field, "Lemma")
    await window.chat.conversations.reload()
    qtbot.keyClick(header.field, Qt.Key.Key_Return)
    await until(lambda: header.title.full_text == "Lemma")
    assert header.title.isVisible()
    assert window.composer.editor.hasFocus()
    qtbot.mouseDClick(header.title, LEFT)
    qtbot.keyClicks(header.field, "Thrown away")
    qtbot.keyClick(header.field, Qt.Key.Key_Escape)
    assert header.title.isVisible()
    assert furnished.chat.by_id["d"].title == "Lemma"


async def test_the_sidebar_can_be_hidden_and_is_so_next_time(
    furnished: StagedRuntime, window: MainWindow, look: Look, qtbot: QtBot
) -> None:
    qtbot.mouseClick(window.sidebar.hide_button, LEFT)
    assert window.sidebar.isHidden()
    qtbot.keyClick(window.composer.editor, Qt.Key.Key_F2)  # the list cannot be edited, the title can
    assert window.header.field.isVisible()
    qtbot.keyClick(window.header.field, Qt.Key.Key_Escape)
    window.close()
    again = joined(furnished, look)
    assert again.sidebar.isHidden()
    again.deleteLater()
    window.show()
    qtbot.mouseClick(window.header.sidebar_button, LEFT)
    assert window.sidebar.isVisible()
    qtbot.keyClick(window.composer.editor, Qt.Key.Key_B, CTRL)
    assert window.sidebar.isHidden()
    qtbot.keyClick(window.composer.editor, Qt.Key.Key_F, CTRL | Qt.KeyboardModifier.ShiftModifier)
    assert window.sidebar.isVisible()
    assert window.sidebar.search_panel.field.hasFocus()


async def test_a_narrow_window_shows_the_sidebar_or_the_page(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    window.resize(400, 600)
    assert window.width() == 400
    await until(lambda: window.centralWidget().minimumSizeHint().width() <= 400)
    assert (window.sidebar.isVisible(), window.composer.isVisible()) == (False, True)
    qtbot.mouseClick(window.header.sidebar_button, LEFT)
    assert (window.sidebar.isVisible(), window.composer.isVisible()) == (True, False)
    view = window.sidebar.list
    qtbot.mouseClick(view.viewport(), LEFT, pos=view.visualRect(window.sidebar.model.index_of("b")).center())
    assert (window.sidebar.isVisible(), window.composer.isVisible()) == (False, True)
    assert window.chat.current == "b"
    window.resize(900, 600)
    assert window.sidebar.isVisible()


async def test_the_menus_part_this_chat_from_kvchat(furnished: StagedRuntime, window: MainWindow) -> None:
    def words(menu: QMenu) -> set[str]:
        return {action.text().partition("\t")[0] for action in menu.actions() if action.text()}

    window.header.chat_menu.aboutToShow.emit()
    chat, app = words(window.header.chat_menu), words(window.header.menu)
    assert {"Rename", "Delete", "Chat settings…", "Export…"} <= chat
    assert {"Settings…", "Models…", "Quit"} <= app
    assert not chat & app


@pytest.mark.parametrize("name", ["chat_button", "menu_button"])
async def test_a_menu_s_button_rests_when_the_menu_has_gone(
    furnished: StagedRuntime, window: MainWindow, name: str
) -> None:
    button = getattr(window.header, name)
    QTest.mouseMove(window, QPoint(1, 1))
    button.setAttribute(Qt.WidgetAttribute.WA_UnderMouse)  # as Qt has it when the pointer came
    button.menu().popup(window.mapToGlobal(window.rect().center()))
    button.menu().close()
    assert not button.underMouse()


async def test_notices_move_nothing_and_stand_at_the_end(furnished: StagedRuntime, window: MainWindow) -> None:
    await until(lambda: window.transcript.isVisible() and window.transcript.height() > 0)
    before = window.transcript.geometry()
    for number in range(5):
        window.notices.notify(f"Notice {number}", "and more")
    window.notices.show_error(KvchatError("Cannot restart", "Many words. " * 20))
    await until(lambda: window.notices.height() >= window.notices.heightForWidth(window.notices.width()) > 0)
    assert window.transcript.geometry() == before
    assert [notice.texts[0] for notice in window.notices.visible_notices] == ["Notice 3", "Notice 4", "Cannot restart"]
    page = window.notices.mapToGlobal(window.notices.rect().bottomLeft()).y()
    assert page < window.composer.mapToGlobal(QPoint(0, 0)).y()
    assert page > window.transcript.mapToGlobal(window.transcript.rect().center()).y()
    for notice in window.notices.visible_notices:
        notice.close_button.click()
    await until(window.notices.isHidden)
    window.resize(1100, 720)
    window.notices.offer_undo("Deleted “Lakes”", lambda: None)
    await until(window.notices.isVisible)
    gap = window.transcript.mapTo(window, window.transcript.rect().bottomLeft()).y()
    gap -= window.notices.mapTo(window, window.notices.rect().bottomLeft()).y()
    assert 0 <= gap <= 12, "it stands at the very end of the page"
    jump = window.transcript.jump_button
    assert window.notices.x() > jump.geometry().right()


async def test_the_end_of_a_long_chat_is_not_covered_by_notices(furnished: StagedRuntime, window: MainWindow) -> None:
    furnished.chat.write("d", Role.ASSISTANT, "A line of it.\n\n" * 60)
    furnished.events.publish(MessagesChanged("d"))
    bar = window.transcript.verticalScrollBar()
    await until(lambda: bar.maximum() > 0 and bar.value() == bar.maximum())

    def end() -> int:
        last = window.transcript.views[window.transcript.messages[-1].id]
        return last.mapTo(window, last.rect().bottomLeft()).y()

    before = end()
    window.notices.show_error(KvchatError("Cannot restart", "Many words. " * 20))
    await until(lambda: window.notices.isVisible() and end() < window.notices.mapTo(window, QPoint(0, 0)).y())
    window.notices.visible_notices[0].close_button.click()
    await until(lambda: end() == before)


async def test_the_preset_window_holds_what_is_behind_it_and_enter_saves(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    window.open_chat_settings()
    settings = child(window, ChatSettingsWindow)
    await until(settings.save_button.isEnabled)
    settings.save_as_preset_button.click()
    dialog = child(settings, PresetDialog)
    await until(dialog.save_button.isEnabled)
    assert QApplication.activeModalWidget() is dialog
    dialog.form.number_fields["temperature"].setText("3")
    qtbot.keyClick(dialog.name, Qt.Key.Key_Return)
    assert dialog.form.refusal.text() == "Temperature must be between 0 and 2."
    dialog.form.number_fields["temperature"].setText("1")
    qtbot.keyClick(dialog.name, Qt.Key.Key_Return)
    await until(lambda: not dialog.isVisible())
    assert [preset.name for preset in await furnished.chat.options.presets()] == ["New preset"]
    settings.close()
