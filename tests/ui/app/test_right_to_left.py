"""Right-to-left languages: lines begin at the right; code stays left-to-right."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QColor, QImage, QTextCursor, QTextLayout, QTextOption
from PySide6.QtWidgets import QApplication, QFrame
from pytestqt.qtbot import QtBot

from kvchat.chat.record.messages import Role
from kvchat.engine.api.connection import EngineState
from kvchat.library.model_files import Source
from kvchat.library.model_library import FoundModel
from kvchat.text import language
from kvchat.text.language import join_parts
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look
from kvchat.ui.commands import menu_title
from kvchat.ui.models.model_choice import found_row
from kvchat.ui.rendering.code_view import CodeView
from kvchat.ui.rendering.text_page import TextPage
from kvchat.ui.transcript.message_view import UserView
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until
from tests.ui.windows import engine_hangs, on_show

QUOTE, CODE = "> قال أحدهم هذا", "```python\nif True:\n    pass\n```"


@pytest.fixture
def mirrored(qapp: QApplication) -> Iterator[None]:
    qapp.setLayoutDirection(Qt.LayoutDirection.RightToLeft)
    yield
    qapp.setLayoutDirection(Qt.LayoutDirection.LeftToRight)


async def test_what_begins_a_line_begins_at_the_right(
    mirrored: None, furnished: StagedRuntime, look: Look, qtbot: QtBot
) -> None:
    furnished.chat.write("d", Role.ASSISTANT, f"{QUOTE}\n\n{CODE}")
    async with on_show(furnished, look) as window:
        window.resize(1000, 700)
        await until(lambda: window.findChildren(CodeView) and window.sidebar.list.model().rowCount() == 5)
        assert window.sidebar.mapTo(window, QPoint()).x() > window.header.mapTo(window, QPoint()).x()
        bubble = window.findChildren(UserView)[0].findChild(QFrame)
        assert isinstance(bubble, QFrame)
        assert bubble.x() == 0
        assert bar_at(window, look) > 0.9
        code = window.findChildren(CodeView)[0]
        assert indent(code) > 0
        assert not code.body.isRightToLeft()  # and what is too wide is shown from its beginning


async def test_what_kvchat_draws_itself_begins_at_the_right_too(
    mirrored: None, furnished: StagedRuntime, look: Look
) -> None:
    furnished.kept["d"] = 1_000_000
    async with on_show(furnished, look) as window:
        window.resize(1000, 700)
        assert window.header.title.alignment() & Qt.AlignmentFlag.AlignRight
        assert window.sidebar.search_panel.field.textMargins().right() > 0
        furnished.set_engine(EngineState.FAILED, failure=engine_hangs())
        card = window.engine_card
        await until(lambda: card.restart_button.x() > card.log_button.x() > card.model_button.x() >= 0)
        storage = window.side_windows.open_storage()
        await until(lambda: storage.list.buttons)
        assert storage.list.buttons[0].x() < storage.list.width() // 2
        picture = storage.list.viewport().grab().toImage()
        y = next(y for y in range(picture.height()) if drawn(picture, y, look.theme.accent))
        assert min(drawn(picture, y + 2, look.theme.accent)) > storage.list.buttons[0].geometry().right(), "the bar"
        storage.close()


def test_parts_of_a_line_stand_from_right_to_left(qapp: QApplication, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language._Current, "language", "he")
    words = join_parts(("Qwen3", "4.9 GB", "Q4_K_M"))
    laid_out = QTextLayout(words)
    option = QTextOption()
    option.setTextDirection(Qt.LayoutDirection.LayoutDirectionAuto)  # as in labels and lists: the words say it
    laid_out.setTextOption(option)
    laid_out.beginLayout()
    line = laid_out.createLine()
    laid_out.endLayout()
    places = [line.cursorToX(words.index(part) + 1)[0] for part in ("Qwen3", "4.9 GB", "Q4_K_M")]
    assert places == sorted(places, reverse=True)


def test_keys_paths_and_icons_that_point_somewhere(mirrored: None, look: Look, tmp_path: Path) -> None:
    assert menu_title("settings").endswith("\t\u2066Ctrl+,\u2069")
    model = FoundModel(tmp_path / "a.gguf", "a", Source.LM_STUDIO, 1, None)
    assert found_row(model, None).tip.endswith(f"\u2066{tmp_path / 'a.gguf'}\u2069")
    turned, kept = (icon(name, "#000000").pixmap(64).toImage() for name in ("sidebar", "again"))
    QApplication.setLayoutDirection(Qt.LayoutDirection.LeftToRight)
    assert menu_title("settings").endswith("\tCtrl+,")
    assert icon("again", "#000000").pixmap(64).toImage() == kept
    assert icon("sidebar", "#000000").pixmap(64).toImage() != turned


def drawn(picture: QImage, y: int, colour: str) -> list[int]:
    """Return the x coordinates with this colour in row `y`."""
    return [x for x in range(picture.width()) if picture.pixelColor(x, y) == QColor(colour)]


async def test_tab_goes_the_same_way(furnished: StagedRuntime, look: Look, qapp: QApplication, qtbot: QtBot) -> None:
    ways = []
    for direction in (Qt.LayoutDirection.LeftToRight, Qt.LayoutDirection.RightToLeft):
        qapp.setLayoutDirection(direction)
        async with on_show(furnished, look) as window:
            window.activateWindow()
            await until(lambda: window.isActiveWindow() and window.transcript.views)
            way = []
            for _ in range(12):
                qtbot.keyClick(qapp.focusWidget() or window, Qt.Key.Key_Tab)
                focused = qapp.focusWidget()
                way.append(focused.accessibleName() if focused is not None else "")
            ways.append(way)
    qapp.setLayoutDirection(Qt.LayoutDirection.LeftToRight)
    assert len(set(ways[0])) > 6
    assert ways[0] == ways[1]


def bar_at(window: MainWindow, look: Look) -> float:
    """Return the position of the quote's bar: 0 at the left edge, 1 at the right one."""
    page = next(page for page in window.findChildren(TextPage) if page.document().rootFrame().childFrames())
    picture = page.grab().toImage()
    colour, row = QColor(look.theme.line), picture.height() // 2
    found = [x for x in range(picture.width()) if picture.pixelColor(x, row) == colour]
    return found[len(found) // 2] / picture.width()


def indent(code: CodeView) -> int:
    """Return the indentation of the second line of code relative to the first, in pixels."""
    first, second = code.body.textCursor(), code.body.textCursor()
    first.movePosition(QTextCursor.MoveOperation.Start)
    second.movePosition(QTextCursor.MoveOperation.End)
    second.movePosition(QTextCursor.MoveOperation.StartOfWord)
    return code.body.cursorRect(second).x() - code.body.cursorRect(first).x()
