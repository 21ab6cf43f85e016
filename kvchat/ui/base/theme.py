"""Colors and fonts: the themes, and the object that holds the current ones. Tests check the contrast of the colors."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontDatabase, QIcon, QPalette
from PySide6.QtWidgets import QApplication, QWidget

from kvchat.settings import Settings
from kvchat.ui.base.icons import icon
from kvchat.ui.base.style_sheet import style_sheet

# If the desktop names no interface font, Qt uses DejaVu Sans, wide and dated: prefer these if present.
_BETTER_FONTS = ("Inter", "Adwaita Sans", "Noto Sans", "Cantarell", "Source Sans 3", "Open Sans", "Ubuntu")
_FALLBACK_FONTS = ("DejaVu Sans", "Bitstream Vera Sans", "Sans Serif", "sans-serif")
_BETTER_MONO = ("JetBrains Mono", "Adwaita Mono", "Fira Code", "Noto Sans Mono", "Source Code Pro", "DejaVu Sans Mono")
_FRAME_LIGHTNESS = 127  # percent: Fusion then draws the exact colour


class Colour:
    """A color as "#rrggbb" in each of the four themes: light, dark, light high-contrast, dark high-contrast."""

    def __init__(self, *values: str) -> None:
        self._values = values

    def __get__(self, theme: Theme, owner: type[Theme]) -> str:
        return self._values[theme.column]


@dataclass(frozen=True)
class Theme:
    """Set of colors. The only accent color also marks what was reused from chat memory."""

    name: str
    column: int  # index into `Colour`

    page = Colour("#fdfdfb", "#1a1c1b", "#ffffff", "#000000")  # transcript background
    sidebar = Colour("#f5f5f1", "#141615", "#ffffff", "#000000")  # sidebar and strip
    raised = Colour("#ffffff", "#222524", "#ffffff", "#0b0d0c")  # composer, cards, menus
    bubble = Colour("#eeefe9", "#2a2e2c", "#f2f2ee", "#161918")  # the user's messages
    hover = Colour("#ebebe5", "#2c312f", "#e9e9e4", "#1c211f")
    selected = Colour("#e2e6de", "#353d39", "#d8e2d8", "#243029")
    selection = Colour("#c6e8e0", "#1b423b", "#c8ebe2", "#123a33")  # behind text, which keeps its colour
    line = Colour("#e3e3dc", "#303533", "#5a5f5a", "#a5aca7")  # hairlines
    text = Colour("#1d211e", "#e8eae6", "#000000", "#ffffff")
    muted = Colour("#5f655f", "#a0a7a2", "#383d38", "#d3d8d4")  # receipts, captions
    accent = Colour("#0c6e60", "#56c9b0", "#004a3f", "#7fe8d0")
    on_accent = Colour("#ffffff", "#07231d", "#ffffff", "#000000")
    warn = Colour("#8a5300", "#e8b45a", "#5c3600", "#ffd080")
    warn_soft = Colour("#fbf0da", "#382d18", "#fff4de", "#2b2008")
    mark = Colour("#fbe08c", "#483810", "#ffe99a", "#443300")  # search hit background
    bad = Colour("#b3261e", "#f2897f", "#8a0f0a", "#ffb3ab")
    bad_soft = Colour("#fbe9e7", "#3c2321", "#ffeeec", "#33110f")
    code = Colour("#f4f4ef", "#131514", "#ffffff", "#000000")  # code background
    code_keyword = Colour("#8a2f6b", "#e39ac6", "#6b1050", "#ffc0e6")
    code_string = Colour("#2f6b2a", "#9fd08a", "#1c4a17", "#c2efae")
    code_number = Colour("#a04a00", "#f0b072", "#6e3000", "#ffcf9e")
    code_comment = Colour("#5f655f", "#a0a7a2", "#383d38", "#d3d8d4")
    code_name = Colour("#1f5aa6", "#8dbcf5", "#0d3b78", "#b9d8ff")


LIGHT, DARK, LIGHT_STRONG, DARK_STRONG = (
    Theme(name, column) for column, name in enumerate(("light", "dark", "light, strong", "dark, strong"))
)


@dataclass(frozen=True)
class Fonts:
    """Font families, and sizes in points."""

    family: str
    mono: str
    base: float  # controls
    body: float  # the transcript
    small: float  # receipts, strip, captions

    def scaled(self, percent: int) -> Fonts:
        factor = percent / 100
        return replace(self, base=self.base * factor, body=self.body * factor, small=self.small * factor)


class Look(QObject):
    """The current theme and fonts, and the setting that shows or hides token counts and times.

    The theme is the user's choice or the system's. Either becomes a high-contrast theme if the system asks for that.
    """

    changing = Signal()  # before all widgets are restyled, which is slow: delete unneeded ones
    changed = Signal()

    def __init__(self, app: QApplication, choice: str = "system") -> None:
        super().__init__(app)
        self._app = app
        self._choice = choice
        self._unscaled_fonts = self.fonts = _choose_fonts()
        self.shows_numbers = True  # show receipts and figures
        self._zoom = 100
        self.theme: Theme = LIGHT
        if not app.styleSheet():  # else already styled
            app.setStyle("Fusion")
        self._hints = app.styleHints()  # keep a reference, or its results become invalid
        self._system = self._hints.colorScheme()
        self._hints.colorSchemeChanged.connect(self._hint_changed)
        self._contrast = self._hints.accessibility().contrastPreference()
        self._hints.accessibility().contrastPreferenceChanged.connect(self._hint_changed)
        self._apply()

    def icon(self, name: str, colour: str = "muted") -> QIcon:
        """Return an icon in one of the theme's colors. It changes its color with the theme."""
        return icon(name, lambda: getattr(self.theme, colour))

    def px(self, pixels: float) -> int:
        """Convert a length in pixels at 100 % text size to the chosen text size."""
        return round(pixels * self._zoom / 100)

    def apply_settings(self, settings: Settings) -> None:
        values = settings.theme, settings.zoom, settings.show_numbers
        if values != (self._choice, self._zoom, self.shows_numbers):
            self._choice, self._zoom, self.shows_numbers = values
            self.fonts = self._unscaled_fonts.scaled(self._zoom)
            self._apply()

    def _hint_changed(self, value: Qt.ColorScheme | Qt.ContrastPreference) -> None:
        if isinstance(value, Qt.ColorScheme):
            self._system = value
        else:
            self._contrast = value
        self._apply()

    def _apply(self) -> None:
        follows_system = self._choice == "system"
        dark = self._system is Qt.ColorScheme.Dark if follows_system else self._choice == "dark"
        strong = self._contrast is Qt.ContrastPreference.HighContrast
        self.theme = (DARK_STRONG if dark else LIGHT_STRONG) if strong else DARK if dark else LIGHT
        mirrored = self._app.layoutDirection() is Qt.LayoutDirection.RightToLeft
        sheet = style_sheet(self.theme, self.fonts.base, self.fonts.small, self.px(16), mirrored=mirrored)
        if self._app.styleSheet() != sheet:  # restyling every widget is slow
            self.changing.emit()
            was_collecting = gc.isenabled()  # not during startup
            gc.disable()  # collecting a widget while Qt calls into all of them crashes Qt
            try:
                self._app.setFont(page_font(self.fonts.family, self.fonts.base))
                palette = _palette(self.theme)
                self._app.setPalette(palette)
                # Fusion's dark frame of a check box is invisible in a dark theme.
                palette.setColor(QPalette.ColorRole.Window, QColor(self.theme.muted).lighter(_FRAME_LIGHTNESS))
                self._app.setPalette(palette, "QCheckBox")  # type: ignore[arg-type]  # wants str
                self._app.setStyleSheet(sheet)
            finally:
                if was_collecting:
                    gc.enable()
        self.changed.emit()


def restyle(widget: QWidget, name: str, value: str) -> None:
    if widget.property(name) != value:
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


def _choose_fonts() -> Fonts:
    system = QFontDatabase.systemFont(QFontDatabase.SystemFont.GeneralFont)
    families = set(QFontDatabase.families())
    family = system.family()
    if family in _FALLBACK_FONTS:
        family = next((name for name in _BETTER_FONTS if name in families), family)
    mono = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont).family()
    if mono in (*_FALLBACK_FONTS, "monospace", "Monospace"):
        mono = next((name for name in _BETTER_MONO if name in families), mono)
    base = min(max(system.pointSizeF(), 9.5), 13.0)
    return Fonts(family, mono, base, base + 0.75, base - 1.0)


def _palette(theme: Theme) -> QPalette:
    palette, role = QPalette(), QPalette.ColorRole
    texts = role.WindowText, role.Text, role.ButtonText
    for colour, roles in (
        (theme.page, (role.Window, role.Base)),
        (theme.sidebar, (role.AlternateBase,)),
        (theme.text, (*texts, role.ToolTipText)),
        (theme.raised, (role.Button, role.ToolTipBase)),
        (theme.muted, (role.PlaceholderText,)),
        (theme.accent, (role.Highlight, role.Link, role.LinkVisited, role.Accent)),
        (theme.on_accent, (role.HighlightedText,)),
        (theme.line, (role.Mid,)),
    ):
        for name in roles:
            palette.setColor(name, QColor(colour))
    for name in texts:
        palette.setColor(QPalette.ColorGroup.Disabled, name, QColor(theme.muted))
    return palette
