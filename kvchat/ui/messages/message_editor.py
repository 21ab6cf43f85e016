"""A message being written anew, in its own place on the page."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QFont, QKeyEvent
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QWidget

from kvchat.ui.base.building import button, column, label, row, styled
from kvchat.words.language import _

_FEWEST, _MOST = 2, 18  # lines


class MessageEditor(QFrame):
    """The words in a field, and what becomes of them. Esc gives up, Ctrl+Enter does it; `enter`: Enter does, too."""

    done = Signal(str)
    given_up = Signal()
    changed = Signal()  # it may be taller or shorter

    def __init__(self, text: str, font: QFont, action: str, hint: str, *, enter: bool, parent: QWidget) -> None:
        super().__init__(parent)
        self._enter = enter
        styled(self, "composer").setProperty("focused", "true")
        self.field = _Field(text)
        self.field.setFont(font)
        self.field.setAccessibleName(_("Edit the message"))
        self.field.setTabChangesFocus(True)
        self.field.key_pressed.connect(self._key)
        self.field.document().documentLayout().documentSizeChanged.connect(lambda _: self.changed.emit())
        self.field.textChanged.connect(self._show_button)
        cancel, self.button = button(_("Cancel"), self.given_up), button(action, self._finish, "primary")
        below = row((label(hint, "small", wraps=True), 1), cancel, self.button, spacing=8)
        self._column = column(self.field, below, on=self, spacing=6, margins=(14, 8, 10, 10))
        self._show_button()

    def needed_height(self, width: int) -> int:
        """How tall it is at that width."""
        self.field.setFixedWidth(max(width - 26, 80))  # so that its lines are broken as they will be
        line = self.field.fontMetrics().lineSpacing()
        lines = round(self.field.document().size().height())  # a plain text document counts in lines
        margin = round(2 * self.field.document().documentMargin())
        self.field.setFixedHeight(max(_FEWEST, min(lines, _MOST)) * line + margin + 2)
        return self._column.totalHeightForWidth(width)

    def _key(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.given_up.emit()
        else:
            shift, ctrl = Qt.KeyboardModifier.ShiftModifier, Qt.KeyboardModifier.ControlModifier
            if event.modifiers() & ctrl or (self._enter and not event.modifiers() & shift):
                self._finish()
            else:
                self.field.textCursor().insertBlock()
                self.field.ensureCursorVisible()

    def _finish(self) -> None:
        if self.button.isEnabled():
            self.done.emit(self.field.toPlainText().strip())

    def _show_button(self) -> None:
        self.button.setEnabled(bool(self.field.toPlainText().strip()))


class _Field(QPlainTextEdit):
    """Hands Esc and Enter over; Esc does not reach the window's shortcut while one writes here."""

    key_pressed = Signal(QKeyEvent)

    def event(self, event: QEvent) -> bool:
        """Take Esc before a shortcut does."""
        handled = super().event(event)
        if event.type() != QEvent.Type.ShortcutOverride or not isinstance(event, QKeyEvent):
            return handled
        if event.key() == Qt.Key.Key_Escape:
            event.accept()
        return True

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Escape, Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.key_pressed.emit(event)
        else:
            super().keyPressEvent(event)
