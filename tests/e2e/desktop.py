"""A desktop for one application: a display, a window manager, a private bus, a tray, keyboard and pointer.

A context manager in tests. By hand:

    python -m tests.e2e.desktop run -- bash         # a shell whose windows open on a display of their own
    python -m tests.e2e.desktop shot screen.png     # inside that shell: a screenshot
    python -m tests.e2e.desktop tree                # every widget, as a screen reader sees it
    python -m tests.e2e.desktop menu [LABEL]        # the tray menu; with LABEL, activate that entry

Needs the Debian packages xvfb, openbox, xdotool, dbus-daemon and at-spi2-core.
"""

from __future__ import annotations

import argparse
import os
import signal
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TypeVar

from jeepney.io.blocking import DBusConnection, open_dbus_connection

from tests.desktop_bus import display, session_bus
from tests.e2e.accessible import Announcements, Focus, Gone, Node, applications, open_accessibility_bus
from tests.e2e.tray import TrayItem, play_tray, tray_items
from tests.e2e.waiting import wait_until

T = TypeVar("T")

_LAUNCHER = Path("/usr/libexec/at-spi-bus-launcher")
FRAMEBUFFER = "KVCHAT_TEST_FRAMEBUFFER"


@dataclass(frozen=True)
class Picture:
    """A picture without a picture library; `rgb` holds width × height × 3 bytes, row by row."""

    width: int
    height: int
    rgb: bytes

    def save(self, path: Path) -> None:
        """Write it as PNG (8 bits, RGB, no filter; RFC 2083)."""
        stride = self.width * 3
        rows = b"".join(b"\0" + self.rgb[y * stride : (y + 1) * stride] for y in range(self.height))
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        data = b"\x89PNG\r\n\x1a\n"
        for kind, body in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
            data += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        path.write_bytes(data)


def read_framebuffer(path: Path) -> Picture:
    """Read what `Xvfb -fbdir` shows: an XWD file with 32 bits per pixel (X11/XWDFile.h, version 7)."""
    data = path.read_bytes()
    words = struct.unpack(">25I", data[:100])
    header_size, _version, _format, _depth, width, height = words[:6]
    bits_per_pixel, bytes_per_line, colours = words[11], words[12], words[19]
    if bits_per_pixel != 32:
        raise ValueError(f"{path}: {bits_per_pixel} bits per pixel")
    start = header_size + colours * 12
    rows = [data[start + y * bytes_per_line :][: width * 4] for y in range(height)]
    pixels, rgb = b"".join(rows), bytearray(width * height * 3)
    for channel, source in enumerate((2, 1, 0)):  # blue, green, red, unused
        rgb[channel::3] = pixels[source::4]
    return Picture(width, height, bytes(rgb))


class View:
    """Access to a running desktop, given the environment of its applications."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment

    @cached_property
    def bus(self) -> DBusConnection:
        return open_dbus_connection(self.environment["DBUS_SESSION_BUS_ADDRESS"])

    @cached_property
    def accessibility(self) -> DBusConnection:
        return open_accessibility_bus(self.bus)

    def screenshot(self) -> Picture:
        return read_framebuffer(Path(self.environment[FRAMEBUFFER]))

    def tray(self, seconds: float = 120.0) -> TrayItem:
        return wait_until(lambda: tray_items(self.bus), seconds=seconds, what="an icon in the tray")[0]

    @cached_property
    def announcements(self) -> Announcements:
        return Announcements(open_accessibility_bus(self.bus))

    @cached_property
    def focus(self) -> Focus:
        return Focus(open_accessibility_bus(self.bus))

    def applications(self) -> list[Node]:
        return applications(self.accessibility)

    def find(self, role: str | None = None, name: str | None = None, seconds: float = 120.0) -> Node:
        """Wait for the first visible widget with this role and name in any application."""

        def find_visible() -> Node | None:
            for application in self.applications():
                for node in chain(application.children(), application.walk()):  # windows first: each check is a call
                    if node.matches(role, name) and node.showing:
                        return node
            return None

        return wait_until(
            lambda: _unless_gone(find_visible), seconds=seconds, what=f"a showing {role or 'widget'} {name!r}"
        )

    def windows(self) -> list[str]:
        """Return the ids of the visible windows with a title."""
        found = self.xdotool("search", "--onlyvisible", "--name", ".", check=False)
        return [line for line in found.split() if line.isdigit()]

    def click(self, node: Node) -> None:
        x, y = node.box.centre
        self.xdotool("mousemove", str(x), str(y), "click", "1")

    def type(self, text: str) -> None:
        self._wait_for_keyboard()
        self.xdotool("type", "--delay", "2", "--", text)

    def key(self, *names: str) -> None:
        self._wait_for_keyboard()
        self.xdotool("key", *names)

    def close_window(self) -> None:
        """Close the window with keyboard focus by alt+F4; wait until it is gone."""
        self._wait_for_keyboard()
        window = self.xdotool("getactivewindow").strip()

        def gone() -> bool:
            if window not in self.windows():
                return True
            self.xdotool("key", "alt+F4")  # repeated: a busy window manager may drop the first
            return False

        wait_until(gone, pause=1.0, what="the window's end")

    def _wait_for_keyboard(self) -> None:
        """Wait until a window has keyboard focus: one that is just opening would not get the keys."""
        wait_until(lambda: self.xdotool("getactivewindow", check=False).strip(), what="a window with the keyboard")

    def xdotool(self, *arguments: str, check: bool = True) -> str:
        command = ["xdotool", *arguments]
        done = subprocess.run(command, env=self.environment, check=check, capture_output=True, text=True, timeout=240)
        return done.stdout

    def close_connections(self) -> None:
        for name in ("announcements", "focus", "accessibility", "bus"):
            connection = self.__dict__.pop(name, None)
            if connection is not None:
                connection.close()


class Desktop(View):
    """A private desktop, with or without a tray."""

    def __init__(self, *, size: str = "1280x800", tray: bool = True) -> None:
        super().__init__({})
        self._size = size
        self._with_tray = tray
        self._stack = ExitStack()

    def __enter__(self) -> Desktop:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="desktop-")))
            self.environment = _clean_environment(folder)
            self.display = stack.enter_context(display(self._size, folder))
            self.environment |= {"DISPLAY": self.display.name, FRAMEBUFFER: str(folder / "Xvfb_screen0")}
            bus = stack.enter_context(session_bus(folder))
            self.environment["DBUS_SESSION_BUS_ADDRESS"] = bus.address
            if self._with_tray:
                play_tray(bus)
            stack.enter_context(_running(["openbox", "--sm-disable"], self.environment))
            if _LAUNCHER.exists():
                stack.enter_context(_running([str(_LAUNCHER), "--launch-immediately"], self.environment))
                wait_until(lambda: _unless_gone(self.applications) is not None, what="the accessibility bus")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close_connections()
        self._stack.close()

    @contextmanager
    def application(
        self, *command: str, output: Path | None = None, **environment: str
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program on this desktop, its output going to `output`; kill it at the end if it still runs."""
        with (
            output.open("ab") if output else nullcontext() as file,
            subprocess.Popen(
                command,
                env=self.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT if file else None,
            ) as process,
        ):
            try:
                yield process
            finally:
                process.kill()


def _clean_environment(folder: Path) -> dict[str, str]:
    """Return the caller's environment without its desktop."""
    foreign = ("DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "XAUTHORITY", "SESSION_MANAGER")
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in foreign and not name.startswith(("QT_", "XDG_CURRENT", "XDG_SESSION"))
    }
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    return inherited | {
        "XDG_RUNTIME_DIR": str(runtime),
        "QT_QPA_PLATFORM": "xcb",
        "QT_LINUX_ACCESSIBILITY_ALWAYS_ON": "1",
        "LANG": "C.UTF-8",
    }


@contextmanager
def _running(command: Sequence[str], environment: dict[str, str]) -> Iterator[None]:
    """Run a helper process in its own session; it and its children end with the block."""
    devnull = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    with subprocess.Popen(command, env=environment, start_new_session=True, **devnull) as process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _unless_gone(read: Callable[[], T]) -> T | None:
    """Return what `read` returns; None if an application ended meanwhile."""
    try:
        return read()
    except (Gone, KeyError):
        return None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.desktop", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--size", default="1280x800")
    run.add_argument("program", nargs="+")
    commands.add_parser("shot").add_argument("file", type=Path)
    commands.add_parser("tree")
    commands.add_parser("menu").add_argument("label", nargs="?")
    options = parser.parse_args()
    view = View(dict(os.environ))
    if options.command == "run":
        with Desktop(size=options.size) as desktop:
            sys.exit(subprocess.run(options.program, env=desktop.environment, check=False).returncode)
    elif options.command == "shot":
        view.screenshot().save(options.file)
    elif options.command == "tree":
        print("\n".join(line for application in view.applications() for line in application.tree()))
    elif options.label:
        view.tray().click(options.label)
    else:
        print("\n".join(line for entry in view.tray().menu() for line in entry.lines()))
    view.close_connections()


if __name__ == "__main__":
    main()
