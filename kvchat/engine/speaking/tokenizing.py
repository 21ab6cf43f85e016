"""Incremental tokenizing: a prompt that begins like an earlier one is tokenized from there on.

Special tokens split a text: the parts before and after one are tokenized separately. So a prompt can be cut where a
message ends, at the model's end-of-text token. The first prompt that can be cut tests whether this holds for the
model; if not, every prompt is tokenized whole.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

from kvchat.words.folding import shared_text

Ids = tuple[int, ...]
Tokenize = Callable[[str, bool], Awaitable[Ids]]
PIECE = 2000  # minimum characters of a growing text
COUNTED_AT_ONCE = 100_000  # characters
_BETWEEN_WORDS = re.compile(r"\w(?=[ \n]\w)")
KEPT = 4  # prompts: the turn's, its two boundary probes and one spare
LONGEST_KEPT = 5_000_000  # characters of a prompt; its ids take ten times the bytes


class PromptTokens:
    def __init__(self, tokenize: Tokenize) -> None:
        """`tokenize` asks the engine for a text's ids, with or without those that start a prompt."""
        self._tokenize = tokenize
        self._known: deque[tuple[str, Ids]] = deque(maxlen=KEPT)  # prompts
        self._end, self._end_id = "", -1
        self._holds: bool | None = None  # True if prompts can be cut; None: not tried
        self._pieces: dict[tuple[str, bool], Ids] = {}  # of the growing text
        self._parts: bool | None = None  # True if splitting at words works; None: not tried

    def learn_end(self, token: str) -> None:
        self._end = token

    async def of(self, text: str, *, grows: bool = False) -> Ids:
        """Return the ids of a prompt. Raises what `tokenize` does.

        If it `grows`, as a draft does, only the new part is tokenised.
        """
        if grows:
            return await self._from_a_known_one(text, self._in_pieces) or await self._in_pieces(text, True)
        for known, known_ids in self._known:
            if known == text:
                return known_ids
        ids = await self._from_a_known_one(text, self._tokenize)
        if ids is None or self._holds is None:
            whole = await self._tokenize(text, True)
            if ids is not None:
                self._holds = ids == whole
            ids = whole
        if len(text) <= LONGEST_KEPT:
            self._known.append((text, ids))
        return ids

    async def _from_a_known_one(self, text: str, tokenize: Tokenize) -> Ids | None:
        """Derive the ids from the prompt that shares most; None if none can be cut."""
        if not self._end or self._holds is False or not self._known:
            return None
        known, ids = max(self._known, key=lambda prompt: shared_text(prompt[0], text))
        cut = text.rfind(self._end, 0, shared_text(known, text))
        if cut <= 0:
            return None
        if self._end_id < 0:
            alone = await self._tokenize(self._end, False)
            if len(alone) != 1:
                self._holds = False
                return None
            self._end_id = alone[0]
        if ids.count(self._end_id) != known.count(self._end):
            return None
        place = -1
        for _ in range(text.count(self._end, 0, cut) + 1):
            place = ids.index(self._end_id, place + 1)
        return ids[:place] + await tokenize(text[cut:], False)

    async def _in_pieces(self, text: str, special: bool) -> Ids:
        """Tokenize each piece once; the first time, check that pieces give the ids of the whole."""
        pieces = list(_pieces(text)) if self._parts is not False else [text]
        known, self._pieces = self._pieces, {}
        ids: Ids = ()
        for n, piece in enumerate(pieces):
            key = piece, special and n == 0
            self._pieces[key] = known.get(key) or await self._tokenize(*key)
            ids += self._pieces[key]
        if self._parts is None and len(pieces) > 1:
            whole = await self._tokenize(text, special)
            self._parts = ids == whole
            return whole
        return ids


async def count_until(count: Callable[[str], Awaitable[int]], text: str, most: int) -> tuple[int, bool]:
    """Count a text's tokens; False if the rest beyond `most` was extrapolated."""
    tokens = 0
    for begin in range(0, len(text), COUNTED_AT_ONCE):
        piece = text[begin : begin + COUNTED_AT_ONCE]
        tokens += await count(piece)
        if tokens > most and begin + len(piece) < len(text):
            return tokens * len(text) // (begin + len(piece)), False
    return tokens, True


def _pieces(text: str) -> Iterator[str]:
    begin = 0
    while cut := _BETWEEN_WORDS.search(text, begin + PIECE):
        yield text[begin : cut.end()]
        begin = cut.end()
    yield text[begin:]
