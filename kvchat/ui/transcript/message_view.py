"""The base class of messages in the transcript, the message editor, and the user's messages."""

import time
from textwrap import shorten

from PySide6.QtCore import QEvent, QObject, QRect, Qt, QTimer, Signal
from PySide6.QtGui import QAccessible, QEnterEvent, QFont, QGuiApplication, QKeyEvent, QResizeEvent, QTextCursor
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QStyle, QTextEdit, QWidget

from kvchat.chat.record.messages import Message, Role
from kvchat.text.language import _, plural
from kvchat.ui.attachments.chips import ChipRows
from kvchat.ui.base.building import button, column, label, row, styled
from kvchat.ui.rendering.markdown import plain_blocks
from kvchat.ui.rendering.text_page import PageStyle
from kvchat.ui.transcript.footer import MessageActions, MessageRequest, RequestKind
from kvchat.ui.transcript.part_column import PartColumn
from kvchat.ui.widgets.layouts import COLUMN_WIDTH

_MIN_LINES, _MAX_LINES = 2, 18  # visible lines of the editor
_MAX_NAME = 80  # characters
BUILD_STEP_MS = 16.0  # maximum time per step while a long message is built
_BUBBLE_SHARE = 0.84  # of the column width
_UNLIMITED = 1 << 15  # pixels, wider than any column
_BUBBLE_X, _BUBBLE_TOP, _BUBBLE_BOTTOM = 16, 12, 8  # pixels inside the bubble's edges
_BELOW_CHIPS = 8  # pixels
_FOLDED_LINES, _FOLD_FROM = 9, 14  # lines shown when folded, and lines that trigger folding


def shorten_name(name: str) -> str:
    return shorten(name[: 2 * _MAX_NAME], _MAX_NAME, placeholder="…")


class MessageEditor(QFrame):
    """Editor of a message's text. Esc cancels; Ctrl+Enter finishes, and so does Enter if `finishes_on_enter`."""

    finished = Signal(str)
    canceled = Signal()
    changed = Signal()  # its height may have changed

    def __init__(
        self, text: str, font: QFont, action: str, hint: str, *, finishes_on_enter: bool, parent: QWidget
    ) -> None:
        super().__init__(parent)
        self._finishes_on_enter = finishes_on_enter
        styled(self, "composer").setProperty("focused", "true")
        self.field = QPlainTextEdit(text)
        self.field.setFont(font)
        self.field.setAccessibleName(_("Edit the message"))
        self.field.setTabChangesFocus(True)
        self.field.installEventFilter(self)
        self.field.document().documentLayout().documentSizeChanged.connect(lambda _: self.changed.emit())
        self.field.textChanged.connect(self._update_button)
        cancel, self.button = button(_("Cancel"), self.canceled), button(action, self._finish, "primary")
        below = row((label(hint, "small", wraps=True), 1), cancel, self.button, spacing=8)
        self._column = column(self.field, below, on=self, spacing=6, margins=(14, 8, 10, 10))
        self._update_button()

    def needed_height(self, width: int) -> int:
        self.field.setFixedWidth(max(width - 26, 80))  # the lines must wrap as they will when shown
        lines = round(self.field.document().size().height())  # plain text documents count in lines
        margin = round(2 * self.field.document().documentMargin())
        height = max(_MIN_LINES, min(lines, _MAX_LINES)) * self.field.fontMetrics().lineSpacing()
        self.field.setFixedHeight(height + margin + 2)
        return self._column.totalHeightForWidth(width)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Handle Esc and Enter before the window's shortcuts do."""
        if not isinstance(event, QKeyEvent) or event.type() == QEvent.Type.KeyRelease:
            return False
        is_escape = event.key() == Qt.Key.Key_Escape
        if event.type() == QEvent.Type.ShortcutOverride:
            event.setAccepted(is_escape)
            return is_escape
        shift, ctrl = Qt.KeyboardModifier.ShiftModifier, Qt.KeyboardModifier.ControlModifier
        if is_escape:
            self.canceled.emit()
        elif event.key() not in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            return False
        elif event.modifiers() & ctrl or (self._finishes_on_enter and not event.modifiers() & shift):
            self._finish()
        else:
            self.field.textCursor().insertBlock()
            self.field.ensureCursorVisible()
        return True

    def _finish(self) -> None:
        if self.button.isEnabled():
            self.finished.emit(self.field.toPlainText().strip())

    def _update_button(self) -> None:
        self.button.setEnabled(bool(self.field.toPlainText().strip()))


class MessageView(QWidget):
    """Base class of user messages and replies. Connect its signals before the content is built."""

    accessible_role = QAccessible.Role.Grouping
    changed = Signal()  # its height may have changed
    toggled = Signal()  # the user folded or unfolded something
    text_added = Signal(QTextEdit)
    link_activated = Signal(str)
    requested = Signal(MessageRequest)

    def __init__(self, style: PageStyle, message: Message, name: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.message = message
        self.page_style = style
        self.setAccessibleName(shorten_name(name))
        self.column = PartColumn(style, name)
        self.column.text_added.connect(self.text_added)
        self.column.link_activated.connect(self.link_activated)
        self.action_row = MessageActions(style, self)
        self.action_row.add_time(message.created_at)
        self.chips: ChipRows | None = None  # attachments
        self.editor: MessageEditor | None = None  # while the message is edited
        self._hidden_widgets: list[QWidget] = []  # hidden while the editor is open
        if siblings := message.siblings:
            position, count = siblings.index(message.id), len(siblings)
            self.action_row.add_pager(position, count, lambda to: self._request(RequestKind.SWITCH, siblings[to]))

    @property
    def texts(self) -> list[QTextEdit]:
        return self.column.texts

    def unfold(self) -> None:
        """Show the whole message if it is folded."""

    def edit(self, text: str | None = None) -> None:
        """Let the user edit the message in place, beginning with `text` or, by default, the message's own text."""
        if self.editor is not None:
            return
        is_user = self.message.role is Role.USER
        action, hint = _("Save"), _("The old reply stays in its own branch.")
        if is_user:
            action, hint = _("Send"), _("The later messages stay in their own branch.")
        old = self.message.content.strip("\n") if text is None else text
        self.editor = MessageEditor(old, self.page_style.font, action, hint, finishes_on_enter=is_user, parent=self)
        self.editor.finished.connect(lambda text: self._request(RequestKind.EDIT, text))
        self.editor.canceled.connect(self.end_edit)
        self.editor.changed.connect(self.changed)
        parts = self.findChildren(QWidget, options=Qt.FindChildOption.FindDirectChildrenOnly)
        self._hidden_widgets = [part for part in parts if part is not self.editor and not part.isHidden()]
        for part in self._hidden_widgets:
            part.hide()
        self.editor.show()
        self.changed.emit()
        self.editor.field.moveCursor(QTextCursor.MoveOperation.End)
        if text is None:
            self.editor.field.setFocus()

    def end_edit(self) -> None:
        if self.editor is None:
            return
        self.editor.setParent(None)
        self.editor.deleteLater()
        self.editor = None
        for part in self._hidden_widgets:
            part.show()
        self.changed.emit()

    def _request(self, kind: RequestKind, text: str = "") -> None:
        self.requested.emit(MessageRequest(kind, self.message, text))

    def enterEvent(self, event: QEnterEvent) -> None:
        self.action_row.is_hovered = True
        self.action_row.update()

    def leaveEvent(self, event: QEvent) -> None:
        self.action_row.is_hovered = False
        self.action_row.update()


class UserView(MessageView):
    def __init__(self, style: PageStyle, message: Message, parent: QWidget | None = None) -> None:
        super().__init__(style, message, _("You: {content}", content=message.content[:500]), parent)
        self._bubble = styled(QFrame(self), "bubble")
        self._clip = QWidget(self._bubble)  # clips the folded text
        self.column.setParent(self._clip)
        self.fold_button = button("", lambda: self._set_folded(not self.folded), "link")
        self.fold_button.setParent(self._bubble)
        self.folded: bool = True
        line = style.line_height * 135 / 148  # as in plain paragraphs
        self._folded_height, self._long_height = round(line * _FOLDED_LINES), round(line * _FOLD_FROM)
        if message.attachments:
            self.chips = ChipRows(style.look, self._bubble)
            self.chips.show_attachments(message.attachments, removable=False)
        add = self.action_row.add_button
        add("copy", _("Copy this message"), lambda: QGuiApplication.clipboard().setText(message.content))
        add("edit", _("Edit this message"), self.edit)
        add("trash", _("Delete this message and everything after it"), lambda: self._request(RequestKind.DELETE))
        self._blocks = plain_blocks(message.content.strip("\n"))
        self._has_text = bool(message.content.strip()) or not message.attachments
        self._built_blocks = 0
        self._natural_width = 0
        self._is_long = False

    @property
    def is_complete(self) -> bool:
        return self._built_blocks == len(self._blocks) or (self.folded and self._is_long)

    def build(self) -> None:
        """Create text blocks for a few milliseconds, and schedule the rest."""
        until = time.thread_time() + BUILD_STEP_MS / 1000
        while not self.is_complete and time.thread_time() < until:
            self._built_blocks += 1
            self.column.show_blocks(self._blocks[: self._built_blocks])
            # Folding is decided at the column's full width.
            max_width = int(self.page_style.look.px(COLUMN_WIDTH) * _BUBBLE_SHARE) - 2 * _BUBBLE_X
            self._is_long = self.column.heightForWidth(max_width) > self._long_height
        self._natural_width = self.column.natural_width() if len(self._blocks) == 1 else _UNLIMITED
        lines = self.message.content.strip("\n").count("\n") + 1
        text, arrow = _("Show all"), "▾"
        if not self.folded:
            text, arrow = _("Show less"), "▴"
        elif lines > _FOLD_FROM:
            text = plural(lines, "Show all, {count} line", "Show all, {count} lines")
        self.fold_button.setText(f"{text} {arrow}")
        self.fold_button.setAccessibleName(text)
        self.fold_button.setVisible(self._is_long)
        if not self.is_complete:
            QTimer.singleShot(0, self, self._build_rest)

    def _build_rest(self) -> None:
        self.build()
        self.changed.emit()

    def heightForWidth(self, width: int) -> int:
        if self.editor is not None:
            return self.editor.needed_height(width)
        _width, *heights = self._measure_parts(width)
        return sum(heights) + _BUBBLE_TOP + _BUBBLE_BOTTOM + self.action_row.sizeHint().height()

    def resizeEvent(self, event: QResizeEvent | None) -> None:
        if self.editor is not None:
            self.editor.setGeometry(self.rect())
        width, chips, text, more = self._measure_parts(self.width())
        actions = self.action_row.sizeHint()
        height, wide = self.height() - actions.height(), width + 2 * _BUBBLE_X
        bubble = QRect(self.width() - wide, 0, wide, height)
        below = QRect(self.width() - actions.width(), height, actions.width(), actions.height())
        for part, box in ((self._bubble, bubble), (self.action_row, below)):
            part.setGeometry(QStyle.visualRect(self.layoutDirection(), self.rect(), box))
        if self.chips is not None:
            self.chips.setGeometry(_BUBBLE_X, _BUBBLE_TOP, width, self.chips.heightForWidth(width))
        self._clip.setGeometry(_BUBBLE_X, _BUBBLE_TOP + chips, width, text)
        self.column.setGeometry(0, 0, width, self.column.heightForWidth(width))
        more_width = min(self.fold_button.sizeHint().width(), width)
        self.fold_button.setGeometry(_BUBBLE_X, height - _BUBBLE_BOTTOM - more, more_width, more)

    def _measure_parts(self, available: int) -> tuple[int, int, int, int]:
        """Return the text's width, and the heights of attachments, visible text and fold button, in pixels."""
        natural, chips, text = self._natural_width, 0, 0
        if self.chips is not None:
            natural = max(natural, self.chips.sizeHint().width())
        width = min(natural, int(available * _BUBBLE_SHARE) - 2 * _BUBBLE_X)
        if self.chips is not None:
            chips = self.chips.heightForWidth(width) + (_BELOW_CHIPS if self._has_text else 0)
        if self._has_text:
            text = self._folded_height if self.folded and self._is_long else self.column.heightForWidth(width)
        return width, chips, text, self.fold_button.sizeHint().height() if self._is_long else 0

    def unfold(self) -> None:
        if self.folded and self._is_long:
            self._set_folded(False)
            while not self.is_complete:
                self.build()
            self.changed.emit()

    def _set_folded(self, folded: bool) -> None:
        self.folded = folded
        self.build()
        self.resizeEvent(None)
        self.toggled.emit()
