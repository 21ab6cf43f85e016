import pytest
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from kvchat.ui.base.building import column, label
from kvchat.ui.widgets.layouts import ShrinkingPage


@pytest.mark.parametrize("before", [(900, 500), (400, 30)], ids=["wide", "low"])
def test_a_page_below_others_shows_its_whole_text(qtbot: QtBot, before: tuple[int, int]) -> None:
    page, window = ShrinkingPage(), QWidget()
    column(label("A few words. " * 30, wraps=True), on=page.content, margins=0)
    column((QWidget(), 1), page, on=window, margins=0)
    qtbot.addWidget(window)
    window.show()
    for width in range(300, 400, 7):  # at some of these, one line more would be needed beside a scroll bar
        for size in (before, (width, 500)):
            window.resize(*size)
            QApplication.processEvents()
        assert page.height() == page.heightForWidth(width)
        assert not page.verticalScrollBar().isVisible()
