"""Which file or folder? The system's dialog where it has one, else Qt's."""

from __future__ import annotations

from collections.abc import Callable
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


def save_dialog(parent: QWidget, title: str, name: str, kinds: str, on_pick: Callable[[Path], object]) -> None:
    """Ask for a file to write, `name` to begin with; its ending follows the kind that is chosen."""
    dialog = file_dialog(parent, title, QFileDialog.FileMode.AnyFile, kinds)
    dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
    dialog.selectFile(str(Path.home() / name))
    dialog.setDefaultSuffix(Path(name).suffix[1:])
    dialog.filterSelected.connect(lambda kind: dialog.setDefaultSuffix(kind.partition("(*.")[2].rstrip(")").split()[0]))
    dialog.fileSelected.connect(lambda picked: on_pick(Path(picked)))
    dialog.open()
