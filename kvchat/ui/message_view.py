"""One message on the page: the user's in a soft bubble, the reply as text with its receipt below."""

from __future__ import annotations

import time

from PySide6.QtCore import QEvent, Qt, QTimer, Signal
from PySide6.QtGui import QEnterEvent, QGuiApplication, QResizeEvent, QTextCursor
from PySide6.QtWidgets import QFrame, QTextEdit, QWidget

from kvchat.chat.messages import Message, MessageState, Role
from kvchat.ui.attachment_chips import ChipRows
from kvchat.ui.copying import selected_markdown, selected_text
from kvchat.ui.markdown import plain_blocks
from kvchat.ui.markdown_stream import MarkdownStream
from kvchat.ui.message_actions import MessageActions
from kvchat.ui.message_editor import MessageEditor
from kvchat.ui.message_wish import MessageWish, Wish
from kvchat.ui.page_style import PageStyle
from kvchat.ui.part_column import PartColumn
from kvchat.ui.receipt_view import ReceiptView
from kvchat.ui.reply_footer import ReplyFooter
from kvchat.ui.thinking_view import ThinkingView

_RENDER_MS = 100  # streaming text is gathered this long before it is drawn
_RENDER_MOST_MS = 800
_RENDER_SHARE = 8  # drawing may take one part in so many of the time
_AT_ONCE_MS = 16.0  # a long message is made in pieces, each taking so long
_PART_GAP = 6  # pixels between thinking, text and footer
_BUBBLE_SHARE = 0.84  # of the column's width
_WIDE = 1 << 15  # pixels, wider than any column
_ASKING_ANEW = "Send", "What followed stays on a branch of its own."  # the button's word, and what it means
_ANSWERING_ANEW = "Save", "The old reply stays on a branch of its own."
_BUBBLE_X, _BUBBLE_TOP, _BUBBLE_BOTTOM = 16, 12, 8
_UNDER_CHIPS = 8


class MessageView(QWidget):
    """What both kinds of messages have. `begin` makes the parts, once the signals are connected."""

    changed = Signal()  # it may be taller or shorter
    text_made = Signal(QTextEdit)
    link_activated = Signal(str)
    wished = Signal(MessageWish)

    def __init__(self, style: PageStyle, message: Message, name: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.message = message
        self.style_in_use = style
        self.column = PartColumn(style, name)
        self.column.text_made.connect(self.text_made)
        self.column.link_activated.connect(self.link_activated)
        self.column.grown.connect(self.changed)
        self.action_row = MessageActions(style, self)
        self.chips: ChipRows | None = None  # what is attached
        self.editor: MessageEditor | None = None  # while the message is written anew
        self._covered: list[QWidget] = []  # by the editor
        if message.siblings:
            position = message.siblings.index(message.id)
            self.action_row.add_pager(
                position, len(message.siblings), lambda to: self._wish(Wish.SWITCH, message.siblings[to])
            )

    @property
    def complete(self) -> bool:
        """Whether all of the message is on the page."""
        return not self.column.busy

    @property
    def texts(self) -> list[QTextEdit]:
        """The texts in which one can select, from above."""
        return self.column.texts

    def begin(self) -> None:
        """Show the message, or as much of a long one as is made at once."""
        raise NotImplementedError

    def markdown_of(self, text: QTextEdit) -> str:
        """The Markdown of what is selected of one of its texts."""
        return selected_markdown(text, self.column.blocks_of(text))

    def edit(self) -> None:
        """Let the user write the message anew, in its place."""
        if self.editor is not None:
            return
        asks = self.message.role is Role.USER
        action, hint = _ASKING_ANEW if asks else _ANSWERING_ANEW
        self.editor = MessageEditor(
            self.message.content.strip("\n"), self.style_in_use.font, action, hint, enter=asks, parent=self
        )
        self.editor.done.connect(lambda text: self._wish(Wish.EDIT, text))
        self.editor.given_up.connect(self.end_edit)
        self.editor.changed.connect(self.changed)
        parts = self.findChildren(QWidget, options=Qt.FindChildOption.FindDirectChildrenOnly)
        self._covered = [part for part in parts if part is not self.editor and not part.isHidden()]
        for part in self._covered:
            part.hide()
        self.editor.show()
        self.changed.emit()
        self.editor.field.moveCursor(QTextCursor.MoveOperation.End)
        self.editor.field.setFocus()

    def end_edit(self) -> None:
        """Show the message again."""
        if self.editor is None:
            return
        self.editor.setParent(None)
        self.editor.deleteLater()
        self.editor = None
        for part in self._covered:
            part.show()
        self.changed.emit()

    def _wish(self, wish: Wish, text: str = "") -> None:
        self.wished.emit(MessageWish(wish, self.message, text))

    def show_formulas(self) -> None:
        """Some formulas are ready."""
        if self.column.show_formulas():
            self.changed.emit()

    def enterEvent(self, event: QEnterEvent) -> None:
        """The mouse is here: show what can be done."""
        self.action_row.reveal(True)

    def leaveEvent(self, event: QEvent) -> None:
        """The mouse left."""
        self.action_row.reveal(False)


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
        until = time.thread_time() + _AT_ONCE_MS / 1000
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


class ReplyView(MessageView):
    """A reply: folded thinking, text and code, how it ended, the receipt."""

    retry_requested = Signal()

    def __init__(self, style: PageStyle, message: Message, parent: QWidget | None = None) -> None:
        super().__init__(style, message, "Reply", parent)
        self.text, self.thinking = message.content, message.thinking
        self.footer: ReplyFooter | None = None
        self._fold: ThinkingView | None = None
        self._thought_ms: float | None = None  # until the receipt knows
        self._stream = MarkdownStream(style.markdown)
        self._fed = ""
        self._more = False
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self.render_now)
        self.column.setParent(self)
        self.action_row.add("copy", "Copy the reply", lambda: QGuiApplication.clipboard().setText(self.text))
        self.action_row.add("edit", "Edit the reply", self.edit)
        self.action_row.add("again", "Regenerate the reply", lambda: self._wish(Wish.REGENERATE))
        self._go_on = self.action_row.add("go-on", "Continue the reply", lambda: self._wish(Wish.CONTINUE))
        self.action_row.add("trash", "Delete the reply and what follows", lambda: self._wish(Wish.DELETE))
        self._last = False

    @property
    def complete(self) -> bool:
        """Whether all of the message is on the page."""
        return not self._more and super().complete

    @property
    def texts(self) -> list[QTextEdit]:
        """The texts in which one can select, from above."""
        thinking = self._fold.texts if self._fold is not None else []
        return [*thinking, *self.column.texts]

    @property
    def receipt(self) -> ReceiptView | None:
        """The receipt on show, if the reply has one."""
        return self.footer.receipt if self.footer is not None else None

    @property
    def streaming(self) -> bool:
        """Whether the reply is still being made."""
        return self.message.state is MessageState.STREAMING

    def hasHeightForWidth(self) -> bool:
        """Text is taller where it is narrower."""
        return True

    def heightForWidth(self, width: int) -> int:
        """The parts, one below the other."""
        if self.editor is not None:
            return self.editor.needed_height(width)
        heights = [part.heightForWidth(width) for part in self._parts()]
        return sum(heights) + _PART_GAP * max(len(heights) - 1, 0)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Put the parts in their places."""
        if self.editor is not None:
            self.editor.setGeometry(self.rect())
        self._place()

    def event(self, event: QEvent) -> bool:
        """One of the parts may need another height."""
        if event.type() == QEvent.Type.LayoutRequest:
            self._place()
            self.changed.emit()
        return super().event(event)

    def begin(self) -> None:
        """Show the message, or as much of a long one as is made at once."""
        self.show_message(self.message)

    def show_message(self, message: Message) -> None:
        """Show the message as it is stored. A live text is not set back by an older stored one."""
        self.message = message
        if not self.streaming or len(message.content) + len(message.thinking) > len(self.text) + len(self.thinking):
            self.text, self.thinking = message.content, message.thinking
        self._show_ending()
        self.render_now()

    def set_last(self, last: bool) -> None:
        """Whether it is the last message: only then can it go on."""
        self._last = last
        self._go_on.setVisible(last)
        if self.footer is not None:
            self.footer.offer_to_go_on(last)

    def set_live(self, text: str, thinking: str, thought_ms: float | None = None) -> None:
        """The reply so far; drawn a little later, together with what else comes until then."""
        self.text, self.thinking, self._thought_ms = text, thinking, thought_ms
        if not self._timer.isActive():
            self._timer.start(max(_RENDER_MS, self._timer.interval()))

    def render_now(self) -> None:
        """Draw the text as it is now, reading only what is new."""
        started = time.thread_time()  # and not the wall's clock: a busy machine must not make the steps larger
        self._timer.stop()
        self._show_thinking()
        self._feed()
        self._more = True
        while self._more and (time.thread_time() - started) * 1000 < _AT_ONCE_MS:
            self._more = self._stream.step()
            self.column.show_blocks(self._stream.settled, self._stream.open, self._stream.revision)
        cost = (time.thread_time() - started) * 1000
        self._timer.setInterval(min(max(_RENDER_MS, int(cost * _RENDER_SHARE)), _RENDER_MOST_MS))
        if self._more:
            self._timer.start(0 if not self.streaming else self._timer.interval())
        self.changed.emit()

    def _parts(self) -> list[QWidget]:
        return [part for part in (self._fold, self.column, self.footer) if part is not None]

    def _place(self) -> None:
        width, top = self.width(), 0
        for part in self._parts():
            height = part.heightForWidth(width)
            part.setGeometry(0, top, width, height)
            top += height + _PART_GAP

    def _feed(self) -> None:
        if not self.text.startswith(self._fed):
            self._stream, self._fed = MarkdownStream(self.style_in_use.markdown), ""
            self.column.show_blocks((), (), -1)
        self._stream.feed(self.text[len(self._fed) :])
        self._fed = self.text
        if not self.streaming:
            self._stream.finish()

    def _show_thinking(self) -> None:
        if not self.thinking:
            return
        if self._fold is None:
            self._fold = ThinkingView(self.style_in_use, self)
            self._fold.text_made.connect(self.text_made)
            self._fold.toggled.connect(self.changed)
            self._fold.show()
        receipt = self.message.receipt
        ms = receipt.thinking_ms if receipt is not None and receipt.thinking_ms is not None else self._thought_ms
        self._fold.show_thinking(self.thinking, still=self.streaming and not self.text, ms=ms)

    def _show_ending(self) -> None:
        if self.footer is not None:
            self.action_row.setParent(self)
            self.footer.setParent(None)
            self.footer.deleteLater()
            self.footer = None
        self.action_row.setVisible(not self.streaming)
        if not self.streaming:
            self.footer = ReplyFooter(self.message, self.action_row, numbers=self.style_in_use.look.numbers)
            self.footer.setParent(self)
            self.footer.retry_requested.connect(self.retry_requested)
            self.footer.go_on_requested.connect(lambda: self._wish(Wish.CONTINUE))
            self.footer.offer_to_go_on(self._last)
            self.footer.setVisible(self.editor is None)
