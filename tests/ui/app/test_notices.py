"""Notices other than errors."""

import gc
import weakref

import pytest
import shiboken6
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot

from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs import panel
from kvchat.ui.dialogs.panel import Notices, Panel
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import LONG_MS


def test_a_newer_version_stays_on_show_and_leads_to_its_page(
    look: Look, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url.toString()))
    monkeypatch.setattr(panel, "_NOTICE_MS", 0)
    shown = Notices(look)
    qtbot.addWidget(shown)
    shown.notify("Something")
    shown.notify_new_version("9.0.0", "https://example.org/v9.0.0")
    qtbot.waitUntil(
        lambda: [notice.texts[0] for notice in shown.visible_notices] == ["kvchat 9.0.0 is available"], timeout=LONG_MS
    )
    shown.visible_notices[0].findChild(QPushButton, "").click()
    assert opened == ["https://example.org/v9.0.0"]
    assert not shown.visible_notices


async def test_a_window_that_is_gone_hears_of_no_other_text_size(runtime: StagedRuntime, look: Look) -> None:
    panel = Panel(runtime, look, TaskRunner(lambda error: None, lambda bug: None), "A window")
    kept = weakref.ref(panel)
    shiboken6.delete(panel)
    del panel
    gc.collect()
    assert kept() is None
    look.changed.emit()
