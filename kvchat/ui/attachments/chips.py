"""Documents as chips and pictures as tiles: those that go with the message being written, or went with one."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QPoint, QRect, QSize, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from kvchat.chat.record.messages import Attachment
from kvchat.ui.attachments.cards import AttachmentCard, AttachmentChip, PictureTile
from kvchat.ui.attachments.views import AttachmentView, PictureView
from kvchat.ui.base.theme import Look
from kvchat.words.folding import Term, any_span

_GAP = 4


class ChipRows(QWidget):
    """Pictures and chips beside each other, in as many rows as they need."""

    changed = Signal()

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._look = look
        self.chips: list[AttachmentCard] = []
        self._terms: tuple[Term, ...] = ()
        policy = QSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

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
        self.chips.sort(key=lambda chip: not chip.attachment.data)  # pictures first: they are higher
        for chip in self.chips:
            chip.setParent(self)
            chip.show()
            chip.opened.connect(lambda a=chip.attachment: self._open(a))
            chip.removed.connect(lambda a=chip.attachment: self._remove(a, removable=removable))
        self.setVisible(bool(self.chips))
        self._place(self.width())
        self.updateGeometry()
        self.changed.emit()

    def natural_width(self) -> int:
        """All of them in one row."""
        return sum(chip.sizeHint().width() + _GAP for chip in self.chips) - _GAP

    def sizeHint(self) -> QSize:
        """As wide as all of them, and as high as they are now."""
        return QSize(self.natural_width(), self.heightForWidth(self.width()))

    def minimumSizeHint(self) -> QSize:
        """As wide as the widest of them."""
        return QSize(max((chip.sizeHint().width() for chip in self.chips), default=0), 0)

    def hasHeightForWidth(self) -> bool:
        """More rows where it is narrower."""
        return True

    def heightForWidth(self, width: int) -> int:
        """The rows at that width."""
        return max((place.bottom() + 1 for place in self._places(width)), default=0)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Put them in their places."""
        self._place(event.size().width())

    def event(self, event: QEvent) -> bool:
        """One of them may have another size, now that its tokens are counted."""
        if event.type() == QEvent.Type.LayoutRequest:
            self._place(self.width())
            self.updateGeometry()
        return super().event(event)

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

    def _place(self, width: int) -> None:
        for chip, place in zip(self.chips, self._places(width), strict=True):
            chip.setGeometry(place)

    def _places(self, width: int) -> list[QRect]:
        """Where each goes at that width: beside the one before if there is room, else into the next row."""
        places: list[QRect] = []
        left = top = height = 0
        before: AttachmentCard | None = None
        for chip in self.chips:
            size = chip.sizeHint()
            another_kind = before is not None and bool(before.attachment.data) != bool(chip.attachment.data)
            if left and (left + size.width() > width or another_kind):
                left, top, height = 0, top + height + _GAP, 0
            places.append(QRect(QPoint(left, top), size.boundedTo(QSize(max(width - left, 1), size.height()))))
            left, height, before = left + size.width() + _GAP, max(height, size.height()), chip
        return places

    def _open(self, attachment: Attachment) -> None:
        if attachment.data:
            PictureView(attachment, self.window()).open()
        else:
            AttachmentView(self._look, attachment, self._terms, self.window()).open()

    def _remove(self, attachment: Attachment, *, removable: bool) -> None:
        self.show_attachments([a for a in self.attachments if a is not attachment], removable=removable)
