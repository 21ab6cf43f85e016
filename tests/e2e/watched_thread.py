"""kvchat with a watch on the window's thread: `python -m tests.e2e.watched_thread OUT`, with KVCHAT_HOME set.

From the first picture to the end of a scenario it notes each file that this thread opens or looks at, as JSON in OUT.
Then the disk of KVCHAT_HOME hangs for every other thread, and it notes how often the window's thread came round.
"""

from __future__ import annotations

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
_LOOKS = ("stat", "lstat", "access", "readlink", "statvfs")  # raise no audit events
_IMPORTS = "importlib", "shibokensupport"  # PySide looks at the source of each module that is imported
_NEVER_HANG = "/dev/null", "/proc/vmstat", sys.executable  # the last one: the engine is started
_FRAMES = 6


class ThreadWatch:
    """Notes what the main thread asks of the disk while it is on. Python reading its own modules does not count."""

    def __init__(self) -> None:
        self.on = False
        self.found: dict[str, str] = {}  # what was asked, by the place that did
        self.held = 0  # calls of other threads that hang
        self._home = os.environ["KVCHAT_HOME"]
        self._answers = threading.Event()  # the disk does
        self._answers.set()
        self._main = threading.main_thread().ident
        sys.addaudithook(self._heard)
        for name in _LOOKS:
            setattr(os, name, self._watched(name, getattr(os, name)))
        sqlite3.connect = self._watched_connect(sqlite3.connect)  # type: ignore[assignment]

    @contextlib.contextmanager
    def hanging_disk(self) -> Iterator[None]:
        """Until the end of this context no other thread gets an answer from the disk that KVCHAT_HOME is on."""
        self._answers.clear()
        try:
            yield
        finally:
            self._answers.set()

    def _hold(self, path: str) -> None:
        if not self._answers.is_set() and path.startswith(self._home):
            self.held += 1
            self._answers.wait()

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and event.startswith(_EVENTS) and event not in _NO_FILE and not isinstance(arguments[0], int):
            self._note(event, arguments)

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(path: Any, *arguments: Any, **named: Any) -> Any:
            if self.on and not isinstance(path, int):
                self._note(f"os.{name}", (path,))
            return function(path, *arguments, **named)

        return watched

    def _watched_connect(self, connect: Callable[..., sqlite3.Connection]) -> Callable[..., sqlite3.Connection]:
        watch = self

        class Connection(sqlite3.Connection):
            def execute(self, *arguments: Any) -> sqlite3.Cursor:
                watch._ask_database(arguments)
                return super().execute(*arguments)

            def executemany(self, *arguments: Any) -> sqlite3.Cursor:
                watch._ask_database(arguments)
                return super().executemany(*arguments)

        return functools.partial(connect, factory=Connection)

    def _ask_database(self, statement: tuple[Any, ...]) -> None:
        if self.on:
            self._note(f"a statement in {self._home}", (f"{self._home} {statement[0]}",))

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if threading.get_ident() != self._main:
            self._hold(str(arguments[0]))
        if threading.get_ident() != self._main or str(arguments[0]).startswith(_NEVER_HANG):
            return
        self.on = False  # what this does itself is not noted
        stack = traceback.extract_stack()[:-2]
        self.on = True
        if any(part in frame.filename for frame in stack for part in _IMPORTS):
            return
        own = [f"{Path(one.filename).stem}:{one.lineno} {one.name}" for one in stack if "/kvchat/" in one.filename]
        self.found.setdefault(" > ".join(own[-_FRAMES:]), f"{event} {arguments[0]!r}")


class Scenario:
    """What a user does in one session, on the window's own loop."""

    def __init__(self, living: application.Application, watch: ThreadWatch, out: Path) -> None:
        self._app, self._watch, self._out = living, watch, out
        self._saved = self._rounds = 0
        living._runtime.events.subscribe(self._hear)

    async def run(self) -> None:
        fault = ""
        try:
            await self._all()
            await self._with_a_hanging_disk()
        except BaseException:
            self._watch.on = False
            fault = traceback.format_exc()
        self._watch.on = False
        seen = {"found": self._watch.found, "held": self._watch.held, "rounds": self._rounds, "fault": fault}
        self._out.write_text(json.dumps(seen), "utf-8")
        self._app.quitting.set()

    @property
    def _window(self) -> MainWindow:
        return self._app._window

    async def _all(self) -> None:
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
        await self._look_at(settings)
        opened = window.side_windows
        for open_it in (opened.open_storage, opened.open_saved, opened.open_models, opened.open_library):
            await self._look_at(open_it())
        for open_it in (opened.open_deleted, opened.open_programs, opened.open_engine, opened.open_manual):
            await self._look_at(open_it())
        window.show_first_start()
        await asyncio.sleep(0.5)
        window.chat.open(first)
        await window.chat_list.delete([first or ""])
        await asyncio.sleep(0.5)
        window.close()
        await asyncio.sleep(0.2)

    async def _with_a_hanging_disk(self) -> None:
        window, runtime = self._window, self._app._runtime
        with self._watch.hanging_disk():
            window.composer.editor.insertPlainText("A draft.")
            window.side_windows.open_settings().show_page("Storage")
            window.side_windows.open_models()
            window.side_windows.open_storage()
            window.side_windows.open_saved()
            window.new_conversation()
            window.chat.open(window.sidebar.model.chats[0].id)
            window.sidebar.search.field.setText("bridge")
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
        await asyncio.sleep(1.0)  # the draft is kept, and the context counted
        composer.editor.send_pressed.emit()
        await self._until(lambda: self._saved > before, "the save")

    async def _look_at(self, window: QWidget) -> None:
        await asyncio.sleep(0.5)
        window.close()

    async def _until(self, condition: Callable[[], object], what: str) -> None:
        for _ in range(int(PATIENCE_S / 0.05)):
            if condition():
                return
            await asyncio.sleep(0.05)
        raise TimeoutError(what)

    def _hear(self, event: object) -> None:
        self._saved += isinstance(event, Saved)


def main(out: Path) -> None:
    watch, start, show = ThreadWatch(), application.Application.start, MainWindow.showEvent

    def shown(self: MainWindow, event: Any) -> None:
        show(self, event)
        watch.on = True

    async def started(self: application.Application, **options: bool) -> None:
        await start(self, **options)
        self._window.runner.start(Scenario(self, watch, out).run())

    patched = mock.patch.object
    with patched(MainWindow, "showEvent", shown), patched(application.Application, "start", started):
        app.run(starter=False, hidden=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
