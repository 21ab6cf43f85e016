"""The message being written is where the keyboard is at home: what is typed elsewhere in the window goes there."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QRectF, Qt, QTimer
from PySide6.QtGui import QFocusEvent, QInputMethodEvent, QInputMethodQueryEvent, QKeyEvent
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSpinBox,
    QApplication,
    QComboBox,
    QLineEdit,
    QMenu,
    QPlainTextEdit,
    QTextEdit,
    QWidget,
)
from shiboken6 import isValid

from kvchat.ui.chat.composer import Composer
from kvchat.ui.messages.message_actions import MessageRequest, Request
from kvchat.ui.transcript.transcript import Transcript

_COMMANDS = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier | Qt.KeyboardModifier.MetaModifier


class FocusHome(QObject):
    """Watches whoever of the window has the keyboard: nobody else, for a filter in Python is slow."""

    def __init__(self, window: QWidget, composer: Composer, page: Transcript) -> None:
        super().__init__(window)
        self._window, self._composer = window, composer
        self._watched: QWidget | None = None
        self._left: QWidget | None = None  # had the keyboard before
        self._left_field = False  # and one wrote there
        self._away = False  # another window of ours has the keyboard
        self._due = False  # it was a click, or the way back from another window
        self._settler = QTimer(self, singleShot=True, interval=0)  # Qt itself looks for who gets the keyboard first
        self._settler.timeout.connect(self._settle)
        page.message_requested.connect(self._requested)
        app = QApplication.instance()
        assert isinstance(app, QApplication)
        app.focusChanged.connect(self._moved)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if not self._composer.isVisible():
            return False
        is_button = isinstance(watched, QAbstractButton)
        match event:
            case QKeyEvent() if event.type() == QEvent.Type.KeyPress and is_typing(event):
                if is_button and event.key() == Qt.Key.Key_Space:
                    return False
                self._composer.take(event.text())
                return True
            case QInputMethodEvent() if not is_button or event.preeditString() or event.commitString():
                QApplication.sendEvent(self._composer.editor, event)
                if event.commitString():
                    self._composer.focus()
                return True
            case QInputMethodQueryEvent():
                self._answer(watched, event)
                return True
            case QFocusEvent() if is_button and event.reason() is Qt.FocusReason.PopupFocusReason and event.gotFocus():
                self._clicked()
            case _ if is_button and event.type() == QEvent.Type.MouseButtonRelease:
                self._clicked()
        return False

    def _moved(self, old: QWidget | None, now: QWidget | None) -> None:
        if self._watched is not None and isValid(self._watched):
            self._watched.removeEventFilter(self)
        self._watched = None
        if now is not None and now.window() is not self._window:
            self._away = True
            return
        self._left, self._left_field = old, old is not None and is_field(old)
        if now is None:
            return
        self._due |= self._away
        self._away = False
        self._settler.start()
        if not is_field(now):
            self._watched = now
            now.installEventFilter(self)
            now.setAttribute(Qt.WidgetAttribute.WA_InputMethodEnabled)

    def _requested(self, requested: MessageRequest) -> None:
        if requested.run is not Request.SWITCH:  # who goes through branches by key goes on
            self._composer.focus()

    def _settle(self) -> None:
        """Give the composer the keyboard if a button was clicked, or if the widget that had the keyboard is gone."""
        due, self._due = self._due, False
        left, self._left = self._left, None
        if (
            not self._composer.isVisible()
            or not self._window.isActiveWindow()
            or QApplication.activePopupWidget() is not None
        ):
            return
        now = QApplication.focusWidget()
        gone = left is not None and not (isValid(left) and left.isVisible() and left.isEnabled())
        if now is None or (gone and self._left_field) or ((due or gone) and isinstance(now, QAbstractButton)):
            self._composer.focus()

    def _clicked(self) -> None:
        self._due = True
        self._settler.start()

    def _answer(self, watched: QObject, event: QInputMethodQueryEvent) -> None:
        """Answer an input method from the composer, translated to the place of the focused widget."""
        editor = self._composer.editor
        for query in Qt.InputMethodQuery:
            if event.queries() & query and query.value.bit_count() == 1:
                answer = True if query is Qt.InputMethodQuery.ImEnabled else editor.inputMethodQuery(query)
                if isinstance(answer, QRectF) and isinstance(watched, QWidget):
                    answer.moveTopLeft(watched.mapFromGlobal(editor.mapToGlobal(answer.topLeft())))
                event.setValue(query, answer)


def is_typing(event: QKeyEvent) -> bool:
    return event.text().isprintable() and bool(event.text()) and not event.modifiers() & _COMMANDS


def is_field(widget: QWidget) -> bool:
    """Return True if the widget takes text, or gives letters a meaning of its own."""
    if isinstance(widget, QTextEdit | QPlainTextEdit):
        return not widget.isReadOnly()
    return isinstance(widget, QLineEdit | QComboBox | QAbstractSpinBox | QMenu | QAbstractItemView)
