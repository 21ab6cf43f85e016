"""What chat settings and the preset dialog have in common: the form in the middle, Save and Cancel below it."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QLayout, QPushButton, QScrollArea, QVBoxLayout, QWidget

from kvchat.chat.options.options import BadOptions
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.presets.options_form import Filling, OptionsForm
from kvchat.ui.widgets.layouts import ScrollGround


class OptionsPanel(Panel):
    """Subclasses call `_build` with what stands above the form, and take what it holds with `_take`."""

    def __init__(self, look: Look, runner: TaskRunner, name: str, parent: QWidget | None = None) -> None:
        super().__init__(look, runner, parent)
        self.setWindowTitle(name)
        self.setAccessibleName(name)
        self.form = OptionsForm(look)
        self.save, self._leave = QPushButton("Save"), QPushButton("Cancel")
        self.save.setDefault(True)  # Enter in a field saves
        self.save.clicked.connect(self._save)
        self._leave.clicked.connect(self.close)

    def come(self) -> None:
        """To the front; nothing can be saved before the form is filled."""
        self.save.setEnabled(False)
        self.show()
        self.raise_()
        self.activateWindow()

    def _take(self, filling: Filling) -> None:
        """Save was pressed, and what stands in the form makes sense."""
        raise NotImplementedError

    def _save(self) -> None:
        if (filling := self._read()) is not None:
            self._take(filling)

    def _read(self) -> Filling | None:
        """What stands in the form; None if it makes no sense, which is said there."""
        try:
            filling = self.form.read()
        except BadOptions as error:
            self.form.refuse(f"{error.title}. {error.detail}".strip())
            return None
        self.form.refuse("")
        return filling

    def _build(self, *above: QWidget | QLayout) -> None:
        """Put everything in its place; Tab goes from above to below."""
        self.save.setProperty("kind", "primary")
        ground = ScrollGround("settingsPage")
        inside = QVBoxLayout(ground)
        inside.setContentsMargins(24, 4, 24, 12)
        inside.addWidget(self.form)
        scroll = QScrollArea()
        scroll.setWidgetResizable(True)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        scroll.setWidget(ground)
        top = QVBoxLayout()
        top.setContentsMargins(24, 18, 24, 8)
        top.setSpacing(8)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addLayout(top)
        for part in above:
            if isinstance(part, QWidget):
                top.addWidget(part)
            else:
                top.addLayout(part)
        column.addWidget(scroll, 1)
        below = QHBoxLayout()
        column.addLayout(below)
        below.setContentsMargins(24, 10, 24, 16)
        below.setSpacing(8)
        below.addStretch(1)
        for button in (self._leave, self.save):
            button.setAccessibleName(button.text())
            below.addWidget(button)
