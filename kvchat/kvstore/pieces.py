"""Plans for a new file out of parts of others, and the writer that carries them out in little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import RawIOBase

from kvchat.kvstore.layout import Span

BUFFER_BYTES = 1 << 20  # large enough that system calls cost nothing beside the copying


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


class SourceCut(OSError):
    """A source is shorter than the plan was made for."""


def plan_size(plan: Plan) -> int:
    """The size of the file a plan makes, in bytes."""
    return sum(piece.size for piece in plan)


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


def write_plan(
    plan: Plan,
    sources: Sequence[RawIOBase],
    target: RawIOBase,
    watch: Callable[[memoryview], object] | None = None,
) -> int:
    """Write the plan's file to `target`, from where that stands; returns its size in bytes.

    Sources and target are unbuffered binary files. `watch` sees every byte in order as it is written (a hasher, say).
    Needs BUFFER_BYTES of memory. Raises SourceCut, and OSError as reading and writing do.
    """
    buffer = memoryview(bytearray(BUFFER_BYTES))
    filled = written = 0

    def flush() -> None:
        nonlocal filled, written
        if watch is not None:
            watch(buffer[:filled])
        _write_all(target, buffer[:filled])
        written += filled
        filled = 0

    for piece in plan:
        done = 0
        if isinstance(piece, Copy):
            sources[piece.source].seek(piece.span.offset)
        while done < piece.size:
            count = min(piece.size - done, BUFFER_BYTES - filled)
            place = buffer[filled : filled + count]
            if isinstance(piece, Inline):
                place[:] = piece.data[done : done + count]
            else:
                _read_all(sources[piece.source], place)
            done += count
            filled += count
            if filled == BUFFER_BYTES:
                flush()
    flush()
    return written


def _read_all(source: RawIOBase, place: memoryview) -> None:
    while len(place):
        count = source.readinto(place)
        if not count:
            raise SourceCut("a slot file was cut while it was read")
        place = place[count:]


def _write_all(target: RawIOBase, data: memoryview) -> None:
    while len(data):
        data = data[target.write(data) or 0 :]
