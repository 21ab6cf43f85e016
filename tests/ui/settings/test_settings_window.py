"""The settings window, used by fields, lists and buttons, with the staged runtime."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QAbstractButton, QComboBox, QLineEdit, QWidget
from pytestqt.qtbot import QtBot

from kvchat.chat.events import SettingsChanged
from kvchat.engine.api.connection import EngineState
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import ConversationUsage
from kvchat.library.memory.demand import COMPUTER, MemoryUse
from kvchat.session.restore_support import RestoreFinding, Strategy
from kvchat.settings import GB, Settings
from kvchat.text.formatting import TimeRange
from kvchat.text.reasons import Reason, ReasonCode
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.dialogs.confirm import ConfirmDialog
from kvchat.ui.models.models_window import ModelsWindow
from kvchat.ui.settings.model import ModelPage
from kvchat.ui.settings.settings_window import GeneralPage, SettingsWindow
from kvchat.ui.settings.storage import StoragePage
from kvchat.ui.storage.storage_panel import StoragePanel
from kvchat.ui.widgets.entries import FieldEntry, NumberEntry
from tests.systems import not_on_windows
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until
from tests.ui.windows import button, child, question

LEFT = Qt.MouseButton.LeftButton


@pytest.fixture
def settings(window: MainWindow) -> SettingsWindow:
    return window.side_windows.open_settings()


def typed(qtbot: QtBot, entry: FieldEntry, text: str) -> None:
    """Replace the field's text and press Enter."""
    entry.field.selectAll()
    qtbot.keyClick(entry.field, Qt.Key.Key_Delete)
    qtbot.keyClicks(entry.field, text)
    qtbot.keyClick(entry.field, Qt.Key.Key_Return)


def asking(settings: SettingsWindow) -> list[ConfirmDialog]:
    return [dialog for dialog in settings.findChildren(ConfirmDialog) if dialog.isVisible()]


def applied(runtime: StagedRuntime) -> list[Settings]:
    return [call[1] for call in runtime.calls if call[0] == "apply_settings" and isinstance(call[1], Settings)]


async def test_opens_by_key_and_walks_its_pages_whose_controls_have_names_and_help(
    window: MainWindow, qtbot: QtBot
) -> None:
    qtbot.keyClick(window, Qt.Key.Key_Comma, Qt.KeyboardModifier.ControlModifier)
    settings = child(window, SettingsWindow)
    assert settings.isVisible()
    await until(settings.isActiveWindow)
    for page in settings.pages[1:]:
        qtbot.keyClick(settings.list, Qt.Key.Key_Down)
        assert settings.page(page).isVisible()
        assert settings.list.currentItem().text() == page.name
    await until(lambda: settings.page(StoragePage).settings["free_floor_bytes"].help.text())  # once the disk was asked
    qtbot.keyClick(settings, Qt.Key.Key_Escape)
    assert not settings.isVisible()
    for kind in (QAbstractButton, QLineEdit, QComboBox):
        for control in settings.findChildren(kind):
            assert control.accessibleName(), control
    for page in settings.pages:
        for entry in settings.page(page).entries:
            assert entry.help.text(), entry.title.text()
            if isinstance(entry, NumberEntry):
                assert entry.field.accessibleDescription() == entry.help.text()


@not_on_windows("it would change the registry")
async def test_starting_at_login_is_the_desktop_s_to_know(
    settings: SettingsWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    entry, file = settings.page(GeneralPage).login, tmp_path / "autostart/kvchat.desktop"
    settings.page(GeneralPage).refresh()
    await until(lambda: not entry.switch.isChecked())
    entry.switch.click()
    await until(file.exists)
    await until(entry.switch.isChecked)
    file.write_text(file.read_text() + "Hidden=true\n")
    settings.page(GeneralPage).refresh()
    await until(lambda: not entry.switch.isChecked())
    file.unlink()
    file.parent.rmdir()
    file.parent.write_text("in the way")
    entry.switch.click()
    await until(lambda: settings.notices.visible_notices)
    assert settings.notices.visible_notices[0].texts[0] == "The “Start at login” setting could not be changed"
    await until(lambda: not entry.switch.isChecked())


async def test_when_the_engine_runs_and_what_others_change(
    runtime: StagedRuntime, settings: SettingsWindow, qtbot: QtBot
) -> None:
    qtbot.keyClick(settings.page(GeneralPage).settings["engine_start"].choice_box, Qt.Key.Key_Down)
    await until(lambda: runtime.settings.engine_start == "message")
    typed(qtbot, settings.page(GeneralPage).settings["idle_minutes"], "15")
    await until(lambda: runtime.settings.idle_minutes == 15)
    qtbot.mouseClick(settings.page(GeneralPage).settings["idle_minutes"].reset_button, LEFT)
    await until(lambda: runtime.settings.idle_minutes is None)
    assert not settings.pending.isVisible()
    runtime.settings = Settings(theme="light", quota_bytes=5 * GB, kv_type="q5_1")
    runtime.events.publish(SettingsChanged())
    assert settings.page(GeneralPage).settings["theme"].choice_box.currentData() == "light"
    assert settings.page(StoragePage).settings["quota_bytes"].field.text() == "5"
    assert settings.page(ModelPage).settings["kv_type"].choice_box.currentText() == "q5_1"


async def test_the_memory_the_model_s_long_name_what_is_unwise_and_where_restoring_does_not_work(
    runtime: StagedRuntime, settings: SettingsWindow, qtbot: QtBot
) -> None:
    settings.show_page(ModelPage.name)
    memory = settings.page(ModelPage).memory
    assert not memory.isVisible()
    runtime.engine.memory_uses = (
        MemoryUse("Radeon 780M", 8 * GB, GB, 4 * GB, 2 * GB, GB // 2, 0),
        MemoryUse(COMPUTER, 30 * GB, 3 * GB, GB, 0, GB // 10, GB // 10, staging=8 * GB),
    )
    runtime.set_engine(EngineState.READY)
    assert memory.isVisible()
    assert memory.help.text() == "Estimated before loading."
    expected = "Radeon 780M: model 4 GB, context 2 GB, compute buffers 500 MB; reserved 1 GB of 8 GB free"
    assert expected in [widget.accessibleName() for widget in memory.findChildren(QWidget)]
    runtime.engine.finding = RestoreFinding(Strategy.NONE, proved=True, reason=Reason(ReasonCode.DIED_OVER_TRIAL))
    runtime.events.publish(SettingsChanged())
    assert "The engine crashed" in settings.page(ModelPage).restoring.help.text()
    qtbot.mouseClick(settings.page(ModelPage).retest_button, LEFT)
    await until(lambda: ("retest_restoring",) in runtime.calls)
    runtime.engine.context_warning = "This may not fit: with the chat the model takes about 31 GB."
    runtime.set_engine(EngineState.READY)
    assert runtime.engine.context_warning in settings.page(ModelPage).settings["context_size"].help.text()
    runtime.settings = Settings(model_path=f"/models/{'Qwen3VeryLong' * 12}.gguf")
    runtime.events.publish(SettingsChanged())
    settings.resize(settings.minimumSize())
    assert runtime.model.name in settings.page(ModelPage).model.help.text().replace("\u200b", "")
    assert settings.page(ModelPage).model.minimumSizeHint().width() < settings.page(ModelPage).viewport().width()


async def test_a_context_size_waits_for_the_engine_and_nonsense_is_refused_until_the_window_opens_again(
    runtime: StagedRuntime, settings: SettingsWindow, qtbot: QtBot
) -> None:
    settings.show_page(ModelPage.name)
    entry = settings.page(ModelPage).settings["context_size"]
    assert runtime.engine.context_reason in entry.help.text()
    assert entry.field.placeholderText() == "Automatic"
    assert not entry.reset_button.isVisible()
    assert not settings.pending.isVisible()
    typed(qtbot, entry, "16K")
    await until(lambda: runtime.settings.context_size == 16_384)
    assert entry.field.text() == "16,384"
    assert ("restart_engine",) not in runtime.calls
    qtbot.mouseClick(settings.restart_button, LEFT)
    await until(lambda: not settings.pending.isVisible())
    assert ("restart_engine",) in runtime.calls
    qtbot.mouseClick(entry.reset_button, LEFT)
    await until(lambda: runtime.settings.context_size is None)
    assert entry.field.text() == ""
    assert settings.pending.isVisible()

    before = applied(runtime)
    for text, reason in (("100", "at least 256"), ("99999999", "at most 16,777,216"), ("a lot", "such as 8192")):
        typed(qtbot, entry, text)
        assert entry.refusal.isVisible()
        assert reason in entry.refusal.text() == entry.field.accessibleDescription()
        assert entry.field.text() == text, "what was typed stays, to be corrected"
    assert applied(runtime) == before
    typed(qtbot, entry, "4096")
    await until(lambda: runtime.settings.context_size == 4096)
    assert not entry.refusal.isVisible()
    typed(qtbot, entry, "0")
    assert entry.refusal.isVisible()
    settings.close()
    settings.show_page()
    assert entry.field.text() == "4,096"
    assert not entry.refusal.isVisible()


async def test_what_is_being_typed_is_not_overwritten(
    runtime: StagedRuntime, settings: SettingsWindow, qtbot: QtBot
) -> None:
    settings.show_page(StoragePage.name)
    field = settings.page(StoragePage).settings["free_floor_bytes"].field
    settings.activateWindow()
    field.setFocus()
    await until(field.hasFocus)
    field.selectAll()
    qtbot.keyClicks(field, "3")
    runtime.set_engine(EngineState.LOADING)
    assert field.text() == "3"
    qtbot.keyClick(field, Qt.Key.Key_Tab)
    await until(lambda: runtime.settings.free_floor_bytes == 3 * GB)
    qtbot.mouseClick(settings.page(StoragePage).settings["free_floor_bytes"].reset_button, LEFT)
    await until(lambda: runtime.settings.free_floor_bytes == 2 * GB)


async def test_a_lower_quota_and_a_maximum_age_say_first_what_they_delete(
    runtime: StagedRuntime, settings: SettingsWindow, qtbot: QtBot
) -> None:
    for id, days in (("old", 40), ("new", 1)):
        used = datetime.now(UTC) - timedelta(days=days)
        runtime.keep(ConversationUsage(id, 900_000_000, 9, used, 900_000_000, reprocessing=TimeRange(40, 40)))
    settings.show_page(StoragePage.name)
    typed(qtbot, settings.page(StoragePage).settings["max_age_days"], "30")
    await until(lambda: asking(settings))
    assert not applied(runtime)
    qtbot.mouseClick(question(settings).confirm_button, LEFT)
    await until(lambda: runtime.settings.max_age_days == 30)
    qtbot.mouseClick(settings.page(StoragePage).settings["max_age_days"].reset_button, LEFT)
    await until(lambda: runtime.settings.max_age_days is None and not asking(settings))
    before = applied(runtime)
    typed(qtbot, settings.page(StoragePage).settings["quota_bytes"], "500 MB")
    await until(lambda: asking(settings))
    assert question(settings).accessibleName() == "Lower the limit to 500 MB?"
    qtbot.mouseClick(question(settings).keep_button, LEFT)
    await until(lambda: settings.page(StoragePage).settings["quota_bytes"].field.text() == "")
    assert applied(runtime) == before
    typed(qtbot, settings.page(StoragePage).settings["quota_bytes"], "500 MB")
    await until(lambda: asking(settings))
    qtbot.mouseClick(question(settings).confirm_button, LEFT)
    await until(lambda: runtime.settings.quota_bytes == GB // 2)
    typed(qtbot, settings.page(StoragePage).settings["quota_bytes"], "7.5")
    await until(lambda: runtime.settings.quota_bytes == 7.5 * GB)


async def test_opens_the_folders_and_leads_to_the_model_and_to_what_is_saved(
    runtime: StagedRuntime, window: MainWindow, settings: SettingsWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def open_url(url: QUrl) -> bool:
        opened.append(url.toLocalFile())
        return len(opened) == 1

    monkeypatch.setattr(QDesktopServices, "openUrl", staticmethod(open_url))
    settings.show_page(StoragePage.name)
    qtbot.mouseClick(button(settings, "Open the folder: Chats"), LEFT)
    assert Path(opened[0]) == runtime.paths.data
    assert not settings.notices.visible_notices
    qtbot.mouseClick(button(settings, "Open the folder: Chat memory"), LEFT)
    assert settings.notices.visible_notices[0].texts[0] == "The folder could not be opened"
    settings.show_page(ModelPage.name)
    qtbot.mouseClick(button(settings, "Choose another model"), LEFT)
    models = child(window, ModelsWindow)
    assert models.isVisible()
    settings.show_page(StoragePage.name)
    qtbot.mouseClick(button(settings, "Show chat memory"), LEFT)
    panel = child(window, StoragePanel)
    assert panel.isVisible()
    qtbot.mouseClick(button(panel, "Change the limits"), LEFT)
    assert not panel.isVisible()
    assert settings.page(StoragePage).isVisible()


async def test_what_fails_is_told_here_and_not_behind(
    runtime: StagedRuntime, window: MainWindow, settings: SettingsWindow, qtbot: QtBot
) -> None:
    runtime.refuse = KvchatError("The engine could not be stopped")
    settings.show_page(ModelPage.name)
    typed(qtbot, settings.page(ModelPage).settings["context_size"], "4096")
    await until(settings.pending.isVisible)
    qtbot.mouseClick(settings.restart_button, LEFT)
    await until(lambda: settings.notices.visible_notices)
    assert not window.notices.visible_notices
    settings.close()
    settings.show_error(KvchatError("Too late"))
    assert window.notices.visible_notices[0].texts[0] == "Too late"
