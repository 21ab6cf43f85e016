"""Titles of chats, from their first words or the model's output. Pure functions."""

import re
import unicodedata
from collections.abc import Iterable

from kvchat.text.language import N_, _
from kvchat.text.search import split_words

NEW_TITLE = N_("New chat")
TITLE_LENGTH = 48  # characters

TITLE_REQUEST = (
    "Write a title of at most five words for this chat, in the language of the chat. Reply with the title only."
)
MAX_WORDS, MAX_CHARACTERS = 8, 60
_STEM_LENGTH = 5  # letters that identify a word in other forms

_THOUGHT = re.compile(r"<think(ing)?>.*?(</think(ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
_LABEL = re.compile(
    r"^(?:[\w-]+ )?(?:title|titel|titre|título|titolo|заголовок|标题|標題|タイトル|제목)\s*[:\uff1a]\s*", re.IGNORECASE
)
_LEAD_IN = re.compile(r"^[^\"“]*[:\uff1a] ?(?=[\"“][^\"”]+[\"”]$)")
_MARKS = re.compile(r"[`#]|\*+|__+|~~+")  # Markdown; a single _ may be in a name
_BULLET = re.compile(r"(?:[-–—•>]|\d+[.)])\s+")
_QUOTES = {'"': '"', "'": "'", "“": "”", "„": "“", "‘": "’", "«": "»", "「": "」", "『": "』", "《": "》", "【": "】"}
_JOINERS = "\u200c\u200d"  # needed by Persian and emoji
_WORD = re.compile(r"[^\W_]+")
_SUBTITLE = re.compile(r"\s*[:\uff1a]\s+|\s+[-–—]\s+")
_COLONS = ":\uff1a"
_CONTINUATION_MARKS = ",;:\uff0c\uff1b\uff1a\u3001"  # not at title end


def title_from(text: str) -> str:
    """Return a chat's initial title: the start of its first message, on one line."""
    line = re.sub(r"\s+", " ", text).strip()
    if len(line) <= TITLE_LENGTH:
        return line or _(NEW_TITLE)
    cut = line[:TITLE_LENGTH]
    head, space, _rest = cut.rpartition(" ")
    return (head if space and len(head) > TITLE_LENGTH // 2 else cut).rstrip(" ,.;:") + "…"


def is_title_complete(answer: str) -> bool:
    return any(line.endswith("\n") for line in _lines(answer))


def parse_title(answer: str, chat_text: str) -> str | None:
    """Return the title in a model's answer, or None if it is too long or shares no word with the chat."""
    line = next(iter(_lines(answer)), "")
    printable = (c if c in _JOINERS or unicodedata.category(c)[0] != "C" else " " * (c == "\t") for c in line)
    title = _strip_decoration(" ".join("".join(printable).split()))
    if not _is_short(title):
        title = _SUBTITLE.split(title, maxsplit=1)[0]
    if (
        not _is_short(title)
        or title[-1] in _CONTINUATION_MARKS
        or not shared_words(title, [chat_text]) - _words(TITLE_REQUEST)
    ):
        return None
    return title


def _lines(answer: str) -> list[str]:
    lines = _THOUGHT.sub("", answer).splitlines(keepends=True)
    return [line for line in lines if line.strip() and line.rstrip()[-1] not in _COLONS]


def _strip_decoration(line: str) -> str:
    before = None
    while line != before:
        before = line
        line = _BULLET.sub("", _MARKS.sub("", line).strip(" .。"), count=1)
        line = _LEAD_IN.sub("", _LABEL.sub("", line, count=1), count=1)
        if len(line) > 1 and _QUOTES.get(line[0]) == line[-1] and line[-1] not in line[1:-1]:
            line = line[1:-1].strip()
    return line


def _is_short(title: str) -> bool:
    return 0 < len(title) <= MAX_CHARACTERS and len(title.split()) <= MAX_WORDS


def shared_words(title: str, texts: Iterable[str]) -> set[str]:
    """Return the title's words, in lower case, whose stems occur in the texts."""
    words, shared = _words(title), set[str]()
    for text in texts:
        if shared == words:
            break  # skip the rest of a long chat
        mentioned = split_words(text).lower()
        shared |= {word for word in words - shared if word[:_STEM_LENGTH] in mentioned}
    return shared


def _words(text: str) -> set[str]:
    return set(_WORD.findall(split_words(text).lower()))
