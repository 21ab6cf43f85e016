"""Which rows a slot has kept, by what the engine says of each request: those that were saved need not be read again."""

from __future__ import annotations


class SlotRows:
    """How many leading tokens of a slot have the rows they had when it was saved or restored last.

    An engine never changes a row: it keeps those it says it took from its cache (`cache_n`), and computes the others
    anew. Of a request that has not said it yet, nothing is known.
    """

    def __init__(self) -> None:
        self.alone = True  # nobody else sends requests to this engine; if others may, nothing is ever known
        self.kept = 0

    def mark(self, tokens: int) -> None:
        """The slot holds so many tokens, just saved or restored."""
        self.kept = tokens if self.alone else 0

    def asked(self) -> int:
        """A request begins, or the slot is to hold something else; what was known until now."""
        before, self.kept = self.kept, 0
        return before

    def answered(self, before: int, cached: int) -> None:
        """A request took so many tokens from the cache; `before` is what `asked` answered."""
        self.kept = min(before, cached)
