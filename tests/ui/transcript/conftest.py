from collections.abc import Iterator

import pytest
from PySide6.QtCore import QEvent
from PySide6.QtGui import QGuiApplication
from pytestqt.qtbot import QtBot

from kvchat.ui.base.theme import Look
from kvchat.ui.transcript.transcript import Transcript
from tests.ui.waiting import LONG_MS


@pytest.fixture
def page(look: Look, qtbot: QtBot) -> Iterator[Transcript]:
    page = Transcript(look)
    qtbot.addWidget(page)
    page.resize(850, 600)
    page.show()
    qtbot.waitExposed(page, timeout=LONG_MS)
    yield page
    QGuiApplication.clipboard().clear()
    page.deleteLater()
    QGuiApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)  # or the next style sheet restyles it too
