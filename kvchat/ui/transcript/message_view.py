"""One message on the page: the base of user messages and replies, its editor, and the user's bubble."""

from __future__ import annotations

import time
from textwrap import shorten

from PySide6.QtCore import QEvent, QObject, Qt, QTimer, Signal
from PySide6.QtGui import QAccessible, QEnterEvent, QFont, QGuiApplication, QKeyEvent, QResizeEvent, QTextCursor
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QTextEdit, QWidget

from kvchat.chat.record.messages import Message, Role
from kvchat.text.language import _, plural
from kvchat.ui.attachments.chips import ChipRows
from kvchat.ui.base.building import button, column, label, row, styled
from kvchat.ui.rendering.markdown import plain_blocks
from kvchat.ui.rendering.text_page import PageStyle
from kvchat.ui.transcript.footer import MessageActions, MessageRequest, Request
from kvchat.ui.transcript.part_column import PartColumn
from kvchat.ui.widgets.layouts import COLUMN_WIDTH

_FEWEST, _MAX = 2, 18  # lines of the editor
_NAME_LETTERS = 80
AT_ONCE_MS = 16.0  # long messages are built in steps of this length
_BUBBLE_SHARE = 0.84  # of the column width
_WIDE = 1 << 15  # pixels, wider than any column
_BUBBLE_X, _BUBBLE_TOP, _BUBBLE_BOTTOM = 16, 12, 8
_UNDER_CHIPS = 8
_FOLDED, _LONG = 9, 14  # lines shown when folded, and lines that trigger folding


def short(name: str) -> str:
    return shorten(name[: 2 * _NAME_LETTERS], _NAME_LETTERS, placeholder="…")


class MessageEditor(QFrame):
    """Editor of a message's text. Esc cancels; Ctrl+Enter (with `enter`: also Enter) finishes."""

    done = Signal(str)
    given_up = Signal()
    changed = Signal()  # its height may have changed

    def __init__(self, text: str, font: QFont, action: str, hint: str, *, enter: bool, parent: QWidget) -> None:
        super().__init__(parent)
        self._enter = enter
        styled(self, "composer").setProperty("focused", "true")
        self.field = QPlainTextEdit(text)
        self.field.setFont(font)
        self.field.setAccessibleName(_("Edit the message"))
        self.field.setTabChangesFocus(True)
        self.field.installEventFilter(self)
        self.field.document().documentLayout().documentSizeChanged.connect(lambda _: self.changed.emit())
        self.field.textChanged.connect(self._show_button)
        cancel, self.button = button(_("Cancel"), self.given_up), button(action, self._finish, "primary")
        below = row((label(hint, "small", wraps=True), 1), cancel, self.button, spacing=8)
        self._column = column(self.field, below, on=self, spacing=6, margins=(14, 8, 10, 10))
        self._show_button()

    def needed_height(self, width: int) -> int:
        self.field.setFixedWidth(max(width - 26, 80))  # so lines wrap as they will when shown
        line = self.field.fontMetrics().lineSpacing()
        lines = round(self.field.document().size().height())  # plain text documents count in lines
        margin = round(2 * self.field.document().documentMargin())
        self.field.setFixedHeight(max(_FEWEST, min(lines, _MAX)) * line + margin + 2)
        return self._column.totalHeightForWidth(width)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Handle Esc and Enter; Esc must not reach the window's shortcut while editing."""
        if not isinstance(event, QKeyEvent) or event.type() == QEvent.Type.KeyRelease:
            return False
        escape = event.key() == Qt.Key.Key_Escape
        if event.type() == QEvent.Type.ShortcutOverride:
            event.setAccepted(escape)
            return escape
        shift, ctrl = Qt.KeyboardModifier.ShiftModifier, Qt.KeyboardModifier.ControlModifier
        if escape:
            self.given_up.emit()
        elif event.key() not in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            return False
        elif event.modifiers() & ctrl or (self._enter and not event.modifiers() & shift):
            self._finish()
        else:
            self.field.textCursor().insertBlock()
            self.field.ensureCursorVisible()
        return True

    def _finish(self) -> None:
        if self.button.isEnabled():
            self.done.emit(self.field.toPlainText().strip())

    def _show_button(self) -> None:
        self.button.setEnabled(bool(self.field.toPlainText().strip()))


class MessageView(QWidget):
    """Base class of both message kinds. Connect the signals, then call `begin`."""

    accessible_role = QAccessible.Role.Grouping
    changed = Signal()  # its height may have changed
    opened = Signal()  # the user folded or unfolded something
    text_made = Signal(QTextEdit)
    link_activated = Signal(str)
    requested = Signal(MessageRequest)

    def __init__(self, style: PageStyle, message: Message, name: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.message = message
        self.style_in_use = style
        self.setAccessibleName(short(name))
        self.column = PartColumn(style, name)
        self.column.text_made.connect(self.text_made)
        self.column.link_activated.connect(self.link_activated)
        self.action_row = MessageActions(style, self)
        self.action_row.add_time(message.created_at)
        self.chips: ChipRows | None = None  # attachments
        self.editor: MessageEditor | None = None  # while the message is edited
        self._covered: list[QWidget] = []  # by the editor
        if message.siblings:
            position = message.siblings.index(message.id)
            self.action_row.add_pager(
                position, len(message.siblings), lambda to: self._request(Request.SWITCH, message.siblings[to])
            )

    @property
    def complete(self) -> bool:
        raise NotImplementedError

    @property
    def texts(self) -> list[QTextEdit]:
        return self.column.texts

    def begin(self) -> None:
        """Show the message; of a long one, the part that is quick to build."""
        raise NotImplementedError

    def unfold(self) -> None:
        """Show hidden parts, if any."""

    def edit(self, words: str | None = None) -> None:
        """Let the user edit the message in place. words: text of an earlier, unfinished edit"""
        if self.editor is not None:
            return
        asks = self.message.role is Role.USER
        action, hint = _("Save"), _("The old reply stays in its own branch.")
        if asks:
            action, hint = _("Send"), _("The later messages stay in their own branch.")
        text = self.message.content.strip("\n") if words is None else words
        self.editor = MessageEditor(text, self.style_in_use.font, action, hint, enter=asks, parent=self)
        self.editor.done.connect(lambda text: self._request(Request.EDIT, text))
        self.editor.given_up.connect(self.end_edit)
        self.editor.changed.connect(self.changed)
        parts = self.findChildren(QWidget, options=Qt.FindChildOption.FindDirectChildrenOnly)
        self._covered = [part for part in parts if part is not self.editor and not part.isHidden()]
        for part in self._covered:
            part.hide()
        self.editor.show()
        self.changed.emit()
        self.editor.field.moveCursor(QTextCursor.MoveOperation.End)
        if words is None:
            self.editor.field.setFocus()

    def end_edit(self) -> None:
        if self.editor is None:
            return
        self.editor.setParent(None)
        self.editor.deleteLater()
        self.editor = None
        for part in self._covered:
            part.show()
        self.changed.emit()

    def _request(self, run: Request, text: str = "") -> None:
        self.requested.emit(MessageRequest(run, self.message, text))

    def show_formulas(self) -> None:
        if self.column.show_formulas():
            self.changed.emit()

    def enterEvent(self, event: QEnterEvent) -> None:
        self.action_row.near = True
        self.action_row.update()

    def leaveEvent(self, event: QEvent) -> None:
        self.action_row.near = False
        self.action_row.update()


class UserView(MessageView):
    def __init__(self, style: PageStyle, message: Message, parent: QWidget | None = None) -> None:
        super().__init__(style, message, _("You: {content}", content=message.content[:500]), parent)
        self._bubble = styled(QFrame(self), "bubble")
        self._window = QWidget(self._bubble)  # clips the folded text
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
        add("trash", _("Delete this message and everything after it"), lambda: self._request(Request.DELETE))
        self._blocks = plain_blocks(message.content.strip("\n"))
        self._has_words = bool(message.content.strip()) or not message.attachments
        self._made = 0
        self._natural = 0
        self._is_long = False

    @property
    def complete(self) -> bool:
        return self._made == len(self._blocks) or (self.folded and self._is_long)

    def begin(self) -> None:
        until = time.thread_time() + AT_ONCE_MS / 1000
        while not self.complete and time.thread_time() < until:
            self._made += 1
            self.column.show_blocks(self._blocks[: self._made])
            # Folding is decided at the column's full width.
            widest = int(self.style_in_use.look.px(COLUMN_WIDTH) * _BUBBLE_SHARE) - 2 * _BUBBLE_X
            self._is_long = self.column.heightForWidth(widest) > self._long_height
        self._natural = self.column.natural_width() if len(self._blocks) == 1 else _WIDE
        lines = self.message.content.strip("\n").count("\n") + 1
        words = plural(lines, "Show all, {count} line", "Show all, {count} lines") if lines > _LONG else _("Show all")
        words, arrow = (words, "▾") if self.folded else (_("Show less"), "▴")
        self.more.setText(f"{words} {arrow}")
        self.more.setAccessibleName(words)
        self.more.setVisible(self._is_long)
        if not self.complete:
            QTimer.singleShot(0, self, self._go_on)

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

    @property
    def _more_height(self) -> int:
        return self.more.sizeHint().height() if self._is_long else 0

    def _text_height(self, width: int) -> int:
        if not self._has_words:
            return 0
        return self._folded_height if self.folded and self._is_long else self.column.heightForWidth(width)

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
