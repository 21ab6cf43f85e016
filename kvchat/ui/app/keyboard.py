"""Joins the table of shortcuts with what the window can do; opens the palette and the sheet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from PySide6.QtCore import QEvent, QObject
from PySide6.QtGui import QKeyEvent, QKeySequence
from PySide6.QtWidgets import QWidget

from kvchat.chat.options import Preset
from kvchat.runtime import Runtime
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import ZOOMS
from kvchat.ui.chat.message_field import MessageField
from kvchat.ui.commands.palette import Palette, PaletteEntry
from kvchat.ui.commands.shortcuts import SHORTCUTS, ShortcutSheet, install_shortcuts, shown_keys
from kvchat.ui.controllers.chat import ChatController
from kvchat.words.language import _


class Keyboard(QObject):
    """`handlers`: what the window does for each action of the table, save those of this class.

    `field` has the keyboard most of the time; `senseless` says which actions would do nothing now.
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
        """Leave Ctrl+Z to the window while the field has nothing to undo, although the field claims it."""
        asked = event.type() == QEvent.Type.ShortcutOverride and isinstance(event, QKeyEvent)
        undo = asked and event.matches(QKeySequence.StandardKey.Undo)  # type: ignore[attr-defined]
        if undo and not self._field.document().isUndoAvailable():
            event.ignore()
            return True
        return super().eventFilter(watched, event)

    def do(self, action: str) -> None:
        self.actions[action].trigger()

    def open_palette(self) -> Palette:
        palette = Palette(self._window, self._chats(), self._actions())
        palette.open_over(self._window)
        return palette

    async def offer_presets(self) -> None:
        """Complete a slash at the beginning of a message to the name of a preset, which begins a new chat.

        Whoever goes on with other words finds them in the message.
        """
        presets = await self._runtime.chat.options.presets()
        field, slash = self._field, self._field.toPlainText()
        if not presets or slash != "/":
            return
        begin, note = self._begin_with, _("new chat")
        entries = [PaletteEntry(preset.name, note, partial(begin, preset)) for preset in presets]
        palette = Palette(self._window, (), entries, _("Begin a chat with a preset"))
        palette.left.connect(field.insertPlainText)
        palette.open_over(self._window)

    def _begin_with(self, preset: Preset) -> None:
        async def begin() -> None:
            self._chat.open((await self._runtime.chat.begin(preset)).id)

        self._field.clear()
        self._runner.start(begin())

    def open_sheet(self) -> ShortcutSheet:
        sheet = ShortcutSheet(self._window)
        sheet.open()
        return sheet

    def _chats(self) -> Sequence[PaletteEntry]:
        """The open chat comes last: a user who looks for a chat is not there yet."""
        titles = self._chat.conversations.titles
        current = self._chat.current
        order = [id for id in titles if id != current] + [id for id in titles if id == current]
        return [PaletteEntry(titles[id], _("chat"), partial(self._chat.open, id)) for id in order]

    def _actions(self) -> Sequence[PaletteEntry]:
        senseless = self._senseless()
        return [
            PaletteEntry(_(shortcut.words), shown_keys(shortcut), self._handlers[shortcut.action], _(shortcut.also))
            for shortcut in SHORTCUTS
            if shortcut.own and shortcut.in_palette and shortcut.action not in senseless
        ]

    def _zoom(self, by: int) -> None:
        now = self._runtime.settings.zoom
        beyond = [size for size in ZOOMS if (size > now if by > 0 else size < now)]
        if beyond:
            self._change("zoom", min(beyond) if by > 0 else max(beyond))

    def _change(self, name: str, value: Any) -> None:
        settings = replace(self._runtime.settings, **{name: value})
        if settings != self._runtime.settings:
            self._runner.start(self._runtime.apply_settings(settings))
