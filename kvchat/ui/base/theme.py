"""Colors and fonts of kvchat: a table of themes, and the object that holds the current one.

The tests check the contrast of the colors.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontDatabase, QPalette
from PySide6.QtWidgets import QApplication, QWidget

from kvchat.settings import Settings
from kvchat.ui.base.style_sheet import style_sheet

# If the desktop names no interface font, Qt uses DejaVu Sans, wide and dated: prefer these if present.
_BETTER_FONTS = ("Inter", "Adwaita Sans", "Noto Sans", "Cantarell", "Source Sans 3", "Open Sans", "Ubuntu")
_FALLBACK_FONTS = ("DejaVu Sans", "Bitstream Vera Sans", "Sans Serif", "sans-serif")
_BETTER_MONO = ("JetBrains Mono", "Adwaita Mono", "Fira Code", "Noto Sans Mono", "Source Code Pro", "DejaVu Sans Mono")
_FRAME = 127  # percent: Fusion then draws the exact colour
# One row per field after the name, one column per theme; the strong themes have high contrast.
_COLOURS = """
    page         #fdfdfb #1a1c1b #ffffff #000000
    sidebar      #f5f5f1 #141615 #ffffff #000000
    raised       #ffffff #222524 #ffffff #0b0d0c
    bubble       #eeefe9 #2a2e2c #f2f2ee #161918
    hover        #ebebe5 #2c312f #e9e9e4 #1c211f
    selected     #e2e6de #353d39 #d8e2d8 #243029
    selection    #c6e8e0 #1b423b #c8ebe2 #123a33
    line         #e3e3dc #303533 #5a5f5a #a5aca7
    text         #1d211e #e8eae6 #000000 #ffffff
    muted        #5f655f #a0a7a2 #383d38 #d3d8d4
    accent       #0c6e60 #56c9b0 #004a3f #7fe8d0
    on_accent    #ffffff #07231d #ffffff #000000
    warn         #8a5300 #e8b45a #5c3600 #ffd080
    warn_soft    #fbf0da #382d18 #fff4de #2b2008
    mark         #fbe08c #483810 #ffe99a #443300
    bad          #b3261e #f2897f #8a0f0a #ffb3ab
    bad_soft     #fbe9e7 #3c2321 #ffeeec #33110f
    code         #f4f4ef #131514 #ffffff #000000
    code_keyword #8a2f6b #e39ac6 #6b1050 #ffc0e6
    code_string  #2f6b2a #9fd08a #1c4a17 #c2efae
    code_number  #a04a00 #f0b072 #6e3000 #ffcf9e
    code_comment #5f655f #a0a7a2 #383d38 #d3d8d4
    code_name    #1f5aa6 #8dbcf5 #0d3b78 #b9d8ff
"""
_NAMES = ("light", "dark", "light, strong", "dark, strong")
_ROWS = {name: colours for name, *colours in map(str.split, _COLOURS.strip().splitlines())}


@dataclass(frozen=True)
class Theme:
    """Set of colours, each "#rrggbb". The single accent also means "proved": the memory worked."""

    name: str
    page: str  # transcript background
    sidebar: str  # sidebar and strip
    raised: str  # composer, cards, menus
    bubble: str  # the user's messages
    hover: str
    selected: str
    selection: str  # behind selected text, which keeps its colour like formula images
    line: str  # hairlines
    text: str
    muted: str  # receipts, captions
    accent: str
    on_accent: str
    warn: str
    warn_soft: str
    mark: str  # search hit background
    bad: str
    bad_soft: str
    code: str  # code background
    code_keyword: str
    code_string: str
    code_number: str
    code_comment: str
    code_name: str


LIGHT, DARK, LIGHT_STRONG, DARK_STRONG = (
    Theme(theme, **{field: colours[column] for field, colours in _ROWS.items()}) for column, theme in enumerate(_NAMES)
)


@dataclass(frozen=True)
class Type:
    """Font families and sizes (in points) in use."""

    family: str
    mono: str
    base: float  # controls
    body: float  # the transcript
    small: float  # receipts, strip, captions

    def scaled(self, percent: int) -> Type:
        by = percent / 100
        return replace(self, base=self.base * by, body=self.body * by, small=self.small * by)


class Look(QObject):
    """Theme (the user's choice, else the system's), fonts and numbers of the application.

    The system's contrast preference applies to either theme.
    """

    changing = Signal()  # all widgets are about to be restyled: drop unneeded ones
    changed = Signal()

    def __init__(self, app: QApplication, choice: str = "system") -> None:
        super().__init__(app)
        self._app = app
        self._choice = choice
        self._type = _pick_type()
        self.type = self._type
        self.numbers = True  # show receipts and figures
        self._zoom = 100
        self.theme: Theme = LIGHT
        if not app.styleSheet():  # else already styled
            app.setStyle("Fusion")
        self._hints = app.styleHints()  # keep a reference, or its results become invalid
        self._system = self._hints.colorScheme()
        self._hints.colorSchemeChanged.connect(self._system_changed)
        self._contrast = self._hints.accessibility().contrastPreference()
        self._hints.accessibility().contrastPreferenceChanged.connect(self._contrast_changed)
        self._apply()

    def px(self, pixels: float) -> int:
        """Scale pixels given for 100 % text size to the chosen text size."""
        return round(pixels * self._zoom / 100)

    def follow(self, settings: Settings) -> None:
        wanted = settings.theme, settings.zoom, settings.show_numbers
        if wanted != (self._choice, self._zoom, self.numbers):
            self._choice, self._zoom, self.numbers = wanted
            self.type = self._type.scaled(self._zoom)
            self._apply()

    def _system_changed(self, scheme: Qt.ColorScheme) -> None:
        self._system = scheme
        self._apply()

    def _contrast_changed(self, wanted: Qt.ContrastPreference) -> None:
        self._contrast = wanted
        self._apply()

    def _apply(self) -> None:
        follows = self._choice == "system"
        dark = self._system is Qt.ColorScheme.Dark if follows else self._choice == "dark"
        strong = self._contrast is Qt.ContrastPreference.HighContrast
        self.theme = (DARK_STRONG if dark else LIGHT_STRONG) if strong else DARK if dark else LIGHT
        mirrored = self._app.layoutDirection() is Qt.LayoutDirection.RightToLeft
        sizes = self.type.base, self.type.small, self.px(16)
        sheet = style_sheet(self.theme, *sizes, mirrored=mirrored)
        if self._app.styleSheet() != sheet:  # restyling every widget is slow
            self.changing.emit()
            with _nothing_collected():
                self._app.setFont(page_font(self.type.family, self.type.base))
                palette = _palette(self.theme)
                self._app.setPalette(palette)
                # Fusion's dark frame of a check box is invisible in a dark theme.
                palette.setColor(QPalette.ColorRole.Window, QColor(self.theme.muted).lighter(_FRAME))
                self._app.setPalette(palette, "QCheckBox")  # type: ignore[arg-type]  # wants str
                self._app.setStyleSheet(sheet)
        self.changed.emit()


def restyle(widget: QWidget, name: str, value: str) -> None:
    widget.setProperty(name, value)
    widget.style().unpolish(widget)
    widget.style().polish(widget)


def page_font(family: str, points: float) -> QFont:
    font = QFont(family)
    font.setPointSizeF(points)
    return font


def code_font(family: str, points: float) -> QFont:
    font = page_font(family, points)
    font.setFixedPitch(True)
    font.setFeature(QFont.Tag("calt"), 0)
    font.setFeature(QFont.Tag("liga"), 0)
    return font


@contextlib.contextmanager
def _nothing_collected() -> Iterator[None]:
    """Disable the garbage collector: collecting a widget while Qt calls into all of them crashes Qt."""
    collects = gc.isenabled()  # disabled during startup
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _pick_type() -> Type:
    system = QFontDatabase.systemFont(QFontDatabase.SystemFont.GeneralFont)
    families = set(QFontDatabase.families())
    family = system.family()
    if family in _FALLBACK_FONTS:
        family = next((name for name in _BETTER_FONTS if name in families), family)
    fixed = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont).family()
    mono = fixed
    if fixed in _FALLBACK_FONTS or fixed in ("monospace", "Monospace"):
        mono = next((name for name in _BETTER_MONO if name in families), fixed)
    base = min(max(system.pointSizeF(), 9.5), 13.0)
    return Type(family, mono, base, base + 0.75, base - 1.0)


def _palette(theme: Theme) -> QPalette:
    role = QPalette.ColorRole
    colours = {
        role.Window: theme.page,
        role.Base: theme.page,
        role.AlternateBase: theme.sidebar,
        role.WindowText: theme.text,
        role.Text: theme.text,
        role.ButtonText: theme.text,
        role.Button: theme.raised,
        role.PlaceholderText: theme.muted,
        role.Highlight: theme.accent,
        role.HighlightedText: theme.on_accent,
        role.Link: theme.accent,
        role.LinkVisited: theme.accent,
        role.ToolTipBase: theme.raised,
        role.ToolTipText: theme.text,
        role.Mid: theme.line,
        role.Accent: theme.accent,
    }
    palette = QPalette()
    for key, value in colours.items():
        palette.setColor(key, QColor(value))
    for key in (role.WindowText, role.Text, role.ButtonText):
        palette.setColor(QPalette.ColorGroup.Disabled, key, QColor(theme.muted))
    return palette
