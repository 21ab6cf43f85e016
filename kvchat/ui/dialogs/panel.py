"""Base class of the windows beside the main one: each shows its own errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from PySide6.QtCore import QPoint, QSize
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QPushButton, QWidget

from kvchat.chat.events import Event
from kvchat.errors import KvchatError
from kvchat.runtime import Runtime
from kvchat.ui.base.tasks import ErrorHandler, TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.notices import Notices
from kvchat.ui.widgets.layouts import RoomyDialog, keep_least, room_on_screen

_T = TypeVar("_T")


class Panel(RoomyDialog):
    """A window with notices of its own: one in the main window would stand behind it. Subclasses place `notices`."""

    def __init__(
        self,
        runtime: Runtime,
        look: Look,
        runner: TaskRunner,
        title: str,
        parent: QWidget | None = None,
        *,
        size: tuple[int, int] = (0, 0),
        least: tuple[int, int] = (0, 0),
    ) -> None:
        """size, least: pixels at 100 % text, scaled with it as far as the screen allows"""
        super().__init__(parent)
        self.setWindowTitle(title)
        self.setAccessibleName(title)
        self._runtime, self.runner = runtime, runner
        self.notices = Notices(look)
        self._look, self._least = look, least
        self.resize(self._scaled(size))
        look.changed.connect(self._need)  # what is no method would keep the window when it is long gone
        self._need()
        self._place: QPoint | None = None  # where its frame stood when it was closed
        self._sources: list[Callable[[], Callable[[], None]]] = []
        self._unsubscribe: list[Callable[[], None]] = []
        self.follow(runtime.events.subscribe, self._hear)

    def _hear(self, event: Event) -> None:
        """Handle an event of the runtime while the window is open."""

    def bring_forward(self) -> None:
        self.show()
        self.raise_()
        self.activateWindow()

    def follow(self, subscribe: Callable[[_T], Callable[[], None]], hear: _T) -> None:
        """Have `hear` called while the window is open. subscribe: returns a function that ends it"""
        self._sources.append(lambda: subscribe(hear))
        if self._unsubscribe:  # it is open
            self._unsubscribe.append(subscribe(hear))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not self._unsubscribe:
            self._unsubscribe = [subscribe() for subscribe in self._sources]

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        while self._unsubscribe:
            self._unsubscribe.pop()()

    def run(self, run: Coroutine[Any, Any, Any], on_error: ErrorHandler | None = None) -> asyncio.Task[Any]:
        """Start a task; its error is shown here, or in the main window once this is closed."""
        return self.runner.start(run, on_error or self.tell)

    def tell(self, error: KvchatError) -> None:
        if self.isVisible():
            self.notices.show_error(error)
        else:
            self.runner.on_error(error)

    def _need(self) -> None:
        self.least = self._scaled(self._least)
        keep_least(self, self.layout(), self.least)

    def _scaled(self, size: tuple[int, int]) -> QSize:
        return QSize(*map(self._look.px, size)).boundedTo(room_on_screen())

    def setVisible(self, visible: bool) -> None:
        """Enter confirms the field it is pressed in and presses no button; the window fits the screen.

        It opens where it stood: left to itself Qt takes the place of the frame for that of the contents.
        """
        for button in self.findChildren(QPushButton):
            button.setAutoDefault(False)
        if visible and not self.isVisible():
            self.resize(self.size().boundedTo(room_on_screen()))
            if self._place is not None:
                self.move(self._place)
        elif not visible and self.isVisible():
            handle = self.windowHandle()
            self._place = handle.framePosition() if handle else self.pos()
        super().setVisible(visible)
