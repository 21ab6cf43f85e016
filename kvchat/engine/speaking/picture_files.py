"""What kind of picture a file is and how large, by its header alone: nothing is decoded here."""

from __future__ import annotations

import struct

MOST_PIXELS = 40_000_000  # decoded it takes three bytes for each, in the engine
_LOOKS = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF", b"BM": "BMP"}  # what engines read


def kind_of(data: bytes) -> str | None:
    """PNG, JPEG, GIF or BMP; None for what engines do not read."""
    kind = next((kind for look, kind in _LOOKS.items() if data.startswith(look)), None)
    return None if kind == "BMP" and data[6:10] != bytes(4) else kind  # words may begin so, too


def pixels(data: bytes) -> tuple[int, int]:
    """Width and height as the file's header tells them; 0, 0 where it tells none."""
    try:
        match kind_of(data):
            case "PNG":
                return struct.unpack_from(">II", data, 16)
            case "GIF":
                return struct.unpack_from("<HH", data, 6)
            case "BMP":
                width, height = struct.unpack_from("<ii", data, 18)
                return abs(width), abs(height)
            case "JPEG":
                return _jpeg_pixels(data)
    except (struct.error, IndexError):
        pass
    return 0, 0


def _jpeg_pixels(data: bytes) -> tuple[int, int]:
    """From the frame header, which the segments before it lead to (ITU-T T.81, B.1.1)."""
    at = 2
    while True:
        while data[at] != 0xFF:
            at += 1
        while data[at] == 0xFF:
            at += 1
        marker = data[at]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 4)
            return width, height
        at += 1 if 0xD0 <= marker <= 0xD9 else 1 + struct.unpack_from(">H", data, at + 1)[0]
