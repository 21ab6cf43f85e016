"""A process that tells when its window can be used: on the screen and active, its chats listed, keys written.

`python -m tests.blocks.first_picture` is kvchat, with `bare` it is a window of Qt's own. The environment says where to
tell it, and when the process was asked for.
"""

from __future__ import annotations

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
_EVERY_MS = 4


class Watched(QApplication):
    """Looks every few milliseconds whether the window can be used."""

    def __init__(self, arguments: list[str]) -> None:
        super().__init__(arguments)
        self._times = {"application": _since()}
        self._look = QTimer(self, interval=_EVERY_MS, timerType=Qt.TimerType.PreciseTimer)
        self._look.timeout.connect(self._watch)
        self._look.start()

    def _watch(self) -> None:
        window = next((one for one in self.topLevelWidgets() if isinstance(one, QMainWindow) and one.isVisible()), None)
        handle = window.windowHandle() if window else None
        if window is None or handle is None or not handle.isExposed():
            return
        self._times.setdefault("shown", _since())
        if window.isActiveWindow() and _listed(window) and _takes_keys(self.focusWidget()):
            self._times |= {"usable": _since(), "of a core": time.process_time()}
            self._look.stop()
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
