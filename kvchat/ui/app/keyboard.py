"""Keyboard control of the main window: its shortcuts, and which widget receives typed text."""

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
from kvchat.ui.transcript.footer import RequestKind
from kvchat.ui.transcript.transcript import Transcript


class KeyboardController(QObject):
    """The main window's shortcuts, command palette and list of shortcuts.

    `handlers` maps action names to functions; this class adds those for the palette, zoom and theme. `useless_actions`
    returns the actions that would have no effect now, which the palette omits. `field` is the message field.
    """

    def __init__(
        self,
        runtime: Runtime,
        chat: ChatController,
        runner: TaskRunner,
        window: QWidget,
        field: MessageField,
        handlers: Mapping[str, Callable[[], object]],
        useless_actions: Callable[[], Collection[str]],
    ) -> None:
        super().__init__(window)
        self._useless_actions = useless_actions
        self._runtime, self._chat, self._runner, self._window = runtime, chat, runner, window
        self._handlers = {
            **handlers,
            "palette": self.open_palette,
            "shortcuts": self.open_sheet,
            "larger": lambda: self._zoom(*(size for size in sorted(ZOOMS) if size > runtime.settings.zoom)),
            "smaller": lambda: self._zoom(*(size for size in sorted(ZOOMS)[::-1] if size < runtime.settings.zoom)),
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
        """Let the window handle Ctrl+Z while the message field has nothing to undo."""
        is_override = event.type() == QEvent.Type.ShortcutOverride and isinstance(event, QKeyEvent)
        is_undo = is_override and event.matches(QKeySequence.StandardKey.Undo)  # type: ignore[attr-defined]
        if is_undo and not self._field.document().isUndoAvailable():
            event.ignore()
            return True
        return super().eventFilter(watched, event)

    def run(self, action: str) -> None:
        self.actions[action].trigger()

    def open_palette(self) -> Palette:
        """Open the palette with all chats and actions. The open chat comes last, because users look for another one."""
        titles, current, useless = self._chat.conversations.titles, self._chat.current, self._useless_actions()
        chats = [
            PaletteEntry(titles[id], _("chat"), partial(self._chat.open, id))
            for id in sorted(titles, key=lambda id: id == current)
        ]
        actions = [
            PaletteEntry(_(entry.title), entry.key_text, self._handlers[entry.action], _(entry.terms))
            for entry in SHORTCUTS
            if entry.is_installed and entry.in_palette and entry.action not in useless
        ]
        return Palette(self._window, chats, actions)

    async def offer_presets(self) -> None:
        """Open a list of presets if the message is only a slash. Choosing a preset starts a new chat.

        If the list is closed without a choice, the text typed into it goes into the message.
        """
        presets, field = await self._runtime.chat.options.presets(), self._field
        if not presets or field.toPlainText() != "/":
            return

        async def begin(preset: Preset) -> None:
            field.clear()
            self._chat.open((await self._runtime.chat.create(chat_from_preset(preset))).id)

        def entry(preset: Preset) -> PaletteEntry:
            return PaletteEntry(preset.name, _("new chat"), lambda: self._runner.start(begin(preset)))

        palette = Palette(self._window, (), list(map(entry, presets)), _("Start a chat with a preset"))
        palette.dismissed.connect(field.insertPlainText)

    def open_sheet(self) -> ShortcutSheet:
        sheet = ShortcutSheet(self._window)
        sheet.open()
        return sheet

    def _zoom(self, *further: int) -> None:
        if further:
            self._change("zoom", further[0])

    def _change(self, name: str, value: Any) -> None:
        settings = replace(self._runtime.settings, **{name: value})
        if settings != self._runtime.settings:
            self._runner.start(self._runtime.apply_settings(settings))


_COMMANDS = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier | Qt.KeyboardModifier.MetaModifier


class FocusController(QObject):
    """Redirects typed text to the composer unless the focused widget handles it.

    It filters only the events of the focused widget, because a Python filter for all widgets would be slow.
    """

    def __init__(self, window: QWidget, composer: Composer, page: Transcript) -> None:
        super().__init__(window)
        self._window, self._composer = window, composer
        self._watched: QWidget | None = None
        self._previous: QWidget | None = None  # previous focus widget
        self._was_field = False  # the previous one was a text field
        self._is_away = False  # another kvchat window has the focus
        self._is_due = False  # after a click or a return from another window
        self._settler = QTimer(self, singleShot=True, interval=0)  # runs after Qt's own focus handling
        self._settler.timeout.connect(self._settle)
        page.message_requested.connect(  # switching keeps the focus, so that the user can go on by key
            lambda request: composer.focus() if request.kind is not RequestKind.SWITCH else None
        )
        app = QApplication.instance()
        assert isinstance(app, QApplication)
        app.focusChanged.connect(self._handle_focus_change)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if not self._composer.isVisible():
            return False
        is_button = isinstance(watched, QAbstractButton)
        match event:
            case QKeyEvent() if event.type() == QEvent.Type.KeyPress and (
                event.text().isprintable() and event.text() and not event.modifiers() & _COMMANDS
            ):
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
                self._handle_click()
            case _ if is_button and event.type() == QEvent.Type.MouseButtonRelease:
                self._handle_click()
        return False

    def _handle_focus_change(self, old: QWidget | None, now: QWidget | None) -> None:
        if self._watched is not None and isValid(self._watched):
            self._watched.removeEventFilter(self)
        self._watched = None
        if now is not None and now.window() is not self._window:
            self._is_away = True
            return
        self._previous, self._was_field = old, old is not None and handles_typing(old)
        if now is None:
            return
        self._is_due |= self._is_away
        self._is_away = False
        self._settler.start()
        if not handles_typing(now):
            self._watched = now
            now.installEventFilter(self)
            now.setAttribute(Qt.WidgetAttribute.WA_InputMethodEnabled)

    def _settle(self) -> None:
        """Focus the composer if a button was clicked or the focused widget is gone."""
        is_due, self._is_due = self._is_due, False
        previous, self._previous = self._previous, None
        is_active = self._composer.isVisible() and self._window.isActiveWindow()
        if not is_active or QApplication.activePopupWidget() is not None:
            return
        now = QApplication.focusWidget()
        is_gone = previous is not None and not (isValid(previous) and previous.isVisible() and previous.isEnabled())
        is_button = isinstance(now, QAbstractButton)
        if now is None or (is_gone and self._was_field) or ((is_due or is_gone) and is_button):
            self._composer.focus()

    def _handle_click(self) -> None:
        self._is_due = True
        self._settler.start()

    def _answer(self, watched: QObject, event: QInputMethodQueryEvent) -> None:
        """Answer an input method's query with the composer's values, in coordinates of the focused widget."""
        editor = self._composer.editor
        for query in Qt.InputMethodQuery:
            if event.queries() & query and query.value.bit_count() == 1:
                answer = True if query is Qt.InputMethodQuery.ImEnabled else editor.inputMethodQuery(query)
                if isinstance(answer, QRectF) and isinstance(watched, QWidget):
                    answer.moveTopLeft(watched.mapFromGlobal(editor.mapToGlobal(answer.topLeft())))
                event.setValue(query, answer)


def handles_typing(widget: QWidget) -> bool:
    """Return True if the widget handles typed letters itself, as text fields, menus and lists do."""
    if isinstance(widget, QTextEdit | QPlainTextEdit):
        return not widget.isReadOnly()
    return isinstance(widget, QLineEdit | QComboBox | QAbstractSpinBox | QMenu | QAbstractItemView)
