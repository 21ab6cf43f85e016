"""Generated pictures for tests."""

import struct
import zlib


def png(red: int = 255, green: int = 0, blue: int = 0, *, width: int = 40, height: int = 30) -> bytes:
    rows = b"".join(b"\0" + bytes((red, green, blue)) * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows)), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
