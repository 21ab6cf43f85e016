"""A reply in the transcript: the model's thinking (collapsed), the text and the footer."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from PySide6.QtCore import QMargins, QTimer, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QWidget

from kvchat.chat.record.messages import Message, MessageState
from kvchat.chat.turn.receipts import TurnStep
from kvchat.text.formatting import format_rough_duration
from kvchat.text.language import _, join_list
from kvchat.ui.rendering.markdown import plain_blocks
from kvchat.ui.rendering.markdown_stream import MarkdownStream
from kvchat.ui.rendering.text_page import PageStyle, TextPage
from kvchat.ui.transcript.footer import Action, MessageActions, ReceiptView, ReplyFooter, RequestKind
from kvchat.ui.transcript.message_view import MessageView, ToggleRow, shorten_name
from kvchat.ui.transcript.parts import Part, text_parts

_QUOTE_LEFT, _QUOTE_GAP = 16, 4  # pixels beside the thinking text, and above and below it
_RENDER_MS, _MAX_RENDER_MS = 100, 800  # interval between updates of streaming text
_RENDER_SHARE = 8  # rendering may take up to 1 / _RENDER_SHARE of the time
_PARSE_MS = 10.0  # maximum time per step while a long reply is parsed
_PART_GAP = 6  # pixels between thinking, text and footer


class ReplyView(MessageView):
    retry_requested = Signal()

    def __init__(self, style: PageStyle, message: Message, parent: QWidget | None = None) -> None:
        super().__init__(style, message, _("Reply"), "quote", QMargins(_QUOTE_LEFT, 0, _QUOTE_LEFT, 0), parent)
        self.text, self.thinking = message.content, message.thinking
        self._thinking_ms: float | None = None  # duration until the receipt has it
        self._is_thinking_open = self._is_receipt_open = False
        self._steps: tuple[TurnStep, ...] | None = None  # None until the message is shown
        self._stream = MarkdownStream(style.markdown)
        self._streamed_text = ""  # text given to the stream
        self._text_parts: list[Part] = []
        self._is_reparsing = False  # parsing starts over; the old parts stay visible until it is done
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self.render_now)

    @property
    def footer(self) -> ReplyFooter | None:
        last = self.rows[-1].widget if self.rows else None
        return last if isinstance(last, ReplyFooter) else None

    @property
    def receipt(self) -> ReceiptView | None:
        return self.footer.receipt if self.footer is not None else None

    @property
    def is_streaming(self) -> bool:
        return self.message.state is MessageState.STREAMING

    @property
    def plain_text(self) -> str:
        return "\n".join(part.text for part in self._text_parts)

    def message_parts(self) -> Sequence[Part]:
        parts: list[Part] = []
        if self.thinking:
            receipt, title, is_open = self.message.receipt, _("Thinking…"), self._is_thinking_open
            if self.text or not self.is_streaming:
                ms = receipt.thinking_ms if receipt and receipt.thinking_ms is not None else self._thinking_ms
                title = _("Reasoning") if ms is None else _("Thought for {ms}", ms=format_rough_duration(ms / 1000))
            arrow = "▾" if is_open else "◂" if self.isRightToLeft() else "▸"
            name = join_list((title, _("expanded") if is_open else _("collapsed")))
            toggle = partial(ToggleRow, "quiet", self._toggle_thinking)
            parts.append(Part(ToggleRow, state=(title, arrow, name), make=toggle))
            page = partial(self.make_muted_page, _("Thinking"))
            for i, block in enumerate(plain_blocks(self.thinking.strip("\n")) if is_open else ()):
                parts.append(Part(TextPage, (block,), gap=0 if i else _QUOTE_GAP, is_framed=True, make=page))
        if parts and self._text_parts:
            parts.append(replace(self._text_parts[0], gap=_PART_GAP))
        parts += self._text_parts[bool(parts) :]
        if not self.is_streaming and not self.unparsed_share:
            message = self.message
            state_shown = message.state, message.receipt, message.siblings, self.is_last, self._steps
            if self.is_last or not message.calls:
                parts.append(Part(ReplyFooter, state=state_shown, gap=_PART_GAP, make=self._make_footer))
            elif parts:  # the turn's footer is below its last reply
                parts.append(Part(MessageActions, state=state_shown, gap=_PART_GAP, make=self.make_actions))
        return parts

    def message_actions(self) -> list[Action]:
        def asking_for(kind: RequestKind, glyph: str, name: str) -> Action:
            return Action(glyph, name, lambda: self._request(kind))

        actions = [
            Action("copy", _("Copy the reply"), lambda: QGuiApplication.clipboard().setText(self.text)),
            Action("edit", _("Edit the reply"), self.edit_requested.emit),
            asking_for(RequestKind.REGENERATE, "again", _("Regenerate the reply")),
            asking_for(RequestKind.REGENERATE_WITH, "swap", _("Regenerate with another model")),
            asking_for(RequestKind.CONTINUE, "go-on", _("Continue the reply")),
            asking_for(RequestKind.FORK, "fork", _("Fork into a new chat")),
            asking_for(RequestKind.DELETE, "trash", _("Delete the reply and everything after it")),
        ]
        return [action for action in actions if not self.is_streaming and (self.is_last or action.glyph != "go-on")]

    def part_box(self, part: Part, width: int) -> tuple[int, int]:
        if not part.is_framed:
            return super().part_box(part, width)
        return 0 if self.isRightToLeft() else _QUOTE_LEFT, width - _QUOTE_LEFT

    def show_message(self, message: Message, *, is_last: bool, steps: tuple[TurnStep, ...]) -> None:
        """Show the stored message, unless the streaming reply on display is already longer.

        `steps` are the rounds of a turn with tool calls, for the statistics.
        """
        if (message, is_last, steps) == (self.message, self.is_last, self._steps):
            return
        self.message, self.is_last, self._steps = message, is_last, steps
        if not self.is_streaming or len(message.content) + len(message.thinking) > len(self.text) + len(self.thinking):
            self.text, self.thinking = message.content, message.thinking
        if not self.is_streaming:
            self.setAccessibleName(shorten_name(_("Reply: {text}", text=self.text)))
        self.render_now()

    def show_live_reply(self, text: str, thinking: str, thinking_ms: float | None = None) -> None:
        """Show the streaming reply so far. A short delay combines several updates into one."""
        self.text, self.thinking, self._thinking_ms = text, thinking, thinking_ms
        if not self.is_streaming:  # continued, but not yet reloaded from disk
            self.message = replace(self.message, state=MessageState.STREAMING)
            self.changed.emit()
        if not self._timer.isActive():
            self._timer.start(max(_RENDER_MS, self._timer.interval()))

    def render_now(self) -> None:
        started = time.thread_time()  # not wall time, so that a busy machine does not change the step
        self._timer.stop()
        was_replaced = not self.text.startswith(self._streamed_text)
        if was_replaced or (self._stream.finished and (self.is_streaming or self.text != self._streamed_text)):
            self._is_reparsing = bool(self._streamed_text)
            self._stream, self._streamed_text = MarkdownStream(self.page_style.markdown), ""
        self._stream.feed(self.text[len(self._streamed_text) :])
        self._streamed_text = self.text
        self._stream.finished = not self.is_streaming
        self.is_complete = False
        while not self.is_complete and (time.thread_time() - started) * 1000 < _PARSE_MS:
            self.is_complete = not self._stream.step()
        self._is_reparsing &= not self.is_complete
        if not self._is_reparsing:
            self.unparsed_share = self._stream.unread_length / max(len(self.text), 1)
            self._text_parts = text_parts([*self._stream.settled_blocks, *self._stream.open_blocks], self._text_parts)
        self.changed.emit()
        cost = (time.thread_time() - started) * 1000
        self._timer.setInterval(min(max(_RENDER_MS, int(cost * _RENDER_SHARE)), _MAX_RENDER_MS))
        if not self.is_complete:
            self._timer.start(self._timer.interval() if self.is_streaming and not self._is_reparsing else 0)

    def _toggle_thinking(self) -> None:
        self._is_thinking_open = not self._is_thinking_open
        self.toggled.emit()

    def _make_footer(self) -> ReplyFooter:
        look, actions, retry = self.page_style.look, self.make_actions(), self.retry_requested
        go_on = (lambda: self._request(RequestKind.CONTINUE)) if self.is_last else None
        footer = ReplyFooter(self.message, actions, look, retry, go_on, self._steps or ())
        if footer.receipt is not None:
            if self._is_receipt_open:
                footer.receipt.toggle()
            footer.receipt.summary_button.clicked.connect(self._toggle_receipt)
        return footer

    def _toggle_receipt(self) -> None:
        self._is_receipt_open = not self._is_receipt_open
        self.toggled.emit()
