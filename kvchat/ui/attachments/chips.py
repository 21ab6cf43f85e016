"""A message's attachments: documents as chips, pictures as thumbnails, and the windows that show them.

These widgets are in the main window's first frame, so the picture decoder is imported only when needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, Qt, QTimer, Signal
from PySide6.QtGui import QIcon, QImage, QKeySequence, QPixmap, QShortcut, QShowEvent, QTextCursor
from PySide6.QtWidgets import QDialog, QFrame, QScrollArea, QWidget

from kvchat.text.formatting import format_size, format_tokens, one_line
from kvchat.text.language import _
from kvchat.text.search import Term, find_first_match, find_matches
from kvchat.ui.base.building import STRETCH, button, column, label, plain_text, row, styled, tool_button
from kvchat.ui.base.theme import Look, code_font, restyle
from kvchat.ui.widgets.layouts import FlowLayout, plain_tip
from kvchat.ui.widgets.text_search import highlight, make_cursors

if TYPE_CHECKING:
    from kvchat.chat.record.messages import Attachment

_HEIGHT, _MAX_WIDTH, _MIN_WIDTH = 72, 144, 40  # pixels of a tile
_GAP = 4  # pixels
_POLL_MS = 15
_MAX_NAME = 34  # characters shown
_MAX_MATCHES = 1000
_MARGIN, _MIN_VIEW, _MAX_VIEW = QSize(32, 32), QSize(320, 240), QSize(960, 680)
_thread = ThreadPoolExecutor(1, thread_name_prefix="thumbnails")


class AttachmentCard(QFrame):
    opened = Signal()
    removed = Signal()

    def __init__(self, look: Look, attachment: Attachment, kind: str, tip: str) -> None:
        super().__init__()
        self.attachment = attachment
        self._look, self._counted = look, False
        styled(self, "chip")
        tip = plain_tip(f"{attachment.name}\n{format_size(attachment.size)}\n{tip}")
        self.name = button("", self.opened, name=f"{kind} {attachment.name}", tip=tip)
        self.count = label(format_size(attachment.size), "small")
        name = _("Remove {name}", name=attachment.name)
        self.remove_button = tool_button(name, self.removed, tip=_("Remove"), icon=look.icon("close"))
        self.remove_button.setIconSize(QSize(1, 1) * look.px(12))

    def show_tokens(self, tokens: int, *, counted: bool) -> None:
        """Show the token count. An estimate is marked as such, and does not replace a counted value."""
        if self.attachment.whole:
            self.count.setText(_("passages only"))
        elif counted or not self._counted:
            self._counted = counted
            few = format_tokens(tokens)
            self.count.setText(_("{tokens} tokens", tokens=few) if counted else _("about {tokens} tokens", tokens=few))


class AttachmentChip(AttachmentCard):
    def __init__(self, look: Look, attachment: Attachment, *, removable: bool) -> None:
        tip = _("Show the text that the model sees")
        if attachment.whole:
            tip = _("Too long for the context: kvchat quotes the passages that match each question")
        elif attachment.source:
            tip = _("Show the passages in the document")
        super().__init__(look, attachment, _("Attachment"), tip)
        styled(self.name, "chip").setText(short_name(attachment.name))
        self.name.setIcon(look.icon("search" if attachment.source or attachment.whole else "document"))
        remove = [self.remove_button] if removable else []
        row(self.name, self.count, *remove, on=self, spacing=6, margins=(8, 2, 3 if removable else 8, 2))


class PictureTile(AttachmentCard):
    def __init__(self, look: Look, attachment: Attachment, *, removable: bool) -> None:
        super().__init__(look, attachment, _("Image"), _("Show full size"))
        from kvchat.ui.attachments.pictures import decode, upright_size

        size = QSize(_MIN_WIDTH, _HEIGHT)
        if (full := upright_size(attachment.data)) is not None:  # full height unless too wide, and never a sliver
            size = full.scaled(_MAX_WIDTH, _HEIGHT, Qt.AspectRatioMode.KeepAspectRatio).expandedTo(QSize(4, 4))
        styled(self.name, "picture").setIconSize(size)
        self.name.setFixedSize(size)
        below = [row((self.count, 1), self.remove_button, spacing=2)] if removable else []
        column((self.name, 0, Qt.AlignmentFlag.AlignCenter), *below, on=self, spacing=2, margins=6)
        ratio = self.devicePixelRatioF()
        pixels, smooth = size * ratio, Qt.TransformationMode.SmoothTransformation

        def thumbnail() -> QImage | None:
            image = decode(attachment.data, pixels * 2)
            return image.scaled(pixels, Qt.AspectRatioMode.IgnoreAspectRatio, smooth) if image is not None else None

        def show_when_ready() -> None:
            if decoding.done():
                timer.stop()
                if (image := decoding.result()) is not None:
                    image.setDevicePixelRatio(ratio)
                self.name.setIcon(look.icon("document") if image is None else QIcon(QPixmap.fromImage(image)))

        decoding, timer = _thread.submit(thumbnail), QTimer(self, interval=_POLL_MS)
        timer.timeout.connect(show_when_ready)
        timer.start()


class ChipRows(QWidget):
    changed = Signal()

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._look = look
        self.chips: list[AttachmentCard] = []
        self._terms: tuple[Term, ...] = ()
        self.find_document: Callable[[str], Attachment | None] = lambda hash: None  # that passages are quoted from
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
            others = [other for other in attachments if other is not chip.attachment]
            chip.removed.connect(partial(self.show_attachments, others, removable=True))
        self.setVisible(bool(self.chips))
        self.changed.emit()

    def show_terms(self, terms: tuple[Term, ...]) -> None:
        """Mark the attachments that contain a search term. Opening one shows its first match."""
        self._terms = terms
        for chip in self.chips:
            matches = self._matches(chip.attachment)
            restyle(chip, "found", "true" if matches else "false")
            chip.name.setAccessibleDescription(_("Contains the search text") if matches else "")

    def open_first_match(self) -> None:
        if (first := next(filter(self._matches, self.attachments), None)) is not None:
            self._open(first)

    def _matches(self, attachment: Attachment) -> bool:
        return any(find_first_match(text, self._terms) for text in (attachment.name, attachment.full_text))

    def _open(self, attachment: Attachment) -> None:
        if attachment.data:
            PictureView(attachment, self.window()).open()
        elif (document := self.find_document(attachment.source)) is not None:
            AttachmentView(self._look, document, self._terms, self.window(), attachment.text).open()
        else:
            AttachmentView(self._look, attachment, self._terms, self.window()).open()


def short_name(name: str) -> str:
    name, half = one_line(name), (_MAX_NAME - 1) // 2
    return name if len(name) <= _MAX_NAME else f"{name[:half]}…{name[-half:]}"


class AttachmentView(QDialog):
    """Window with a document's text, opened at the first match of the search; F3 goes to the next one.

    `quotes`: passages quoted from it, shown instead of matches.
    """

    def __init__(
        self,
        look: Look,
        attachment: Attachment,
        terms: Sequence[Term],
        parent: QWidget,
        quotes: str = "",
    ) -> None:
        from kvchat.text.safe_text import safe_document, safe_prose  # the first frame does not need it

        super().__init__(parent)
        self.setWindowTitle(safe_prose(attachment.name))
        text = safe_document(attachment.name, attachment.full_text)
        font = code_font(look.fonts.mono, look.fonts.small)
        self.text = plain_text(_("Text of {name}", name=safe_prose(attachment.name)), font, text)
        self.position_label = label(kind="small")
        hits = find_matches(text, terms)[:_MAX_MATCHES]
        if quotes:
            from kvchat.text.passages import quoted_ranges

            hits = list(quoted_ranges(safe_document(attachment.name, quotes), text))
        self._hits = make_cursors(self.text, text, hits)
        self._hit = 0  # current index
        buttons: list[QWidget] = []
        previous = _("Previous match"), "Shift+F3", "chevron-up", -1
        for name, keys, glyph, by in (previous, (_("Next match"), "F3", "chevron-down", 1)):
            step = partial(self.step, by)
            buttons.append(tool_button(name, step, tip=f"{name} ({keys})", icon=look.icon(glyph)))
            buttons[-1].setEnabled(len(self._hits) > 1)
            QShortcut(QKeySequence(keys), self, step)
        below = QWidget()
        row(STRETCH, self.position_label, *buttons, on=below, margins=0)
        below.setVisible(bool(self._hits))
        column(self.text, below, on=self)
        if self._hits:
            highlight(self.text, self._hits, look.theme)
            self.step(0)
        self.resize(720, 520)
        self.finished.connect(self.deleteLater)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._hits:
            self.text.centerCursor()  # now that its size is known

    def step(self, offset: int) -> None:
        self._hit = (self._hit + offset) % max(len(self._hits), 1)
        self.position_label.setText(_("{number} of {count}", number=self._hit + 1, count=len(self._hits)))
        cursor = QTextCursor(self._hits[self._hit])
        cursor.setPosition(cursor.selectionStart())  # no selection: it would hide the mark's colour
        self.text.setTextCursor(cursor)
        self.text.centerCursor()


class PictureView(QDialog):
    def __init__(self, attachment: Attachment, parent: QWidget) -> None:
        from kvchat.ui.attachments.pictures import decode

        super().__init__(parent)
        self.setWindowTitle(attachment.name)
        self.picture = label(_("This image cannot be shown."))
        self.picture.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.picture.setAccessibleName(_("Image {name}", name=attachment.name))
        ratio = self.devicePixelRatioF()
        image = decode(attachment.data, _MAX_VIEW * ratio)
        if image is not None:
            image.setDevicePixelRatio(ratio)
            self.picture.setPixmap(QPixmap.fromImage(image))
        area = QScrollArea(widgetResizable=True)
        area.setWidget(self.picture)
        area.setFrameShape(QFrame.Shape.NoFrame)
        column(area, on=self)
        self.resize((self.picture.sizeHint() + _MARGIN).expandedTo(_MIN_VIEW))
        self.finished.connect(self.deleteLater)
