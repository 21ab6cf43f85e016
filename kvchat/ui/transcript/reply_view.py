"""A reply in the transcript: the model's thinking (collapsed), the text and the footer."""

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
from kvchat.ui.transcript.footer import ReceiptView, ReplyFooter, RequestKind
from kvchat.ui.transcript.message_view import BUILD_STEP_MS, MessageView, shorten_name
from kvchat.ui.transcript.part_column import PartColumn

_LEFT, _ABOVE, _BELOW = 16, 4, 4  # pixels around the thinking text
_RENDER_MS, _MAX_RENDER_MS = 100, 800  # interval between updates of streaming text
_RENDER_SHARE = 8  # rendering may take up to 1 / _RENDER_SHARE of the time
_PART_GAP = 6  # pixels between thinking, text and footer


class ThinkingView(QWidget):
    """The model's thinking before a reply. It is collapsed, and not laid out, until the user clicks it."""

    text_added = Signal(QTextEdit)
    toggled = Signal()

    def __init__(self, style: PageStyle, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._heading = _("Thinking")
        self._text = self._shown_text = ""
        self.toggle_button = button("", self._toggle, "quiet")
        self.toggle_button.setParent(self)
        self.toggle_button.setCursor(Qt.CursorShape.PointingHandCursor)
        self._frame = styled(QFrame(self), "quote")
        self._frame.hide()
        self._column = PartColumn(style.with_muted_text(), _("Thinking"), self._frame)
        self._column.text_added.connect(self.text_added)
        self._refresh()

    @property
    def is_open(self) -> bool:
        return not self._frame.isHidden()

    @property
    def texts(self) -> list[QTextEdit]:
        return self._column.texts if self.is_open else []

    def show_thinking(self, text: str, *, is_streaming: bool, ms: float | None) -> None:
        """Show the thinking so far. `ms` is its duration, if measured; `is_streaming` means that it is not finished."""
        self._text = text
        heading = _("Reasoning") if ms is None else _("Thought for {ms}", ms=format_rough_duration(ms / 1000))
        self._heading = _("Thinking…") if is_streaming else heading
        self._refresh()

    def heightForWidth(self, width: int) -> int:
        heading = self.toggle_button.sizeHint().height()
        return heading + (_ABOVE + self._column.heightForWidth(width - _LEFT) + _BELOW if self.is_open else 0)

    def resizeEvent(self, event: QResizeEvent | None) -> None:
        width, heading = self.width(), self.toggle_button.sizeHint().height()
        box = QRect(0, 0, min(self.toggle_button.sizeHint().width(), width), heading)
        self.toggle_button.setGeometry(QStyle.visualRect(self.layoutDirection(), self.rect(), box))
        height = max(self.height() - heading - _ABOVE, 0)
        self._frame.setGeometry(0, heading + _ABOVE, width, height)
        self._column.setGeometry(0 if self.isRightToLeft() else _LEFT, 0, width - _LEFT, max(height - _BELOW, 0))

    def _toggle(self) -> None:
        self._frame.setVisible(not self.is_open)
        self._refresh()
        self.toggled.emit()

    def _refresh(self) -> None:
        name = join_list((self._heading, _("expanded") if self.is_open else _("collapsed")))
        if name != self.toggle_button.accessibleName():
            self.toggle_button.setText(
                f"{self._heading} {'▾' if self.is_open else '◂' if self.isRightToLeft() else '▸'}"
            )
            self.toggle_button.setAccessibleName(name)
            self.resizeEvent(None)
        if self.is_open and self._shown_text != self._text:
            self._shown_text = self._text
            *settled, last = plain_blocks(self._text.strip("\n"))
            self._column.show_blocks(settled, [last])


class ReplyView(MessageView):
    retry_requested = Signal()

    def __init__(self, style: PageStyle, message: Message, parent: QWidget | None = None) -> None:
        super().__init__(style, message, _("Reply"), parent)
        self.text, self.thinking = message.content, message.thinking
        self.footer: ReplyFooter | None = None
        self._thinking_view: ThinkingView | None = None
        self._thinking_ms: float | None = None  # duration until the receipt has it
        self._stream = MarkdownStream(style.markdown)
        self._streamed_text = ""  # text given to the stream
        self._has_more = False  # text left to parse
        self._is_reparsing = False  # parsing starts over; the old parts stay visible until it is done
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self.render_now)
        self.column.setParent(self)
        add, request = self.action_row.add_button, self._request
        add("copy", _("Copy the reply"), lambda: QGuiApplication.clipboard().setText(self.text))
        add("edit", _("Edit the reply"), self.edit)
        add("again", _("Regenerate the reply"), lambda: request(RequestKind.REGENERATE))
        add("swap", _("Regenerate with another model"), lambda: request(RequestKind.REGENERATE_WITH))
        self._continue = add("go-on", _("Continue the reply"), lambda: request(RequestKind.CONTINUE))
        add("fork", _("Fork into a new chat"), lambda: request(RequestKind.FORK))
        add("trash", _("Delete the reply and everything after it"), lambda: request(RequestKind.DELETE))

    @property
    def is_complete(self) -> bool:
        return not self._has_more

    @property
    def texts(self) -> list[QTextEdit]:
        thinking = self._thinking_view.texts if self._thinking_view is not None else []
        return [*thinking, *self.column.texts]

    @property
    def receipt(self) -> ReceiptView | None:
        return self.footer.receipt if self.footer is not None else None

    @property
    def is_streaming(self) -> bool:
        return self.message.state is MessageState.STREAMING

    @property
    def _parts(self) -> list[QWidget]:
        return [part for part in (self._thinking_view, self.column, self.footer) if part is not None]

    def heightForWidth(self, width: int) -> int:
        if self.editor is not None:
            return self.editor.needed_height(width)
        heights = [part.heightForWidth(width) for part in self._parts]
        return sum(heights) + _PART_GAP * max(len(heights) - 1, 0)

    def resizeEvent(self, event: QResizeEvent | None) -> None:
        if self.editor is not None:
            self.editor.setGeometry(self.rect())
        width, top = self.width(), 0
        for part in self._parts:
            height = part.heightForWidth(width)
            part.setGeometry(0, top, width, height)
            top += height + _PART_GAP

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.LayoutRequest:
            self.resizeEvent(None)
            self.changed.emit()
        return super().event(event)

    def show_message(self, message: Message) -> None:
        """Show the stored message, unless the streaming reply on display is already longer."""
        self.message = message
        if not self.is_streaming or len(message.content) + len(message.thinking) > len(self.text) + len(self.thinking):
            self.text, self.thinking = message.content, message.thinking
        if not self.is_streaming:
            self.setAccessibleName(shorten_name(_("Reply: {text}", text=self.text)))
        self._show_footer()
        self.render_now()

    def set_is_last(self, is_last: bool) -> None:
        self.action_row.is_last = is_last
        self.action_row.update()
        self._continue.setVisible(is_last)
        if self.footer is not None:
            self.footer.show_continue(is_last)

    def show_live_reply(self, text: str, thinking: str, thinking_ms: float | None = None) -> None:
        """Show the streaming reply so far. A short delay combines several updates into one."""
        self.text, self.thinking, self._thinking_ms = text, thinking, thinking_ms
        if not self.is_streaming:  # continued, but not yet reloaded from disk
            self.message = replace(self.message, state=MessageState.STREAMING)
            self._show_footer()
        if not self._timer.isActive():
            self._timer.start(max(_RENDER_MS, self._timer.interval()))

    def render_now(self) -> None:
        started = time.thread_time()  # not wall time, so that a busy machine does not change the step
        self._timer.stop()
        if self.thinking:
            self._show_thinking()
        was_replaced = not self.text.startswith(self._streamed_text)
        if was_replaced or (self._stream.finished and (self.is_streaming or self.text != self._streamed_text)):
            self._is_reparsing = bool(self._streamed_text)
            self._stream, self._streamed_text = MarkdownStream(self.page_style.markdown), ""
        self._stream.feed(self.text[len(self._streamed_text) :])
        self._streamed_text = self.text
        self._stream.finished = not self.is_streaming
        self._has_more = True
        while self._has_more and (time.thread_time() - started) * 1000 < BUILD_STEP_MS:
            self._has_more = self._stream.step()
            if not (self._is_reparsing and self._has_more):
                self.column.show_blocks(self._stream.settled_blocks, self._stream.open_blocks)
        cost = (time.thread_time() - started) * 1000
        self._timer.setInterval(min(max(_RENDER_MS, int(cost * _RENDER_SHARE)), _MAX_RENDER_MS))
        self._is_reparsing &= self._has_more
        if self._has_more:
            self._timer.start(self._timer.interval() if self.is_streaming and not self._is_reparsing else 0)
        self.changed.emit()

    def _show_thinking(self) -> None:
        if self._thinking_view is None:
            self._thinking_view = ThinkingView(self.page_style, self)
            self._thinking_view.text_added.connect(self.text_added)
            self._thinking_view.toggled.connect(self.toggled)
            self._thinking_view.show()
        receipt = self.message.receipt
        ms = receipt.thinking_ms if receipt is not None and receipt.thinking_ms is not None else self._thinking_ms
        self._thinking_view.show_thinking(self.thinking, is_streaming=self.is_streaming and not self.text, ms=ms)

    def _show_footer(self) -> None:
        was_open = self.receipt is not None and self.receipt.is_open
        if self.footer is not None:
            self.action_row.setParent(self)
            self.footer.setParent(None)
            self.footer.deleteLater()
            self.footer = None
        self.action_row.setVisible(not self.is_streaming)
        if self.is_streaming:
            return
        look, retry, go_on = self.page_style.look, self.retry_requested, self._continue.click
        self.footer = ReplyFooter(self.message, self.action_row, look, retry=retry, on_continue=go_on)
        self.footer.setParent(self)
        if self.receipt is not None:
            self.receipt.summary_button.clicked.connect(self.toggled)
            if was_open:
                self.receipt.toggle()
        self.footer.show_continue(self.action_row.is_last)
        self.footer.setVisible(self.editor is None)
