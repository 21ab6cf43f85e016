"""What a model thought before it answered: one quiet line with how long it took, and the words when it is opened."""

from __future__ import annotations

from PySide6.QtCore import QRect, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QStyle, QTextEdit, QWidget

from kvchat.ui.base.building import button, styled
from kvchat.ui.messages.part_column import PartColumn
from kvchat.ui.rendering.markdown import plain_blocks
from kvchat.ui.rendering.page_style import PageStyle
from kvchat.words.language import _, listed
from kvchat.words.wording import rough_duration

_LEFT, _ABOVE, _BELOW = 16, 4, 4  # pixels around the words


class ThinkingView(QWidget):
    """Closed until it is clicked; what is folded is not laid out."""

    text_made = Signal(QTextEdit)
    toggled = Signal()

    def __init__(self, style: PageStyle, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._heading = _("Thinking")
        self._text = self._shown = ""
        self.button = button("", self._toggle, "quiet")
        self.button.setParent(self)
        self.button.setCursor(Qt.CursorShape.PointingHandCursor)
        self._frame = styled(QFrame(self), "quote")
        self._frame.hide()
        self._words = PartColumn(style.quieter(), _("Thinking"), self._frame)
        self._words.text_made.connect(self.text_made)
        self._show_heading()

    @property
    def is_open(self) -> bool:
        return not self._frame.isHidden()

    @property
    def texts(self) -> list[QTextEdit]:
        return self._words.texts if self.is_open else []

    def show_thinking(self, text: str, *, still: bool, ms: float | None) -> None:
        """Show this; `still`: the model goes on thinking. `ms`: how long it thought, None if nobody measured it."""
        self._text = text
        heading = _("Thought first") if ms is None else _("Thought for {ms}", ms=rough_duration(ms / 1000))
        heading = _("Thinking…") if still else heading
        if heading != self._heading:
            self._heading = heading
            self._show_heading()
        self._show_words()

    def heightForWidth(self, width: int) -> int:
        heading = self.button.sizeHint().height()
        return heading + (_ABOVE + self._words.heightForWidth(width - _LEFT) + _BELOW if self.is_open else 0)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place()

    def _place(self) -> None:
        width, heading = self.width(), self.button.sizeHint().height()
        place = QRect(0, 0, min(self.button.sizeHint().width(), width), heading)
        self.button.setGeometry(QStyle.visualRect(self.layoutDirection(), self.rect(), place))
        height = max(self.height() - heading - _ABOVE, 0)
        self._frame.setGeometry(0, heading + _ABOVE, width, height)
        self._words.setGeometry(0 if self.isRightToLeft() else _LEFT, 0, width - _LEFT, max(height - _BELOW, 0))

    def _toggle(self) -> None:
        self._frame.setVisible(not self.is_open)
        self._show_heading()
        self._show_words()
        self.toggled.emit()

    def _show_heading(self) -> None:
        self.button.setText(f"{self._heading} {'▾' if self.is_open else '◂' if self.isRightToLeft() else '▸'}")
        fold = _("open") if self.is_open else _("folded")
        self.button.setAccessibleName(listed((self._heading, fold)))
        self._place()

    def _show_words(self) -> None:
        if self.is_open and self._shown != self._text:
            self._shown = self._text
            *settled, last = plain_blocks(self._text.strip("\n"))
            self._words.show_blocks(settled, [last])
