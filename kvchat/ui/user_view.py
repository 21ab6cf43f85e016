"""A message of the user's on the page: a soft bubble."""

from __future__ import annotations

import time

from PySide6.QtCore import QTimer
from PySide6.QtGui import QGuiApplication, QResizeEvent
from PySide6.QtWidgets import QFrame, QTextEdit, QWidget

from kvchat.chat.messages import Message
from kvchat.ui.attachment_chips import ChipRows
from kvchat.ui.copying import selected_text
from kvchat.ui.markdown import plain_blocks
from kvchat.ui.message_view import AT_ONCE_MS, MessageView
from kvchat.ui.message_wish import Wish
from kvchat.ui.page_style import PageStyle

_BUBBLE_SHARE = 0.84  # of the column's width
_WIDE = 1 << 15  # pixels, wider than any column
_BUBBLE_X, _BUBBLE_TOP, _BUBBLE_BOTTOM = 16, 12, 8
_UNDER_CHIPS = 8


class UserView(MessageView):
    """A message of the user's, as typed."""

    def __init__(self, style: PageStyle, message: Message, parent: QWidget | None = None) -> None:
        super().__init__(style, message, f"You: {message.content[:500]}", parent)
        self._bubble = QFrame(self)
        self._bubble.setProperty("kind", "bubble")
        self.column.setParent(self._bubble)
        if message.attachments:
            self.chips = ChipRows(style.look, self._bubble)
            self.chips.show_attachments(message.attachments, removable=False)
        self.action_row.add("copy", "Copy this message", lambda: QGuiApplication.clipboard().setText(message.content))
        self.action_row.add("edit", "Edit this message", self.edit)
        self.action_row.add("trash", "Delete this message and what follows", lambda: self._wish(Wish.DELETE))
        self._blocks = plain_blocks(message.content.strip("\n"))
        self._has_words = bool(message.content.strip()) or not message.attachments
        self._made = 0
        self._natural = 0

    @property
    def complete(self) -> bool:
        """Whether all of the message is on the page."""
        return self._made == len(self._blocks)

    def begin(self) -> None:
        """Show the message, or as much of a long one as is made at once."""
        until = time.thread_time() + AT_ONCE_MS / 1000
        while not self.complete and time.thread_time() < until:
            self._made += 1
            self.column.show_blocks(self._blocks[: self._made], ())
        self._natural = self.column.natural_width() if len(self._blocks) == 1 else _WIDE
        if not self.complete:
            QTimer.singleShot(0, self, self._go_on)

    def markdown_of(self, text: QTextEdit) -> str:
        """The user's words are shown as they were typed."""
        return selected_text(text)

    def hasHeightForWidth(self) -> bool:
        """Text is taller where it is narrower."""
        return True

    def heightForWidth(self, width: int) -> int:
        """The bubble and the buttons below it."""
        if self.editor is not None:
            return self.editor.needed_height(width)
        text = self.column.heightForWidth(self._text_width(width)) if self._has_words else 0
        return text + self._chips_height + _BUBBLE_TOP + _BUBBLE_BOTTOM + self.action_row.sizeHint().height()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Put the bubble to the right."""
        if self.editor is not None:
            self.editor.setGeometry(self.rect())
        text, below = self._text_width(self.width()), self.action_row.sizeHint()
        width, height = text + 2 * _BUBBLE_X, self.height() - below.height()
        self._bubble.setGeometry(self.width() - width, 0, width, height)
        top = _BUBBLE_TOP + self._chips_height
        if self.chips is not None:
            self.chips.setGeometry(_BUBBLE_X, _BUBBLE_TOP, text, self.chips.sizeHint().height())
        self.column.setGeometry(_BUBBLE_X, top, text, height - top - _BUBBLE_BOTTOM)
        self.action_row.setGeometry(self.width() - below.width(), height, below.width(), below.height())

    def _text_width(self, width: int) -> int:
        natural = max(self._natural, self.chips.sizeHint().width()) if self.chips is not None else self._natural
        return min(natural, int(width * _BUBBLE_SHARE) - 2 * _BUBBLE_X)

    @property
    def _chips_height(self) -> int:
        if self.chips is None:
            return 0
        return self.chips.sizeHint().height() + (_UNDER_CHIPS if self._has_words else 0)

    def _go_on(self) -> None:
        self.begin()
        self.changed.emit()
