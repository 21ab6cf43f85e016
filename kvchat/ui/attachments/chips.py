"""What goes with a message, written or being written: documents as chips, pictures small as tiles."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, Qt, QTimer, Signal
from PySide6.QtGui import QIcon, QImage, QPixmap
from PySide6.QtWidgets import QFrame, QToolButton, QWidget

from kvchat.ui.base.building import button, column, label, row, styled, tool_button
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look, restyle
from kvchat.ui.widgets.elided import plain_tip
from kvchat.ui.widgets.layouts import FlowLayout
from kvchat.words.folding import Term, any_span
from kvchat.words.language import _
from kvchat.words.wording import one_line, size, tokens_short

if TYPE_CHECKING:
    from kvchat.chat.record.messages import Attachment

HEIGHT, WIDEST, NARROWEST = 72, 144, 40  # pixels, of a tile
_GAP = 4  # pixels
_LOOK_MS = 15
_NAME_LETTERS = 34
_thread = ThreadPoolExecutor(1, thread_name_prefix="thumbnails")


class AttachmentCard(QFrame):
    """One attachment: a button that opens it, how much it is, and the cross that takes it away again."""

    opened = Signal()
    removed = Signal()

    def __init__(self, look: Look, attachment: Attachment, what: str, tip: str) -> None:
        super().__init__()
        self.attachment = attachment
        self._look, self._counted = look, False
        styled(self, "chip")
        tip = plain_tip(f"{attachment.name}\n{size(attachment.size)}\n{tip}")
        self.name = button("", self.opened, name=f"{what} {attachment.name}", tip=tip)
        self.count = label(size(attachment.size), "small")

    def cross(self) -> QToolButton:
        name, picture = _("Remove {name}", name=self.attachment.name), icon("close", self._look.theme.muted)
        cross = tool_button(name, self.removed, tip=_("Remove"), icon=picture)
        cross.setIconSize(QSize(1, 1) * self._look.px(12))
        return cross

    def show_found(self, found: bool) -> None:
        restyle(self, "found", "true" if found else "false")
        self.name.setAccessibleDescription(_("What you search for is in it") if found else "")

    def show_tokens(self, tokens: int, *, counted: bool) -> None:
        """How many tokens it has; an estimate says so, and is no news where they were counted."""
        if counted or not self._counted:
            self._counted = counted
            few = tokens_short(tokens)
            self.count.setText(_("{tokens} tokens", tokens=few) if counted else _("about {tokens} tokens", tokens=few))


class AttachmentChip(AttachmentCard):
    """One document, by its name."""

    def __init__(self, look: Look, attachment: Attachment, *, removable: bool) -> None:
        super().__init__(look, attachment, _("Attachment"), _("Show what the model is given"))
        styled(self.name, "chip").setText(short_name(attachment.name))
        self.name.setIcon(icon("document", look.theme.muted))
        cross = [self.cross()] if removable else []
        row(self.name, self.count, *cross, on=self, spacing=6, margins=(8, 2, 3 if removable else 8, 2))


class PictureTile(AttachmentCard):
    """One picture, small. It is decoded in a thread and shown when that is done."""

    def __init__(self, look: Look, attachment: Attachment, *, removable: bool) -> None:
        super().__init__(look, attachment, _("Picture"), _("Show it large"))
        from kvchat.ui.attachments.pictures import shape

        shown = shape(attachment.data)
        size = tile_size(shown) if shown is not None else QSize(NARROWEST, HEIGHT)
        styled(self.name, "picture").setIconSize(size)
        self.name.setFixedSize(size)
        below = [row((self.count, 1), self.cross(), spacing=2)] if removable else []
        column((self.name, 0, Qt.AlignmentFlag.AlignCenter), *below, on=self, spacing=2, margins=6)
        self._ratio = self.devicePixelRatioF()
        self._decoding = _thread.submit(_thumbnail, attachment.data, size * self._ratio)
        self._timer = QTimer(self, interval=_LOOK_MS)
        self._timer.timeout.connect(self._show_when_ready)
        self._timer.start()

    def _show_when_ready(self) -> None:
        if not self._decoding.done():
            return
        self._timer.stop()
        image = self._decoding.result()
        if image is None:
            self.name.setIcon(icon("document", self._look.theme.muted))
            return
        image.setDevicePixelRatio(self._ratio)
        self.name.setIcon(QIcon(QPixmap.fromImage(image)))


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
        return tuple(chip.attachment for chip in self.chips)

    def show_attachments(self, attachments: Sequence[Attachment], *, removable: bool) -> None:
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
        for chip in self.chips:
            if self._has_terms(chip.attachment):
                self._open(chip.attachment)
                return

    def _has_terms(self, attachment: Attachment) -> bool:
        return any(any_span(text, self._terms) for text in (attachment.name, attachment.text))

    def _open(self, attachment: Attachment) -> None:
        from kvchat.ui.attachments.views import AttachmentView, PictureView

        if attachment.data:
            PictureView(attachment, self.window()).open()
        else:
            AttachmentView(self._look, attachment, self._terms, self.window()).open()

    def _remove(self, attachment: Attachment, *, removable: bool) -> None:
        self.show_attachments([a for a in self.attachments if a is not attachment], removable=removable)


def tile_size(picture: QSize) -> QSize:
    """A picture's size on its tile: as high as the tile, unless it would be too wide. Of a sliver a little is seen."""
    return picture.scaled(WIDEST, HEIGHT, Qt.AspectRatioMode.KeepAspectRatio).expandedTo(QSize(4, 4))


def _thumbnail(data: bytes, size: QSize) -> QImage | None:
    from kvchat.ui.attachments.pictures import decoded

    image = decoded(data, size * 2)
    if image is None:
        return None
    return image.scaled(size, Qt.AspectRatioMode.IgnoreAspectRatio, Qt.TransformationMode.SmoothTransformation)


def short_name(name: str) -> str:
    """A file's name with the middle left out where it is long; the ending matters."""
    name = one_line(name)
    half = (_NAME_LETTERS - 1) // 2
    return name if len(name) <= _NAME_LETTERS else f"{name[:half]}…{name[-half:]}"
