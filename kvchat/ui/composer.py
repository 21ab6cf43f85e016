"""Where the user writes: Enter sends, Shift+Enter makes a line; Send turns into Stop while a reply runs."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPlainTextEdit, QPushButton, QVBoxLayout, QWidget

from kvchat.ui.fonts import page_font
from kvchat.ui.icons import icon, stop_icon
from kvchat.ui.theme import Look

_MOST_LINES = 8


class _Editor(QPlainTextEdit):
    """A plain text field that sends on Enter."""

    send_pressed = Signal()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Enter sends; with Shift (or Alt) it is a new line."""
        enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if enter and not event.modifiers() & (Qt.KeyboardModifier.ShiftModifier | Qt.KeyboardModifier.AltModifier):
            self.send_pressed.emit()
        else:
            super().keyPressEvent(event)


class Composer(QWidget):
    """The message being written, and the button beside it."""

    sent = Signal(str)
    stop_requested = Signal()

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._look = look
        self._busy = False
        self.editor = _Editor()
        self.editor.setAccessibleName("Message")
        self.editor.setPlaceholderText("Message…")
        self.editor.setTabChangesFocus(True)
        self.editor.setFont(page_font(look.type.family, look.type.body))
        self.editor.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.editor.send_pressed.connect(self._send)
        self.editor.textChanged.connect(self._text_changed)
        self.editor.document().documentLayout().documentSizeChanged.connect(self._fit)
        self.editor.installEventFilter(self)
        self.button = QPushButton()
        self.button.setProperty("kind", "send")
        self.button.setFixedSize(32, 32)
        self.button.setIconSize(QSize(20, 20))
        self.button.clicked.connect(self._pressed)
        self._frame = QFrame()
        self._frame.setProperty("kind", "composer")
        row = QHBoxLayout(self._frame)
        row.setContentsMargins(16, 6, 8, 6)
        row.setSpacing(8)
        row.addWidget(self.editor, 1, Qt.AlignmentFlag.AlignVCenter)
        row.addWidget(self.button, 0, Qt.AlignmentFlag.AlignBottom)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self._frame)
        look.changed.connect(self._show_button)
        self._fit()
        self._show_button()

    @property
    def draft(self) -> str:
        """What has been written and not sent."""
        return self.editor.toPlainText()

    def set_draft(self, text: str) -> None:
        """Put back what was written for another conversation."""
        self.editor.setPlainText(text)
        self.editor.moveCursor(self.editor.textCursor().MoveOperation.End)

    def set_busy(self, busy: bool) -> None:
        """Whether a reply runs in this conversation: then the button stops it."""
        self._busy = busy
        self._show_button()

    def take(self, text: str) -> None:
        """Go on writing with this, which was typed elsewhere."""
        self.editor.setFocus()
        self.editor.insertPlainText(text)

    def focus(self) -> None:
        """Put the cursor here."""
        self.editor.setFocus()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """The frame shows that the field has the focus."""
        if event.type() in (QEvent.Type.FocusIn, QEvent.Type.FocusOut):
            self._frame.setProperty("focused", "true" if event.type() == QEvent.Type.FocusIn else "false")
            self._frame.style().unpolish(self._frame)
            self._frame.style().polish(self._frame)
        return super().eventFilter(watched, event)

    def _pressed(self) -> None:
        if self._busy:
            self.stop_requested.emit()
        else:
            self._send()

    def _send(self) -> None:
        text = self.draft.strip()
        if text and not self._busy:
            self.editor.clear()
            self.sent.emit(text)

    def _text_changed(self) -> None:
        self._show_button()

    def _show_button(self) -> None:
        theme = self._look.theme
        can_send = bool(self.draft.strip())
        self.button.setEnabled(self._busy or can_send)
        if self._busy:
            self.button.setIcon(stop_icon(theme.on_accent))
        else:
            self.button.setIcon(icon("arrow-up", theme.on_accent if can_send else theme.muted))
        words = "Stop" if self._busy else "Send"
        self.button.setAccessibleName(words)
        self.button.setToolTip("Stop the reply (Esc)" if self._busy else "Send (Enter)")

    def _fit(self) -> None:
        line = self.editor.fontMetrics().lineSpacing()
        wanted = round(self.editor.document().size().height())  # a plain text document counts in lines
        lines = max(1, min(wanted, _MOST_LINES))
        policy = Qt.ScrollBarPolicy.ScrollBarAsNeeded if wanted > _MOST_LINES else Qt.ScrollBarPolicy.ScrollBarAlwaysOff
        self.editor.setVerticalScrollBarPolicy(policy)
        margins = round(2 * self.editor.document().documentMargin())
        self.editor.setFixedHeight(lines * line + margins + 1)
