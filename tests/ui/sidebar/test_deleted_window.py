"""Deleted chats: restored by key or from their window, or permanently deleted on request."""

from datetime import UTC, datetime, timedelta

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from kvchat.chat.deletion import DeletedEntry
from kvchat.text.language import set_language
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.settings.settings_window import SettingsWindow
from kvchat.ui.settings.storage import StoragePage
from kvchat.ui.sidebar.deleted_window import deleted_row
from kvchat.ui.transcript.footer import MessageRequest, RequestKind
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until
from tests.ui.windows import child, question

CTRL = Qt.KeyboardModifier.ControlModifier


def undo(window: MainWindow, qtbot: QtBot) -> None:
    qtbot.keyClick(window.composer.editor, Qt.Key.Key_Z, CTRL)


async def test_ctrl_z_has_back_what_was_deleted_last_long_after_the_notice(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    qtbot.keyClick(window.sidebar.list, Qt.Key.Key_Delete)
    await until(lambda: window.notices.undos)
    window.composer.focus()
    qtbot.keyClicks(window.composer.editor, "typed")
    undo(window, qtbot)
    assert window.composer.draft == "", "the field's own comes first"
    assert set(furnished.chat.by_id) == {"a", "b", "c"}
    undo(window, qtbot)
    await until(lambda: set(furnished.chat.by_id) == {"a", "b", "c", "d"})
    await until(lambda: window.sidebar.chosen == ["d"], "the chat in the list")
    for left in ("abc", "ab"):
        qtbot.keyClick(window.sidebar.list, Qt.Key.Key_Delete)
        await until(lambda left=left: "".join(window.chat.conversations.chat_ids[::-1]) == left)
    for notice in window.notices.visible_notices:
        notice.close_button.click()
    window.composer.focus()
    undo(window, qtbot)
    await until(lambda: window.chat.current == "c")
    undo(window, qtbot)
    await until(lambda: window.chat.current == "d")
    await until(lambda: len(window.transcript.messages) == 1)
    window.chat.handle_request(MessageRequest(RequestKind.DELETE, window.transcript.messages[0]))
    await until(lambda: not furnished.chat.said("d") and window.notices.undos)
    undo(window, qtbot)
    await until(lambda: len(furnished.chat.said("d")) == 1)
    undo(window, qtbot)  # there is nothing left to undo
    assert not window.notices.visible_notices


def test_what_was_deleted_is_told_in_whole_sentences_of_the_language(catalogues: None) -> None:
    now = datetime.now(UTC)
    for days, words in (
        (7, "permanently deleted in 7 days"),
        (1, "permanently deleted in 1 day"),
        (0, "deleted today"),
    ):
        deleted = DeletedEntry("a", "a", "Lakes", 2, "", now, now + timedelta(days=days))
        assert deleted_row(deleted).detail.endswith(words)
    set_language("de")
    words = deleted_row(DeletedEntry("m", "a", "Lakes", 2, "The deepest", now, now + timedelta(days=5))).detail
    assert words.startswith("2 Nachrichten aus „Lakes“")
    assert words.endswith("wird in 5 Tagen endgültig gelöscht")


async def test_the_window_gives_back_and_lets_go_for_good(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    for chat in "abc":
        await furnished.chat.recently_deleted.delete([chat])
    window.header.requested.emit("deleted")
    panel = window.side_windows.open_deleted()
    await until(lambda: [row.title for row in panel.list.rows] == ["Chat c", "Chat b", "Chat a"])
    assert "stay here for 7 days" in panel.retention_label.text()
    assert "permanently deletes" in panel.retention_label.text()
    panel.list.select(panel.list.rows[1].value)
    panel.restore_button.click()
    await until(lambda: "b" in furnished.chat.by_id)
    await until(lambda: [row.title for row in panel.list.rows] == ["Chat c", "Chat a"])
    panel.list.select(panel.list.rows[0].value)
    panel.delete_button.click()
    assert "cannot undo this" in question(panel).findChildren(type(panel.retention_label))[1].text()
    question(panel).confirm_button.click()
    await until(lambda: [row.title for row in panel.list.rows] == ["Chat a"])
    panel.delete_all_button.click()
    question(panel).confirm_button.click()
    await until(panel.empty_label.isVisible)
    assert not panel.restore_button.isEnabled()
    panel.retention_button.click()
    settings = child(window, SettingsWindow)
    field = settings.page(StoragePage).settings["keep_deleted_days"].field
    field.setText("30")
    field.setModified(True)
    field.editingFinished.emit()
    await until(lambda: "for 30 days" in panel.retention_label.text())
    settings.close()
    panel.close()
