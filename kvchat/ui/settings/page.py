"""Base class of the settings pages: a list of entries separated by thin lines."""

from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from PySide6.QtCore import Signal
from PySide6.QtGui import QKeySequence, QShowEvent
from PySide6.QtWidgets import QFrame, QWidget

from kvchat.runtime import Runtime
from kvchat.settings import SETTING_INFO, SETTING_PAGES, UNITS, SettingInfo, Settings
from kvchat.text.language import _, plural
from kvchat.ui.base.building import STRETCH, Part, button, column, label, line_edit, row, styled
from kvchat.ui.base.theme import Look
from kvchat.ui.desktop.global_key import KEY
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.widgets.entries import NOTATIONS, ChoiceEntry, Entry, FieldEntry, NumberEntry, SwitchEntry
from kvchat.ui.widgets.layouts import ScrollPage

E = TypeVar("E", bound=Entry)


class SettingsPage(ScrollPage):
    """Page of settings. Subclasses set `name` and `key` and add entries. Changes are applied and stored immediately."""

    name = ""  # title on screen
    key = ""  # of the page in SETTING_PAGES
    window_requested = Signal(str)  # window to open: "models", "storage" or "programs"

    def __init__(self, runtime: Runtime, look: Look, panel: Panel) -> None:
        """`panel` is the settings window. It runs this page's tasks and shows their errors."""
        super().__init__("settingsPage")
        self.runtime, self.look, self.panel = runtime, look, panel
        self.entries: list[Entry] = []
        self.settings: dict[str, Any] = {}  # setting entries by name
        self._missing_settings = list(SETTING_PAGES.get(self.key, ()))
        self.setAccessibleName(_(self.name))
        parts = label(_(self.name), "title"), 6, STRETCH
        self._column = column(*parts, on=self.content, spacing=0, margins=(28, 22, 28, 22))

    def add(self, entry: E) -> E:
        end = self._column.count() - 1  # before the stretch
        if self.entries:
            entry.hairline = styled(QFrame(), "rule")
            entry.hairline.setFixedHeight(1)
            self._column.insertWidget(end, entry.hairline)
            end += 1
        self._column.insertWidget(end, entry)
        self.entries.append(entry)
        return entry

    def add_wide(self, title: str, help: str, *parts: Part) -> Entry:
        """Add an entry whose parts are below each other, under its help text."""
        control = QWidget()
        column(*parts, on=control, spacing=8, margins=0)
        return self.add(Entry(title, help, control, is_wide=True))

    def add_settings(self, through: str = "") -> None:
        """Add entries for the page's settings that are not added yet, up to the one named `through` or to the last."""
        while self._missing_settings:
            name = self._missing_settings.pop(0)
            self.settings[name] = self.add(self._entry(name, SETTING_INFO[name]))
            if name == through:
                return

    def _entry(self, name: str, about: SettingInfo) -> Entry:
        default, change = getattr(Settings(), name), self.change
        key = QKeySequence(KEY).toString(QKeySequence.SequenceFormat.NativeText)
        title, help = _(about.label), _(about.help, key=key)
        if about.choices:
            choices = [(value, text or UNITS[about.unit](value)) for value, text in about.choices]
            return ChoiceEntry(self.look, name, title, help, choices, change)
        if isinstance(default, bool):
            return SwitchEntry(self.look, name, title, help, change)
        if isinstance(default, str) or about.example:
            return TextEntry(self, name, title, help, example=about.example, empty=default)
        if about.reset_label:
            reset = _(about.reset_label)
        elif about.unit == "days":
            reset = plural(default, "Reset to {count} day", "Reset to {count} days")
        elif about.unit:
            reset = _("Reset to {size}", size=UNITS[about.unit](default))
        else:
            reset = _("Reset to {api_port}", api_port=default)
        notation = NOTATIONS[about.unit]
        return NumberEntry(name, title, help, notation, change, default=_(about.empty_text), reset=reset)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.panel.run(coroutine)

    def change(self, name: str, value: Any) -> None:
        settings = replace(self.runtime.settings, **{name: value})
        if settings != self.runtime.settings:
            self.run(self.runtime.apply_settings(settings))

    async def validation_error(self, name: str, text: str) -> str:
        """Return why a text setting cannot have this text, or ""."""
        return await self.runtime.engines.validation_error(name, text)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    def refresh(self) -> None:
        for entry in self.entries:
            entry.refresh(self.runtime.settings)

    def discard_edits(self) -> None:
        for entry in self.entries:
            entry.restore(self.runtime.settings)


class TextEntry(FieldEntry):
    """Setting with a wide text field and a Clear button. The runtime checks the text."""

    def __init__(
        self, page: SettingsPage, name: str, title: str, help: str, *, example: str, empty: str | None
    ) -> None:
        """`example` is the placeholder. `empty` is the setting's value if the field is empty."""
        field, control = line_edit(title, example), QWidget()
        self.clear_button = button(_("Clear"), lambda: self._clear(), "link", name=_("Clear {title}", title=title))
        row((field, 1), self.clear_button, on=control, spacing=10, margins=0)
        super().__init__(name, title, help, field, control, is_wide=True)
        self._page, self._empty = page, empty

    def refresh(self, settings: Settings) -> None:
        if not self.field.isModified():
            self.field.setText(getattr(settings, self.name) or "")
            self.refuse("")
        self.clear_button.setVisible(bool(self.field.text()))

    def _apply_input(self) -> None:
        if self.field.isModified():
            self._page.run(self._validate(self.field.text().strip()))

    async def _validate(self, text: str) -> None:
        reason = await self._page.validation_error(self.name, text) if text else ""
        if self.field.text().strip() != text:
            return  # the text changed meanwhile
        self.refuse(reason)
        if not reason:
            self.field.setModified(False)
            self._page.change(self.name, text or self._empty)

    def _clear(self) -> None:
        self.field.setText("")
        self.field.setModified(False)
        self._page.change(self.name, self._empty)
