"""Documents as chips and pictures as tiles: those that go with the message being written, or went with one."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from kvchat.chat.record.messages import Attachment
from kvchat.ui.attachments.cards import AttachmentCard, AttachmentChip, PictureTile
from kvchat.ui.attachments.views import AttachmentView, PictureView
from kvchat.ui.base.building import column
from kvchat.ui.base.theme import Look
from kvchat.ui.widgets.layouts import FlowLayout
from kvchat.words.folding import Term, any_span

_GAP = 4  # pixels


class ChipRows(QWidget):
    """Pictures beside each other, documents below them, in as many rows as they need."""

    changed = Signal()

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._look = look
        self.chips: list[AttachmentCard] = []
        self._terms: tuple[Term, ...] = ()
        self._pictures, self._documents = FlowLayout(spacing=_GAP), FlowLayout(spacing=_GAP)
        column(self._pictures, self._documents, on=self, spacing=_GAP, margins=0)

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The documents and pictures on show."""
        return tuple(chip.attachment for chip in self.chips)

    def show_attachments(self, attachments: Sequence[Attachment], *, removable: bool) -> None:
        """Show these and no others."""
        for chip in self.chips:
            chip.hide()
            chip.setParent(None)
            chip.deleteLater()
        self.chips = [
            (PictureTile if attachment.data else AttachmentChip)(self._look, attachment, removable=removable)
            for attachment in attachments
        ]
        self.chips.sort(key=lambda chip: not chip.attachment.data)  # pictures first
        for chip in self.chips:
            (self._pictures if chip.attachment.data else self._documents).addWidget(chip)
            chip.show()
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
        if attachment.data:
            PictureView(attachment, self.window()).open()
        else:
            AttachmentView(self._look, attachment, self._terms, self.window()).open()

    def _remove(self, attachment: Attachment, *, removable: bool) -> None:
        self.show_attachments([a for a in self.attachments if a is not attachment], removable=removable)
