"""Asks before something is lost, without stopping the event loop."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QMessageBox, QWidget


def confirm(parent: QWidget, title: str, text: str, action: str, on_yes: Callable[[], object]) -> QMessageBox:
    """Open a question over `parent`; `on_yes` runs if the button `action` is pressed. Returns at once."""
    box = QMessageBox(parent)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.setWindowModality(Qt.WindowModality.WindowModal)
    box.setTextFormat(Qt.TextFormat.PlainText)
    box.setWindowTitle(title)
    box.setText(title)
    box.setInformativeText(text)
    yes = box.addButton(action, QMessageBox.ButtonRole.AcceptRole)
    yes.setAccessibleName(action)
    yes.setProperty("kind", "danger")
    keep = box.addButton("Keep", QMessageBox.ButtonRole.RejectRole)
    keep.setAccessibleName("Keep")
    box.setDefaultButton(keep)
    box.setEscapeButton(keep)
    yes.clicked.connect(on_yes)
    box.open()
    return box
