"""Contrast of the themes' colours, and the choice of the theme."""

import gc
import re
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QColor, QPalette
from PySide6.QtWidgets import QApplication, QCheckBox, QFileDialog, QLabel, QToolButton, QWidget
from pytestqt.qtbot import QtBot

import kvchat.ui
from kvchat.settings import Settings
from kvchat.ui.base.style_sheet import style_sheet
from kvchat.ui.base.theme import DARK, DARK_STRONG, LIGHT, LIGHT_STRONG, Colour, Look, Theme
from kvchat.ui.dialogs.confirm import file_dialog
from tests.ui.base.contrast import contrast


class Witness(QWidget):
    """Records if Python's garbage collector is enabled while Qt restyles all widgets."""

    collects: bool | None = None

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.StyleChange:
            self.collects = gc.isenabled()


GROUNDS = (
    *("page", "sidebar", "raised", "bubble", "hover", "selected", "code"),
    *("selection", "warn_soft", "bad_soft", "mark"),
)
TEXTS = (
    *("text", "muted", "accent", "warn", "bad"),
    *("code_keyword", "code_string", "code_number", "code_comment", "code_name"),
)
PAIRS = [*((text, ground) for text in TEXTS for ground in GROUNDS), ("on_accent", "accent")]
THEMES = (LIGHT, DARK, LIGHT_STRONG, DARK_STRONG)


def test_no_colour_was_forgotten() -> None:
    colours = {name for name, value in vars(Theme).items() if isinstance(value, Colour)}
    assert {*TEXTS, *GROUNDS, "on_accent", "line"} == colours


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_text_can_be_read(theme: Theme) -> None:
    least = 7 if theme in THEMES[2:] else 4.5
    assert [pair for pair in PAIRS if contrast(*(getattr(theme, name) for name in pair)) < least] == []


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
@pytest.mark.parametrize("ground", ["page", "sidebar", "raised"])
def test_what_is_below_the_pointer_can_be_told_from_its_ground(theme: Theme, ground: str) -> None:
    assert contrast(theme.hover, getattr(theme, ground)) >= 1.08
    assert contrast(theme.selected, theme.hover) >= 1.05


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_a_selected_formula_can_be_read(theme: Theme) -> None:
    """Qt blends selected pictures with the selection's colour."""
    text, marked = (bytes.fromhex(colour[1:]) for colour in (theme.text, theme.selection))
    mixed = bytes((a + b) // 2 for a, b in zip(text, marked, strict=True))
    assert contrast(f"#{mixed.hex()}", theme.selection) >= 3
    assert contrast(theme.selection, theme.page) >= 1.25


def test_system_follows_the_desktop(qapp: QApplication) -> None:
    look = Look(qapp, "system")
    heard: list[str] = []
    look.changed.connect(lambda: heard.append(look.theme.name))
    for scheme, theme in ((Qt.ColorScheme.Dark, DARK), (Qt.ColorScheme.Light, LIGHT)):
        qapp.styleHints().colorSchemeChanged.emit(scheme)
        assert look.theme is theme
    assert heard == ["dark", "light"]
    look.deleteLater()


def test_who_asked_for_contrast_has_it(qapp: QApplication) -> None:
    look = Look(qapp, "light")
    hints = qapp.styleHints()
    asked = hints.accessibility()
    asked.contrastPreferenceChanged.emit(Qt.ContrastPreference.HighContrast)
    assert look.theme is LIGHT_STRONG
    look.apply_settings(Settings(theme="dark"))
    assert look.theme is DARK_STRONG
    assert contrast(look.theme.line, look.theme.page) >= 3
    asked.contrastPreferenceChanged.emit(Qt.ContrastPreference.NoPreference)
    assert look.theme is DARK
    look.deleteLater()


def test_nothing_moves_by_itself() -> None:
    """For users sensitive to motion: no animations and no indeterminate progress bars."""
    moving = re.compile(r"Q\w*Animation|QMovie|setRange\(0, 0\)|setMaximum\(0\)|setAnimated\(True")
    sources = sorted(Path(kvchat.ui.__file__).parent.rglob("*.py"))
    assert [path.name for path in sources if moving.search(path.read_text("utf-8"))] == []


class QBalloonTip(QWidget):
    """Imitates Qt's private class of this name and its colours: Qt needs an old kind of tray to show it."""

    def __init__(self) -> None:
        super().__init__()
        palette = self.palette()
        palette.setColor(QPalette.ColorRole.Window, QColor(0xFF, 0xFF, 0xE1))
        palette.setColor(QPalette.ColorRole.WindowText, Qt.GlobalColor.black)
        self.setPalette(palette)
        self.words = QLabel("kvchat is still running", self)


@pytest.mark.parametrize("choice", ["light", "dark"])
def test_the_balloon_of_the_tray_can_be_read(qapp: QApplication, qtbot: QtBot, choice: str) -> None:
    look = Look(qapp, choice)
    balloon = QBalloonTip()
    qtbot.addWidget(balloon)
    balloon.show()
    ink, paper = balloon.words.palette().windowText().color(), balloon.palette().window().color()
    assert contrast(ink.name(), paper.name()) >= 4.5
    look.deleteLater()


@pytest.mark.parametrize("choice", ["light", "dark"])
def test_the_arrows_of_the_file_dialog_can_be_seen(qapp: QApplication, qtbot: QtBot, choice: str) -> None:
    look, page = Look(qapp, choice), QWidget()
    qtbot.addWidget(page)
    dialog = file_dialog(page, "Choose", QFileDialog.FileMode.ExistingFile)
    for name in ("backButton", "forwardButton", "toParentButton"):
        button = dialog.findChild(QToolButton, name)
        assert isinstance(button, QToolButton)
        picture = button.icon().pixmap(16, 16).toImage()
        solid = [picture.pixelColor(x, y) for x in range(16) for y in range(16)]
        ink = max(solid, key=lambda colour: colour.alpha())
        assert contrast(ink.name(), look.theme.page) >= 4.5
    look.deleteLater()


def test_no_widget_is_collected_while_all_are_styled(look: Look, qtbot: QtBot) -> None:
    witness = Witness()
    qtbot.addWidget(witness)
    witness.show()
    look.apply_settings(Settings(zoom=150))
    assert witness.collects is False
    assert gc.isenabled()


@pytest.mark.parametrize("choice", ["light", "dark"])
def test_a_check_box_is_seen_before_it_is_checked(qapp: QApplication, qtbot: QtBot, choice: str) -> None:
    look, box = Look(qapp, choice), QCheckBox("Start at login")
    qtbot.addWidget(box)
    box.show()
    picture = box.grab().toImage()
    row = [picture.pixelColor(x, picture.height() // 2).name() for x in range(look.px(16))]
    assert max(contrast(colour, look.theme.page) for colour in row) >= 3, row  # WCAG asks that of a control's frame
    look.deleteLater()


def test_a_state_changes_no_font() -> None:
    """Widgets compute their size with the font of the normal state: a default button's bold text was cut off."""
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", style_sheet(LIGHT, 10.0, 9.0, 16))
    states = ":(default|hover|focus|checked|pressed|disabled|enabled|selected)"
    assert [where for where, what in rules if "font" in what and re.search(states, where)] == []
