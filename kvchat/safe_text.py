"""Characters that would make text look other than it is: invisible ones, control codes, bidi overrides."""

from __future__ import annotations

import re

# Embeddings, overrides and isolates (UAX #9) reorder what stands beside them; the rest has no width at all.
# Marks that honest text needs stay: LRM, RLM and ALM in Arabic and Hebrew, ZWJ and ZWNJ in emoji and Persian.
_HIDDEN = {
    "\u202a": "LRE",
    "\u202b": "RLE",
    "\u202c": "PDF",
    "\u202d": "LRO",
    "\u202e": "RLO",
    "\u2066": "LRI",
    "\u2067": "RLI",
    "\u2068": "FSI",
    "\u2069": "PDI",
    "\u200b": "ZWSP",
    "\u2060": "WJ",
    "\u180e": "MVS",
    "\ufeff": "BOM",
}
_SUSPECT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f" + "".join(_HIDDEN) + "]")
_DELETE, _CONTROL_PICTURES = 0x7F, 0x2400


def calm(text: str) -> str:
    """Prose as it may be shown: hidden characters are left out, control codes (ANSI's ESC too) get their pictures."""
    return _SUSPECT.sub(lambda found: "" if found[0] in _HIDDEN else _picture(found[0]), text)


def spelled_out(text: str) -> str:
    """Code as it may be shown: every hidden character stands there by name, so that nothing in it is unseen."""
    return _SUSPECT.sub(lambda found: f"⟦{_HIDDEN[found[0]]}⟧" if found[0] in _HIDDEN else _picture(found[0]), text)


def _picture(control: str) -> str:
    code = ord(control)
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    return "␡" if code == _DELETE else "\ufffd"
