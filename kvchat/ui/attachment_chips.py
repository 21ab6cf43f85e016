"""Documents as chips and pictures as tiles: those that go with the message being written, or went with one."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from kvchat.chat.folding import Term, any_span
from kvchat.chat.messages import Attachment
from kvchat.ui.attachment_card import AttachmentCard
from kvchat.ui.attachment_view import AttachmentView
from kvchat.ui.icons import icon
from kvchat.ui.picture_tile import PictureTile, PictureView
from kvchat.ui.theme import Look
from kvchat.wording import one_line

_NAME_LETTERS = 34
_GAP = 4
_ROW_WIDTH = 312  # of pictures beside each other: what a message has in the narrowest window


class AttachmentChip(AttachmentCard):
    """One document, by its name."""

    def __init__(self, look: Look, attachment: Attachment, *, removable: bool) -> None:
        super().__init__(look, attachment, "Attachment", "Show what the model is given")
        self.name.setText(short_name(attachment.name))
        self.name.setProperty("kind", "chip")
        self.name.setIcon(icon("document", look.theme.muted))
        row = QHBoxLayout(self)
        row.setContentsMargins(8, 2, 8, 2)
        row.setSpacing(6)
        row.addWidget(self.name)
        row.addWidget(self.count)
        if removable:
            row.addWidget(self.cross())
            row.setContentsMargins(8, 2, 3, 2)


class ChipRows(QWidget):
    """Pictures beside each other; below them chips one below the other, for names may be long."""

    changed = Signal()

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._look = look
        self.chips: list[AttachmentCard] = []
        self._terms: tuple[Term, ...] = ()
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(4)

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The documents and pictures on show."""
        return tuple(chip.attachment for chip in self.chips)

    def show_attachments(self, attachments: Sequence[Attachment], *, removable: bool) -> None:
        """Show these and no others."""
        for chip in self.chips:
            chip.hide()
            chip.deleteLater()
        self.chips = [
            (PictureTile if attachment.data else AttachmentChip)(self._look, attachment, removable=removable)
            for attachment in attachments
        ]
        for row in _packed([chip for chip in self.chips if chip.attachment.data]):
            self._add_row(row)
        for chip in self.chips:
            if not chip.attachment.data:
                self._add_row([chip])
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

    def _add_row(self, chips: Sequence[AttachmentCard]) -> None:
        row = QHBoxLayout()
        row.setSpacing(_GAP)
        for chip in chips:
            row.addWidget(chip)
        row.addStretch(1)
        self._column.addLayout(row)

    def _open(self, attachment: Attachment) -> None:
        if attachment.data:
            PictureView(attachment, self.window()).open()
        else:
            AttachmentView(self._look, attachment, self._terms, self.window()).open()

    def _remove(self, attachment: Attachment, *, removable: bool) -> None:
        self.show_attachments([a for a in self.attachments if a is not attachment], removable=removable)


def _packed(chips: Sequence[AttachmentCard]) -> list[list[AttachmentCard]]:
    """Rows no wider than _ROW_WIDTH, unless it is a single one."""
    rows: list[list[AttachmentCard]] = []
    used = 0
    for chip in chips:
        width = chip.sizeHint().width() + _GAP
        if not rows or used + width > _ROW_WIDTH:
            rows.append([])
            used = 0
        rows[-1].append(chip)
        used += width
    return rows


def short_name(name: str) -> str:
    """A file's name with the middle left out where it is long; the ending matters."""
    name = one_line(name)
    half = (_NAME_LETTERS - 1) // 2
    return name if len(name) <= _NAME_LETTERS else f"{name[:half]}…{name[-half:]}"
