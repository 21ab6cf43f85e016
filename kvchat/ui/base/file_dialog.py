"""Which file or folder? The system's dialog where it has one, else Qt's."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtGui import QPalette
from PySide6.QtWidgets import QFileDialog, QToolButton, QWidget

from kvchat.ui.base.icons import icon

_ARROWS = {"backButton": "chevron-left", "forwardButton": "chevron-right", "toParentButton": "arrow-up"}


def file_dialog(parent: QWidget, title: str, mode: QFileDialog.FileMode, kinds: str = "") -> QFileDialog:
    """A dialog that begins at home, not open yet; gone once it is closed. `kinds`: "Models (*.gguf);;All files (*)"."""
    dialog = QFileDialog(parent, title, str(Path.home()), kinds)
    dialog.setFileMode(mode)
    dialog.finished.connect(dialog.deleteLater)
    colour = dialog.palette().color(QPalette.ColorRole.WindowText).name()
    for name, glyph in _ARROWS.items():  # Qt's own are black, in the dark too
        button = dialog.findChild(QToolButton, name)
        if isinstance(button, QToolButton):
            button.setIcon(icon(glyph, colour))
    return dialog
