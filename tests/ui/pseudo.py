"""A right-to-left pseudo-language: English in Hebrew letters, a third longer."""

import gettext
import re

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication

from kvchat.text import language

_LETTERS = dict(zip("abcdefghijklmnopqrstuvwxyz", "אבקדעפגהיזכלמנוצחרסתטשוטץז", strict=True))
_KEPT = re.compile(r"(\{[^{}]*\}|&\w|%\w+|<[^<>]*>|https?:\S+|Ctrl\+[^\s,.]+|\n|\W)")
MARKS = ("between thousands", "before decimals")


def turned(text: str) -> str:
    """Translate into the pseudo-language; placeholders, tags, keys and punctuation stay.

    Placeholders are isolated from the text around them, as in real translations into right-to-left languages.
    """
    return "".join(_kept(part) if _KEPT.fullmatch(part) else _word(part) for part in _KEPT.split(text))


def _kept(part: str) -> str:
    return f"\u2068{part}\u2069" if part[0] in "{C" else part


def _word(word: str) -> str:
    letters = "".join(_LETTERS.get(letter, letter) for letter in word.lower())
    if not word.isalpha():
        return letters
    return letters + letters[: (len(letters) + 2) // 3] if len(letters) > 2 else letters


class Pseudo(gettext.NullTranslations):
    """Catalogue of the pseudo-language."""

    def gettext(self, message: str) -> str:
        return turned(message)

    def ngettext(self, one: str, many: str, number: int) -> str:
        return turned(one if number == 1 else many)

    def pgettext(self, context: str, message: str) -> str:
        return message if context in MARKS else turned(message)


def speak_pseudo(app: QApplication) -> None:
    """Switch to the pseudo-language; affects windows created afterwards."""
    language._Current.language, language._Current.catalogue = "he", Pseudo()
    app.setLayoutDirection(Qt.LayoutDirection.RightToLeft)
