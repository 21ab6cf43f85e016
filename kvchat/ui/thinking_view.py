"""What a model thought before it answered: one quiet line with how long it took, and the words when it is opened."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QTextEdit, QVBoxLayout, QWidget

from kvchat.ui.fold import Fold
from kvchat.ui.markdown import plain_blocks
from kvchat.ui.page_style import PageStyle
from kvchat.ui.part_column import PartColumn
from kvchat.wording import rough_duration


class ThinkingView(QWidget):
    """Folded until it is opened; what is folded is not laid out."""

    text_made = Signal(QTextEdit)
    changed = Signal()

    def __init__(self, style: PageStyle, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._text = ""
        self._shown = ""
        self.words = PartColumn(style.quieter(), "Thinking")
        self.words.text_made.connect(self.text_made)
        self.fold = Fold("Thinking", self.words)
        self.fold.toggled.connect(self._toggled)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self.fold)

    @property
    def texts(self) -> list[QTextEdit]:
        """The texts in which one can select; none while folded."""
        return self.words.texts if self.fold.is_open else []

    def show_thinking(self, text: str, *, still: bool, ms: float | None) -> None:
        """Show this; `still`: the model goes on thinking. `ms`: how long it thought, None if nobody measured it."""
        self._text = text
        heading = "Thought first" if ms is None else f"Thought for {rough_duration(ms / 1000)}"
        self.fold.set_heading("Thinking…" if still else heading)
        if self.fold.is_open:
            self._show_words()

    def _toggled(self) -> None:
        if self.fold.is_open:
            self._show_words()
        self.changed.emit()

    def _show_words(self) -> None:
        if self._shown != self._text:
            self._shown = self._text
            *settled, last = plain_blocks(self._text.strip("\n"))
            self.words.show_blocks(settled, [last])
