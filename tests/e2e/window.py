"""The real application, driven from outside by accessible names."""

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

_RECEIPT = "Statistics: "
_BUG_MARKS = ("Traceback", "Error calling Python", "QObject:", "QPaint", "QBackingStore", "never awaited")
_MEANINGLESS_ROLES = ("filler", "unknown", "invalid")
_CONTROLS = ("push button", "toggle button", "button menu", "check box", "radio button", "slider", "spin button")
_CONTROLS += ("text", "entry", "link", "menu item", "check menu item", "page tab", "list item", "table cell", "dialog")
_PAUSE_S = 0.3  # between two checks: reading the tree costs the application time
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

        def new_receipt() -> str | None:  # read the tree once: it is rebuilt now and then, and may be empty in between
            now = self.receipts()
            return now[-1] if len(now) > before else None

        return wait_until(new_receipt, seconds=seconds, pause=_PAUSE_S, what="a receipt")

    def names(self) -> list[str]:
        return [name for node in self.nodes() if (name := _name(node))]

    def nodes(self) -> list[Node]:
        return [node for application in self.desktop.applications() for node in application.walk()]

    def unlabelled(self, nodes: Iterable[Node] = ()) -> list[tuple[str, str]]:
        """Return role and name of the visible controls, or those among `nodes`, without a meaningful name."""
        unlabelled = []
        for node in nodes or self.nodes():
            with suppress(Gone):
                if node.showing and not _is_labelled(node):
                    unlabelled.append((node.role, node.name))
        return unlabelled

    def printed_errors(self) -> list[str]:
        """Return the printed lines that show a bug: Python's tracebacks, Qt's warnings."""
        lines = self._output.read_text("utf-8", "replace").splitlines()
        return [line for line in lines if any(mark in line for mark in _BUG_MARKS)]

    def replies(self, count: int) -> list[dict[str, Any]]:
        """Wait until this many replies are complete on disk, and return them, oldest first."""

        def enough_replies() -> list[dict[str, Any]] | None:
            replies = self.home.replies()
            return replies if len(replies) >= count else None

        return wait_until(enough_replies, seconds=LONG, what=f"reply number {count}")

    def wait_for_saves(self, count: int) -> None:
        """Wait until this many save points are stored in blocks, and the status strip shows it."""
        wait_until(lambda: self.home.kept.absorbed() >= count, seconds=LONG, what="the save point")
        self.wait_for_strip("saved")

    def wait_for_strip(self, text: str) -> None:
        wait_until(lambda: text in self.strip(), seconds=LONG, pause=_PAUSE_S, what=f"{text!r} in the status strip")

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
        """Quit from the tray's menu; no process and no printed error may remain."""
        self.desktop.tray().click("Quit")
        assert self.process.wait(seconds) == 0
        assert not left_behind(self.home)
        assert not self.printed_errors()


@contextmanager
def open_window(desktop: Desktop, home: Home, *command: str | Path) -> Iterator[Window]:
    """Start kvchat, or `command`, with its state under `home`; kill it at the end if it still runs."""
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


def _is_labelled(node: Node) -> bool:
    role = node.role
    if role == "combo box":  # on Linux its name in Qt is its value; the label names its purpose
        return any(label.name.strip() for label in node.labels)
    if role in _CONTROLS or node.focusable:
        return bool(node.name.strip()) and role not in _MEANINGLESS_ROLES
    return True


def _name(node: Node) -> str:
    try:
        return node.name
    except Gone:
        return ""
