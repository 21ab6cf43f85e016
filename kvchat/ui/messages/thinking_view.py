"""What a model thought before it answered: one quiet line with how long it took, and the words when it is opened."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QTextEdit, QWidget

from kvchat.ui.messages.part_column import PartColumn
from kvchat.ui.rendering.markdown import plain_blocks
from kvchat.ui.rendering.page_style import PageStyle
from kvchat.ui.widgets.fold import Fold
from kvchat.words.wording import rough_duration


class ThinkingView(Fold):
    """Folded until it is opened; what is folded is not laid out."""

    text_made = Signal(QTextEdit)

    def __init__(self, style: PageStyle, parent: QWidget | None = None) -> None:
        self._words = PartColumn(style.quieter(), "Thinking")
        super().__init__("Thinking", self._words, parent)
        self._text = self._shown = ""
        self._words.text_made.connect(self.text_made)
        self.toggled.connect(self._show_words)

    @property
    def texts(self) -> list[QTextEdit]:
        """The texts in which one can select; none while folded."""
        return self._words.texts if self.is_open else []

    def show_thinking(self, text: str, *, still: bool, ms: float | None) -> None:
        """Show this; `still`: the model goes on thinking. `ms`: how long it thought, None if nobody measured it."""
        self._text = text
        heading = "Thought first" if ms is None else f"Thought for {rough_duration(ms / 1000)}"
        self.set_heading("Thinking…" if still else heading)
        self._show_words()

    def _show_words(self) -> None:
        if self.is_open and self._shown != self._text:
            self._shown = self._text
            *settled, last = plain_blocks(self._text.strip("\n"))
            self._words.show_blocks(settled, [last])
