"""The real application, driven from outside: what a user can see and do, by accessible names alone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.e2e.accessible import Gone, Node
from tests.e2e.desktop import Desktop
from tests.e2e.waiting import wait_until

_RECEIPT = "Receipt: "
_BUG_MARKS = ("Traceback", "Error calling Python", "QObject:", "QPaint", "QBackingStore", "never awaited")
_GLANCE = 0.3  # seconds between two looks while the application works: reading the tree costs it time


class Window:
    """One running kvchat with its window open."""

    def __init__(self, desktop: Desktop, process: subprocess.Popen[bytes], output: Path) -> None:
        self.desktop = desktop
        self.process = process
        self._output = output

    def composer(self, seconds: float = 60.0) -> Node:
        """The field one writes into; waits for it."""
        return self.desktop.find("text", "Message", seconds=seconds)

    def send(self, text: str) -> None:
        """Write a message and press Enter."""
        composer = self.composer()
        composer.focus()
        composer.set_text(text)
        wait_until(lambda: composer.focused, what="the composer's focus")
        self.desktop.key("Return")
        wait_until(lambda: not composer.text.strip(), what="the message's sending")

    def receipts(self) -> list[str]:
        """The receipts in the transcript, oldest first, as the user reads them."""
        names = [name for name in self.names() if name.startswith(_RECEIPT)]
        return [name.removeprefix(_RECEIPT) for name in names]

    def exchange(self, text: str, seconds: float = 240.0) -> str:
        """Send a message, wait for the reply to end, and return its receipt."""
        before = len(self.receipts())
        self.send(text)
        wait_until(lambda: len(self.receipts()) > before, seconds=seconds, pause=_GLANCE, what="a receipt")
        return self.receipts()[-1]

    def names(self) -> list[str]:
        """The accessible names of everything in the application."""
        return [name for node in self.nodes() if (name := _name(node))]

    def nodes(self) -> list[Node]:
        """Every widget of the application."""
        return [node for application in self.desktop.applications() for node in application.walk()]

    def complaints(self) -> list[str]:
        """The lines it has printed that tell of a bug: Python's tracebacks, Qt's warnings."""
        lines = self._output.read_text("utf-8", "replace").splitlines()
        return [line for line in lines if any(mark in line for mark in _BUG_MARKS)]

    def quit(self, seconds: float = 60.0) -> int:
        """Quit from the tray's menu and return the exit code."""
        self.desktop.tray().click("Quit")
        return self.process.wait(seconds)


@contextmanager
def open_window(desktop: Desktop, command: Sequence[str | Path], home: Path) -> Iterator[Window]:
    """Start kvchat by `command` with its state under `home`; killed at the end if it still runs."""
    output = home.with_suffix(".output")
    with desktop.application(*map(str, command), output=output, KVCHAT_HOME=str(home)) as process:
        yield Window(desktop, process, output)


def left_behind(home: Path) -> list[psutil.Process]:
    """The processes, engines included, that run with their state under `home`."""
    return [process for process in psutil.process_iter() if _home_of(process) == str(home)]


def _home_of(process: psutil.Process) -> str | None:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process.environ().get("KVCHAT_HOME")
    except psutil.Error:
        return None


def _name(node: Node) -> str:
    try:
        return node.name
    except Gone:
        return ""
