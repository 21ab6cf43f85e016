"""A setting that is a text, judged by whoever knows what it means before it is taken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QPushButton, QWidget

from kvchat.settings import Settings
from kvchat.ui.settings.page import Desk
from kvchat.ui.widgets.entries import Change, FieldEntry

Judge = Callable[[str, str], Awaitable[str]]  # of a setting's name and its text: why not, empty where it can


class TextEntry(FieldEntry):
    """A wide field and a button that empties it."""

    def __init__(
        self,
        desk: Desk,
        name: str,
        title: str,
        words: str,
        judge: Judge,
        change: Change,
        *,
        example: str,
        empty: str | None = "",
    ) -> None:
        """`example` stands in the empty field; `empty` is the setting's value then."""
        field, self.clear = QLineEdit(), QPushButton("Clear")
        super().__init__(name, title, words, field, _beside(field, self.clear), wide=True)
        self._desk, self._judge, self._change, self._empty = desk, judge, change, empty
        self.field.setPlaceholderText(example)
        self.field.setAccessibleName(title)
        self.clear.setProperty("kind", "link")
        self.clear.setAccessibleName(f"{title}: clear")
        self.clear.clicked.connect(self._clear)

    def refresh(self, settings: Settings) -> None:
        """Show the text in force, unless something else is being typed or was refused."""
        if not self.field.isModified():
            self.field.setText(getattr(settings, self.name) or "")
            self.refuse("")
        self.clear.setVisible(bool(self.field.text()))

    def _take(self) -> None:
        if self.field.isModified():
            self._desk.panel.run(self._weigh(self.field.text().strip()))

    async def _weigh(self, text: str) -> None:
        reason = await self._judge(self.name, text) if text else ""
        if self.field.text().strip() != text:
            return  # something else was typed meanwhile
        self.refuse(reason)
        if not reason:
            self.field.setModified(False)
            self._change(self.name, text or self._empty)

    def _clear(self) -> None:
        self.field.setText("")
        self.field.setModified(False)
        self._change(self.name, self._empty)


def _beside(field: QLineEdit, button: QPushButton) -> QWidget:
    holder = QWidget()
    row = QHBoxLayout(holder)
    row.setContentsMargins(0, 0, 0, 0)
    row.setSpacing(10)
    row.addWidget(field, 1)
    row.addWidget(button)
    return holder
