"""Text comparison, and word search without case and diacritics, in any script.

SQLite's own tokenizers cannot split scripts without spaces or find emoji, and its trigram tokenizer finds nothing
shorter than three characters. Therefore text is prepared here: each character of such a script becomes a word, and
characters typed without a space are searched as a phrase. The index then splits at ASCII separators only.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

_WORD = re.compile(r"[^\x00-\x2f\x3a-\x40\x5b-\x60\x7b-\x7f]+")  # splits like FTS5's tokenizer `ascii`
_PIECE = re.compile(r'"([^"]*)"?|([^\s"]+)')
_WORD_RANGES = (  # scripts without spaces between words, or with joined particles
    (0x0E00, 0x109F),  # Thai, Lao, Tibetan, Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x31FF),  # kana, Bopomofo
    (0x3400, 0x9FFF),
    (0xAC00, 0xD7A3),  # Hangul
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
_STEP, _OVERLAP = 4096, 256  # characters per step; a hit cut off by a step is complete in the next
_KEPT_COMBINING_CLASSES = (0, 8, 9)  # mark classes that make another letter: vowel signs, kana voicing, viramas


class _Folding(dict[int, str]):
    """Cached `str.translate` table that removes case, diacritics and compatibility forms."""

    def __missing__(self, code: int) -> str:
        plain = unicodedata.normalize("NFKD", chr(code)).casefold()
        self[code] = unicodedata.normalize("NFC", "".join(filter(_is_significant, plain)))
        return self[code]


class _SpacedFolding(dict[int, str]):
    """Like `_Folding`, but puts spaces around one-character words and replaces punctuation by spaces.

    One-character words: see `_is_word_by_itself`.
    """

    def __missing__(self, code: int) -> str:
        self[code] = ""
        for char in chr(code).translate(_FOLDED):
            is_word = char.isascii() or unicodedata.category(char)[0] in "LNM"
            self[code] += f" {char} " if _is_word_by_itself(char) else char if is_word else " "
        return self[code]


_FOLDED, _SPACED = _Folding(), _SpacedFolding()


@dataclass(frozen=True)
class Term:
    """Consecutive words. If `is_prefix`, the last may be the beginning of a longer word."""

    words: tuple[str, ...]
    is_prefix: bool

    @property
    def expression(self) -> str:
        return f'"{" ".join(self.words)}"' + (" *" if self.is_prefix else "")

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        before = "" if _is_word_by_itself(self.words[0][0]) else r"(?<![^\W_])"
        after = "" if self.is_prefix or _is_word_by_itself(self.words[-1][-1]) else r"(?![^\W_])"
        return re.compile(before + r"[\W_]*".join(map(re.escape, self.words)) + after)


def fold(text: str) -> str:
    """Remove case, diacritics and compatibility forms."""
    return text.lower() if text.isascii() else text.translate(_FOLDED)


def split_words(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFC", text).translate(_SPACED)


def parse_query(query: str) -> tuple[Term, ...]:
    """Parse a query of words, beginnings of words, and exact phrases in double quotes."""
    terms = []
    for quoted, plain in _PIECE.findall(query):
        words = tuple(word.lower() for word in _WORD.findall(split_words(quoted or plain)))
        if words:
            begins = not quoted and len(words[-1]) > 1 and not _is_word_by_itself(words[-1][-1])
            terms.append(Term(words, begins))
    return tuple(terms)


def find_matches(text: str, terms: Sequence[Term]) -> list[tuple[int, int]]:
    """Return non-overlapping matches of the terms, in order."""
    plain = fold(text)
    candidates = [term for term in terms if term.words[0] in plain]  # much faster than the pattern
    matches = sorted(match.span() for term in candidates for match in term.pattern.finditer(plain))
    if len(plain) != len(text):
        origin = [i for i, char in enumerate(text) for _ in char.translate(_FOLDED)]
        origin.append(len(text))
        matches = [(origin[start], origin[end]) for start, end in matches]  # restores the folded marks
    separate: list[tuple[int, int]] = []
    for start, end in matches:
        if not separate or start >= separate[-1][1]:
            separate.append((start, end))
    return separate


def find_first_match(text: str, terms: Sequence[Term]) -> tuple[int, int] | None:
    """Return one match of any term as a range of positions, or None.

    Folding takes 50 times as long as a literal search, so the text near the first literal occurrence is folded first.
    """
    lower = text.lower()
    places = [lower.find(term.words[0]) for term in terms] if len(lower) == len(text) else []
    literally = max(min((place for place in places if place >= 0), default=0) - _OVERLAP, 0)
    return _match_after(literally, text, terms, steps=1) or _match_after(0, text, terms)


def _match_after(first: int, text: str, terms: Sequence[Term], steps: int | None = None) -> tuple[int, int] | None:
    for begin in range(first, max(len(text), 1), _STEP)[:steps]:
        piece = text[begin : begin + _STEP + _OVERLAP]
        for start, end in find_matches(piece, terms):
            cut = (begin and not start) or (end == len(piece) and begin + end < len(text))  # may be a longer word
            if not cut:
                return begin + start, begin + end
    return None


def matches_all(text: str, terms: Sequence[Term]) -> bool:
    return all(find_first_match(text, (term,)) for term in terms)


def _is_word_by_itself(char: str) -> bool:
    """Return True if a character is a word by itself: scripts without spaces, emoji, pictographs."""
    code = ord(char)
    return any(first <= code <= last for first, last in _WORD_RANGES) or unicodedata.category(char) == "So"


def _is_significant(char: str) -> bool:
    category = unicodedata.category(char)
    if category == "Sk":  # a skin tone or a standalone accent
        return char.isascii()
    variation = 0xFE00 <= ord(char) <= 0xFE0F
    return not variation and not (category == "Mn" and unicodedata.combining(char) not in _KEPT_COMBINING_CLASSES)


def common_prefix_length(first: str, second: str) -> int:
    """Return the length of the common prefix. Bisects: prompts are long, and comparing slices is fast."""
    least, most = 0, min(len(first), len(second))
    while least < most:
        middle = (least + most + 1) // 2
        if first[least:middle] == second[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least
