"""Plans for a new file out of parts of others: pure values. `rebuild.compose` carries them out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvchat.kvstore.layout.layout import Span


@dataclass(frozen=True)
class Inline:
    """Bytes that stand in the plan itself."""

    data: bytes

    @property
    def size(self) -> int:
        """How many bytes."""
        return len(self.data)


@dataclass(frozen=True)
class Copy:
    """A range of the plan's source number `source`."""

    source: int
    span: Span

    @property
    def size(self) -> int:
        """How many bytes."""
        return self.span.size


Piece = Inline | Copy
Plan = tuple[Piece, ...]


def joined(pieces: Iterable[Piece]) -> Plan:
    """The same bytes in as few pieces as possible, none of them empty."""
    plan: list[Piece] = []
    for piece in pieces:
        if not piece.size:
            continue
        match plan[-1] if plan else None, piece:
            case Inline(before), Inline(data):
                plan[-1] = Inline(before + data)
            case Copy(source, before), Copy(same, span) if source == same and before.end == span.offset:
                plan[-1] = Copy(source, Span(before.offset, before.size + span.size))
            case _:
                plan.append(piece)
    return tuple(plan)
