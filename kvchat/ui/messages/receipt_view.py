"""The receipt under a reply: one quiet line, and its details when it is clicked."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QSizePolicy, QVBoxLayout, QWidget

from kvchat.chat.record.messages import Receipt
from kvchat.chat.turn.receipts import receipt_details, receipt_line, receipt_sentence
from kvchat.ui.widgets.elided import ElidedButton


class ReceiptView(QWidget):
    """Shows one receipt."""

    def __init__(self, receipt: Receipt, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.receipt = receipt
        line = receipt_line(receipt)
        self._text = ("⚠ " if line.fault else "") + line.text
        self.line = ElidedButton(kind="quiet")
        self.line.setProperty("tone", "warn" if line.fault else "")
        self.line.setCursor(Qt.CursorShape.PointingHandCursor)
        self.line.clicked.connect(self._toggle)
        self.details: QFrame | None = None
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(4)
        self._column.addWidget(self.line)
        self._show_arrow(False)

    @property
    def text(self) -> str:
        """The line, without its arrow."""
        return self._text

    def _toggle(self) -> None:
        if self.details is None:
            self.details = _details(self.receipt)
            self._column.addWidget(self.details)
            self.details.show()
        else:
            self.details.setVisible(self.details.isHidden())
        self._show_arrow(not self.details.isHidden())

    def _show_arrow(self, is_open: bool) -> None:
        self.line.set_text(self._text, "▾" if is_open else "▸", receipt_sentence(self.receipt))
        self.line.setAccessibleName(f"Receipt: {self._text}, details {'open' if is_open else 'folded'}")


def _details(receipt: Receipt) -> QFrame:
    frame = QFrame()
    frame.setProperty("kind", "details")
    grid = QGridLayout(frame)
    grid.setContentsMargins(14, 10, 14, 10)
    grid.setHorizontalSpacing(18)
    grid.setVerticalSpacing(4)
    for row, (what, how_much) in enumerate(receipt_details(receipt)):
        name, value = QLabel(what.replace("  ", "      ")), QLabel(how_much)
        for label in (name, value):
            label.setProperty("kind", "small")
        value.setWordWrap(True)
        value.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        value.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        grid.addWidget(name, row, 0, Qt.AlignmentFlag.AlignTop)
        grid.addWidget(value, row, 1)
    return frame
