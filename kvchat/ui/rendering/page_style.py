"""What all pages of a transcript share: how they read, their fonts, their colours."""

from __future__ import annotations

import copy

from PySide6.QtGui import QFontMetricsF

from kvchat.ui.base.theme import Look, code_font, page_font
from kvchat.ui.rendering.formulas import Formulas
from kvchat.ui.rendering.markdown import Markdown, prose_css

_COLUMN_LETTERS = 16  # a table's column may be narrowed to so many letters before the table scrolls sideways


class PageStyle:
    """One theme's way of showing messages; made anew when the theme or the type changes."""

    def __init__(self, look: Look, formulas: Formulas) -> None:
        self.look = look
        self.theme = look.theme
        self.formulas = formulas
        self.markdown = Markdown(look.theme)
        self.css = prose_css(look.theme, look.type.mono, look.type.body - 1.25)
        self.font = page_font(look.type.family, look.type.body)
        self.code_font = code_font(look.type.mono, look.type.body - 0.75)
        metrics = QFontMetricsF(self.font)
        self.line_height = metrics.height() * 1.48  # pixels, as in prose_css
        self.letter_width = metrics.averageCharWidth()
        self.column_width = round(self.letter_width * _COLUMN_LETTERS)

    def quieter(self) -> PageStyle:
        """The same for what is not the reply itself, such as thinking."""
        other = copy.copy(self)
        other.font = page_font(self.look.type.family, self.look.type.base)
        other.css = f"{self.css} p {{ color: {self.theme.muted} }}"
        return other
