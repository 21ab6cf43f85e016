"""Readers of untrusted zips and JSON, with size limits. Lists of chats are parsed one by one."""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from kvchat.system.files import open_regular_file
from kvchat.text.formatting import format_size
from kvchat.text.language import _, format_number
from kvchat.transfer.rows import FORMAT, VERSION

MAX_DIRECTORY = 16_000_000  # bytes of a zip's directory: some 150,000 files, each taking 1 KB once read
# Errors a damaged or malicious zip can raise.
ZIP_FAULTS = (OSError, ValueError, RuntimeError, EOFError, struct.error, zlib.error, zipfile.BadZipFile)
_COMPRESSION_TYPES = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_DIRECTORY_SIZE = 5  # index of its bytes in the record that `zipfile` finds at the end
MAX_FILE = 2_000_000_000  # characters; ChatGPT exports of many years have 500 MB
MAX_CHAT = 128_000_000  # characters of one chat with its pictures
MAX_ELEMENTS = 6_000_000  # lists, objects, names and texts in one chat; each takes up to 100 bytes in memory
_READ_CHARACTERS = 1_000_000  # characters
_MAX_CUT_TOKEN = 16  # characters: a token cut here may be complete after the next read
_OWN_EXPORT = re.compile(rf'\s*{{\s*"format":\s*"{FORMAT}",\s*"version":\s*{VERSION},\s*"conversations":\s*\[')
_WHITESPACE = re.compile(r"[ \t\n\r]*")


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip file. Raises OSError and zipfile.BadZipFile.

    Refuses files with too many members or an unusual compression method.
    """
    with open_regular_file(path) as file:
        end = zipfile._EndRecData(file)  # type: ignore[attr-defined]  # as ZipFile finds it
        if end is not None and end[_DIRECTORY_SIZE] > MAX_DIRECTORY:
            raise zipfile.BadZipFile(_("it contains too many files"))
        with zipfile.ZipFile(file) as archive:
            if any(member.compress_type not in _COMPRESSION_TYPES for member in archive.infolist()):
                # Others could use unlimited memory.
                raise zipfile.BadZipFile(_("it uses an unsupported compression method"))
            yield archive


def is_zip(path: Path) -> bool:
    with open_regular_file(path) as file:
        return zipfile.is_zipfile(file)


@dataclass(frozen=True)
class ParsedConversation:
    value: Any
    is_own: bool  # in kvchat's format
    is_alone_in_file: bool  # the only one in its file


def read_conversations(file: IO[bytes]) -> Iterator[ParsedConversation]:
    """Parse a file with one conversation or a list, one at a time. Raises ValueError and RecursionError."""
    text = _JsonText(io.TextIOWrapper(file, "utf-8-sig", newline=""))
    if is_own := text.skip(_OWN_EXPORT):
        yield from _read_list(text, is_own=is_own)
    elif text.peek() == "[":
        text.position += 1
        yield from _read_list(text, is_own=False)
    else:
        value = text.parse_value()
        is_export = isinstance(value, dict) and value.get("format") == FORMAT
        if is_export and value.get("version") != VERSION:
            raise ValueError(_("it was created by a newer version of kvchat"))
        entries = value.get("conversations") if is_export else [value]
        for entry in entries if isinstance(entries, list) else ():
            yield ParsedConversation(entry, is_export, is_alone_in_file=len(entries) == 1)
    if not is_own and text.peek():
        raise text.error_at("Extra data", text.position)


def _read_list(text: _JsonText, *, is_own: bool) -> Iterator[ParsedConversation]:
    is_first = True
    while text.peek() != "]" or not is_first:
        value = text.parse_value()
        after = text.peek()
        yield ParsedConversation(value, is_own, is_first and after == "]")
        is_first = False
        if after == "]":
            break
        if after != ",":
            raise text.error_at("Expecting ',' delimiter", text.position)
        text.position += 1
    text.position += 1


class _JsonText:
    """JSON text read in chunks; errors give the line and column in the file."""

    def __init__(self, file: io.TextIOWrapper) -> None:
        self._file = file
        self._buffer = ""
        self.position = 0
        self._is_ended = False
        self._read = self._line = self._column = 0  # characters read; buffer start position
        self._number_count = 0
        self._decode = json.JSONDecoder(
            parse_float=partial(self._parse_number, float), parse_int=partial(self._parse_number, int)
        ).raw_decode
        self._fill(_READ_CHARACTERS)

    def peek(self) -> str:
        while True:
            space = _WHITESPACE.match(self._buffer, self.position)
            assert space is not None
            self.position = space.end()
            if self.position < len(self._buffer) or self._is_ended:
                return self._buffer[self.position : self.position + 1]
            self._fill(_READ_CHARACTERS)

    def skip(self, pattern: re.Pattern[str]) -> bool:
        match = pattern.match(self._buffer, self.position)
        self.position = match.end() if match else self.position
        return match is not None

    def parse_value(self) -> Any:
        """Parse the JSON value at `position`. Raises ValueError and RecursionError."""
        self.peek()
        self._number_count = 0
        while True:
            try:
                value, end = self._decode(self._buffer, self.position)
                if end < len(self._buffer) or self._is_ended:
                    self.position = end
                    return value
            except json.JSONDecodeError as error:
                whole = error.pos < len(self._buffer) - _MAX_CUT_TOKEN and not error.msg.startswith("Unterminated")
                if whole or self._is_ended:
                    raise self.error_at(error.msg, error.pos) from None
            if len(self._buffer) - self.position > MAX_CHAT:
                raise ValueError(
                    _("one chat in it is larger than {largest_piece}", largest_piece=format_size(MAX_CHAT))
                )
            if sum(self._buffer.count(sign, self.position) for sign in '{["') > MAX_ELEMENTS:
                raise ValueError(
                    _("one chat in it has more than {most_parts} JSON elements", most_parts=format_number(MAX_ELEMENTS))
                )
            self._fill(max(_READ_CHARACTERS, len(self._buffer) - self.position))

    def error_at(self, message: str, at: int) -> json.JSONDecodeError:
        before = self._buffer[:at]
        lines = before.count("\n")
        column = at - before.rfind("\n") if lines else self._column + at + 1
        error = json.JSONDecodeError(message, "", 0)
        error.lineno, error.colno = self._line + lines + 1, column
        return error

    def _fill(self, count: int) -> None:
        passed = self._buffer[: self.position]
        self._line += passed.count("\n")
        self._column = self.position - passed.rfind("\n") - 1 if "\n" in passed else self._column + self.position
        more = self._file.read(count)
        self._read += len(more)
        if self._read > MAX_FILE:
            raise ValueError(_("it is larger than {largest_file}", largest_file=format_size(MAX_FILE)))
        self._buffer, self.position, self._is_ended = self._buffer[self.position :] + more, 0, not more

    def _parse_number(self, parse: type[int] | type[float], digits: str) -> float:
        self._number_count += 1
        if self._number_count > MAX_ELEMENTS:
            raise ValueError(
                _("one chat in it has more than {most_parts} numbers", most_parts=format_number(MAX_ELEMENTS))
            )
        return parse(digits)
