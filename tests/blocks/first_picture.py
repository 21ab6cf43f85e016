"""A process that reports when its window is usable: visible, active, chats listed, keys accepted.

`python -m tests.blocks.first_picture` runs kvchat, with `bare` a plain Qt window. The environment holds the report's
path and the start time.
"""

import json
import os
import sys
import time
from pathlib import Path

from PySide6 import QtWidgets
from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QApplication, QLineEdit, QListView, QMainWindow, QPlainTextEdit, QWidget

OUT, BEGAN = "KVCHAT_TEST_PICTURE", "KVCHAT_TEST_BEGAN"
BARE = "bare"
_INTERVAL_MS = 4


class Watched(QApplication):
    """Checks every few milliseconds if the window is usable."""

    def __init__(self, arguments: list[str]) -> None:
        super().__init__(arguments)
        self._times = {"application": _since()}
        self._timer = QTimer(self, interval=_INTERVAL_MS, timerType=Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._watch)
        self._timer.start()

    def _watch(self) -> None:
        window = next(
            (widget for widget in self.topLevelWidgets() if isinstance(widget, QMainWindow) and widget.isVisible()),
            None,
        )
        handle = window.windowHandle() if window else None
        if window is None or handle is None or not handle.isExposed():
            return
        self._times.setdefault("shown", _since())
        if window.isActiveWindow() and _listed(window) and _takes_keys(self.focusWidget()):
            self._times |= {"usable": _since(), "of a core": time.process_time()}
            self._timer.stop()
            out = Path(os.environ[OUT])
            out.with_suffix(".part").write_text(json.dumps(self._times), "utf-8")
            out.with_suffix(".part").rename(out)


def _since() -> float:
    return time.monotonic() - float(os.environ[BEGAN])


def _listed(window: QMainWindow) -> bool:
    views = window.findChildren(QListView)
    return BARE in sys.argv or any(view.accessibleName() == "Chats" and view.model().rowCount() for view in views)


def _takes_keys(field: QWidget | None) -> bool:
    if not isinstance(field, QPlainTextEdit | QLineEdit):
        return False
    from PySide6.QtTest import QTest

    def text() -> str:
        return field.toPlainText() if isinstance(field, QPlainTextEdit) else field.text()

    before = text()
    QTest.keyClick(field, Qt.Key.Key_X)
    taken = text() != before
    QTest.keyClick(field, Qt.Key.Key_Backspace)
    return taken


def _bare() -> int:
    application = Watched(sys.argv[:1])
    window = QMainWindow()
    field = QLineEdit()
    window.setCentralWidget(field)
    window.show()
    field.setFocus()
    return application.exec()


if __name__ == "__main__":
    if BARE in sys.argv:
        sys.exit(_bare())
    QtWidgets.QApplication = Watched  # type: ignore[misc]
    from kvchat.__main__ import main

    sys.exit(main())
