"""Write kvchat's icon: `python packaging/icons.py FOLDER` as a Linux theme, `... assets` into assets/."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

HICOLOR = (16, 22, 24, 32, 48, 64, 128, 256, 512)
ICO = (16, 24, 32, 48, 64, 128, 256)
# Types of ICNS entries that hold PNG, with their pixels (Wikipedia: Apple Icon Image format). @2x has types of its own.
ICNS = (("icp4", 16), ("icp5", 32), ("ic07", 128), ("ic08", 256), ("ic09", 512), ("ic10", 1024), ("ic11", 32))
ICNS += (("ic12", 64), ("ic13", 256), ("ic14", 512))


def png(size: int) -> bytes:
    from PySide6.QtCore import QBuffer, QByteArray
    from PySide6.QtGui import QImage, QPainter
    from PySide6.QtSvg import QSvgRenderer

    from kvchat.ui.base.icons import app_svg

    image = QImage(size, size, QImage.Format.Format_ARGB32)
    image.fill(0)
    painter = QPainter(image)
    QSvgRenderer(QByteArray(app_svg().encode())).render(painter)
    painter.end()
    buffer = QBuffer()
    image.save(buffer, "PNG")
    return bytes(buffer.data().data())


def ico() -> bytes:
    """Return an ICO file: a directory with 16 bytes per image, then the images as PNG."""
    images = [png(size) for size in ICO]
    head = struct.pack("<HHH", 0, 1, len(images))
    start = len(head) + 16 * len(images)
    for size, image in zip(ICO, images, strict=True):
        head += struct.pack("<BBBBHHII", size % 256, size % 256, 0, 0, 1, 32, len(image), start)
        start += len(image)
    return head + b"".join(images)


def icns() -> bytes:
    """Return an ICNS file. Each entry is its type, its length with these eight bytes, and a PNG."""
    body = b"".join(
        kind.encode() + struct.pack(">I", len(data) + 8) + data for kind, size in ICNS for data in [png(size)]
    )
    return b"icns" + struct.pack(">I", len(body) + 8) + body


def for_platform(folder: Path) -> str | None:
    """Write the icon file that PyInstaller embeds on Windows and macOS; return its path, or None on Linux."""
    format = {"win32": ("kvchat.ico", ico), "darwin": ("kvchat.icns", icns)}.get(sys.platform)
    if format is None:
        return None
    name, make = format
    (folder / name).write_bytes(make())
    return str(folder / name)


def hicolor(folder: Path) -> None:
    """Write the folders of a Linux icon theme."""
    from kvchat.ui.base.icons import app_svg

    for size in HICOLOR:
        place = folder / f"{size}x{size}" / "apps"
        place.mkdir(parents=True)
        (place / "kvchat.png").write_bytes(png(size))
    (folder / "scalable" / "apps").mkdir(parents=True)
    (folder / "scalable" / "apps" / "kvchat.svg").write_text(app_svg(), "utf-8")


def assets() -> dict[str, str]:
    """Return the files of assets/ by name."""
    from kvchat.ui.base.icons import LogoState, app_svg, tray_svg

    return {"kvchat.svg": app_svg()} | {f"kvchat-tray-{state.value}.svg": tray_svg(state) for state in LogoState}


if __name__ == "__main__":
    if sys.argv[1] == "assets":
        for name, svg in assets().items():
            (Path(__file__).parents[1] / "assets" / name).write_text(svg, "utf-8")
    else:
        hicolor(Path(sys.argv[1]))
