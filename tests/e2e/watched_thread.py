"""kvchat with a watch on the window's thread: `python -m tests.e2e.watched_thread OUT`, with KVCHAT_HOME set.

Records each file access of this thread from the first window to the end of a scenario, as JSON in OUT. Then the disk of
KVCHAT_HOME hangs for all other threads, and the rounds of the window's event loop are counted.
"""

import asyncio
import contextlib
import functools
import json
import os
import sqlite3
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from PySide6.QtWidgets import QWidget

from kvchat import app, application
from kvchat.session.events import Saved
from kvchat.ui.app.main_window import MainWindow

PATIENCE_S = 120.0
ROUNDS = 50
_EVENTS = ("open", "os.", "sqlite3.connect", "shutil.", "subprocess.", "tempfile.", "glob.", "fcntl.")
_NO_FILE = ("os.putenv", "os.unsetenv", "os.kill", "os.killpg", "os.fwalk", "os.add_dll_directory")
_UNAUDITED = ("stat", "lstat", "access", "readlink", "statvfs")  # raise no audit events
_IMPORTS = "importlib", "shibokensupport"  # PySide reads the source of each imported module
_NEVER_HANG = "/dev/null", "/proc/vmstat", sys.executable  # the last starts the engine
_FRAMES = 6


class ThreadWatch:
    """Records file accesses of the main thread while on, except Python's imports."""

    def __init__(self) -> None:
        self.is_on = False
        self.found: dict[str, str] = {}  # access by place
        self.held = 0  # hanging calls of other threads
        self._home = os.environ["KVCHAT_HOME"]
        self._disk_works = threading.Event()
        self._disk_works.set()
        self._main = threading.main_thread().ident
        sys.addaudithook(self._on_audit_event)
        for name in _UNAUDITED:
            setattr(os, name, self._watched(name, getattr(os, name)))
        sqlite3.connect = self._watched_connect(sqlite3.connect)  # type: ignore[assignment]

    @contextlib.contextmanager
    def hanging_disk(self) -> Iterator[None]:
        """Make accesses of other threads to KVCHAT_HOME hang."""
        self._disk_works.clear()
        try:
            yield
        finally:
            self._disk_works.set()

    def _hold(self, path: str) -> None:
        if not self._disk_works.is_set() and path.startswith(self._home):
            self.held += 1
            self._disk_works.wait()

    def _on_audit_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_on and event.startswith(_EVENTS) and event not in _NO_FILE and not isinstance(arguments[0], int):
            self._note(event, arguments)

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(path: Any, *arguments: Any, **named: Any) -> Any:
            if self.is_on and not isinstance(path, int):
                self._note(f"os.{name}", (path,))
            return function(path, *arguments, **named)

        return watched

    def _watched_connect(self, connect: Callable[..., sqlite3.Connection]) -> Callable[..., sqlite3.Connection]:
        watch = self

        class Connection(sqlite3.Connection):
            def execute(self, *arguments: Any) -> sqlite3.Cursor:
                watch._note_statement(arguments)
                return super().execute(*arguments)

            def executemany(self, *arguments: Any) -> sqlite3.Cursor:
                watch._note_statement(arguments)
                return super().executemany(*arguments)

        return functools.partial(connect, factory=Connection)

    def _note_statement(self, statement: tuple[Any, ...]) -> None:
        if self.is_on:
            self._note(f"a statement in {self._home}", (f"{self._home} {statement[0]}",))

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if threading.get_ident() != self._main:
            self._hold(str(arguments[0]))
        if threading.get_ident() != self._main or str(arguments[0]).startswith(_NEVER_HANG):
            return
        self.is_on = False  # ignore own accesses
        stack = traceback.extract_stack()[:-2]
        self.is_on = True
        if any(part in frame.filename for frame in stack for part in _IMPORTS):
            return
        own = [
            f"{Path(frame.filename).stem}:{frame.lineno} {frame.name}"
            for frame in stack
            if "/kvchat/" in frame.filename
        ]
        self.found.setdefault(" > ".join(own[-_FRAMES:]), f"{event} {arguments[0]!r}")


class Scenario:
    """A user's session, on the window's event loop."""

    def __init__(self, living: application.Application, watch: ThreadWatch, out: Path) -> None:
        self._app, self._watch, self._out = living, watch, out
        self._saved = self._rounds = 0
        living._runtime.events.subscribe(self._on_event)

    async def run(self) -> None:
        fault = ""
        try:
            await self._use_everything()
            await self._use_with_hanging_disk()
        except BaseException:
            self._watch.is_on = False
            fault = traceback.format_exc()
        self._watch.is_on = False
        report = {"found": self._watch.found, "held": self._watch.held, "rounds": self._rounds, "fault": fault}
        self._out.write_text(json.dumps(report), "utf-8")
        self._app.quitting.set()

    @property
    def _window(self) -> MainWindow:
        return self._app._window

    async def _use_everything(self) -> None:
        window, runtime = self._window, self._app._runtime
        await self._until(lambda: runtime.engine.status.state.value == "ready", "the engine")
        await self._ask("How long is the bridge?")
        first = window.chat.current
        window.new_conversation()
        window.attachments.load_files([self._out.with_name("attached.txt"), self._out.with_name("missing.txt")])
        await self._until(lambda: window.composer.chips.attachments, "the attachment")
        await self._ask("And this?")
        window.chat.open(first)
        await self._until(lambda: window.transcript.messages, "the first chat")
        await runtime.chat.edit_reply(window.transcript.messages[-1], "So long.")
        settings = window.side_windows.open_settings()
        for page in settings.pages:
            settings.show_page(page.name)
            await asyncio.sleep(0.2)
        await self._view(settings)
        opened = window.side_windows
        for open_it in (opened.open_storage, opened.open_time_saved, opened.open_models, opened.open_library):
            await self._view(open_it())
        for open_it in (opened.open_deleted, opened.open_programs, opened.open_engine, opened.open_manual):
            await self._view(open_it())
        window.show_first_start()
        await asyncio.sleep(0.5)
        window.chat.open(first)
        await window.chat.conversations.delete([first or ""])
        await asyncio.sleep(0.5)
        window.close()
        await asyncio.sleep(0.2)

    async def _use_with_hanging_disk(self) -> None:
        window, runtime = self._window, self._app._runtime
        with self._watch.hanging_disk():
            window.composer.editor.insertPlainText("A draft.")
            window.side_windows.open_settings().show_page("Storage")
            window.side_windows.open_models()
            window.side_windows.open_storage()
            window.side_windows.open_time_saved()
            window.new_conversation()
            window.chat.open(window.sidebar.model.chats[0].id)
            window.sidebar.search_panel.field.setText("bridge")
            window.attachments.load_files([self._out.with_name("home") / "config" / "settings.json"])
            window.runner.start(runtime.apply_settings(replace(runtime.settings, max_tokens=11)))
            for _ in range(ROUNDS):
                runtime._log.feed(b"a line of the engine's\n" * 500)
                await asyncio.sleep(0.02)
                self._rounds += 1
            await self._until(lambda: self._watch.held, "a thread that hangs")
        await self._until(lambda: window.composer.chips.attachments, "the attachment")

    async def _ask(self, text: str) -> None:
        before, composer = self._saved, self._window.composer
        composer.editor.insertPlainText(text)
        await asyncio.sleep(1.0)  # the draft is stored and the context counted
        composer.editor.send_pressed.emit()
        await self._until(lambda: self._saved > before, "the save")

    async def _view(self, window: QWidget) -> None:
        await asyncio.sleep(0.5)
        window.close()

    async def _until(self, condition: Callable[[], object], what: str) -> None:
        for _ in range(int(PATIENCE_S / 0.05)):
            if condition():
                return
            await asyncio.sleep(0.05)
        raise TimeoutError(what)

    def _on_event(self, event: object) -> None:
        self._saved += isinstance(event, Saved)


def main(out: Path) -> None:
    watch, start, show = ThreadWatch(), application.Application.start, MainWindow.showEvent

    def shown(self: MainWindow, event: Any) -> None:
        show(self, event)
        watch.is_on = True

    async def started(self: application.Application, **options: bool) -> None:
        await start(self, **options)
        self._window.runner.start(Scenario(self, watch, out).run())

    patched = mock.patch.object
    with patched(MainWindow, "showEvent", shown), patched(application.Application, "start", started):
        app.run(starter=False, hidden=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
