"""Passages of a long document: split by its structure and ranked for a question with SQLite's FTS5. Blocking.

Words are prepared as for chat search (`search.py`). BM25 weighs words by how rare they are in the document, so
no list of stop words is needed in any language; the Porter stemmer helps with English.
"""

import hashlib
import itertools
import re
import sqlite3
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from kvchat.text.search import parse_query, split_words

PASSAGE_BYTES = 900  # a passage ends after the next paragraph: about 300 tokens, in any script
MAX_PASSAGE_BYTES = 1500
_MAX_QUERY_WORDS = 64
_RANK_OFFSET = 60
_HEADING_WEIGHT = 2.0  # of a word in the headings above a passage, relative to one in it
_MAX_HEADING = 80  # characters
_MARKDOWN_HEADING = re.compile(r"(#{1,6})\s+(.+?)[\s#]*$")
_PART = re.compile(
    r"(?:book|part|act|volume|buch|teil|livre|partie|libro|parte)\s+[\dIVXLC]+\b|第.{1,6}[部卷編编]", re.I
)
_CHAPTER = re.compile(
    r"(?:chapter|section|scene|canto|appendix|kapitel|abschnitt|chapitre|cap[íi]tulo|secci[óo]n)\s+\S|§\s*\d"
    r"|第.{1,6}[章節节回話话]|제\s*\d+\s*[장절]|[IVXLC]+\.?$|\d+(?:\.\d+)*\.?\s+\S.{0,60}[^.!?]$",
    re.I,
)
CITATION = re.compile(r"\[[^\[\]\n]*\blines? (\d{1,9})(?:[-–]\d+)?\]")  # a place, as a reply may repeat it
_QUOTED = re.compile(r"^\[[^\n]*lines (\d{1,9})-(\d{1,9})\]\n(.*?)(?=\n\n\[[^\n]*lines \d+-\d+\]\n|\Z)", re.M | re.S)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")


@dataclass(frozen=True)
class Passage:
    start: int  # range of characters in the document
    end: int
    first_line: int  # from 1
    last_line: int
    page: int  # from 1; 0: the document has no pages
    headings: tuple[str, ...]  # outermost first

    @property
    def place(self) -> str:
        """Return the place of the passage, as the model reads it: headings, page, lines."""
        lines = f"lines {self.first_line}-{self.last_line}"
        page = [f"page {self.page}"] if self.page else []
        return ", ".join((*([" > ".join(self.headings)] if self.headings else []), *page, lines))


def split(text: str) -> list[Passage]:
    """Split a document at headings and paragraphs; split long paragraphs at lines or sentences."""
    line_starts = [0, *(found.end() for found in re.finditer("\n", text))]
    page_starts = [found.end() for found in re.finditer("\f", text)]
    passages: list[Passage] = []
    headings: list[tuple[int, str]] = []
    start, size, has_body = 0, 0, False

    def close(end: int) -> None:
        nonlocal start, size, has_body
        body = text[start:end]
        first = start + len(body) - len(body.lstrip())
        last = first + len(body.strip())
        if last > first:
            lines = bisect_right(line_starts, first), bisect_right(line_starts, last - 1)
            page = bisect_right(page_starts, first) + 1 if page_starts else 0
            passages.append(Passage(first, last, *lines, page, tuple(name for _, name in headings)))
        start, size, has_body = end, 0, False

    lines = text.split("\n")
    for number, (at, line) in enumerate(zip(line_starts, lines, strict=True)):
        isolated = not any(
            other.strip() for other in (*lines[max(number - 1, 0) : number], *lines[number + 1 : number + 2])
        )
        if (heading := _heading(line, isolated=isolated)) is not None:
            if has_body:
                close(at)
            headings = [kept for kept in headings if kept[0] < heading[0]] + [heading]
        for piece in _pieces(line):
            length = len(piece.encode())
            if size and size + length > MAX_PASSAGE_BYTES:
                close(at)
            at += len(piece)
            size += length
            has_body = has_body or (heading is None and bool(piece.strip()))
        size += 1
        if has_body and not line.strip() and size >= PASSAGE_BYTES:
            close(at)
    close(len(text))
    return passages


def _heading(line: str, *, isolated: bool) -> tuple[int, str] | None:
    """Return a heading's level and name, or None for other lines."""
    if len(line) > 4 * _MAX_HEADING:
        return None
    if (found := _MARKDOWN_HEADING.match(line)) is not None:
        return len(found[1]), found[2][:_MAX_HEADING]
    name = line.strip("\f \t*_=")
    if not isolated or not 0 < len(name) <= _MAX_HEADING:
        return None
    if _PART.match(name):
        return 7, name
    is_capitals = name == name.upper() != name.lower() and sum(map(str.isalpha, name)) > 2
    return (8, name) if is_capitals or _CHAPTER.match(name) else None


def _pieces(line: str) -> Iterator[str]:
    """Yield a line, or its sentences if it is long; a sentence that is too long is cut between words."""
    if len(line.encode()) <= PASSAGE_BYTES:
        yield line
        return
    start, most = 0, PASSAGE_BYTES // 3  # characters: they take up to 4 bytes
    for end in (*(found.end() for found in _SENTENCE_END.finditer(line)), len(line)):
        while end - start > most:
            cut = line.rfind(" ", start + most // 2, start + most) + 1 or start + most
            yield line[start:cut]
            start = cut
        yield line[start:end]
        start = end


def quote_passage(text: str, passage: Passage) -> str:
    return f"[{passage.place}]\n{text[passage.start : passage.end]}"


def quoted_ranges(quotes: str, text: str) -> Iterator[tuple[int, int]]:
    """Yield the ranges in `text` of the passages in `quotes`, which blank lines separate (`quote_passage`).

    The window calls this with texts of tens of MB, so it uses only the fast methods of `str`.
    """
    for found in _QUOTED.finditer(quotes):
        first_line, passage = int(found[1]), found[3]
        line, counted, start = 1, 0, text.find(passage)
        while start >= 0 and (line := line + text.count("\n", counted, start)) < first_line:
            counted, start = start, text.find(passage, start + 1)
        if start >= 0:
            yield start, start + len(passage)


def quote_at(quotes: str, line: int) -> str:
    """Return the quoted passage that contains this line; "" if there is none."""
    return next((found[0] for found in _QUOTED.finditer(quotes) if int(found[1]) <= line <= int(found[2])), "")


class Index:
    """Passages of one document, ranked by BM25. Any thread, one at a time."""

    def __init__(self, text: str) -> None:
        self.text, self.passages = text, split(text)
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        self._db.execute("CREATE VIRTUAL TABLE words USING fts5 (headings, body, tokenize = 'porter ascii')")
        rows = (
            (number, split_words(" ".join(p.headings)), split_words(text[p.start : p.end]))
            for number, p in enumerate(self.passages)
        )
        with self._db:
            self._db.executemany("INSERT INTO words (rowid, headings, body) VALUES (?, ?, ?)", rows)

    def with_headings(self, passage: Passage) -> str:
        return "\n".join(filter(None, (" > ".join(passage.headings), self.text[passage.start : passage.end])))

    @cached_property
    def digest(self) -> str:
        """Hash of all passages and their headings."""
        return hashlib.sha256("\0".join(map(self.with_headings, self.passages)).encode()).hexdigest()

    def rank(self, question: str, count: int) -> list[Passage]:
        """Return the passages that match the question best, best first."""
        if not (query := build_query(question)):
            return []
        found = self._db.execute(
            f"SELECT rowid FROM words WHERE words MATCH ? ORDER BY bm25(words, {_HEADING_WEIGHT}, 1.0) LIMIT ?",
            (query, count),
        )
        return [self.passages[number] for (number,) in found]


def build_query(question: str) -> str:
    """Return an FTS5 expression for any word of the question, and any two characters of scripts without spaces."""
    terms: dict[str, None] = {}
    for term in parse_query(question.replace('"', " ")):
        pairs = [f'"{first} {second}"' for first, second in itertools.pairwise(term.words)]
        words = [f'"{word}"' for word in term.words if len(word) > 1 or len(term.words) == 1]
        terms |= dict.fromkeys((*pairs, *words))
    return " OR ".join(itertools.islice(terms, _MAX_QUERY_WORDS))


def merge_rankings(*rankings: Sequence[Passage]) -> list[Passage]:
    """Merge by reciprocal rank (Cormack et al., SIGIR 2009): scores of different methods cannot be compared."""
    scores: defaultdict[Passage, float] = defaultdict(float)
    for ranking in rankings:
        for rank, passage in enumerate(ranking):
            scores[passage] += 1 / (_RANK_OFFSET + rank)
    return sorted(scores, key=scores.__getitem__, reverse=True)


def join_neighbours(text: str, passages: Sequence[Passage]) -> list[Passage]:
    """Return passages in document order, with adjacent passages joined."""
    joined: list[Passage] = []
    for passage in sorted(passages, key=lambda passage: passage.start):
        if joined and not text[joined[-1].end : passage.start].strip() and joined[-1].headings == passage.headings:
            last = joined[-1]
            passage = Passage(last.start, passage.end, last.first_line, passage.last_line, last.page, last.headings)
            joined.pop()
        joined.append(passage)
    return joined
