"""The language of kvchat: one message catalog for all layers, and number formats.

Text for users is translated by `_`, `plural` or `pgettext` when it is shown, one whole sentence at a time, with named
placeholders: `_("{name} is gone", name=name)`. Text in module-level tables is marked with `N_` and translated by `_`
when it is shown, because the language may change in between. Logs, reports, JSON and texts for models and other
programs stay English. The catalogues are in `kvchat/locale`; `packaging/catalogues` extracts and compiles them.
"""

import gettext
import locale
import os
import sys
from collections.abc import Iterable
from pathlib import Path

SYSTEM = "system"  # setting: follow the desktop
LANGUAGES = {  # native names
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
_RIGHT_TO_LEFT_LANGUAGES = {"ar", "fa", "he", "ur"}  # not translated yet
_WITHOUT_SPACES = {"ja", "zh_Hans", "zh_Hant"}
_WIDE = {"; ": "；", ": ": "：", " (": "（", ")": "）"}
_ENDS, _WIDE_ENDS = tuple(".!?:;…)"), tuple("。！？：；）」』")
_TRADITIONAL_CHINESE_SUBTAGS = {"hant", "tw", "hk", "mo"}


class _Current:
    language = "en"
    catalogue = gettext.NullTranslations()


def set_language(chosen: str, system: Iterable[str] = ()) -> str:
    """Switch to `chosen` if it is in LANGUAGES, else to the system's language; return it.

    `system`: the desktop's choices, best first, if the environment sets none.
    """
    languages = [chosen] if chosen in LANGUAGES else _from_environment() or list(system)
    _Current.language = next(filter(None, map(_language_of, languages)), "en")
    _Current.catalogue = gettext.translation(_DOMAIN, CATALOGUES, [_Current.language], fallback=True)
    return _Current.language


def current_language() -> str:
    return _Current.language


def _(message: str, /, **values: object) -> str:
    text = _Current.catalogue.gettext(message) if message else ""
    return text.format(**values) if values else text


def N_(message: str) -> str:
    """Mark a message for the catalogue; it is shown through `_`."""
    return message


def pgettext(context: str, message: str) -> str:
    """Translate a message whose meaning depends on `context`."""
    return _Current.catalogue.pgettext(context, message)


def plural(count: int, singular: str, plural: str, /, **values: object) -> str:
    """Translate text with a {count}: "1 chat", "1,204 chats". `values`: its other placeholders."""
    return _Current.catalogue.ngettext(singular, plural, count).format(count=format_number(count), **values)


def join_sentences(*parts: str) -> str:
    """Join sentences with the language's spacing, adding missing full stops between them; skip empty ones."""
    *before, last = list(filter(None, parts)) or [""]
    return "".join(text if text[-1] in _WIDE_ENDS else f"{text} " for text in map(end_sentence, before)) + last


def capitalize_first(text: str) -> str:
    """Capitalize the first letter only: German nouns and names keep theirs, unlike with `str.capitalize`."""
    return text[:1].upper() + text[1:]


def end_sentence(text: str) -> str:
    if text.endswith(_ENDS + _WIDE_ENDS):
        return text
    return text + ("。" if _Current.language in _WITHOUT_SPACES else ".")


def join_list(items: Iterable[str]) -> str:
    """Join list items with the language's separator; skip empty ones."""
    return pgettext("between things", ", ").join(filter(None, items))


def join_parts(parts: Iterable[str]) -> str:
    """Join the parts of one line: "8B · 4.9 GB"; skip empty ones. Right-to-left text keeps their order."""
    parts_shown = filter(None, parts)
    if _Current.language in _RIGHT_TO_LEFT_LANGUAGES:
        return "\u200f" + " · ".join(f"\u2068{part}\u2069" for part in parts_shown)
    return " · ".join(parts_shown)


def punctuation(between: str) -> str:
    """Return punctuation such as "; ", or its full-width form in languages that do not use spaces."""
    return _WIDE.get(between, between) if _Current.language in _WITHOUT_SPACES else between


def format_number(value: float, decimals: int = 0, *, grouped: bool = True) -> str:
    return localize_number(f"{value:{',' if grouped else ''}.{decimals}f}")


def localize_number(figure: str) -> str:
    """Localize the thousands and decimal separators of an English number."""
    marks = {ord(","): pgettext("between thousands", ","), ord("."): pgettext("before decimals", ".")}
    return figure.translate(marks)


def _language_of(tag: str) -> str:
    """Return the one of LANGUAGES for a tag like "pt_BR.UTF-8", "zh-Hant-HK" or "C"; "" if none."""
    language, *more = tag.partition(".")[0].partition("@")[0].replace("-", "_").lower().split("_")
    if language == "zh":
        return "zh_Hant" if _TRADITIONAL_CHINESE_SUBTAGS.intersection(more) else "zh_Hans"
    if language in ("c", "posix"):
        return "en"
    return language if language in LANGUAGES else ""


def _from_environment() -> list[str]:
    """Return the languages from gettext's environment variables; on Windows, the system's language if none is set."""
    for name in ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"):
        if value := os.environ.get(name):
            return value.split(":")
    if sys.platform == "win32":
        import ctypes

        return [locale.windows_locale.get(ctypes.windll.kernel32.GetUserDefaultUILanguage(), "")]
    return []
