"""A message of the user's on the page: a soft bubble, folded where it is long."""

from __future__ import annotations

import time

from PySide6.QtCore import QTimer
from PySide6.QtGui import QGuiApplication, QResizeEvent
from PySide6.QtWidgets import QFrame, QTextEdit, QWidget

from kvchat.chat.record.messages import Message
from kvchat.ui.attachments.chips import ChipRows
from kvchat.ui.base.building import button, styled
from kvchat.ui.rendering.markdown import plain_blocks
from kvchat.ui.rendering.text_page import PageStyle
from kvchat.ui.transcript.footer import Request
from kvchat.ui.transcript.message_view import AT_ONCE_MS, MessageView
from kvchat.ui.transcript.part_column import selected_text
from kvchat.ui.widgets.layouts import COLUMN_WIDTH
from kvchat.words.language import _, several

_BUBBLE_SHARE = 0.84  # of the column's width
_WIDE = 1 << 15  # pixels, wider than any column
_BUBBLE_X, _BUBBLE_TOP, _BUBBLE_BOTTOM = 16, 12, 8
_UNDER_CHIPS = 8
_FOLDED, _LONG = 9, 14  # lines shown of a folded message, and so many that it is folded


class UserView(MessageView):
    """A message of the user's, as typed."""

    def __init__(self, style: PageStyle, message: Message, parent: QWidget | None = None) -> None:
        super().__init__(style, message, _("You: {content}", content=message.content[:500]), parent)
        self._bubble = styled(QFrame(self), "bubble")
        self._window = QWidget(self._bubble)  # through which the folded text is seen
        self.column.setParent(self._window)
        self.more = button("", lambda: self._fold(not self.folded), "link")
        self.more.setParent(self._bubble)
        self.folded: bool = True
        line = style.line_height * 135 / 148  # as in plain paragraphs
        self._folded_height, self._long_height = round(line * _FOLDED), round(line * _LONG)
        if message.attachments:
            self.chips = ChipRows(style.look, self._bubble)
            self.chips.show_attachments(message.attachments, removable=False)
        add = self.action_row.add
        add("copy", _("Copy this message"), lambda: QGuiApplication.clipboard().setText(message.content))
        add("edit", _("Edit this message"), self.edit)
        add("trash", _("Delete this message and what follows"), lambda: self._request(Request.DELETE))
        self._blocks = plain_blocks(message.content.strip("\n"))
        self._has_words = bool(message.content.strip()) or not message.attachments
        self._made = 0
        self._natural = 0
        self._is_long = False

    @property
    def complete(self) -> bool:
        """True once all that is to be seen of the message is on the page."""
        return self._made == len(self._blocks) or (self.folded and self._is_long)

    def begin(self) -> None:
        until = time.thread_time() + AT_ONCE_MS / 1000
        while not self.complete and time.thread_time() < until:
            self._made += 1
            self.column.show_blocks(self._blocks[: self._made])
            self._is_long = self.column.heightForWidth(self._at_most()) > self._long_height
        self._natural = self.column.natural_width() if len(self._blocks) == 1 else _WIDE
        self._show_more_button()
        if not self.complete:
            QTimer.singleShot(0, self, self._go_on)

    def markdown_of(self, text: QTextEdit) -> str:
        return selected_text(text)

    def heightForWidth(self, width: int) -> int:
        if self.editor is not None:
            return self.editor.needed_height(width)
        inside = self._text_width(width)
        text = self._text_height(inside) + self._chips_height(inside) + self._more_height
        return text + _BUBBLE_TOP + _BUBBLE_BOTTOM + self.action_row.sizeHint().height()

    def resizeEvent(self, event: QResizeEvent) -> None:
        if self.editor is not None:
            self.editor.setGeometry(self.rect())
        text, below = self._text_width(self.width()), self.action_row.sizeHint()
        width, height = text + 2 * _BUBBLE_X, self.height() - below.height()
        self._bubble.setGeometry(self._at_end(width), 0, width, height)
        top = _BUBBLE_TOP + self._chips_height(text)
        if self.chips is not None:
            self.chips.setGeometry(_BUBBLE_X, _BUBBLE_TOP, text, self.chips.heightForWidth(text))
        self._window.setGeometry(_BUBBLE_X, top, text, self._text_height(text))
        self.column.setGeometry(0, 0, text, self.column.heightForWidth(text))
        more = self._more_height
        self.more.setGeometry(_BUBBLE_X, height - _BUBBLE_BOTTOM - more, min(self.more.sizeHint().width(), text), more)
        self.action_row.setGeometry(self._at_end(below.width()), height, below.width(), below.height())

    def _at_end(self, width: int) -> int:
        """Where something so wide begins that stands where the language's lines end."""
        return 0 if self.isRightToLeft() else self.width() - width

    def unfold(self) -> None:
        if self.folded and self._is_long:
            self._fold(False)
            while not self.complete:
                self.begin()
            self.changed.emit()

    def _fold(self, folded: bool) -> None:
        self.folded = folded
        self.begin()
        self.resizeEvent(QResizeEvent(self.size(), self.size()))
        self.opened.emit()

    def _show_more_button(self) -> None:
        lines = self.message.content.strip("\n").count("\n") + 1
        words = _("Show all")
        if lines > _LONG:
            words = several(lines, "Show all, {count} line", "Show all, {count} lines")
        words, arrow = (words, "▾") if self.folded else (_("Show less"), "▴")
        self.more.setText(f"{words} {arrow}")
        self.more.setAccessibleName(words)
        self.more.setVisible(self._is_long)

    @property
    def _more_height(self) -> int:
        return self.more.sizeHint().height() if self._is_long else 0

    def _text_height(self, width: int) -> int:
        if not self._has_words:
            return 0
        return self._folded_height if self.folded and self._is_long else self.column.heightForWidth(width)

    def _at_most(self) -> int:
        """How wide the text may be; whether it is long is asked for the column's own width."""
        return int(self.style_in_use.look.px(COLUMN_WIDTH) * _BUBBLE_SHARE) - 2 * _BUBBLE_X

    def _text_width(self, width: int) -> int:
        natural = max(self._natural, self.chips.sizeHint().width()) if self.chips is not None else self._natural
        return min(natural, int(width * _BUBBLE_SHARE) - 2 * _BUBBLE_X)

    def _chips_height(self, width: int) -> int:
        if self.chips is None:
            return 0
        return self.chips.heightForWidth(width) + (_UNDER_CHIPS if self._has_words else 0)

    def _go_on(self) -> None:
        self.begin()
        self.changed.emit()
