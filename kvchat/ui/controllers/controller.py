"""What the controllers have in common: they hear what happens, start what was asked for, and put off what can wait."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from PySide6.QtCore import QObject, QTimer

from kvchat.chat.events import Event
from kvchat.runtime import Runtime
from kvchat.ui.base.tasks import ErrorHandler
from kvchat.ui.controllers.views import Views


class Controller(QObject):
    """Hears the runtime's events until it is closed; a subclass that cares for them has a `_hear`."""

    def __init__(self, runtime: Runtime, views: Views, parent: QObject) -> None:
        super().__init__(parent)
        self._runtime, self._views, self._runner = runtime, views, views.runner
        self._closed = False
        self._unsubscribe = runtime.events.subscribe(self._hear)

    def close(self) -> None:
        self._unsubscribe()
        self._closed = True
        for timer in self.findChildren(QTimer):
            timer.stop()

    def _hear(self, event: Event) -> None:
        """Something happened."""

    def _timer(
        self, ms: int, run: Callable[[], Coroutine[Any, Any, Any]], on_error: ErrorHandler | None = None
    ) -> QTimer:
        """Return a single-shot timer that starts `run`; a KvchatError goes to `on_error`, if given."""
        timer = QTimer(self, singleShot=True, interval=ms)
        timer.timeout.connect(lambda: self._closed or self._runner.start(run(), on_error))
        return timer
