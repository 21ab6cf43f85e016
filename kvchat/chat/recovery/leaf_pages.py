"""The rows of a SQLite file whose own lists cannot be read any more: each page of rows is looked at by itself.

As https://www.sqlite.org/fileformat.html has it. A row that makes no sense is left out; which table one is of has to be
told from what is in it.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

Value = None | int | float | str | bytes

_LEAF = 0x0D  # a page of a table's rows
_HEADER, _LEAF_HEADER = 100, 8  # bytes: of the file, of such a page
_SIZES = {1 << power for power in range(9, 17)}  # bytes a page may have
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}  # bytes, by what a record calls them
_FLOAT, _ZERO, _BLOB = 7, 8, 12  # from there on, every other is text


def leaf_rows(file: Path) -> Iterator[tuple[Value, ...]]:
    """Every row that can be read, of all tables; letters that are none are replaced. Raises OSError."""
    if file.stat().st_size <= _HEADER:
        return
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        size = int.from_bytes(data[16:18], "big")
        pages = _Pages(data, 65_536 if size == 1 else size if size in _SIZES else 4096)
        for start in range(0, len(data), pages.size):
            yield from pages.rows(start)


class _Pages:
    def __init__(self, data: mmap.mmap, size: int) -> None:
        self.data, self.size = data, size

    def rows(self, start: int) -> list[tuple[Value, ...]]:
        """The rows of the page that begins there; none if it is of another kind."""
        head, found = start or _HEADER, []
        if len(self.data) - start < self.size or self.data[head] != _LEAF:
            return []
        count = min(self._number(head + 3, 2), self.size // 2)
        for at in range(head + _LEAF_HEADER, min(head + _LEAF_HEADER + 2 * count, start + self.size - 1), 2):
            try:
                found.append(_values(self._record(start + self._number(at, 2))))
            except (ValueError, IndexError, struct.error):
                continue
        return found

    def _number(self, at: int, length: int) -> int:
        return int.from_bytes(self.data[at : at + length], "big")

    def _record(self, at: int) -> bytes:
        """A row's bytes, those in the pages that it flows over to, too. Raises ValueError and IndexError."""
        length, at = _varint(self.data, at)
        _, at = _varint(self.data, at)  # the row's number
        most, least = self.size - 35, (self.size - 12) * 32 // 255 - 23
        if length <= most:
            return self.data[at : at + length]
        if length > len(self.data):
            raise ValueError("longer than the file")
        here = least + (length - least) % (self.size - 4)
        here = here if here <= most else least
        record, page = bytearray(self.data[at : at + here]), self._number(at + here, 4)
        while len(record) < length:
            at = (page - 1) * self.size
            if not 0 < at <= len(self.data) - self.size:
                raise ValueError("it goes on nowhere")
            page = self._number(at, 4)
            record += self.data[at + 4 : at + min(self.size, 4 + length - len(record))]
        return bytes(record)


def _varint(data: mmap.mmap | bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where it ends. Raises IndexError."""
    number = 0
    for place in range(at, at + 8):
        number = number << 7 | data[place] & 0x7F
        if data[place] < 0x80:
            return number, place + 1
    return number << 8 | data[at + 8], at + 9


def _values(record: bytes) -> tuple[Value, ...]:
    """What a record holds. Raises ValueError, IndexError and struct.error."""
    end, at = _varint(record, 0)
    kinds, place = [], end
    while at < end:
        kind, at = _varint(record, at)
        kinds.append(kind)
    values: list[Value] = []
    for kind in kinds:
        length = (kind - _BLOB) // 2 if kind >= _BLOB else 8 if kind == _FLOAT else _INTEGERS.get(kind, 0)
        raw, place = record[place : place + length], place + length
        if place > len(record):
            raise ValueError("cut off")
        values.append(_value(kind, raw))
    return tuple(values)


def _value(kind: int, raw: bytes) -> Value:
    if kind >= _BLOB:
        return raw.decode("utf-8", "replace") if kind % 2 else raw
    if kind == _FLOAT:
        return float(struct.unpack(">d", raw)[0])
    if kind in _INTEGERS:
        return int.from_bytes(raw, "big", signed=True)
    return kind - _ZERO if kind in (_ZERO, _ZERO + 1) else None
