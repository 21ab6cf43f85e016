"""Documents as chips: those that go with the message being written, and those that went with one."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize, Signal
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from kvchat.chat.folding import Term, any_span
from kvchat.chat.messages import Attachment
from kvchat.ui.attachment_view import AttachmentView
from kvchat.ui.elided import plain_tip
from kvchat.ui.icons import icon
from kvchat.ui.theme import Look
from kvchat.wording import one_line, size, tokens_short

_NAME_LETTERS = 34


class AttachmentChip(QFrame):
    """One document: its name, how much it is, and the cross that takes it away again."""

    opened = Signal()
    removed = Signal()

    def __init__(self, look: Look, attachment: Attachment, *, removable: bool) -> None:
        super().__init__()
        self.attachment = attachment
        self.setProperty("kind", "chip")
        self.name = QPushButton(short_name(attachment.name))
        self.name.setProperty("kind", "chip")
        self.name.setIcon(icon("document", look.theme.muted))
        self.name.setAccessibleName(f"Attachment {attachment.name}")
        self.name.setToolTip(plain_tip(f"{attachment.name}\n{size(attachment.size)}\nShow what the model is given"))
        self.name.clicked.connect(self.opened)
        self.count = QLabel(size(attachment.size))
        self.count.setProperty("kind", "small")
        row = QHBoxLayout(self)
        row.setContentsMargins(8, 2, 8, 2)
        row.setSpacing(6)
        row.addWidget(self.name)
        row.addWidget(self.count)
        if removable:
            cross = QToolButton()
            cross.setIcon(icon("close", look.theme.muted))
            cross.setIconSize(QSize(12, 12))
            cross.setAccessibleName(f"Remove {attachment.name}")
            cross.clicked.connect(self.removed)
            row.addWidget(cross)
            row.setContentsMargins(8, 2, 3, 2)

    def show_found(self, found: bool) -> None:
        """Whether what is searched for is in it."""
        self.setProperty("found", "true" if found else "false")
        self.style().unpolish(self)
        self.style().polish(self)
        self.name.setAccessibleDescription("What you search for is in it" if found else "")

    def show_tokens(self, tokens: int, *, counted: bool) -> None:
        """How many tokens it has; an estimate says so."""
        self.count.setText(f"{tokens_short(tokens)} tokens" if counted else f"about {tokens_short(tokens)} tokens")


class ChipRows(QWidget):
    """Chips one below the other in a column: names may be long."""

    changed = Signal()

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._look = look
        self.chips: list[AttachmentChip] = []
        self._terms: tuple[Term, ...] = ()
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(4)

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The documents on show."""
        return tuple(chip.attachment for chip in self.chips)

    def show_attachments(self, attachments: Sequence[Attachment], *, removable: bool) -> None:
        """Show these and no others."""
        for chip in self.chips:
            chip.hide()
            chip.deleteLater()
        self.chips = [AttachmentChip(self._look, attachment, removable=removable) for attachment in attachments]
        for chip in self.chips:
            row = QHBoxLayout()
            row.addWidget(chip)
            row.addStretch(1)
            self._column.addLayout(row)
            chip.opened.connect(lambda a=chip.attachment: self._open(a))
            chip.removed.connect(lambda a=chip.attachment: self._remove(a, removable=removable))
        self.setVisible(bool(self.chips))
        self.changed.emit()

    def show_terms(self, terms: tuple[Term, ...]) -> None:
        """Show which of them have these terms; they open there."""
        self._terms = terms
        for chip in self.chips:
            chip.show_found(self._has_terms(chip.attachment))

    def open_found(self) -> None:
        """Open the first that has the terms."""
        for chip in self.chips:
            if self._has_terms(chip.attachment):
                self._open(chip.attachment)
                return

    def _has_terms(self, attachment: Attachment) -> bool:
        return any(any_span(text, self._terms) for text in (attachment.name, attachment.text))

    def _open(self, attachment: Attachment) -> None:
        AttachmentView(self._look, attachment, self._terms, self.window()).open()

    def _remove(self, attachment: Attachment, *, removable: bool) -> None:
        self.show_attachments([a for a in self.attachments if a is not attachment], removable=removable)


def short_name(name: str) -> str:
    """A file's name with the middle left out where it is long; the ending matters."""
    name = one_line(name)
    half = (_NAME_LETTERS - 1) // 2
    return name if len(name) <= _NAME_LETTERS else f"{name[:half]}…{name[-half:]}"
