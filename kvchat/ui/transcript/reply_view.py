"""A reply on the page: the model's thinking (collapsed), the text and the receipt."""

from __future__ import annotations

import time
from dataclasses import replace

from PySide6.QtCore import QEvent, QRect, Qt, QTimer, Signal
from PySide6.QtGui import QGuiApplication, QResizeEvent
from PySide6.QtWidgets import QFrame, QStyle, QTextEdit, QWidget

from kvchat.chat.record.messages import Message, MessageState
from kvchat.text.formatting import format_rough_duration
from kvchat.text.language import _, join_list
from kvchat.ui.base.building import button, styled
from kvchat.ui.rendering.markdown import plain_blocks
from kvchat.ui.rendering.markdown_stream import MarkdownStream
from kvchat.ui.rendering.text_page import PageStyle
from kvchat.ui.transcript.footer import ReceiptView, ReplyFooter, Request
from kvchat.ui.transcript.message_view import AT_ONCE_MS, MessageView, short
from kvchat.ui.transcript.part_column import PartColumn

_LEFT, _ABOVE, _BELOW = 16, 4, 4  # pixels around the thinking text
_RENDER_MS = 100  # streaming text is collected this long before drawing
_RENDER_MOST_MS = 800
_RENDER_SHARE = 8  # drawing may take at most 1 / this of the time
_PART_GAP = 6  # pixels between thinking, text and footer


class ThinkingView(QWidget):
    """Thinking before a reply, folded until clicked; not laid out while folded."""

    text_made = Signal(QTextEdit)
    toggled = Signal()

    def __init__(self, style: PageStyle, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._heading = _("Thinking")
        self._text = self._shown = ""
        self.button = button("", self._toggle, "quiet")
        self.button.setParent(self)
        self.button.setCursor(Qt.CursorShape.PointingHandCursor)
        self._frame = styled(QFrame(self), "quote")
        self._frame.hide()
        self._words = PartColumn(style.quieter(), _("Thinking"), self._frame)
        self._words.text_made.connect(self.text_made)
        self._show()

    @property
    def is_open(self) -> bool:
        return not self._frame.isHidden()

    @property
    def texts(self) -> list[QTextEdit]:
        return self._words.texts if self.is_open else []

    def show_thinking(self, text: str, *, still: bool, ms: float | None) -> None:
        """still: thinking continues; ms: its duration, None if not measured"""
        self._text = text
        heading = _("Reasoning") if ms is None else _("Thought for {ms}", ms=format_rough_duration(ms / 1000))
        self._heading = _("Thinking…") if still else heading
        self._show()

    def heightForWidth(self, width: int) -> int:
        heading = self.button.sizeHint().height()
        return heading + (_ABOVE + self._words.heightForWidth(width - _LEFT) + _BELOW if self.is_open else 0)

    def resizeEvent(self, event: QResizeEvent | None) -> None:
        width, heading = self.width(), self.button.sizeHint().height()
        place = QRect(0, 0, min(self.button.sizeHint().width(), width), heading)
        self.button.setGeometry(QStyle.visualRect(self.layoutDirection(), self.rect(), place))
        height = max(self.height() - heading - _ABOVE, 0)
        self._frame.setGeometry(0, heading + _ABOVE, width, height)
        self._words.setGeometry(0 if self.isRightToLeft() else _LEFT, 0, width - _LEFT, max(height - _BELOW, 0))

    def _toggle(self) -> None:
        self._frame.setVisible(not self.is_open)
        self._show()
        self.toggled.emit()

    def _show(self) -> None:
        name = join_list((self._heading, _("expanded") if self.is_open else _("collapsed")))
        if name != self.button.accessibleName():
            self.button.setText(f"{self._heading} {'▾' if self.is_open else '◂' if self.isRightToLeft() else '▸'}")
            self.button.setAccessibleName(name)
            self.resizeEvent(None)
        if self.is_open and self._shown != self._text:
            self._shown = self._text
            *settled, last = plain_blocks(self._text.strip("\n"))
            self._words.show_blocks(settled, [last])


class ReplyView(MessageView):
    retry_requested = Signal()

    def __init__(self, style: PageStyle, message: Message, parent: QWidget | None = None) -> None:
        super().__init__(style, message, _("Reply"), parent)
        self.text, self.thinking = message.content, message.thinking
        self.footer: ReplyFooter | None = None
        self._fold: ThinkingView | None = None
        self._thought_ms: float | None = None  # before the receipt
        self._stream = MarkdownStream(style.markdown)
        self._fed = ""
        self._more = self._again = False  # again: reparse everything; the old text stays until then
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self.render_now)
        self.column.setParent(self)
        add, ask = self.action_row.add, self._request
        add("copy", _("Copy the reply"), lambda: QGuiApplication.clipboard().setText(self.text))
        add("edit", _("Edit the reply"), self.edit)
        add("again", _("Regenerate the reply"), lambda: ask(Request.REGENERATE))
        add("swap", _("Regenerate with another model"), lambda: ask(Request.REGENERATE_WITH))
        self._go_on = add("go-on", _("Continue the reply"), lambda: ask(Request.CONTINUE))
        add("fork", _("Fork into a new chat"), lambda: ask(Request.FORK))
        add("trash", _("Delete the reply and everything after it"), lambda: ask(Request.DELETE))
        self._last = False

    @property
    def complete(self) -> bool:
        return not self._more

    @property
    def texts(self) -> list[QTextEdit]:
        thinking = self._fold.texts if self._fold is not None else []
        return [*thinking, *self.column.texts]

    @property
    def receipt(self) -> ReceiptView | None:
        return self.footer.receipt if self.footer is not None else None

    @property
    def streaming(self) -> bool:
        return self.message.state is MessageState.STREAMING

    def heightForWidth(self, width: int) -> int:
        if self.editor is not None:
            return self.editor.needed_height(width)
        heights = [part.heightForWidth(width) for part in self._parts()]
        return sum(heights) + _PART_GAP * max(len(heights) - 1, 0)

    def resizeEvent(self, event: QResizeEvent) -> None:
        if self.editor is not None:
            self.editor.setGeometry(self.rect())
        self._place()

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.LayoutRequest:
            self._place()
            self.changed.emit()
        return super().event(event)

    def begin(self) -> None:
        self.show_message(self.message)

    def show_message(self, message: Message) -> None:
        """Show the stored message. An older stored text does not replace a live one."""
        self.message = message
        if not self.streaming or len(message.content) + len(message.thinking) > len(self.text) + len(self.thinking):
            self.text, self.thinking = message.content, message.thinking
        if not self.streaming:
            self.setAccessibleName(short(_("Reply: {text}", text=self.text)))
        self._show_ending()
        self.render_now()

    def set_last(self, last: bool) -> None:
        self._last = last
        self.action_row.always = last
        self.action_row.update()
        self._go_on.setVisible(last)
        if self.footer is not None:
            self.footer.offer_to_go_on(last)

    def set_live(self, text: str, thinking: str, thought_ms: float | None = None) -> None:
        """Show the reply so far after a short delay, together with later updates."""
        self.text, self.thinking, self._thought_ms = text, thinking, thought_ms
        if not self.streaming:  # continued, but not yet reloaded from disk
            self.message = replace(self.message, state=MessageState.STREAMING)
            self._show_ending()
        if not self._timer.isActive():
            self._timer.start(max(_RENDER_MS, self._timer.interval()))

    def render_now(self) -> None:
        started = time.thread_time()  # not wall time: a busy machine must not make the steps larger
        self._timer.stop()
        self._show_thinking()
        if not self.text.startswith(self._fed) or (
            self._stream.finished and (self.streaming or self.text != self._fed)
        ):  # the text was replaced, or continues after its end
            self._again = bool(self._fed)
            self._stream, self._fed = MarkdownStream(self.style_in_use.markdown), ""
        self._stream.feed(self.text[len(self._fed) :])
        self._fed = self.text
        self._stream.finished = not self.streaming
        self._more = True
        while self._more and (time.thread_time() - started) * 1000 < AT_ONCE_MS:
            self._more = self._stream.step()
            if not (self._again and self._more):
                self.column.show_blocks(self._stream.settled, self._stream.open)
        cost = (time.thread_time() - started) * 1000
        self._timer.setInterval(min(max(_RENDER_MS, int(cost * _RENDER_SHARE)), _RENDER_MOST_MS))
        self._again &= self._more
        if self._more:
            self._timer.start(self._timer.interval() if self.streaming and not self._again else 0)
        self.changed.emit()

    def _parts(self) -> list[QWidget]:
        return [part for part in (self._fold, self.column, self.footer) if part is not None]

    def _place(self) -> None:
        width, top = self.width(), 0
        for part in self._parts():
            height = part.heightForWidth(width)
            part.setGeometry(0, top, width, height)
            top += height + _PART_GAP

    def _show_thinking(self) -> None:
        if not self.thinking:
            return
        if self._fold is None:
            self._fold = ThinkingView(self.style_in_use, self)
            self._fold.text_made.connect(self.text_made)
            self._fold.toggled.connect(self.opened)
            self._fold.show()
        receipt = self.message.receipt
        ms = receipt.thinking_ms if receipt is not None and receipt.thinking_ms is not None else self._thought_ms
        self._fold.show_thinking(self.thinking, still=self.streaming and not self.text, ms=ms)

    def _show_ending(self) -> None:
        opened = self.receipt is not None and self.receipt.is_open
        if self.footer is not None:
            self.action_row.setParent(self)
            self.footer.setParent(None)
            self.footer.deleteLater()
            self.footer = None
        self.action_row.setVisible(not self.streaming)
        if self.streaming:
            return
        look, retry, go_on = self.style_in_use.look, self.retry_requested, self._go_on.click
        self.footer = ReplyFooter(self.message, self.action_row, look, retry=retry, go_on=go_on)
        self.footer.setParent(self)
        if self.receipt is not None:
            self.receipt.line.clicked.connect(self.opened)
            if opened:
                self.receipt.toggle()
        self.footer.offer_to_go_on(self._last)
        self.footer.setVisible(self.editor is None)
