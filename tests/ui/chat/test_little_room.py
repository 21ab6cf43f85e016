"""A chat with large text in a small window."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio
from PySide6.QtCore import QPoint, QRect, QSize
from PySide6.QtWidgets import QLabel, QScrollArea, QWidget

from kvchat.engine.api.connection import EngineState
from kvchat.errors import KvchatError
from kvchat.text.language import _
from kvchat.ui.app import window_state
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.accessibility import set_ui_language
from kvchat.ui.base.theme import Look
from kvchat.ui.commands import SHORTCUTS
from kvchat.ui.transcript.footer import ReceiptView
from kvchat.ui.widgets.layouts import ScrollPage
from tests.ui.staged_runtime import StagedRuntime, a_receipt
from tests.ui.waiting import until
from tests.ui.windows import engine_hangs, on_show


@pytest_asyncio.fixture
async def small(furnished: StagedRuntime, look: Look, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MainWindow]:
    monkeypatch.setattr(window_state, "max_window_size", lambda: QSize(784, 400))
    furnished.settings = replace(furnished.settings, zoom=200)
    look.apply_settings(furnished.settings)
    async with on_show(furnished, look) as window:
        window.resize(720, 400)
        furnished.set_engine(EngineState.FAILED, failure=engine_hangs())
        yield window


def scrolled_in(widget: QWidget) -> QScrollArea:
    around = widget.parentWidget()
    while not isinstance(around, QScrollArea):
        assert around is not None
        around = around.parentWidget()
    return around


def whole(label: QLabel) -> bool:
    return label.isVisible() and label.height() >= label.heightForWidth(label.width())


async def test_a_card_scrolls_and_a_notice_leaves_the_header_free(small: MainWindow) -> None:
    card = small.engine_card
    await until(lambda: card.isVisible() and scrolled_in(card).verticalScrollBar().maximum() > 0)
    await until(lambda: all(map(whole, (card.title, card.detail, card.advice_label))))
    small.notices.show_error(KvchatError("Cannot restart", "Many words. " * 40, "Some advice."))

    def between() -> bool:
        page, notices = small.notices.parentWidget(), small.notices
        parts = [QRect(part.mapTo(page, QPoint()), part.size()) for part in (small.header, small.composer, notices)]
        header, composer, notice = parts
        return header.bottom() < notice.top() < notice.bottom() < composer.top()

    await until(between)
    assert small.notices.verticalScrollBar().maximum() > 0


async def test_the_welcome_scrolls(small: MainWindow) -> None:
    small.new_conversation()
    (title,) = [label for label in small.findChildren(QLabel) if label.text() == "What’s on your mind?"]
    page = scrolled_in(title)
    assert isinstance(page, ScrollPage)
    await until(lambda: page.verticalScrollBar().maximum() > 0)
    words = page.content.findChildren(QLabel)
    await until(lambda: all(map(whole, words)))
    page.verticalScrollBar().setValue(page.verticalScrollBar().maximum())
    last = words[-1].mapTo(page, QPoint(0, words[-1].height())).y()
    assert 0 < last <= page.height()


def test_what_is_part_of_a_line_above_keeps_its_indent(look: Look) -> None:
    """Even if it wraps: leading spaces would indent only its first line."""
    view = ReceiptView(a_receipt(), look)
    view.toggle()
    assert view.details is not None
    view.resize(600, 600)
    view.grab()
    lines = [label for label in view.details.findChildren(QLabel) if label.property("kind") == "small"]
    at = {label.text(): label.geometry().topLeft() for label in lines}
    assert at["Loading (restore)"].x() == at["Processing (prefill)"].x() > at["Time to first token"].x()
    assert [place.y() for place in at.values()] == sorted(place.y() for place in at.values())
    heights = {
        label.sizeHint().height() for label in lines if label.text() in ("Loading (restore)", "Time to first token")
    }
    assert len(heights) == 1, "what it says stands beside it, not above"


@pytest.mark.usefixtures("catalogues")
@pytest.mark.parametrize("language", ["en", "de", "es", "fr", "ja", "ko", "zh_Hans", "zh_Hant"])
def test_a_key_has_one_name(language: str, look: Look) -> None:
    set_ui_language(language)
    try:
        (send,) = [shortcut for shortcut in SHORTCUTS if shortcut.action == "send"]
        assert send.key_text in _("Send (Enter)")
    finally:
        set_ui_language("en")
