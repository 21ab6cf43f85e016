"""kvchat, watched, and used by a thread with real keys and a real pointer."""

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

from kvchat import __main__, application
from kvchat.chat.events import Absorbed, Event, LibraryChanged, ReadAheadProgress, ReplyFinished
from kvchat.session.events import Saved
from kvchat.ui.dialogs.confirm import ConfirmDialog, PassphraseDialog
from kvchat.ui.sidebar.library_window import AddDocumentsDialog, LibraryWindow
from tests.bench.size import TOKEN_BYTES
from tests.blocks.watch import Watch
from tests.e2e.home import notes
from tests.e2e.waiting import wait_until
from tests.kvstore.store_bench import FINGERPRINT

T = TypeVar("T")
TIMEOUT_S = 60.0
ABSORB_GB = "KVCHAT_TEST_ABSORB_GB"
LONG = "The long one"  # title of the chat of 6,000 tokens
_CHANGES = (
    {"show_numbers": False}, {"theme": "dark"}, {"zoom": 125}, {"max_tokens": 501}, {"api_server": False},
    {"api_server": True},
)  # fmt: skip
_PHASE_S = 0.05  # until the watch notices the phase
_MOMENT_S = 0.4  # a short look
_KEYS = """
import json, subprocess, sys
for line in sys.stdin:
    print(subprocess.run(["xdotool", *json.loads(line)]).returncode, flush=True)
"""


class User(QObject):
    """Uses the window from another thread. Widgets are accessed on their own."""

    _called = Signal(object)

    def __init__(self, app: Any, out: Path, phases: list[str]) -> None:
        super().__init__()
        self.window, self.runtime, self._app, self._out = app._window, app._runtime, app, out
        self._phases = phases
        command = [sys.executable, "-c", _KEYS]
        self._keys = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.watch = Watch()
        self.events: list[Event] = []
        self._called.connect(lambda act: act())
        self.runtime.events.subscribe(self.events.append)
        threading.Thread(target=self._run, name="user", daemon=True).start()

    def _run(self) -> None:
        fault = ""
        try:
            for phase in (
                self.start, self.select, self.hover, self.keys, self.five_at_once, self.scroll, self.write, self.paste,
                self.reply, self.elsewhere, self.library, self.export, self.take_in, self.saved, self.storage,
                self.settings, self.palette, self.search, self.absorb, self.crowd,
            ):  # fmt: skip
                if self._phases and phase.__name__ not in ("start", *self._phases):
                    continue
                self.watch.phase = phase.__name__.replace("_", " ")
                time.sleep(_PHASE_S)
                phase()
                time.sleep(_MOMENT_S)
        except BaseException:
            fault = traceback.format_exc()
        self.watch.end()
        result = {"blocks": [asdict(block) for block in self.watch.blocks], "beats": self.watch.beats, "fault": fault}
        self._out.write_text(json.dumps(result), "utf-8")
        self.call(self._app.quitting.set)

    # Actions

    def start(self) -> None:
        wait_until(lambda: self.call(lambda: bool(self.window.sidebar.model.rows)), what="the chats")
        wait_until(lambda: self.call(lambda: self.runtime.engine.status.state.value == "ready"), what="the engine")

    def select(self) -> None:
        """Open the chats one after the other until they are loaded."""
        self.open_chats((*range(5), 0), 1.5)

    def hover(self) -> None:
        for index in range(5):
            x, y = self.row(index)
            self.xdotool("mousemove", str(x), str(y))
            time.sleep(0.1 if index % 2 else 0.5)

    def keys(self) -> None:
        self.xdotool("key", "ctrl+1")
        for key in ("Down",) * 4 + ("Up",) * 4 + ("ctrl+Down",) * 3 + ("End", "Home"):
            self.xdotool("key", key)
            time.sleep(0.25)

    def five_at_once(self) -> None:
        self.open_chats(range(5), 0.15)

    def scroll(self) -> None:
        x, y = self.center_of(self.window.transcript)
        self.xdotool("mousemove", str(x), str(y), "click", "--repeat", "30", "--delay", "20", "4")
        self.xdotool("click", "--repeat", "30", "--delay", "20", "5")

    def write(self) -> None:
        self.xdotool("key", "ctrl+l")
        self.xdotool("type", "--delay", "25", "--", "What of the third bridge, is it longer than the others?")
        time.sleep(1.2)
        self.xdotool("type", "--delay", "25", "--", " I ask because nobody has ever measured it, as far as I know.")
        time.sleep(1.2)

    def paste(self) -> None:
        """Paste 2,000 tokens."""
        count = self.count(ReadAheadProgress)
        self.call(lambda: QApplication.clipboard().setText(notes(155, start=2000)))
        self.xdotool("key", "ctrl+v")
        self.until(lambda: self.count(ReadAheadProgress) > count, "reading ahead")
        time.sleep(3.0)

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
        x, y = self.center_of(self.window.sidebar.library_button)
        self.xdotool("mousemove", str(x), str(y), "click", "1")
        panel = wait_until(lambda: self.call(lambda: self.window.findChild(LibraryWindow)), what="the library")
        wait_until(lambda: self.call(panel.isVisible), what="the visible library")
        time.sleep(1.0)
        read = self.count(LibraryChanged)
        self.call(lambda: panel.run(panel.ask_to_add([folder])))
        self.dialog(AddDocumentsDialog)
        time.sleep(_MOMENT_S)
        self.xdotool("key", "Return")
        self.until(lambda: panel.start_chat_button.isEnabled() and self.count(LibraryChanged) > read, "the documents")
        time.sleep(1.0)
        self.call(panel.start_chat_button.click)
        time.sleep(1.0)
        self.xdotool("key", "ctrl+l")
        self.xdotool("type", "--delay", "10", "--", "Which is the longest?")
        self.reply()

    def export(self) -> None:
        self.click_on(LONG)
        time.sleep(1.0)
        self.call(lambda: self.window.transfer.export_with_memory(self.window.chat.current))
        self.passphrase(repeat=True)
        self.file(self.file_of_chat)
        self.until(self.file_of_chat.exists, "the file")
        time.sleep(1.0)

    def take_in(self) -> None:
        self.click_on(LONG)
        self.call(lambda: self.window.sidebar.delete_requested.emit([self.window.chat.current]))
        time.sleep(_MOMENT_S)
        self.call(self.window.transfer.choose_import)
        self.file(self.file_of_chat)
        self.call(self.dialog(ConfirmDialog).yes.click)
        self.passphrase()
        time.sleep(4.0)

    def saved(self) -> None:
        self.panel(self.window.side_windows.open_time_saved)

    def storage(self) -> None:
        self.panel(self.window.side_windows.open_storage)

    def settings(self) -> None:
        settings = self.call(self.window.side_windows.open_settings)
        for page in settings.pages:
            self.call(lambda page=page: settings.show_page(page.name))
            time.sleep(_MOMENT_S)
        for change in _CHANGES:
            self.watch.phase = f"settings {change}"
            time.sleep(_PHASE_S)
            changed = replace(self.runtime.settings, **change)
            self.call(lambda changed=changed: self.window.runner.start(self.runtime.apply_settings(changed)))
            time.sleep(2 * _MOMENT_S)
        self.call(settings.close)

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
        url = self.call(lambda: self.runtime.api_server.url)
        command = [sys.executable, "-m", "tests.soak.crowd", url, "10000"]
        # Their priority is low, as if they came from another computer.
        with subprocess.Popen(command, preexec_fn=lambda: os.nice(19)) as connections:
            while connections.poll() is None:
                self.xdotool("key", "ctrl+n")  # a single chat would fill its context
                self.xdotool("type", "--delay", "25", "--", "And is it longer than the others?")
                self.reply()
            if connections.returncode:
                raise RuntimeError("the connections failed")

    def absorb(self) -> None:
        """Absorb a slot file of an 8B model, by default of 2 GB, written by another process."""
        store, size = self.runtime._store, float(os.environ.get(ABSORB_GB, 2)) * 1e9
        path, tokens = store.staging.slot_folder() / "large.slot", tuple(range(1, round(size / TOKEN_BYTES) + 1))
        write = f"write_slot_file(Path({str(path)!r}), tuple(range(1, {len(tokens) + 1})))"
        code = f"from pathlib import Path; from tests.bench.size import write_slot_file; {write}"
        subprocess.run([sys.executable, "-c", code], check=True)
        store.saver.add(path, "large", FINGERPRINT, tokens, path.stat().st_size)
        if store.absorb_pending().refused:
            raise RuntimeError("the file was not absorbed")

    # Helpers

    def open_chats(self, indexes: Iterable[int], seconds: float) -> None:
        for index in indexes:
            self.click(index)
            time.sleep(seconds)
        self.click_on(LONG)
        time.sleep(2.0)

    @property
    def file_of_chat(self) -> Path:
        return Path(self.runtime.paths.data) / "long.kvchat"

    def reply(self) -> None:
        before = [self.count(kind) for kind in (ReplyFinished, Saved, Absorbed)]
        self.xdotool("key", "Return")
        for kind, count in zip((ReplyFinished, Saved, Absorbed), before, strict=True):
            self.until(lambda kind=kind, count=count: self.count(kind) > count, kind.__name__)

    def panel(self, open_it: Callable[[], QWidget]) -> None:
        panel = self.call(open_it)
        time.sleep(1.5)
        self.call(panel.close)
        time.sleep(_MOMENT_S)

    def passphrase(self, *, repeat: bool = False) -> None:
        dialog = self.dialog(PassphraseDialog)
        self.xdotool("type", "--delay", "10", "--", "secret")
        if repeat:
            self.call(dialog.repeat_field.setFocus)
            self.xdotool("type", "--delay", "10", "--", "secret")
        self.xdotool("key", "Return")

    def file(self, path: Path) -> None:
        dialog = self.dialog(QFileDialog)
        field = self.call(lambda: dialog.findChild(QLineEdit, "fileNameEdit"))
        time.sleep(_MOMENT_S)
        self.call(lambda: field.setText(str(path)))
        self.call(field.setFocus)
        self.xdotool("key", "Return")

    def dialog(self, kind: type[T]) -> T:
        def active_dialog() -> object:
            dialogs = [
                widget for widget in QApplication.topLevelWidgets() if isinstance(widget, kind) and widget.isVisible()
            ]
            return dialogs[0] if dialogs and dialogs[0].isActiveWindow() else None

        return wait_until(lambda: self.call(active_dialog), what=kind.__name__)  # type: ignore[no-any-return, attr-defined, return-value]

    def row(self, index: int) -> tuple[int, int]:
        def center() -> tuple[int, int]:
            view, model = self.window.sidebar.list, self.window.sidebar.model
            row = model.index_of(model.chats[index].id)
            view.scrollTo(row)
            point = view.viewport().mapToGlobal(view.visualRect(row).center())
            return point.x(), point.y()

        return self.call(center)

    def center_of(self, widget: QWidget) -> tuple[int, int]:
        point = self.call(lambda: widget.mapToGlobal(QPoint(widget.width() // 2, widget.height() // 2)))
        return point.x(), point.y()

    def click(self, index: int) -> None:
        x, y = self.row(index)
        self.xdotool("mousemove", str(x), str(y), "click", "1")

    def click_on(self, title: str) -> None:
        rows = self.call(lambda: [chat.title for chat in self.window.sidebar.model.chats])
        self.click(next(index for index, row in enumerate(rows) if row.startswith(title)))

    def count(self, kind: type) -> int:
        return sum(isinstance(event, kind) for event in self.events)

    def until(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, seconds=TIMEOUT_S, what=what)

    def call(self, function: Callable[[], T]) -> T:
        done, results = threading.Event(), []
        self._called.emit(lambda: (results.append(function()), done.set()))
        if not done.wait(TIMEOUT_S):
            raise TimeoutError(f"{function}")
        return results[0]  # type: ignore[no-any-return]

    def xdotool(self, *arguments: str) -> None:
        """Call xdotool in a process of its own, because a fork here would hold the interpreter until the exec."""
        assert self._keys.stdin is not None
        assert self._keys.stdout is not None
        print(json.dumps(arguments), file=self._keys.stdin, flush=True)
        if self._keys.stdout.readline() != "0\n":
            raise RuntimeError(f"xdotool {arguments} failed")


def main(out: Path, phases: list[str], user: type[User] = User) -> None:
    """Run kvchat, watched, until the user is done."""
    start, users = application.Application.start, []

    async def started(self: Any, **options: bool) -> None:
        users.append(user(self, out, phases))
        await start(self, **options)

    with mock.patch.object(application.Application, "start", started):
        sys.exit(__main__.main([]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
