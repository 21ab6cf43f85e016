"""A page of the settings window: entries below each other, with a hairline between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QLabel, QScrollArea, QVBoxLayout

from kvchat.runtime import Runtime
from kvchat.settings import Settings
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.widgets.entries import Entry
from kvchat.ui.widgets.layouts import ScrollGround

E = TypeVar("E", bound=Entry)


@dataclass(frozen=True)
class Desk:
    """What every page works with."""

    runtime: Runtime
    look: Look
    panel: Panel  # the window the page stands in: starts wishes, tells what failed

    def change(self, name: str, value: Any) -> None:
        """Put one setting into force and store it."""
        self.apply(replace(self.runtime.settings, **{name: value}))

    def apply(self, settings: Settings) -> None:
        """Put these into force and store them, if they are others."""
        if settings != self.runtime.settings:
            self.panel.run(self.runtime.apply_settings(settings))


class SettingsPage(QScrollArea):
    """A page; subclasses name it and `add` their entries."""

    name = ""

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self.desk = desk
        self.entries: list[Entry] = []
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setAccessibleName(self.name)
        ground = ScrollGround("settingsPage")
        self._column = QVBoxLayout(ground)
        self._column.setContentsMargins(28, 22, 28, 22)
        self._column.setSpacing(0)
        heading = QLabel(self.name)
        heading.setProperty("kind", "title")
        self._column.addWidget(heading)
        self._column.addSpacing(6)
        self._column.addStretch(1)
        self.setWidget(ground)

    def add(self, entry: E) -> E:
        """Put an entry below those there are."""
        end = self._column.count() - 1  # before the stretch
        if self.entries:
            entry.above = _hairline()
            self._column.insertWidget(end, entry.above)
            end += 1
        self._column.insertWidget(end, entry)
        self.entries.append(entry)
        return entry

    def refresh(self) -> None:
        """Show what is in force."""
        for entry in self.entries:
            entry.refresh(self.desk.runtime.settings)

    def forget(self) -> None:
        """The window closes: what was typed and refused is not kept."""
        for entry in self.entries:
            entry.restore(self.desk.runtime.settings)


def _hairline() -> QFrame:
    line = QFrame()
    line.setProperty("kind", "rule")
    line.setFixedHeight(1)
    return line
