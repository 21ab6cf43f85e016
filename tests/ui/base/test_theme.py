"""Colours that can be read, and who decides which are used."""

from __future__ import annotations

import gc

import pytest
from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QColor, QPalette
from PySide6.QtWidgets import QApplication, QFileDialog, QLabel, QToolButton, QWidget
from pytestqt.qtbot import QtBot

from kvchat.settings import Settings
from kvchat.ui.base.colors import DARK, LIGHT, Theme
from kvchat.ui.base.file_dialog import file_dialog
from kvchat.ui.base.theme import Look
from tests.ui.base.contrast import contrast


class Witness(QWidget):
    """Looks whether Python may collect garbage while Qt goes through all widgets."""

    collects: bool | None = None

    def changeEvent(self, event: QEvent) -> None:
        """One of the many calls."""
        if event.type() == QEvent.Type.StyleChange:
            self.collects = gc.isenabled()


GROUNDS = ("page", "sidebar", "raised", "bubble", "hover", "selected")
TEXTS = ("text", "muted")
PAIRS = [
    *((text, ground) for text in TEXTS for ground in GROUNDS),
    *((name, "code") for name in ("code_keyword", "code_string", "code_number", "code_comment", "code_name", "text")),
    ("text", "selection"),
    ("accent", "page"),
    ("accent", "sidebar"),
    ("on_accent", "accent"),
    ("warn", "page"),
    ("warn", "sidebar"),
    ("bad", "page"),
    ("bad", "sidebar"),
    ("bad", "raised"),
    ("bad", "bad_soft"),
    ("text", "bad_soft"),
    ("muted", "bad_soft"),
    ("text", "warn_soft"),
    ("text", "mark"),
    ("muted", "warn_soft"),
    ("warn", "warn_soft"),
    ("muted", "code"),
]


def test_contrast_of_known_colours() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_can_be_read(theme: Theme, text: str, ground: str) -> None:
    assert contrast(getattr(theme, text), getattr(theme, ground)) >= 4.5


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
@pytest.mark.parametrize("ground", ["page", "sidebar", "raised"])
def test_what_is_below_the_pointer_can_be_told_from_its_ground(theme: Theme, ground: str) -> None:
    assert contrast(theme.hover, getattr(theme, ground)) >= 1.08
    assert contrast(theme.selected, theme.hover) >= 1.05


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_a_selected_formula_can_be_read(theme: Theme) -> None:
    """Qt draws half of the selection's colour over the pictures in it."""
    text, marked = (bytes.fromhex(colour[1:]) for colour in (theme.text, theme.selection))
    mixed = bytes((a + b) // 2 for a, b in zip(text, marked, strict=True))
    assert contrast(f"#{mixed.hex()}", theme.selection) >= 3
    assert contrast(theme.selection, theme.page) >= 1.25


def test_a_choice_overrides_the_system(qapp: QApplication) -> None:
    look = Look(qapp, "dark")
    assert look.theme is DARK
    assert qapp.palette().window().color().name() == DARK.page
    look.follow(Settings(theme="light"))
    assert look.theme is LIGHT
    look.deleteLater()


def test_system_follows_the_desktop(qapp: QApplication) -> None:
    look = Look(qapp, "system")
    heard: list[str] = []
    look.changed.connect(lambda: heard.append(look.theme.name))
    for scheme, theme in ((Qt.ColorScheme.Dark, DARK), (Qt.ColorScheme.Light, LIGHT)):
        qapp.styleHints().colorSchemeChanged.emit(scheme)
        assert look.theme is theme
    assert heard == ["dark", "light"]
    look.deleteLater()


class QBalloonTip(QWidget):
    """Says what Qt's private class of this name says, in its colours: it needs a tray of an old kind."""

    def __init__(self) -> None:
        super().__init__()
        palette = self.palette()
        palette.setColor(QPalette.ColorRole.Window, QColor(0xFF, 0xFF, 0xE1))
        palette.setColor(QPalette.ColorRole.WindowText, Qt.GlobalColor.black)
        self.setPalette(palette)
        self.words = QLabel("kvchat is still here", self)


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
    look.follow(Settings(zoom=150))
    assert witness.collects is False
    assert gc.isenabled()
