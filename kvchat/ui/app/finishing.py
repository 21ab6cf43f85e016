"""Ending kvchat while something large is still being saved: says how long, and takes no for an answer."""

from __future__ import annotations

import asyncio

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog, QHBoxLayout, QLabel, QProgressBar, QPushButton, QVBoxLayout

from kvchat.runtime import Runtime
from kvchat.session.finishing import Unfinished

SHOWN_AFTER_S, UPDATED_EVERY_S = 1.0, 0.5


class FinishingBox(QDialog):
    """What is being saved, and the button that ends kvchat without it."""

    def __init__(self) -> None:
        super().__init__(None, Qt.WindowType.Dialog | Qt.WindowType.CustomizeWindowHint | Qt.WindowType.WindowTitleHint)
        self.setWindowTitle("kvchat")
        self.setFixedWidth(420)
        self.title, self.words = QLabel("Saving the memory of your chats"), QLabel()
        self.title.setProperty("kind", "title")
        self.words.setProperty("kind", "muted")
        self.words.setWordWrap(True)
        self.bar = QProgressBar()
        self.bar.setRange(0, 0)
        self.bar.setTextVisible(False)
        self.leave = QPushButton("Quit now")
        self.leave.setToolTip("The last message is then read again next time. Nothing you or the model wrote is lost.")
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 22, 24, 18)
        column.setSpacing(10)
        for widget in (self.title, self.words, self.bar):
            column.addWidget(widget)
        row = QHBoxLayout()
        row.addStretch(1)
        row.addWidget(self.leave)
        column.addLayout(row)

    def say(self, unfinished: Unfinished | None) -> None:
        """Say what is left."""
        self.words.setText(unfinished.words if unfinished else "The engine is being stopped")

    def reject(self) -> None:
        """Escape is no answer."""


async def close_in_sight(runtime: Runtime) -> None:
    """Close the runtime. Where that takes long a box says why, and `Quit now` ends it."""
    closing, box = asyncio.ensure_future(runtime.close()), None
    await asyncio.wait({closing}, timeout=SHOWN_AFTER_S)
    while not closing.done():
        if box is None and runtime.unfinished:
            box = FinishingBox()
            box.leave.clicked.connect(runtime.give_up_saving)
            box.show()
        if box is not None:
            box.say(runtime.unfinished)
        await asyncio.wait({closing}, timeout=UPDATED_EVERY_S)
    if box is not None:
        box.accept()
    await closing
