"""Zips that others made, opened within bounds."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kvchat.system.files import open_plain

MOST_LISTED = 16_000_000  # bytes of a zip's list of what is in it: some 150,000 files, each takes 1 KB once it is read
# What a zip that is damaged, or made to do damage, can end in.
ZIP_FAULTS = (OSError, ValueError, RuntimeError, EOFError, struct.error, zlib.error, zipfile.BadZipFile)
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_END, _END_64 = b"PK\5\6", b"PK\6\6"
_END_SIZE, _END_64_SIZE, _LOCATOR_SIZE, _LONGEST_COMMENT = 22, 56, 20, 65_535


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """A zip, for as long as the block takes. Raises OSError and zipfile.BadZipFile."""
    with open_plain(path) as file:
        if _listed(file) > MOST_LISTED:
            raise zipfile.BadZipFile("it lists more files than kvchat looks through")
        with zipfile.ZipFile(file) as archive:
            if any(member.compress_type not in _PACKED for member in archive.infolist()):
                raise zipfile.BadZipFile("it is packed in an unusual way")  # which can take any amount of memory
            yield archive


def is_zip(path: Path) -> bool:
    """Whether a file is a zip, whatever its name. Raises OSError."""
    with open_plain(path) as file:
        return zipfile.is_zipfile(file)


def _listed(file: BinaryIO) -> int:
    """How many bytes the list is said to take, which `zipfile` would read at once; 0 where there is none."""
    length = file.seek(0, os.SEEK_END)
    file.seek(max(0, length - _LONGEST_COMMENT - _END_SIZE - _LOCATOR_SIZE - _END_64_SIZE))
    tail = file.read()
    end = len(tail) - _END_SIZE
    if not (tail[end:].startswith(_END) and tail.endswith(b"\0\0")):
        end = tail.rfind(_END)
    if end < 0 or end + _END_SIZE > len(tail):
        return 0
    long_end = tail[max(0, end - _LOCATOR_SIZE - _END_64_SIZE) : max(0, end - _LOCATOR_SIZE)]
    if long_end.startswith(_END_64) and len(long_end) == _END_64_SIZE:
        return int(struct.unpack_from("<Q", long_end, 40)[0])
    return int(struct.unpack_from("<I", tail, end + 12)[0])
