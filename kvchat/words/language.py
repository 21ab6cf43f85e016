"""The language that kvchat speaks: one catalogue for what all layers say, and how numbers are written in it.

What a person reads goes through `_`, `several` or `pgettext` when it is shown, a whole sentence at a time, with named
places for what differs: `_("{name} is gone", name=name)`. What stands in a table made at import is marked with
`N_` there, and goes through `_` when it is shown: the language may change in between. Logs, reports, JSON and what the
model or another program is told stay English. The sentences are in `kvchat/locale`, one file a language; they are
gathered and compiled by `packaging/catalogues`.
"""

from __future__ import annotations

import gettext
import locale
import os
import sys
from collections.abc import Iterable
from pathlib import Path

SYSTEM = "system"  # the setting that leaves it to the desktop
LANGUAGES = {  # as each calls itself
    "en": "English",
    "de": "Deutsch",
    "es": "Español",
    "fr": "Français",
    "ja": "日本語",
    "ko": "한국어",
    "zh_Hans": "简体中文",
    "zh_Hant": "繁體中文",
}
CATALOGUES = Path(__file__).parent.parent / "locale"
_DOMAIN = "kvchat"
_FROM_THE_RIGHT = {"ar", "fa", "he", "ur"}  # none of them is spoken yet
_WITHOUT_SPACES = {"ja", "zh_Hans", "zh_Hant"}
_WIDE = {"; ": "；", ": ": "：", " (": "（", ")": "）"}
_ENDS, _WIDE_ENDS = tuple(".!?:;…)"), tuple("。！？：；）」』")
_TRADITIONAL = {"hant", "tw", "hk", "mo"}


class _Spoken:
    """The language in force in this process."""

    language = "en"
    catalogue = gettext.NullTranslations()


def speak(chosen: str, system: Iterable[str] = ()) -> str:
    """Speak the chosen one of LANGUAGES from now on, else the system's; return it.

    `system`: what the desktop prefers, the best first, should the environment say nothing.
    """
    wanted = [chosen] if chosen in LANGUAGES else _from_environment() or list(system)
    _Spoken.language = next(filter(None, map(_known, wanted)), "en")
    _Spoken.catalogue = gettext.translation(_DOMAIN, CATALOGUES, [_Spoken.language], fallback=True)
    return _Spoken.language


def spoken() -> str:
    return _Spoken.language


def _(message: str, /, **named: object) -> str:
    """Translate a message and fill its named places."""
    words = _Spoken.catalogue.gettext(message) if message else ""
    return words.format(**named) if named else words


def N_(message: str) -> str:
    """Mark a message for the catalogue; it is shown through `_`."""
    return message


def pgettext(context: str, message: str) -> str:
    """Translate a message that means something else elsewhere."""
    return _Spoken.catalogue.pgettext(context, message)


def several(number_of: int, singular: str, plural: str, /, **named: object) -> str:
    """Translate a sentence about a count, its place {count}: "1 chat", "1,204 chats". `named`: its other places."""
    return _Spoken.catalogue.ngettext(singular, plural, number_of).format(count=number(number_of), **named)


def sentences(*parts: str) -> str:
    """Join sentences, each `ended` but the last, as the language spaces them; empty ones are left out."""
    *before, last = list(filter(None, parts)) or [""]
    return "".join(words if words[-1] in _WIDE_ENDS else f"{words} " for words in map(ended, before)) + last


def ended(words: str) -> str:
    """Add a full stop, unless there is a mark at the end."""
    if words.endswith(_ENDS + _WIDE_ENDS):
        return words
    return words + ("。" if _Spoken.language in _WITHOUT_SPACES else ".")


def listed(things: Iterable[str]) -> str:
    """Join the things of a list as the language separates them; empty ones are left out."""
    return pgettext("between things", ", ").join(filter(None, things))


def beside(parts: Iterable[str]) -> str:
    """Join the parts of one line: "8B · 4.9 GB"; empty ones are left out. From right to left they keep their order."""
    shown = filter(None, parts)
    if _Spoken.language in _FROM_THE_RIGHT:
        return "\u200f" + " · ".join(f"\u2068{part}\u2069" for part in shown)
    return " · ".join(shown)


def mark(between: str) -> str:
    """Return a semicolon or colon with its space, or a bracket, as the language writes it between two parts."""
    return _WIDE.get(between, between) if _Spoken.language in _WITHOUT_SPACES else between


def number(value: float, decimals: int = 0, *, grouped: bool = True) -> str:
    """Write a number: "1,204", "0.31"; `grouped` in thousands."""
    return with_marks(f"{value:{',' if grouped else ''}.{decimals}f}")


def with_marks(figure: str) -> str:
    """Put the language's marks for thousands and decimals into a figure written in English."""
    marks = {ord(","): pgettext("between thousands", ","), ord("."): pgettext("before decimals", ".")}
    return figure.translate(marks)


def _known(tag: str) -> str:
    """Return the one of LANGUAGES that a tag means, as in "pt_BR.UTF-8", "zh-Hant-HK" or "C"; "" if none."""
    language, *more = tag.partition(".")[0].partition("@")[0].replace("-", "_").lower().split("_")
    if language == "zh":
        return "zh_Hant" if _TRADITIONAL.intersection(more) else "zh_Hans"
    if language in ("c", "posix"):
        return "en"
    return language if language in LANGUAGES else ""


def _from_environment() -> list[str]:
    """List the languages of the user's variables, as gettext reads them; on Windows, without any, the system's."""
    for name in ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"):
        if value := os.environ.get(name):
            return value.split(":")
    if sys.platform == "win32":
        import ctypes

        return [locale.windows_locale.get(ctypes.windll.kernel32.GetUserDefaultUILanguage(), "")]
    return []
