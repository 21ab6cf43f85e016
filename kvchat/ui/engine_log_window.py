"""The engine's own output, for whoever wants to know."""

from __future__ import annotations

from PySide6.QtCore import QTimer
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QPlainTextEdit, QWidget

from kvchat.runtime import Runtime
from kvchat.ui.text_window import TextWindow
from kvchat.ui.theme import Look

_REFRESH_MS = 1000
_MOST_LINES = 5000


class EngineLogWindow(TextWindow):
    """Shows the log and follows it while it is on show."""

    def __init__(self, runtime: Runtime, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, "Engine log", "engine log", parent=parent)
        self._runtime = runtime
        self._shown: list[str] = []
        self.resize(820, 520)
        self.text.setMaximumBlockCount(_MOST_LINES)
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self._timer = QTimer(self)
        self._timer.setInterval(_REFRESH_MS)
        self._timer.timeout.connect(self.refresh)

    def refresh(self) -> None:
        """Show what the engine has said by now; stay at the end if the reader is there."""
        lines = self._runtime.engine_log()
        if lines == self._shown:
            return
        bar = self.text.verticalScrollBar()
        at_end = bar.value() >= bar.maximum() - 2
        position = bar.value()
        self._shown = list(lines)
        self.text.setPlainText("\n".join(lines))
        bar.setValue(bar.maximum() if at_end else position)

    def showEvent(self, event: QShowEvent) -> None:
        """Follow the log from now on."""
        super().showEvent(event)
        self.refresh()
        self._timer.start()

    def hideEvent(self, event: QHideEvent) -> None:
        """Nobody looks: stop asking."""
        super().hideEvent(event)
        self._timer.stop()
