"""Safe text: for display, without misleading characters; for sharing, without secrets.

Displayed and exported text goes through `safe_prose` or `safe_code`; what is stored, and what the model reads, is
unchanged. Reports go through `redact`.
"""

import getpass
import re
import socket
from collections.abc import Iterable
from pathlib import Path, PurePath

# Embeddings, overrides and isolates (UAX #9) reorder adjacent text; the rest has no width.
# Legitimate marks stay: LRM, RLM and ALM in Arabic and Hebrew, ZWJ and ZWNJ in emoji and Persian.
_HIDDEN = {"\u202a": "LRE", "\u202b": "RLE", "\u202c": "PDF", "\u202d": "LRO", "\u202e": "RLO"}
_HIDDEN |= {"\u2066": "LRI", "\u2067": "RLI", "\u2068": "FSI", "\u2069": "PDI"}
_HIDDEN |= {"\u200b": "ZWSP", "\u2060": "WJ", "\u180e": "MVS", "\ufeff": "BOM", "\u00ad": "SHY", "\u034f": "CGJ"}
_HIDDEN |= dict.fromkeys("\u115f\u1160\u3164\uffa0", "HANGUL FILLER") | dict.fromkeys("\u17b4\u17b5", "KHMER VOWEL")
# Invisible operators, deprecated format controls, annotations, shorthand and music formats, tags,
# reserved neighbours, and the variation selectors.
_RANGES = (
    "\u2061-\u2065\u206a-\u206f\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\u180b-\u180d\u180f\ufe00-\ufe0f"
)
# Legitimate marks of other scripts and emoji: among plain letters, digits and code they only deceive.
_MARKS = {"\u061c": "ALM", "\u200c": "ZWNJ", "\u200d": "ZWJ", "\u200e": "LRM", "\u200f": "RLM"}
_STRAY_MARKS = re.compile(f"(?<![^\x00-\x7f])[{''.join(_MARKS)}]+(?![^\x00-\x7f])")
_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"
_SUSPECT = re.compile("[" + _CONTROLS + "".join(_HIDDEN) + _RANGES + "]")
_DELETE, _CONTROL_PICTURES = 0x7F, 0x2400

# A selector sets the look of the character before it and must follow one of these: emoji, ideographs, those Unicode
# lists as standardised (mathematics, Myanmar, 'Phags-pa, fullwidth forms), Mongolian letters.
_EMOJI = "#*0-9\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff"
_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_BELONGS = re.compile(
    f"[{_EMOJI}][\ufe0e\ufe0f]|[{_IDEOGRAPHS}\u2200-\u22ff\u2a00-\u2aff\u1000-\u109f\uaa60-\uaa7f\ua840-\ua87f"
    f"\u3000-\u303f\uff01-\uff5e][\ufe00-\ufe0d]|[{_IDEOGRAPHS}][\U000e0100-\U000e01ef]"
    "|[\u1820-\u18aa][\u180b-\u180d\u180f]|[\u1100-\u115e\ua960-\ua97c]\u1160"
)
_JUNGSEONG = re.compile("[\u1161-\u11a7\ud7b0-\ud7c6]")  # vowel that may follow U+115F in a syllable
_FLAG = re.compile("\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f")  # Scotland and others
_MAX_FLAG_EMOJI_LENGTH = 8
_PROSE = frozenset(
    ("", ".txt", ".md", ".markdown", ".rst", ".pdf", ".docx", ".xlsx", ".pptx", ".doc", ".xls", ".ppt", ".epub")
)


def safe_prose(text: str) -> str:
    """Make prose safe to show: drop hidden characters, and replace control codes with visible symbols."""
    return _SUSPECT.sub(lambda found: _keep_if_legitimate(found) or _picture(found[0]) or "", text)


def safe_name(text: str, max_length: int = 100) -> str:
    """Return a name that another computer has sent, on one line and without hidden characters."""
    return "".join(filter(str.isprintable, " ".join(safe_prose(text).split())))[:max_length].strip() or "?"


def safe_code(text: str) -> str:
    """Make code safe to show: name every hidden character."""
    text = _STRAY_MARKS.sub(lambda found: "".join(f"⟦{_MARKS[char]}⟧" for char in found[0]), text)
    return _SUSPECT.sub(lambda found: _keep_if_legitimate(found) or _picture(found[0]) or f"⟦{_name(found[0])}⟧", text)


def safe_document(name: str, text: str) -> str:
    """Make a document safe to show, as prose or code by its file name."""
    return safe_prose(text) if PurePath(name).suffix.lower() in _PROSE else safe_code(text)


def _keep_if_legitimate(found: re.Match[str]) -> str:
    """Return a hidden character if it is legitimate here, else ""."""
    char, text, at = found[0], found.string, found.start()
    if at and _BELONGS.match(text, at - 1):
        return char
    if "\U000e0020" <= char <= "\U000e007f":
        begin = text.rfind("\U0001f3f4", max(0, at - _MAX_FLAG_EMOJI_LENGTH), at)
        flag = _FLAG.match(text, begin) if begin >= 0 else None
        return char if flag and at < flag.end() else ""
    return char if char == "\u115f" and _JUNGSEONG.match(text, at + 1) else ""


def _picture(char: str) -> str:
    """Return the Unicode control picture (U+2400…) of a control character; "" for any other character."""
    code = ord(char)
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    if code == _DELETE:
        return "␡"
    return "\ufffd" if code < 0xA0 else ""


def _name(char: str) -> str:
    code = ord(char)
    if 0xFE00 <= code <= 0xFE0F:
        return f"VS{code - 0xFE00 + 1}"
    if 0xE0100 <= code <= 0xE01EF:
        return f"VS{code - 0xE0100 + 17}"
    if 0xE0020 <= code <= 0xE007E:
        return f"TAG {chr(code - 0xE0000)}"
    return _HIDDEN.get(char, f"U+{code:04X}")


_REMOVED = "‹removed›"

# Keep the part before, remove the rest.
_AFTER = re.compile(
    r"(?P<before>Authorization:\s*(?:Bearer\s+)?|Bearer\s+|--(?:api-key|hf-token)[= ]\s*|-hft\s+"
    r"|\b\w*(?:(?:API|ENGINE)_?KEY|(?:HF|HUB|ACCESS|AUTH)_?TOKEN|SECRET|PASSWORD)\b[\"']?\s*[=:]\s*[\"']?)(?P<secret>[^\s\"',;]+)",
    re.IGNORECASE,
)
_LOOKS_SECRET = re.compile(r"\bhf_[A-Za-z0-9]{8,}|\bsk-[A-Za-z0-9_-]{16,}|\bgh[pousr]_[A-Za-z0-9]{16,}")
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s:@]+(?::[^/\s@]*)?@")
_MIN_NAME_LENGTH = 3  # shorter names would match in other words


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Remove secrets and personal names. `secrets`: known secrets to remove, such as the engine's key."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # unknown
        user = ""
    home = str(Path.home())
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, _REMOVED)
    text = _LOOKS_SECRET.sub(_REMOVED, text)
    text = _URL_CREDENTIALS.sub(f"{_REMOVED}@", text)
    text = _AFTER.sub(rf"\g<before>{_REMOVED}", text)
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
    for name, word in ((user, "‹user›"), (socket.gethostname(), "‹computer›")):
        if len(name) >= _MIN_NAME_LENGTH:
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", word, text, flags=re.IGNORECASE)
    return text
