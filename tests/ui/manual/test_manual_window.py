"""F1 opens the manual: headings and links work, text can be searched, and colours follow the theme."""

import re

import pytest
from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices
from pytestqt.qtbot import QtBot

from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.manual.manual_window import MANUAL_TEXT, ManualWindow
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.windows import child


@pytest.fixture
def manual(window: MainWindow, qtbot: QtBot) -> ManualWindow:
    qtbot.keyClick(window, Qt.Key.Key_F1)
    manual = child(window, ManualWindow)
    assert manual.isVisible()
    return manual


async def test_words_are_found_and_headings_lead_to_their_places(manual: ManualWindow, qtbot: QtBot) -> None:
    assert manual.text_search.hasFocus()
    sentence = "Chat memory may not work with this engine"
    qtbot.keyClicks(manual.text_search, sentence)
    assert manual.text_search.count.text() == "1 found"
    qtbot.keyClick(manual.text_search, Qt.Key.Key_Return)
    assert manual.page.textCursor().selectedText() == sentence
    assert manual.list.currentItem().text().strip() == "Chat memory"
    names = [manual.list.item(row).text().strip() for row in range(manual.list.count())]
    assert names == re.findall(r"^##+ (.*)", MANUAL_TEXT, re.MULTILINE)
    row = names.index("Privacy")
    manual.list.setCurrentRow(row)
    assert manual.page.textCursor().block().text() == "Privacy"
    bar = manual.page.verticalScrollBar()
    bar.setValue(bar.maximum())
    assert manual.list.currentRow() > row
    bar.setValue(0)
    assert manual.list.currentRow() == -1


async def test_every_link_leads_somewhere(manual: ManualWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url.toString()))
    links = re.findall(r"\]\(([^)]*)\)", MANUAL_TEXT)
    within = [link for link in links if link.startswith("#")]
    assert within
    for link in links:
        manual.page.moveCursor(manual.page.textCursor().MoveOperation.Start)
        manual.page.anchorClicked.emit(QUrl(link))
        if link in within:
            assert manual.page.textCursor().block().blockFormat().headingLevel() > 1, link
    assert opened == [link for link in links if link not in within]
    shown = manual.page.toHtml()
    assert all(f'href="{link}"' in shown for link in links), "each is one that can be clicked"


async def test_the_text_follows_the_theme_and_stays_where_it_was(
    runtime: StagedRuntime, manual: ManualWindow, window: MainWindow
) -> None:
    manual.list.setCurrentRow(8)
    before, light = manual.list.currentRow(), manual.page.toHtml()
    await runtime.apply_settings(type(runtime.settings)(theme="dark", zoom=150))
    assert manual.page.toHtml() != light
    assert manual.list.currentRow() == before
    assert manual.page.horizontalScrollBar().maximum() <= 1, "Qt rounds a table's width up"
