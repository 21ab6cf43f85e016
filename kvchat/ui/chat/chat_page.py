"""The page of a conversation: header, transcript or welcome with notices over its end, cards, composer, meter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtWidgets import QHBoxLayout, QStackedWidget, QWidget

from kvchat.ui.base.building import STRETCH, column, label, row
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look, restyle
from kvchat.ui.chat.composer import Composer
from kvchat.ui.chat.context_meter import ContextMeter
from kvchat.ui.chat.header import Header
from kvchat.ui.widgets.card import Card
from kvchat.ui.widgets.elided import ElidedButton
from kvchat.ui.widgets.layouts import COLUMN_WIDTH, GivingWay, ScrollPage
from kvchat.words.language import _, beside, listed

if TYPE_CHECKING:
    from kvchat.ui.chat.find_bar import FindBar
    from kvchat.ui.dialogs.notices import Notices
    from kvchat.ui.transcript.transcript import Transcript

_LEAST_LETTERS, _MOST_LETTERS = 40, 64  # of a notice, about so many to a line
_GAP, _SCROLL_BAR = 10, 10  # pixels


class DocumentsLine(ElidedButton):
    """What a chat stands on; it leads to the library."""

    def __init__(self, look: Look) -> None:
        super().__init__("quiet")
        self._look = look
        self.setAccessibleName(_("Documents"))
        self.hide()
        look.changed.connect(self._restyle)
        self._restyle()

    def show_words(self, words: str, state: str) -> None:
        """`state`: what is to be known of it; empty if all is well."""
        self.set_text(beside((words, state)), "", _("Show it in the library"))
        self.setAccessibleName(_("Documents: {filter}", filter=listed((words, state))))
        restyle(self, "tone", "warn" if state else "")

    def _restyle(self) -> None:
        self.setIcon(icon("document", self._look.theme.muted))


class ChatPage(QWidget):
    """Puts the parts below each other, as wide as the transcript's column.

    Of the first picture are those that are given here; `complete` brings the others, which take longer to import.
    """

    _transcript: Transcript
    _notices: Notices

    def __init__(
        self, look: Look, header: Header, documents: DocumentsLine, composer: Composer, meter: ContextMeter
    ) -> None:
        super().__init__()
        self._look, self._composer = look, composer
        self._in_line: list[QWidget] = []  # as wide as the transcript's column
        look.changed.connect(self._fit)
        self.setObjectName("page")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._middle = QStackedWidget()
        self._middle.addWidget(QWidget())
        below = self._centred(composer, 0), self._centred(meter, 6)
        parts = header, self._centred(documents, 2), (self._middle, 1), *below
        self._column = column(*parts, on=self, spacing=0, margins=0)

    def complete(self, notices: Notices, find_bar: FindBar, transcript: Transcript, cards: Sequence[Card]) -> None:
        self._transcript, self._notices = transcript, notices
        self._welcome = _welcome()
        self._middle.addWidget(self._welcome)
        self._middle.addWidget(transcript)
        notices.setParent(self)
        notices.changed.connect(self._place_notices)
        for widget in (self._middle, notices.ground):
            widget.installEventFilter(self)
        self._column.insertLayout(2, self._centred(find_bar, 4))
        below = GivingWay()
        column(*(self._centred(card, 10) for card in cards), on=below.ground, spacing=0, margins=0)
        self._column.insertWidget(4, below)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        moved = watched is self._middle and event.type() in (QEvent.Type.Resize, QEvent.Type.Move, QEvent.Type.Show)
        if moved or (watched is self._notices.ground and event.type() == QEvent.Type.LayoutRequest):
            self._place_notices()
        return super().eventFilter(watched, event)

    def _place_notices(self) -> None:
        """Over the page's lower end, beside the button that leads there where that has room.

        Nothing moves but what would be covered at the end of a chat: below it there is as much room.
        """
        notices, page = self._notices, self._middle.geometry()
        notices.setVisible(bool(notices.on_show))
        letter, jump = notices.fontMetrics().averageCharWidth(), self._transcript.jump_room
        beside = (page.width() - jump) // 2 - _GAP - _SCROLL_BAR
        fits = beside >= letter * _LEAST_LETTERS
        wide = min(beside if fits else page.width() - 2 * _GAP - _SCROLL_BAR, letter * _MOST_LETTERS)
        left, below = page.right() - wide - _SCROLL_BAR - _GAP, _GAP if fits else jump
        high = min(notices.heightForWidth(wide), self._composer.y() - page.top() - below)
        top = max(page.bottom() - high - below, page.top())  # where the page is low, over a card below it
        notices.setGeometry(left, top, wide, high)
        notices.raise_()
        covers = bool(notices.on_show) and left < page.center().x() + self._look.px(COLUMN_WIDTH) // 2
        self._transcript.leave_room(high + below + _GAP if covers else 0)

    def show_messages(self, has_messages: bool) -> None:
        self._middle.setCurrentWidget(self._transcript if has_messages else self._welcome)

    def _centred(self, widget: QWidget, below: int) -> QHBoxLayout:
        self._in_line.append(widget)
        self._fit()
        begin, end = (26, 16) if self.isRightToLeft() else (16, 26)  # the transcript's scroll bar takes 10
        return row(STRETCH, (widget, 1000), STRETCH, margins=(begin, 0, end, below))

    def _fit(self) -> None:
        for widget in self._in_line:
            widget.setMaximumWidth(self._look.px(COLUMN_WIDTH) + 32)


def _welcome() -> QWidget:
    page = ScrollPage("page")  # on a small screen it makes room for a card
    title = label(_("What is on your mind?"), "hero", wraps=True)
    words = label(_("Come back to it any day: kvchat keeps what the model has already read."), "muted", wraps=True)
    for one in (title, words):
        one.setAlignment(Qt.AlignmentFlag.AlignHCenter)
    lines = column(STRETCH, title, words, STRETCH, on=page.ground, spacing=8, margins=24)
    lines.setStretch(0, 2)
    lines.setStretch(3, 3)
    return page
