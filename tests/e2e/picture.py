"""Pictures without a picture library: Xvfb's framebuffer file and the tray's pixmaps, written as PNG."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Picture:
    """`rgb` holds width × height × 3 bytes, row by row."""

    width: int
    height: int
    rgb: bytes

    def save(self, path: Path) -> None:
        """Write it as PNG (8 bits, RGB, no filter; RFC 2083)."""
        stride = self.width * 3
        rows = b"".join(b"\0" + self.rgb[y * stride : (y + 1) * stride] for y in range(self.height))
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)


def from_framebuffer(path: Path) -> Picture:
    """What `Xvfb -fbdir` shows right now: an XWD file, 32 bits per pixel (X11/XWDFile.h, version 7)."""
    data = path.read_bytes()
    words = struct.unpack(">25I", data[:100])
    header_size, _version, _format, _depth, width, height = words[:6]
    bits_per_pixel, bytes_per_line, colours = words[11], words[12], words[19]
    if bits_per_pixel != 32:
        raise ValueError(f"{path}: {bits_per_pixel} bits per pixel")
    start = header_size + colours * 12
    rows = [data[start + y * bytes_per_line :][: width * 4] for y in range(height)]
    return Picture(width, height, _pick(b"".join(rows), red=2, green=1, blue=0))


def _pick(pixels: bytes, *, red: int, green: int, blue: int) -> bytes:
    rgb = bytearray(len(pixels) // 4 * 3)
    for channel, source in enumerate((red, green, blue)):
        rgb[channel::3] = pixels[source::4]
    return bytes(rgb)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
