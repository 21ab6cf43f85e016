"""Entries of a settings page, each with label, help, control and error message, and notations for numbers."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QResizeEvent, QShowEvent, QWheelEvent
from PySide6.QtWidgets import QBoxLayout, QComboBox, QLineEdit, QSizePolicy, QStyledItemDelegate, QWidget

from kvchat.settings import GB, Settings, validation_error
from kvchat.text.language import N_, _, format_number, localize_number
from kvchat.ui.base.building import STRETCH, button, column, label, row, show_text
from kvchat.ui.base.theme import Look, restyle
from kvchat.ui.widgets.controls import Switch

ChangeSetting = Callable[[str, Any], object]  # called with the setting's name and new value
_FIELD_LETTERS, _UNIT_LETTERS = 17, 6  # widths in average characters that align fields of different units
_SEPARATORS = re.compile(r"[\s,_'’]")
_SIZE_PATTERN = re.compile(r"(\d+|\d*\.\d+)([mgt]?)[bo]?", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"(\d),(\d{1,2})(?!\d)")
_BYTES_PER_UNIT = {"m": GB // 1000, "g": GB, "": GB, "t": 1000 * GB}


@dataclass(frozen=True)
class Notation:
    """How to format and parse one kind of number. `parse` raises ValueError with a message for the user."""

    unit: str  # shown after the field
    format: Callable[[int], str]
    parse: Callable[[str], int]


def _whole_number(unit: str, pattern: str, description: str) -> Notation:
    """Return the notation of a whole number. The groups of `pattern` are the digits and "K" (times 1,024) or ""."""

    def read(text: str) -> int:
        digits = text.strip().removesuffix(_(unit)).replace(format_number(1000)[1:-3], "")
        match = re.fullmatch(pattern, _SEPARATORS.sub("", digits), re.IGNORECASE)
        if match is None:
            raise ValueError(_("Enter {wanted}.", wanted=_(description)))
        return int(match[1]) * (1024 if match[2] else 1)

    return Notation(unit, format_number, read)


def _parse_size(text: str) -> int:
    """Convert a size such as "7.5 GB", "500 MB" or "20 Go" to bytes. The default unit is the gigabyte (10⁹ bytes)."""
    match = _SIZE_PATTERN.fullmatch(_SEPARATORS.sub("", _DECIMAL_COMMA.sub(r"\1.\2", text)))
    if match is None:
        raise ValueError(_("Enter a size, such as 20 GB or 500 MB."))
    return round(float(match[1]) * _BYTES_PER_UNIT[match[2].lower()])


def _parse_port(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(_("Enter a whole number, such as 8737."))
    return int(text)


TOKENS = _whole_number(N_("tokens"), r"(\d+)(k?)(?:tokens?)?", N_("a number of tokens, such as 8192 or 32K"))
DAYS = _whole_number(N_("days"), r"(\d+)()(?:days?)?", N_("a whole number of days, such as 90"))
MINUTES = _whole_number(N_("min"), r"(\d+)()(?:min|minutes?)?", N_("a whole number of minutes, such as 15"))
GIGABYTES = Notation(N_("GB"), lambda count: localize_number(f"{count / GB:.10g}"), _parse_size)
PORT = Notation("", str, _parse_port)
NOTATIONS = {"tokens": TOKENS, "days": DAYS, "minutes": MINUTES, "bytes": GIGABYTES, "": PORT}  # by setting unit


class Entry(QWidget):
    """Row of a settings page. The control is beside the text, or below it if `is_wide` or the page is narrow."""

    def __init__(self, title: str, help: str, control: QWidget, *, is_wide: bool = False) -> None:
        super().__init__()
        self.title, self.help = label(title, wraps=True), label(help, "small", wraps=True)
        self.refusal = label(kind="refusal", wraps=True)
        self.hairline: QWidget | None = None  # hairline above the entry
        self.refusal.hide()
        self._is_wide, self._control = is_wide, control
        self._row = QBoxLayout(QBoxLayout.Direction.TopToBottom if is_wide else QBoxLayout.Direction.LeftToRight, self)
        self._row.setContentsMargins(0, 10, 0, 10)
        self._row.setSpacing(8 if is_wide else 24)
        self._row.addLayout(column(self.title, self.help, self.refusal, STRETCH, spacing=3), 1)
        self._row.addWidget(control, 0, Qt.AlignmentFlag(0) if is_wide else Qt.AlignmentFlag.AlignTop)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        below = self._control.sizeHint().width() > self.width() // 2
        direction = QBoxLayout.Direction.TopToBottom if below else QBoxLayout.Direction.LeftToRight
        if not self._is_wide and direction is not self._row.direction():
            self._row.setDirection(direction)
            self._row.setSpacing(8 if below else 24)
            self._row.setAlignment(self._control, Qt.AlignmentFlag.AlignLeft if below else Qt.AlignmentFlag.AlignTop)

    def setVisible(self, visible: bool) -> None:
        super().setVisible(visible)
        if self.hairline is not None:
            self.hairline.setVisible(visible)

    def set_help(self, help: str) -> None:
        show_text(self.help, help)

    def refuse(self, reason: str) -> None:
        show_text(self.refusal, reason)

    def refresh(self, settings: Settings) -> None:
        """Show the settings' current values."""

    def restore(self, settings: Settings) -> None:
        """Discard input that has not been applied, and show the current value."""


class ChoiceEntry(Entry):
    def __init__(
        self, look: Look, name: str, title: str, help: str, choices: Sequence[tuple[Any, str]], change: ChangeSetting
    ) -> None:
        self.choice_box = ChoiceBox(look, title)
        super().__init__(title, help, self.choice_box)
        self._name = name
        for value, text in choices:
            self.choice_box.addItem(_(text), value)
        self.choice_box.setAccessibleDescription(help)
        self.choice_box.activated.connect(lambda index: change(name, self.choice_box.itemData(index)))

    def refresh(self, settings: Settings) -> None:
        value = getattr(settings, self._name)
        if self.choice_box.findData(value) < 0:
            self.choice_box.addItem(str(value), value)
        self.choice_box.setCurrentIndex(self.choice_box.findData(value))


class SwitchEntry(Entry):
    def __init__(self, look: Look, name: str, title: str, help: str, change: ChangeSetting) -> None:
        self.switch = Switch(look, title, help)
        super().__init__(title, help, self.switch)
        self._name = name
        self.switch.clicked.connect(lambda on: change(name, on))

    def refresh(self, settings: Settings) -> None:
        self.switch.setChecked(getattr(settings, self._name))


class FieldEntry(Entry):
    def __init__(self, name: str, title: str, help: str, field: QLineEdit, control: QWidget, *, is_wide: bool) -> None:
        """`name` is the setting's name. `control` is the widget that contains the field."""
        super().__init__(title, help, control, is_wide=is_wide)
        self.name, self.field = name, field
        field.setAccessibleDescription(help)
        self.title.setBuddy(field)
        field.editingFinished.connect(self._apply_input)

    def refuse(self, reason: str) -> None:
        super().refuse(reason)
        self.field.setAccessibleDescription(reason or self.help.text())
        restyle(self.field, "tone", "bad" if reason else "")

    def restore(self, settings: Settings) -> None:
        self.field.setModified(False)
        self.refresh(settings)

    def _apply_input(self) -> None:
        raise NotImplementedError


class _ShortField(QLineEdit):
    def __init__(self) -> None:
        super().__init__()
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        metrics = self.fontMetrics()
        letters = max(metrics.averageCharWidth() * _FIELD_LETTERS, metrics.horizontalAdvance(self.placeholderText()))
        return QSize(letters + 22, super().sizeHint().height())

    def minimumSizeHint(self) -> QSize:
        return self.sizeHint()


class NumberEntry(FieldEntry):
    def __init__(
        self,
        name: str,
        title: str,
        help: str,
        notation: Notation,
        change: ChangeSetting,
        *,
        default: str = "",
        reset: str,
    ) -> None:
        """`default` is the placeholder. `reset` is the label of the button that resets the setting."""
        field, self.reset_button = _ShortField(), button(reset, self._reset, "link", name=f"{title}: {reset}")
        holder, unit = QWidget(), label(_(notation.unit), "muted")
        unit.setMinimumWidth(unit.fontMetrics().averageCharWidth() * _UNIT_LETTERS)
        unit.setBuddy(field)
        if not notation.unit:  # setVisible(True) would open a label without a parent as a window
            unit.hide()
        parts = row(field, unit, spacing=8), (self.reset_button, 0, Qt.AlignmentFlag.AlignLeft)
        column(*parts, on=holder, spacing=2, margins=0)
        super().__init__(name, title, help, field, holder, is_wide=False)
        self._notation, self._change = notation, change
        self._default = getattr(Settings(), name)
        field.setPlaceholderText(default)
        unit_name = _("{title}, in {unit}", title=title, unit=_(notation.unit))
        field.setAccessibleName(unit_name if notation.unit else title)

    def refresh(self, settings: Settings) -> None:
        value = getattr(settings, self.name)
        self.reset_button.setVisible(value != self._default)
        if not (self.field.isModified() and self.field.hasFocus()):
            self.field.setText("" if value is None else self._notation.format(value))
            self.refuse("")

    def set_help(self, help: str) -> None:
        super().set_help(help)
        self.field.setAccessibleDescription(help)

    def _apply_input(self) -> None:
        if not self.field.isModified():
            return
        text = self.field.text().strip()
        try:
            value = self._notation.parse(text) if text else self._default
        except ValueError as error:
            self.refuse(str(error))
            return
        reason = validation_error(self.name, value) if value is not None else ""
        self.refuse(reason)
        if not reason:
            self.field.setModified(False)
            self._change(self.name, value)

    def _reset(self) -> None:
        self.field.setModified(False)
        self._change(self.name, self._default)


class ChoiceBox(QComboBox):
    """Combo box that ignores the mouse wheel, so that scrolling a page does not change it."""

    def __init__(self, look: Look, name: str = "") -> None:
        super().__init__()
        self._look = look
        self.setAccessibleName(name)
        self._hidden_label = label()
        self._hidden_label.setBuddy(self)
        self.setItemDelegate(QStyledItemDelegate(self))  # else the list ignores the style sheet
        look.changed.connect(self.update)

    def showEvent(self, event: QShowEvent) -> None:
        """Add a hidden label with the box's name. On Linux, Qt passes only the label to screen readers."""
        super().showEvent(event)
        self._hidden_label.setText(self.accessibleName())
        self._hidden_label.setParent(self.parentWidget())

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()  # scroll the page, not the value below the pointer

    def paintEvent(self, event: QPaintEvent) -> None:
        """Draw the arrow, because a style sheet can only load it from a file."""
        super().paintEvent(event)
        with QPainter(self) as painter:
            box = QRect(self.width() - 24, (self.height() - 16) // 2, 16, 16)
            self._look.icon("chevron-down").paint(painter, box)
