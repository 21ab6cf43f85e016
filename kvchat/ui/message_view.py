"""One message on the page: the user's in a soft bubble, the reply as plain text with its receipt below."""

from __future__ import annotations

import time

from PySide6.QtCore import QTimer, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QVBoxLayout, QWidget

from kvchat.chat.messages import Message, MessageState
from kvchat.ui.code_view import CodeView
from kvchat.ui.markdown import Code, MarkdownReader, Prose, Segment, prose_css
from kvchat.ui.receipt_view import FoldedText, ReceiptView
from kvchat.ui.reply_footer import ReplyFooter
from kvchat.ui.text_page import TextPage, page_font, plain_width
from kvchat.ui.theme import Look

_RENDER_MS = 80  # streaming text is gathered this long before it is drawn
_RENDER_SHARE = 8  # drawing may take one part in so many of the time


class UserView(QWidget):
    """A message of the user's, as typed."""

    def __init__(self, look: Look, message: Message, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.message = message
        self._page = TextPage(page_font(look.type.family, look.type.body), f"You: {message.content}")
        self._page.set_plain(message.content.strip())
        self._bubble = QFrame()
        self._bubble.setProperty("kind", "bubble")
        inner = QVBoxLayout(self._bubble)
        inner.setContentsMargins(16, 12, 16, 8)  # a line has its air below it
        inner.addWidget(self._page)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.addStretch(1)
        row.addWidget(self._bubble)

    def set_column_width(self, width: int) -> None:
        """Be as wide as the text, but leave some of the column's width free."""
        document = self._page.document()
        document.setTextWidth(-1)
        room = int(width * 0.84) - 32
        self._bubble.setFixedWidth(min(plain_width(document) + 1, room) + 32)
        document.setTextWidth(min(plain_width(document) + 1, room))


class ReplyView(QWidget):
    """A reply: folded thinking, text and code, how it ended, the receipt."""

    retry_requested = Signal()

    def __init__(self, look: Look, reader: MarkdownReader, message: Message, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._look, self._reader = look, reader
        self.message = message
        self.text, self.thinking = "", ""
        self._segments: tuple[Segment, ...] = ()
        self._parts: list[TextPage | CodeView] = []
        self._fold: FoldedText | None = None
        self._thinking_page: TextPage | None = None
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self.render_now)
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(6)
        self._body = QVBoxLayout()
        self._body.setSpacing(12)
        self._column.addLayout(self._body)
        self.footer: ReplyFooter | None = None
        self.show_message(message)

    @property
    def receipt(self) -> ReceiptView | None:
        """The receipt on show, if the reply has one."""
        return self.footer.receipt if self.footer is not None else None

    def show_message(self, message: Message) -> None:
        """Show the message as it is stored. A live text is not set back by an older stored one."""
        streaming = message.state is MessageState.STREAMING
        self.message = message
        if not streaming or len(message.content) + len(message.thinking) > len(self.text) + len(self.thinking):
            self.text, self.thinking = message.content, message.thinking
        self.render_now()
        self._show_ending(message)

    def set_live(self, text: str, thinking: str) -> None:
        """The reply so far; drawn a little later, together with what else comes until then."""
        self.text, self.thinking = text, thinking
        if not self._timer.isActive():
            self._timer.start(max(_RENDER_MS, self._timer.interval()))

    def render_now(self) -> None:
        """Draw the text as it is now, touching only the segments that changed."""
        started = time.perf_counter()
        self._timer.stop()
        self._show_thinking()
        segments = self._reader.segments(self.text)
        for i, segment in enumerate(segments):
            if i >= len(self._segments) or self._segments[i] != segment:
                self._show_segment(i, segment)
        for part in self._parts[len(segments) :]:
            part.setParent(None)
            part.deleteLater()
        del self._parts[len(segments) :]
        self._segments = segments
        cost = (time.perf_counter() - started) * 1000
        self._timer.setInterval(max(_RENDER_MS, int(cost * _RENDER_SHARE)))

    def restyle(self, reader: MarkdownReader) -> None:
        """The theme changed: draw everything again in its colours."""
        self._reader = reader
        self._segments = ()
        for part in self._parts:
            if isinstance(part, CodeView):
                part.restyle()
        self.render_now()
        self._show_ending(self.message)

    def _show_segment(self, i: int, segment: Segment) -> None:
        kind = TextPage if isinstance(segment, Prose) else CodeView
        if i < len(self._parts) and not isinstance(self._parts[i], kind):
            self._parts[i].setParent(None)
            self._parts[i].deleteLater()
            self._parts[i] = self._new_part(segment)
            self._body.insertWidget(i, self._parts[i])
        elif i == len(self._parts):
            self._parts.append(self._new_part(segment))
            self._body.insertWidget(i, self._parts[i])
        part = self._parts[i]
        if isinstance(part, CodeView) and isinstance(segment, Code):
            part.show_code(segment.language, segment.text)
        elif isinstance(part, TextPage) and isinstance(segment, Prose):
            part.set_html(segment.html, prose_css(self._look.theme, self._look.type.mono, self._look.type.body - 1.25))

    def _new_part(self, segment: Segment) -> TextPage | CodeView:
        if isinstance(segment, Code):
            return CodeView(self._look, segment.language, segment.text)
        return TextPage(page_font(self._look.type.family, self._look.type.body), "Reply")

    def _show_thinking(self) -> None:
        if not self.thinking:
            return
        if self._thinking_page is None:
            self._thinking_page = TextPage(page_font(self._look.type.family, self._look.type.base), "Thinking")
            self._fold = FoldedText("Thinking", self._thinking_page)
            self._column.insertWidget(0, self._fold)
        if self._fold is not None:
            still = self.message.state is MessageState.STREAMING and not self.text
            self._fold.set_heading("Thinking…" if still else "Thought first")
        if self._thinking_page.toPlainText() != self.thinking:
            self._thinking_page.set_plain(self.thinking)

    def _show_ending(self, message: Message) -> None:
        if self.footer is not None:
            self.footer.setParent(None)
            self.footer.deleteLater()
            self.footer = None
        if message.state is not MessageState.STREAMING:
            self.footer = ReplyFooter(self._look, message)
            self.footer.retry_requested.connect(self.retry_requested)
            self._column.addWidget(self.footer)
