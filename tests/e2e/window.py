"""The real application, driven from outside: what a user can see and do, by accessible names alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.accessible import Gone, Node
from tests.e2e.desktop import Desktop
from tests.e2e.home import Home
from tests.e2e.waiting import wait_until

KVCHAT = (sys.executable, "-m", "kvchat")

_RECEIPT = "Receipt: "
_BUG_MARKS = ("Traceback", "Error calling Python", "QObject:", "QPaint", "QBackingStore", "never awaited")
_MEANINGLESS = ("filler", "unknown", "invalid")
_CONTROLS = ("push button", "toggle button", "button menu", "check box", "radio button", "slider", "spin button")
_CONTROLS += ("text", "entry", "link", "menu item", "check menu item", "page tab", "list item", "table cell", "dialog")
_GLANCE = 0.3  # seconds between two looks while the application works: reading the tree costs it time
LONG = 180.0  # seconds a busy machine may take for a prefill of 3,000 tokens


class Window:
    def __init__(self, desktop: Desktop, process: subprocess.Popen[bytes], home: Home, output: Path) -> None:
        self.desktop = desktop
        self.process = process
        self.home = home
        self._output = output

    def composer(self, seconds: float = LONG) -> Node:
        return self.desktop.find("text", "Message", seconds=seconds)

    def send(self, text: str) -> None:
        composer = self.composer()
        composer.focus()
        composer.set_text(text)
        wait_until(lambda: composer.focused, what="the composer's focus")
        self.desktop.key("Return")
        wait_until(lambda: not composer.text.strip(), what="the message's sending")

    def receipts(self) -> list[str]:
        names = [name for name in self.names() if name.startswith(_RECEIPT)]
        return [name.removeprefix(_RECEIPT) for name in names]

    def exchange(self, text: str, seconds: float = 240.0) -> str:
        before = len(self.receipts())
        self.send(text)

        def look() -> str | None:  # one look at the tree: it is made anew now and then, and may be empty in between
            now = self.receipts()
            return now[-1] if len(now) > before else None

        return wait_until(look, seconds=seconds, pause=_GLANCE, what="a receipt")

    def names(self) -> list[str]:
        return [name for node in self.nodes() if (name := _name(node))]

    def nodes(self) -> list[Node]:
        return [node for application in self.desktop.applications() for node in application.walk()]

    def unclear(self, among: Iterable[Node] = ()) -> list[tuple[str, str]]:
        """Role and name of whatever on the screen, or `among` these, can be used and does not say what it does."""
        found = []
        for node in among or self.nodes():
            with suppress(Gone):
                if node.showing and not _says_what_it_does(node):
                    found.append((node.role, node.name))
        return found

    def complaints(self) -> list[str]:
        """The lines it has printed that tell of a bug: Python's tracebacks, Qt's warnings."""
        lines = self._output.read_text("utf-8", "replace").splitlines()
        return [line for line in lines if any(mark in line for mark in _BUG_MARKS)]

    def replies(self, count: int) -> list[dict[str, Any]]:
        """Wait until so many replies are whole on disk, and return them, oldest first."""

        def look() -> list[dict[str, Any]] | None:
            replies = self.home.replies()
            return replies if len(replies) >= count else None

        return wait_until(look, seconds=LONG, what=f"reply number {count}")

    def saved(self, count: int) -> None:
        """Wait until so many save points are kept in blocks, and the strip has said so."""
        wait_until(lambda: self.home.kept.absorbed() >= count, seconds=LONG, what="the save point")
        self.strip_says("saved")

    def strip_says(self, words: str) -> None:
        wait_until(lambda: words in self.strip(), seconds=LONG, pause=_GLANCE, what=f"{words!r} in the strip")

    def strip(self) -> str:
        try:
            strip = self.desktop.find(name="Status")
            return " | ".join(node.name for node in strip.walk() if node.showing and node.name)
        except Gone:
            return ""

    def open_conversation(self, title: str) -> None:
        rows = self.desktop.find("list", "Chats").find_all("list item")
        self.desktop.click(next(row for row in rows if row.name.startswith(title)))

    def quit(self, seconds: float = LONG) -> None:
        """Quit from the tray's menu. Nothing may stay, and nothing may have been complained of."""
        self.desktop.tray().click("Quit")
        assert self.process.wait(seconds) == 0
        assert not left_behind(self.home)
        assert not self.complaints()


@contextmanager
def open_window(desktop: Desktop, home: Home, *command: str | Path) -> Iterator[Window]:
    """Start kvchat (by `command`, if given) with its state under `home`; killed at the end if it still runs."""
    output = home.folder.with_suffix(".output")
    with desktop.application(*map(str, command or KVCHAT), output=output, KVCHAT_HOME=str(home.folder)) as process:
        yield Window(desktop, process, home, output)


def left_behind(home: Home) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _home_of(process) == str(home.folder)]


def _home_of(process: psutil.Process) -> str | None:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process.environ().get("KVCHAT_HOME")
    except psutil.Error:
        return None


def _says_what_it_does(node: Node) -> bool:
    role = node.role
    if role == "combo box":  # on Linux Qt calls it by its value; what it is for, its label says
        return any(label.name.strip() for label in node.labels)
    if role in _CONTROLS or node.focusable:
        return bool(node.name.strip()) and role not in _MEANINGLESS
    return True


def _name(node: Node) -> str:
    try:
        return node.name
    except Gone:
        return ""
