"""The base class of messages in the transcript, the message editor, and the user's messages."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from textwrap import shorten

from PySide6.QtCore import QEvent, QMargins, QObject, QRect, Qt, Signal
from PySide6.QtGui import QAccessible, QEnterEvent, QFont, QFontMetricsF, QGuiApplication, QKeyEvent, QTextCursor
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QTextEdit, QWidget

from kvchat.chat.record.messages import Message, Role
from kvchat.text.language import _, plural
from kvchat.ui.attachments.chips import ChipRows
from kvchat.ui.base.building import STRETCH, button, column, label, row, styled
from kvchat.ui.rendering.code_view import CodeView
from kvchat.ui.rendering.markdown import Code, plain_blocks
from kvchat.ui.rendering.text_page import PageStyle, TextPage
from kvchat.ui.transcript.footer import Action, MessageActions, MessageRequest, ReplyFooter, RequestKind
from kvchat.ui.transcript.parts import MAX_HEIGHT, Part, Row
from kvchat.ui.widgets.layouts import COLUMN_WIDTH, ElidedButton

_MIN_LINES, _MAX_LINES = 2, 18  # visible lines of the editor
_MAX_NAME = 80  # characters
_BUBBLE_SHARE = 0.84  # of the column width
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

    def heightForWidth(self, width: int) -> int:
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


class ToggleRow(QWidget):
    """A row with a button that folds or unfolds something."""

    def __init__(self, kind: str, on_click: Callable[[], object], tone: str = "") -> None:
        super().__init__()
        self.toggle_button = styled(ElidedButton(kind), kind, tone)
        self.toggle_button.mode = Qt.TextElideMode.ElideMiddle
        self.toggle_button.clicked.connect(on_click)
        self.toggle_button.setCursor(Qt.CursorShape.PointingHandCursor)
        row(self.toggle_button, STRETCH, on=self, margins=0)

    def show_state(self, state: tuple[str, str, str]) -> None:
        text, tail, name = state
        self.toggle_button.set_text(text, tail)
        self.toggle_button.setAccessibleName(name)

    def heightForWidth(self, width: int) -> int:
        return self.toggle_button.sizeHint().height()


class MessageView(QWidget):
    """A message. It contains the widgets of its parts near the viewport, which the column creates and places.

    A subclass lists the parts in `message_parts`.
    """

    accessible_role = QAccessible.Role.Grouping
    changed = Signal()  # its parts or their heights may have changed
    layout_changed = Signal()  # the same, and several such signals may be handled together
    toggled = Signal()  # the user folded or unfolded something
    link_activated = Signal(str)
    edit_requested = Signal()
    requested = Signal(MessageRequest)

    def __init__(
        self, style: PageStyle, message: Message, name: str, frame: str, padding: QMargins, parent: QWidget | None
    ) -> None:
        """`frame` is the style of the frame around the parts that are in it."""
        super().__init__(parent)
        self.message, self.page_style, self._name = message, style, name
        self.setAccessibleName(shorten_name(name))
        self._frame, self._padding = styled(QFrame(self), frame), padding
        self.rows: list[Row] = []  # of its parts; the column keeps them up to date
        self.is_last = False
        self.is_complete = True  # no text is left to parse
        self.unparsed_share = 0.0  # share of the text that is not in `parts` yet
        self.editor: MessageEditor | None = None  # while the message is edited

    @property
    def parts(self) -> Sequence[Part]:
        editor = self.editor
        return self.message_parts() if editor is None else [Part(MessageEditor, make=lambda: editor)]

    @property
    def texts(self) -> list[QTextEdit]:
        return [row.text for row in self.rows if row.text is not None]

    @property
    def action_row(self) -> MessageActions | None:
        last = self.rows[-1].widget if self.rows else None
        last = last.action_row if isinstance(last, ReplyFooter) else last
        return last if isinstance(last, MessageActions) else None

    @property
    def chips(self) -> ChipRows | None:
        return next((row.widget for row in self.rows if isinstance(row.widget, ChipRows)), None)

    def message_parts(self) -> Sequence[Part]:
        raise NotImplementedError

    def message_actions(self) -> list[Action]:
        raise NotImplementedError

    def create_part(self, part: Part) -> QWidget:
        if part.make is not None:
            return part.make()
        if part.widget_class is CodeView:
            block = part.blocks[0]
            assert isinstance(block, Code)
            code = CodeView(self.page_style, block.language, part.state, self)
            code.body.grown.connect(self.changed)
            return code
        assert issubclass(part.widget_class, TextPage)
        page = part.widget_class(self.page_style, self._name, self)
        page.anchorClicked.connect(lambda url: self.link_activated.emit(url.toString()))
        return page

    def make_chips(self) -> ChipRows:
        chips = ChipRows(self.page_style.look)
        chips.show_attachments(self.message.attachments, removable=False)
        return chips

    def make_actions(self) -> MessageActions:
        look, switch = self.page_style.look, partial(self._request, RequestKind.SWITCH)
        actions = MessageActions(look, self.message, self.message_actions(), switch)
        actions.is_last, actions.is_hovered = self.is_last, self.underMouse()
        return actions

    def make_muted_page(self, name: str) -> TextPage:
        return TextPage(self.page_style.with_muted_text(), name, self)

    def part_box(self, part: Part, width: int) -> tuple[int, int]:
        """Return the left edge and the width of a part in a message of this width."""
        return part.indent, width - part.indent

    def place_frame(self) -> None:
        framed = [row for row in self.rows if row.part.is_framed]
        self._frame.setVisible(bool(framed))
        if framed:
            part = framed[0].part
            left, width = self.part_box(part, self.width())
            top = framed[0].top + part.gap
            content = QRect(left, top - self.rows[0].top, width, framed[-1].bottom - top)
            self._frame.setGeometry(content.marginsAdded(self._padding))

    def unfold(self) -> None:
        """Show the whole message if it is folded."""

    def edit(self, text: str | None = None, kind: RequestKind = RequestKind.EDIT) -> None:
        """Let the user edit the message in place, beginning with `text` or, by default, the message's own text."""
        if self.editor is not None:
            return
        is_user = self.message.role is Role.USER
        action, hint = _("Save"), _("The old reply stays in its own branch.")
        if is_user:
            action, hint = _("Send"), _("The later messages stay in their own branch.")
        old = self.message.content.strip("\n") if text is None else text
        self.editor = MessageEditor(old, self.page_style.font, action, hint, finishes_on_enter=is_user, parent=self)
        self.editor.finished.connect(lambda text: self._request(kind, text))
        self.editor.canceled.connect(self.end_edit)
        self.editor.changed.connect(self.changed)
        self.editor.field.moveCursor(QTextCursor.MoveOperation.End)
        self.changed.emit()

    def end_edit(self) -> None:
        if self.editor is not None:
            self.editor = None
            self.changed.emit()

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.LayoutRequest:
            self.layout_changed.emit()
        return super().event(event)

    def enterEvent(self, event: QEnterEvent) -> None:
        self._set_hovered(True)

    def leaveEvent(self, event: QEvent) -> None:
        self._set_hovered(False)

    def _set_hovered(self, hovered: bool) -> None:
        if self.action_row is not None:
            self.action_row.is_hovered = hovered
            self.action_row.update()

    def _request(self, kind: RequestKind, text: str = "") -> None:
        self.requested.emit(MessageRequest(kind, self.message, text))


class UserView(MessageView):
    def __init__(self, style: PageStyle, message: Message, parent: QWidget | None = None) -> None:
        padding = QMargins(_BUBBLE_X, _BUBBLE_TOP, _BUBBLE_X, _BUBBLE_BOTTOM)
        super().__init__(style, message, _("You: {content}", content=message.content[:500]), "bubble", padding, parent)
        self.is_folded = True
        self._blocks = plain_blocks(message.content.strip("\n"))
        metrics, lines = QFontMetricsF(style.font), self._blocks[0].source.rstrip("\n").split("\n")
        widths = [math.ceil(metrics.horizontalAdvance(line)) + 1 for line in lines]
        max_width = self._max_text_width(style.look.px(COLUMN_WIDTH))
        self._is_long = len(self._blocks) > 1 or sum(width // max_width + 1 for width in widths) > _FOLD_FROM
        self._natural_width = max(widths) if len(self._blocks) == 1 else max_width
        self._folded_height = round(style.line_height * 135 / 148 * _FOLDED_LINES)  # as in plain paragraphs

    def message_parts(self) -> Sequence[Part]:
        message, is_folded = self.message, self._is_long and self.is_folded
        parts: list[Part] = []
        if message.attachments:
            parts.append(Part(ChipRows, state=message.attachments, is_framed=True, make=self.make_chips))
        if message.content.strip() or not message.attachments:
            gap, max_height = _BELOW_CHIPS if parts else 0, self._folded_height if is_folded else MAX_HEIGHT
            for block in self._blocks[:1] if is_folded else self._blocks:
                parts.append(Part(TextPage, (block,), gap=gap, is_framed=True, max_height=max_height))
                gap = 0
        if self._is_long:
            lines = message.content.strip("\n").count("\n") + 1
            text, arrow = (_("Show all"), "▾") if is_folded else (_("Show less"), "▴")
            if is_folded and lines > _FOLD_FROM:
                text = plural(lines, "Show all, {count} line", "Show all, {count} lines")
            make = partial(ToggleRow, "link", self._toggle_fold)
            parts.append(Part(ToggleRow, state=(text, arrow, text), is_framed=True, make=make))
        parts[0] = replace(parts[0], gap=_BUBBLE_TOP)
        return [*parts, Part(MessageActions, gap=_BUBBLE_BOTTOM, make=self.make_actions)]

    def message_actions(self) -> list[Action]:
        delete = lambda: self._request(RequestKind.DELETE)  # noqa: E731
        return [
            Action("copy", _("Copy this message"), lambda: QGuiApplication.clipboard().setText(self.message.content)),
            Action("edit", _("Edit this message"), self.edit_requested.emit),
            Action("trash", _("Delete this message and everything after it"), delete),
        ]

    def part_box(self, part: Part, width: int) -> tuple[int, int]:
        if not part.is_framed:
            return super().part_box(part, width)
        natural = max(self._natural_width, self.chips.sizeHint().width() if self.chips is not None else 0)
        own = min(natural, self._max_text_width(width))
        return _BUBBLE_X if self.isRightToLeft() else width - _BUBBLE_X - own, own

    def unfold(self) -> None:
        if self.is_folded:
            self.is_folded = False
            self.changed.emit()

    def _toggle_fold(self) -> None:
        self.is_folded = not self.is_folded
        self.toggled.emit()

    def _max_text_width(self, width: int) -> int:
        return int(width * _BUBBLE_SHARE) - 2 * _BUBBLE_X
