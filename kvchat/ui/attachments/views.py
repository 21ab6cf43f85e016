"""Attachments in windows of their own: a picture, and what the model is given of a document."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QKeySequence, QPixmap, QShortcut, QTextCursor
from PySide6.QtWidgets import QDialog, QFrame, QHBoxLayout, QScrollArea, QWidget

from kvchat.chat.record.messages import Attachment
from kvchat.ui.attachments.pictures import decoded
from kvchat.ui.base.building import STRETCH, column, label, plain_text, row, tool_button
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look, code_font
from kvchat.ui.widgets.text_search import cursors_at, mark
from kvchat.words.folding import Term, spans
from kvchat.words.language import _
from kvchat.words.safe_text import calm, shown_document

_MOST_MARKS = 1000
_AROUND, _SMALLEST, _LARGE = QSize(32, 32), QSize(320, 240), QSize(960, 680)


class AttachmentView(QDialog):
    """The text of a document, at the first of the terms; F3 goes on to the next."""

    def __init__(self, look: Look, attachment: Attachment, terms: Sequence[Term], parent: QWidget) -> None:
        super().__init__(parent)
        self._look = look
        self.setWindowTitle(calm(attachment.name))
        words = shown_document(attachment.name, attachment.text)
        font = code_font(look.type.mono, look.type.small)
        self.text = plain_text(_("Text of {name}", name=calm(attachment.name)), font, words)
        self.place = label(kind="small")
        self._hits = cursors_at(self.text, words, spans(words, terms)[:_MOST_MARKS])
        self._at = 0
        column(self.text, *([self._steps()] if self._hits else []), on=self)
        if self._hits:
            mark(self.text, self._hits, look.theme)
            self._show_place()
        self.resize(720, 520)
        self.finished.connect(self.deleteLater)

    def step(self, by: int) -> None:
        self._at = (self._at + by) % len(self._hits)
        self._show_place()

    def _steps(self) -> QHBoxLayout:
        buttons = []
        for words, keys, picture, by in (
            (_("Previous place found"), "Shift+F3", "chevron-up", -1),
            (_("Next place found"), "F3", "chevron-down", 1),
        ):
            drawn = icon(picture, self._look.theme.muted)
            button = tool_button(words, lambda _=False, by=by: self.step(by), tip=f"{words} ({keys})", icon=drawn)
            button.setEnabled(len(self._hits) > 1)
            shortcut = QShortcut(QKeySequence(keys), self, context=Qt.ShortcutContext.WindowShortcut)
            shortcut.activated.connect(lambda by=by: self.step(by))
            buttons.append(button)
        return row(STRETCH, self.place, *buttons)

    def _show_place(self) -> None:
        self.place.setText(_("{at} of {count}", at=self._at + 1, count=len(self._hits)))
        at = QTextCursor(self._hits[self._at])
        at.setPosition(at.selectionStart())  # not selected: the mark's colour is to be seen
        self.text.setTextCursor(at)
        self.text.centerCursor()


class PictureView(QDialog):
    """A picture in a window of its own."""

    def __init__(self, attachment: Attachment, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle(attachment.name)
        self.picture = label(_("This picture cannot be shown."))
        self.picture.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.picture.setAccessibleName(_("Picture {name}", name=attachment.name))
        ratio = self.devicePixelRatioF()
        image = decoded(attachment.data, _LARGE * ratio)
        if image is not None:
            image.setDevicePixelRatio(ratio)
            self.picture.setPixmap(QPixmap.fromImage(image))
        area = QScrollArea(widgetResizable=True)
        area.setWidget(self.picture)
        area.setFrameShape(QFrame.Shape.NoFrame)
        column(area, on=self)
        self.resize((self.picture.sizeHint() + _AROUND).expandedTo(_SMALLEST))
        self.finished.connect(self.deleteLater)
