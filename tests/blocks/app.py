"""kvchat itself, watched, and used by a thread that has real keys and a real pointer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from PySide6.QtCore import QObject, QPoint, Signal
from PySide6.QtWidgets import QApplication, QDialog, QFileDialog, QLineEdit, QWidget

from kvchat import app, application
from kvchat.chat.events import Absorbed, Event, LibraryChanged, ReadAheadProgress, ReplyFinished
from kvchat.engine.process.plan import free_port
from kvchat.session.events import Saved
from kvchat.ui.dialogs.confirm import PassphraseDialog
from kvchat.ui.sidebar.library_window import AddDialog, LibraryWindow
from tests.blocks.watch import Watch
from tests.e2e.home import notes
from tests.e2e.waiting import wait_until

T = TypeVar("T")
PATIENCE_S = 60.0
LONG = "The long one"  # the first words of the chat of 6,000 tokens
_CHANGES = {"show_numbers": False}, {"theme": "dark"}, {"zoom": 125}, {"max_tokens": 501}, {"api_server": False}
_TOLD_S = 0.05  # until the watch has heard it
_MOMENT_S = 0.4  # somebody looks


class Hands(QObject):
    """Uses the window from a thread of its own. What is asked of widgets is asked on theirs."""

    _asked = Signal(object)

    def __init__(self, app: Any, out: Path) -> None:
        super().__init__()
        self.window, self.runtime, self._app, self._out = app._window, app._runtime, app, out
        self.watch = Watch()
        self.heard: list[Event] = []
        self._asked.connect(lambda act: act())
        self.runtime.events.subscribe(self.heard.append)
        threading.Thread(target=self._run, name="hands", daemon=True).start()

    def _run(self) -> None:
        fault = ""
        try:
            for phase in (
                self.start, self.select, self.hover, self.keys, self.five_at_once, self.scroll, self.type, self.paste,
                self.send, self.elsewhere, self.library, self.export, self.take_in, self.saved, self.storage,
                self.settings, self.palette, self.search, self.crowd_elsewhere, self.crowd,
            ):  # fmt: skip
                self.watch.phase = phase.__name__.replace("_", " ")
                time.sleep(_TOLD_S)
                phase()
                time.sleep(_MOMENT_S)
        except BaseException:
            fault = traceback.format_exc()
        self.watch.end()
        found = {"blocks": [asdict(one) for one in self.watch.blocks], "beats": self.watch.beats, "fault": fault}
        self._out.write_text(json.dumps(found), "utf-8")
        self.look(self._app.quitting.set)

    # What a user does.

    def start(self) -> None:
        wait_until(lambda: self.look(lambda: bool(self.window.sidebar.model.rows)), what="the chats")
        wait_until(lambda: self.look(lambda: self.runtime.engine.status.state.value == "ready"), what="the engine")

    def select(self) -> None:
        """One chat after the other, each until it is loaded or has been looked at."""
        self.go_through((*range(5), 0), 1.5)

    def hover(self) -> None:
        for place in (0, 1, 2, 3, 4):
            x, y = self.row(place)
            self.xdotool("mousemove", str(x), str(y))
            time.sleep(0.1 if place % 2 else 0.5)

    def keys(self) -> None:
        self.xdotool("key", "ctrl+1")
        for key in ("Down",) * 4 + ("Up",) * 4 + ("ctrl+Down",) * 3 + ("End", "Home"):
            self.xdotool("key", key)
            time.sleep(0.25)

    def five_at_once(self) -> None:
        self.go_through(range(5), 0.15)

    def scroll(self) -> None:
        x, y = self.place_of(self.window.transcript)
        self.xdotool("mousemove", str(x), str(y), "click", "--repeat", "30", "--delay", "20", "4")
        self.xdotool("click", "--repeat", "30", "--delay", "20", "5")

    def type(self) -> None:
        self.xdotool("key", "ctrl+l")
        self.xdotool("type", "--delay", "25", "--", "What of the third bridge, is it longer than the others?")
        time.sleep(1.2)
        self.xdotool("type", "--delay", "25", "--", " I ask because nobody has ever measured it, as far as I know.")
        time.sleep(1.2)

    def paste(self) -> None:
        """2,000 tokens."""
        count = self.count(ReadAheadProgress)
        self.look(lambda: QApplication.clipboard().setText(notes(155, start=2000)))
        self.xdotool("key", "ctrl+v")
        self.until(lambda: self.count(ReadAheadProgress) > count, "reading ahead")
        time.sleep(3.0)

    def send(self) -> None:
        self.reply()

    def elsewhere(self) -> None:
        self.xdotool("key", "ctrl+l")
        self.xdotool("type", "--delay", "5", "--", "And the fourth?")
        finished = self.count(ReplyFinished)
        self.xdotool("key", "Return")
        time.sleep(0.3)
        self.click(1)
        self.xdotool("key", "ctrl+l")
        self.xdotool("type", "--delay", "10", "--", "Something else meanwhile")
        self.until(lambda: self.count(ReplyFinished) > finished, "the reply")
        self.xdotool("key", "ctrl+a", "Delete")

    def library(self) -> None:
        folder = self.runtime.paths.data / "documents"
        folder.mkdir()
        for number in range(12):
            (folder / f"{number} 桥梁.md").write_text(notes(40, start=100 * number), "utf-8")
        x, y = self.place_of(self.window.sidebar.library_button)
        self.xdotool("mousemove", str(x), str(y), "click", "1")
        panel = wait_until(lambda: self.look(lambda: self.window.findChild(LibraryWindow)), what="the library")
        wait_until(lambda: self.look(panel.isVisible), what="the library on show")
        time.sleep(1.0)
        read = self.count(LibraryChanged)
        self.look(lambda: panel.run(panel.consider([folder])))
        self.dialog(AddDialog)
        time.sleep(_MOMENT_S)
        self.xdotool("key", "Return")
        self.until(lambda: panel.begin.isEnabled() and self.count(LibraryChanged) > read, "the documents")
        time.sleep(1.0)
        self.look(panel.begin.click)
        time.sleep(1.0)
        self.xdotool("key", "ctrl+l")
        self.xdotool("type", "--delay", "10", "--", "Which is the longest?")
        self.reply()

    def export(self) -> None:
        self.click_on(LONG)
        time.sleep(1.0)
        self.look(lambda: self.window.transfer.export_with_memory(self.window.chat.current))
        self.passphrase()
        self.file(self.file_of_chat)
        self.until(self.file_of_chat.exists, "the file")
        time.sleep(1.0)

    def take_in(self) -> None:
        self.click_on(LONG)
        self.look(lambda: self.window.sidebar.delete_requested.emit([self.window.chat.current]))
        time.sleep(_MOMENT_S)
        self.look(self.window.transfer.take_in)
        self.file(self.file_of_chat)
        self.passphrase()
        time.sleep(4.0)

    def saved(self) -> None:
        self.panel(self.window.side_windows.open_saved)

    def storage(self) -> None:
        self.panel(self.window.side_windows.open_storage)

    def settings(self) -> None:
        settings = self.look(self.window.side_windows.open_settings)
        for page in settings.pages:
            self.look(lambda page=page: settings.show_page(page.name))
            time.sleep(_MOMENT_S)
        for change in _CHANGES:
            self.watch.phase = f"settings {change}"
            time.sleep(_TOLD_S)
            changed = replace(self.runtime.settings, **change)
            self.look(lambda changed=changed: self.window.runner.start(self.runtime.apply_settings(changed)))
            time.sleep(2 * _MOMENT_S)
        self.look(settings.close)

    def palette(self) -> None:
        self.xdotool("key", "ctrl+k")
        self.dialog(QDialog)
        self.xdotool("type", "--delay", "60", "--", "long")
        time.sleep(_MOMENT_S)
        self.xdotool("key", "Down", "Up", "Return")

    def search(self) -> None:
        self.xdotool("key", "ctrl+shift+f")
        self.xdotool("type", "--delay", "60", "--", "bridge")
        time.sleep(1.5)
        self.xdotool("key", "Escape")

    def crowd(self) -> None:
        """10,000 connections that send half a head, and bodies of megabytes, while a user writes and asks."""
        self.beside_a_crowd(self.look(lambda: self.runtime.api_server.url))

    def crowd_elsewhere(self) -> None:
        """The same at a server that is none of kvchat's: what the crowd alone costs on so many cores."""
        port = free_port("127.0.0.1")
        command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
        with subprocess.Popen(command, cwd=self._out.parent, stderr=subprocess.DEVNULL) as server:
            self.beside_a_crowd(f"http://127.0.0.1:{port}")
            server.terminate()

    # How it is done.

    def go_through(self, places: Iterable[int], seconds: float) -> None:
        for place in places:
            self.click(place)
            time.sleep(seconds)
        self.click_on(LONG)
        time.sleep(2.0)

    def beside_a_crowd(self, url: str) -> None:
        """Write and ask until the crowd has gone; it leaves others the cores, as one on another computer would."""
        command = [sys.executable, "-m", "tests.soak.crowd", url, "10000"]
        with subprocess.Popen(command, preexec_fn=lambda: os.nice(19)) as others:
            while others.poll() is None:
                self.xdotool("key", "ctrl+n")  # a chat that went on for so long would be full
                self.xdotool("type", "--delay", "25", "--", "And is it longer than the others?")
                self.reply()
            if others.returncode:
                raise RuntimeError("the crowd fared badly")

    @property
    def file_of_chat(self) -> Path:
        return Path(self.runtime.paths.data) / "long.kvchat"

    def reply(self) -> None:
        before = [self.count(kind) for kind in (ReplyFinished, Saved, Absorbed)]
        self.xdotool("key", "Return")
        for kind, count in zip((ReplyFinished, Saved, Absorbed), before, strict=True):
            self.until(lambda kind=kind, count=count: self.count(kind) > count, kind.__name__)

    def panel(self, open_it: Callable[[], QWidget]) -> None:
        panel = self.look(open_it)
        time.sleep(1.5)
        self.look(panel.close)
        time.sleep(_MOMENT_S)

    def passphrase(self) -> None:
        self.dialog(PassphraseDialog)
        self.xdotool("type", "--delay", "10", "--", "secret")
        self.xdotool("key", "Return")

    def file(self, path: Path) -> None:
        dialog = self.dialog(QFileDialog)
        field = self.look(lambda: dialog.findChild(QLineEdit, "fileNameEdit"))
        time.sleep(_MOMENT_S)
        self.look(lambda: field.setText(str(path)))
        self.look(field.setFocus)
        self.xdotool("key", "Return")

    def dialog(self, kind: type[T]) -> T:

        def look() -> object:
            found = [one for one in QApplication.topLevelWidgets() if isinstance(one, kind) and one.isVisible()]
            return found[0] if found and found[0].isActiveWindow() else None

        return wait_until(lambda: self.look(look), what=kind.__name__)  # type: ignore[no-any-return]

    def row(self, place: int) -> tuple[int, int]:

        def where() -> tuple[int, int]:
            view, model = self.window.sidebar.list, self.window.sidebar.model
            row = model.index_of(model.chats[place].id)
            view.scrollTo(row)
            point = view.viewport().mapToGlobal(view.visualRect(row).center())
            return point.x(), point.y()

        return self.look(where)

    def place_of(self, widget: QWidget) -> tuple[int, int]:
        point = self.look(lambda: widget.mapToGlobal(QPoint(widget.width() // 2, widget.height() // 2)))
        return point.x(), point.y()

    def click(self, place: int) -> None:
        x, y = self.row(place)
        self.xdotool("mousemove", str(x), str(y), "click", "1")

    def click_on(self, title: str) -> None:
        rows = self.look(lambda: [chat.title for chat in self.window.sidebar.model.chats])
        self.click(next(place for place, one in enumerate(rows) if one.startswith(title)))

    def count(self, kind: type) -> int:
        return sum(isinstance(event, kind) for event in self.heard)

    def until(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, seconds=PATIENCE_S, what=what)

    def look(self, at: Callable[[], T]) -> T:
        done, came = threading.Event(), []
        self._asked.emit(lambda: (came.append(at()), done.set()))
        if not done.wait(PATIENCE_S):
            raise TimeoutError(f"{at}")
        return came[0]  # type: ignore[no-any-return]

    def xdotool(self, *arguments: str) -> None:
        subprocess.run(["xdotool", *arguments], check=True, timeout=PATIENCE_S)


def main(out: Path) -> None:
    """Run kvchat, watched, until the hands have done everything."""
    start, hands = application.Application.start, []

    async def started(self: Any, **options: bool) -> None:
        hands.append(Hands(self, out))
        await start(self, **options)

    with mock.patch.object(application.Application, "start", started):
        sys.exit(app.run(starter=False, hidden=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
