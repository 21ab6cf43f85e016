"""Where the rows of a long page stand: heights that are guessed until they are measured. Pure arithmetic, in pixels."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


class RowHeights:
    """Heights of rows one below the other, with gaps included in them."""

    def __init__(self) -> None:
        self._heights: list[int] = []
        self._measured: list[bool] = []
        self._ends: list[int] = []  # of each row; empty: to be added up again

    def __len__(self) -> int:
        return len(self._heights)

    def __getitem__(self, row: int) -> int:
        return self._heights[row]

    @property
    def total(self) -> int:
        """All rows together."""
        ends = self._sums()
        return ends[-1] if ends else 0

    def top(self, row: int) -> int:
        """Where a row begins; for one beyond the last, where the last ends."""
        return self._sums()[row - 1] if row else 0

    def at(self, position: int) -> int:
        """The row at a position; the nearest for one outside. There must be rows."""
        return min(max(bisect_right(self._sums(), position), 0), len(self._heights) - 1)

    def is_measured(self, row: int) -> bool:
        return self._measured[row]

    def measure(self, row: int, height: int) -> int:
        """A row's height is known now; by how much it differs from what it was taken for."""
        change = height - self._heights[row]
        self._measured[row] = True
        if change:
            self._heights[row] = height
            self._ends = []
        return change

    def keep(self, rows: int, more: Sequence[int]) -> None:
        """Keep the first `rows` rows; the guessed heights of new ones come after them."""
        self._heights[rows:] = more
        self._measured[rows:] = [False] * len(more)
        self._ends = []

    def doubt(self, row: int) -> None:
        self._measured[row] = False

    def doubt_all(self) -> None:
        self._measured = [False] * len(self._heights)

    def _sums(self) -> list[int]:
        if len(self._ends) != len(self._heights):
            self._ends = list(accumulate(self._heights))
        return self._ends
