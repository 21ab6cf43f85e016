"""The keyboard of the main window: its shortcuts, and where typed text goes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from PySide6.QtCore import QEvent, QObject, QRectF, Qt, QTimer
from PySide6.QtGui import QFocusEvent, QInputMethodEvent, QInputMethodQueryEvent, QKeyEvent, QKeySequence
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

from kvchat.chat.options import Preset, chat_from_preset
from kvchat.runtime import Runtime
from kvchat.settings import ZOOMS
from kvchat.text.language import _
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.chat.composer import Composer, MessageField
from kvchat.ui.commands import SHORTCUTS, Palette, PaletteEntry, ShortcutSheet, install_shortcuts
from kvchat.ui.controllers.chat import ChatController
from kvchat.ui.transcript.footer import MessageRequest, Request
from kvchat.ui.transcript.transcript import Transcript


class KeyboardController(QObject):
    """Install the window's shortcuts, open palette and sheet.

    handlers: the window's action handlers, except those of this class; senseless: returns the actions that would
    do nothing now; field: has the focus most of the time
    """

    def __init__(
        self,
        runtime: Runtime,
        chat: ChatController,
        runner: TaskRunner,
        window: QWidget,
        field: MessageField,
        handlers: Mapping[str, Callable[[], object]],
        senseless: Callable[[], Collection[str]],
    ) -> None:
        super().__init__(window)
        self._senseless = senseless
        self._runtime, self._chat, self._runner, self._window = runtime, chat, runner, window
        self._handlers = {
            **handlers,
            "palette": self.open_palette,
            "shortcuts": self.open_sheet,
            "larger": lambda: self._zoom(1),
            "smaller": lambda: self._zoom(-1),
            "normal": lambda: self._change("zoom", 100),
            "dark": lambda: self._change("theme", "dark"),
            "light": lambda: self._change("theme", "light"),
            "like-system": lambda: self._change("theme", "system"),
            "numbers": lambda: self._change("show_numbers", not runtime.settings.show_numbers),
        }
        self.actions = install_shortcuts(window, self._handlers)
        self._field = field
        field.installEventFilter(self)
        field.slash_typed.connect(lambda: runner.start(self.offer_presets()))

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Leave Ctrl+Z to the window while the field, which claims it, has nothing to undo."""
        asked = event.type() == QEvent.Type.ShortcutOverride and isinstance(event, QKeyEvent)
        undo = asked and event.matches(QKeySequence.StandardKey.Undo)  # type: ignore[attr-defined]
        if undo and not self._field.document().isUndoAvailable():
            event.ignore()
            return True
        return super().eventFilter(watched, event)

    def do(self, action: str) -> None:
        self.actions[action].trigger()

    def open_palette(self) -> Palette:
        """Offer chats and actions. The open chat comes last: users search for a different one."""
        titles, current, senseless = self._chat.conversations.titles, self._chat.current, self._senseless()
        chats = [
            PaletteEntry(titles[id], _("chat"), partial(self._chat.open, id))
            for id in sorted(titles, key=lambda id: id == current)
        ]
        actions = [
            PaletteEntry(_(shortcut.title), shortcut.key_text, self._handlers[shortcut.action], _(shortcut.also))
            for shortcut in SHORTCUTS
            if shortcut.own and shortcut.in_palette and shortcut.action not in senseless
        ]
        palette = Palette(self._window, chats, actions)
        palette.open_over(self._window)
        return palette

    async def offer_presets(self) -> None:
        """Complete a slash at the start of a message to a preset name, which starts a new chat.

        Any other text typed goes into the message.
        """
        presets, field = await self._runtime.chat.options.presets(), self._field
        if not presets or field.toPlainText() != "/":
            return

        def begin_with(preset: Preset) -> None:
            async def begin() -> None:
                self._chat.open((await self._runtime.chat.create(chat_from_preset(preset))).id)

            field.clear()
            self._runner.start(begin())

        entries = [PaletteEntry(preset.name, _("new chat"), partial(begin_with, preset)) for preset in presets]
        palette = Palette(self._window, (), entries, _("Start a chat with a preset"))
        palette.dismissed.connect(field.insertPlainText)
        palette.open_over(self._window)

    def open_sheet(self) -> ShortcutSheet:
        sheet = ShortcutSheet(self._window)
        sheet.open()
        return sheet

    def _zoom(self, by: int) -> None:
        now = self._runtime.settings.zoom
        beyond = [size for size in ZOOMS if (size > now if by > 0 else size < now)]
        if beyond:
            self._change("zoom", min(beyond) if by > 0 else max(beyond))

    def _change(self, name: str, value: Any) -> None:
        settings = replace(self._runtime.settings, **{name: value})
        if settings != self._runtime.settings:
            self._runner.start(self._runtime.apply_settings(settings))


_COMMANDS = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier | Qt.KeyboardModifier.MetaModifier


class FocusController(QObject):
    """Watch only the focused widget of the window, because a Python event filter is slow."""

    def __init__(self, window: QWidget, composer: Composer, page: Transcript) -> None:
        super().__init__(window)
        self._window, self._composer = window, composer
        self._watched: QWidget | None = None
        self._left: QWidget | None = None  # previous focus widget
        self._left_field = False  # it was a text field
        self._away = False  # another kvchat window has the focus
        self._due = False  # after a click or a return from another window
        self._settler = QTimer(self, singleShot=True, interval=0)  # runs after Qt's own focus handling
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
                self._composer.insert_text(event.text())
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
        if requested.run is not Request.SWITCH:  # lets the user keep switching by key
            self._composer.focus()

    def _settle(self) -> None:
        """Focus the composer if a button was clicked or the focused widget is gone."""
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
        """Answer an input method from the composer, in coordinates of the focused widget."""
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
    """Return True if the widget takes text or uses letters as commands."""
    if isinstance(widget, QTextEdit | QPlainTextEdit):
        return not widget.isReadOnly()
    return isinstance(widget, QLineEdit | QComboBox | QAbstractSpinBox | QMenu | QAbstractItemView)
