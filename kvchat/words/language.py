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
    """What is in force in this process."""

    language = "en"
    catalogue = gettext.NullTranslations()


def speak(chosen: str, system: Iterable[str] = ()) -> str:
    """Speak the chosen one of LANGUAGES from now on, else the system's; returns it.

    `system`: what the desktop prefers, the best first, should the environment say nothing.
    """
    wanted = [chosen] if chosen in LANGUAGES else _from_environment() or list(system)
    _Spoken.language = next(filter(None, map(_known, wanted)), "en")
    _Spoken.catalogue = gettext.translation(_DOMAIN, CATALOGUES, [_Spoken.language], fallback=True)
    return _Spoken.language


def spoken() -> str:
    return _Spoken.language


def _(message: str, /, **named: object) -> str:
    """The message in the language in force, with what stands in its named places."""
    words = _Spoken.catalogue.gettext(message) if message else ""
    return words.format(**named) if named else words


def N_(message: str) -> str:
    """The message as it is: marked for the catalogue, to be shown through `_`."""
    return message


def pgettext(context: str, message: str) -> str:
    """As `_`, for a message that means something else elsewhere."""
    return _Spoken.catalogue.pgettext(context, message)


def several(number_of: int, one: str, many: str, /, **named: object) -> str:
    """A sentence about a count, which stands in it as {count}: "1 chat", "1,204 chats". `named`: its other places."""
    return _Spoken.catalogue.ngettext(one, many, number_of).format(count=number(number_of), **named)


def sentences(*parts: str) -> str:
    """These one after the other, each `ended` but the last, empty ones left out.

    Where the language writes no space after a sentence, there is none.
    """
    *before, last = list(filter(None, parts)) or [""]
    return "".join(words if words[-1] in _WIDE_ENDS else f"{words} " for words in map(ended, before)) + last


def ended(words: str) -> str:
    """With a full stop, unless there is a mark at their end."""
    if words.endswith(_ENDS + _WIDE_ENDS):
        return words
    return words + ("。" if _Spoken.language in _WITHOUT_SPACES else ".")


def listed(things: Iterable[str]) -> str:
    """These beside each other, as the language parts things in a list; empty ones are left out."""
    return pgettext("between things", ", ").join(filter(None, things))


def beside(parts: Iterable[str]) -> str:
    """Parts of one line: "8B · 4.9 GB"; empty ones are left out. From right to left they stand in that order."""
    shown = filter(None, parts)
    if _Spoken.language in _FROM_THE_RIGHT:
        return "\u200f" + " · ".join(f"\u2068{part}\u2069" for part in shown)
    return " · ".join(shown)


def mark(between: str) -> str:
    """A semicolon or colon with its space, or a bracket, as the language writes it between two parts."""
    return _WIDE.get(between, between) if _Spoken.language in _WITHOUT_SPACES else between


def number(value: float, decimals: int = 0, *, grouped: bool = True) -> str:
    """A number as it is written: "1,204", "0.31"; `grouped` in thousands."""
    return with_marks(f"{value:{',' if grouped else ''}.{decimals}f}")


def with_marks(figure: str) -> str:
    """A figure that was written as in English, with the marks for thousands and decimals."""
    marks = {ord(","): pgettext("between thousands", ","), ord("."): pgettext("before decimals", ".")}
    return figure.translate(marks)


def _known(tag: str) -> str:
    """The one of LANGUAGES that is meant, as in "pt_BR.UTF-8", "zh-Hant-HK" or "C"; empty if it is none."""
    language, *more = tag.partition(".")[0].partition("@")[0].replace("-", "_").lower().split("_")
    if language == "zh":
        return "zh_Hant" if _TRADITIONAL.intersection(more) else "zh_Hans"
    if language in ("c", "posix"):
        return "en"
    return language if language in LANGUAGES else ""


def _from_environment() -> list[str]:
    """What the user's variables say, as gettext reads them; on Windows, without any, what its own windows speak."""
    for name in ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"):
        if value := os.environ.get(name):
            return value.split(":")
    if sys.platform == "win32":
        import ctypes

        return [locale.windows_locale.get(ctypes.windll.kernel32.GetUserDefaultUILanguage(), "")]
    return []
