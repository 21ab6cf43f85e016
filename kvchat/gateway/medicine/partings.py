"""Where two prompts part: token ids compared with numpy, texts by halving. A few milliseconds for 128K tokens."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from sys import getsizeof
from typing import Any

import numpy as np
import numpy.typing as npt

from kvchat.gateway.medicine.body import NOTHING_KNOWN, contents
from kvchat.words.language import _, listed, number
from kvchat.words.reasons import Reason, ReasonCode
from kvchat.words.wording import brief

Ids = npt.NDArray[np.int32]

_GRAM = 8  # tokens in a row that two prompts must share to be alike there
_SKETCH = 512  # hashes kept of a prompt
_MIX = np.uint32(0x9E3779B1)
_REPLY_HEAD = 8  # tokens at a prompt's end that begin its reply: templates write another head where they repeat it


class Prompt:
    """What an engine was asked to read: token ids, the text they were made of, and what the request's body said.

    The body itself is not kept: pictures may be in it.
    """

    def __init__(self, ids: Sequence[int] | Ids, text: str = "", body: Mapping[str, Any] | None = None) -> None:
        """`text` is empty where it is not known, `body` where there is none."""
        self.ids: Ids = np.asarray(ids if isinstance(ids, np.ndarray) else array("i", ids), np.int32)
        self.text, self.contents = text, NOTHING_KNOWN
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
            self.contents = contents(body or {})

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def weight(self) -> int:
        """About how many bytes it keeps in memory."""
        return self.ids.nbytes + getsizeof(self.text) + self.contents.bytes + 4_000

    @cached_property
    def sketch(self) -> npt.NDArray[np.uint32]:
        """The smallest hashes of its runs of 8 tokens, sorted: two prompts share as many as they are alike."""
        grams, width = self.ids.astype(np.uint32), 1
        while width < _GRAM and len(grams) > width:
            grams = grams[:-width] * _MIX + grams[width:]
            grams ^= grams >> np.uint32(15)
            width *= 2
        if len(grams) > _SKETCH:
            grams = np.partition(grams, _SKETCH)[:_SKETCH]
        return np.unique(grams)

    def shares(self, other: Prompt) -> int:
        """How many leading tokens both have."""
        size, start, step = min(len(self.ids), len(other.ids)), 0, 1024
        while start < size:
            apart = self.ids[start : min(size, start + step)] != other.ids[start : min(size, start + step)]
            if apart.any():
                return start + int(apart.argmax())
            start, step = start + step, 2 * step
        return size

    def likeness(self, other: Prompt) -> float:
        """How much of the shorter is in the other, wherever it stands: 0 to 1."""
        smaller = min(len(self.sketch), len(other.sketch))
        return len(np.intersect1d(self.sketch, other.sketch, assume_unique=True)) / smaller if smaller else 0.0

    def goes_on_from(self, other: Prompt) -> bool:
        """Whether nothing of the other would have to be read again for this one."""
        return self.shares(other) >= min(len(self), max(len(other) - _REPLY_HEAD, 1))


@dataclass(frozen=True)
class Parting:
    """Where a prompt parts from the closest one before it, and why. Its texts are the program's: never to disk."""

    at: int  # tokens both have
    of: int  # tokens of the prompt
    cause: Reason
    before: str = ""  # around the place, in the prompt before
    after: str = ""  # and in this one

    @property
    def expected(self) -> bool:
        """True of another conversation, or another way of this one: no fault of anybody's."""
        return self.cause.code in (ReasonCode.OTHER_CONVERSATION, ReasonCode.OTHER_WAY)

    def sentence(self, read: int | None = None, seconds: float = 0.0) -> str:
        """All of it in a sentence; `read`: so many tokens were read again, which took so long."""
        at, of, cause = number(self.at), number(self.of), self.cause.words
        words = _("token {at} of {of}: {cause}", at=at, of=of, cause=cause)
        if read is not None:
            words = _("{words}; {tokens} tokens read again", words=words, tokens=number(read))
        return listed((words, brief(1000 * seconds))) if read is not None and seconds else words
