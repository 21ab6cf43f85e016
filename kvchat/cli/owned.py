"""Commands that change data, run by the process that owns the data folder.

The client, in the main thread, prints a command's output and sends it input and signals. The commands run on the
owner's event loop with its one runtime, whichever process started them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvchat.cli.options import STANDARD_STREAM, Command, Place
from kvchat.cli.terminal import (
    FAILED,
    INTERRUPTED,
    Ended,
    Terminal,
    current_terminal,
    remark,
    take_each_interrupt,
    take_signals,
)
from kvchat.errors import KvchatError
from kvchat.settings import Settings, load_settings, save_settings
from kvchat.system.concurrency import Threads
from kvchat.system.owner import Ownership, StartRequest, connect, let_come_to_front
from kvchat.system.paths import Paths, resolve_paths
from kvchat.words.language import _

if TYPE_CHECKING:
    from kvchat.runtime import Runtime

_AGAIN_S = 0.1  # between attempts while the owner starts or quits
_LOOK_S = 0.3  # poll for signals on Windows, and for any that arrives just before a wait


class InUse(KvchatError):
    def __init__(self, name: str, pid: int) -> None:
        super().__init__(
            _("kvchat is already running"),
            _("The chats are in use by {name} (process {pid}). Nothing has been changed.", name=name, pid=pid),
            _("Quit kvchat, then try again."),
        )


class Commands:
    """Runs commands over one runtime. Event-loop thread only, except `welcome`."""

    def __init__(self, paths: Paths, name: str) -> None:
        self.paths, self.name = paths, name
        self.show_window: Callable[[StartRequest], None] | None = None  # if there is a window
        self._runtime: Runtime | None = None
        self._opening = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._running: dict[asyncio.Task[None], Terminal] = {}
        self.own: Terminal | None = None  # for this process's command
        self.lasts = False  # its command runs until told to end
        self.begun = asyncio.Event()  # a command
        self._closed = False

    @property
    def settings(self) -> Settings:
        """The settings in force, read from disk if no runtime is open."""
        return self._runtime.settings if self._runtime else load_settings(self.paths.settings_file)

    @property
    def is_own(self) -> bool:
        return self.own is not None and current_terminal.get() is self.own

    @property
    def is_open(self) -> bool:
        return self._runtime is not None

    async def runtime(self, settings: Settings | None = None) -> Runtime:
        """Return the runtime, opening it with these settings if needed. Raises KvchatError."""
        if self._runtime is None:
            async with self.opening():
                if self._runtime is None:
                    from kvchat.runtime import open_runtime

                    chosen = await asyncio.to_thread(lambda: self.settings) if settings is None else settings
                    self._runtime = await open_runtime(self.paths, chosen)
        return self._runtime

    @contextlib.asynccontextmanager
    async def opening(self) -> AsyncIterator[Runtime | None]:
        """Yield the runtime if open; nobody opens it meanwhile."""
        async with self._opening:
            yield self._runtime

    def opened(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Hold the folder with no runtime open. Raises InUse."""
        async with self.opening() as runtime:
            if runtime is not None:
                raise InUse(self.name, os.getpid())
            yield

    async def change_settings(self, **changes: Any) -> None:
        """Apply and save changes. Raises SettingsNotSaved."""
        if self._runtime is not None:
            await self._runtime.apply_settings(dataclasses.replace(self._runtime.settings, **changes))
        else:
            settings = dataclasses.replace(await asyncio.to_thread(lambda: self.settings), **changes)
            await asyncio.to_thread(save_settings, self.paths.settings_file, settings)

    def welcome(self, connection: Connection) -> None:
        """Run a client's command in its own thread until it disconnects."""
        self.serve(Terminal(connection))

    def serve(self, terminal: Terminal) -> None:
        try:
            name, options, *about = terminal.receive()
            terminal.about(*about)
            self._loop.call_soon_threadsafe(self._begin, terminal, name, options)
            while (message := terminal.receive()) != ("bye",):
                self._loop.call_soon_threadsafe(terminal.hear, message)
        except (OSError, EOFError, RuntimeError):  # client or loop gone
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(terminal.hear, ("end", INTERRUPTED))
        finally:
            terminal.close()

    async def idle(self) -> None:
        while self._running:
            await asyncio.wait(self._running)

    async def close(self) -> None:
        self._closed = True
        for task, terminal in self._running.items():
            terminal.fail(KvchatError(_("kvchat quit before the command finished"), "", _("Try again.")))
            task.cancel()
        await self.idle()

    def _begin(self, terminal: Terminal, name: str, options: object) -> None:
        if self._closed or (name == "open" and not (self.show_window or self.lasts)):
            terminal.send("gone")  # it can own the folder soon
            return
        terminal.send("begun")
        self.begun.set()
        task = self._loop.create_task(self._run(terminal, name, options))
        terminal.end = task.cancel
        self._running[task] = terminal
        task.add_done_callback(lambda _: self._running.pop(task))

    async def _run(self, terminal: Terminal, name: str, options: object) -> None:
        current_terminal.set(terminal)
        try:
            terminal.send("done", await self._done(name, options))
        except asyncio.CancelledError:
            terminal.send("done", terminal.ended_by)
        except KvchatError as error:
            terminal.fail(error)
        except Exception:
            remark(traceback.format_exc())
            terminal.send("done", FAILED)

    async def _done(self, name: str, options: Any) -> int:
        if name == "open":
            if self.show_window is None:
                raise InUse(self.name, os.getpid())
            self.show_window(options)
            return 0

        def find() -> Callable[[Any, Commands], Awaitable[int]]:
            from kvchat.cli.arguments import command_named

            return command_named(name).function()

        return int(await (await asyncio.to_thread(find))(options, self))


def show_running_window(paths: Paths, request: StartRequest) -> bool:
    """Return True if there is a window, after sending it `request`. Raises InUse."""
    connection = connect(paths.data)
    if connection is None:
        return False
    let_come_to_front()
    with contextlib.suppress(NotBegun):
        return attend(connection, "open", request) == 0
    return False


class NotBegun(Exception):
    """The owner ended before it began the command."""


def run(command: Command, options: Any) -> int:
    """Run a command in its place and return the exit code; become the data's owner if needed and there is none.

    Raises KvchatError.
    """
    options, paths = options.ready(), resolve_paths()
    if command.place is Place.HERE:
        return int(command.function()(options))
    if command.place is Place.APART:
        return _attend_own(None, paths, command.name, options)
    paths.ensure()
    while True:
        ownership = Ownership(paths.data, _title(command.name))
        if ownership.claim():
            return _attend_own(ownership, paths, command.name, options)
        if (connection := connect(paths.data)) is not None:
            with contextlib.suppress(NotBegun):
                return attend(connection, command.name, options)
        time.sleep(_AGAIN_S)


def _title(name: str) -> str:
    return f"kvchat {name.split()[0]}"


def _attend_own(ownership: Ownership | None, paths: Paths, name: str, options: object) -> int:
    """Run a command on a loop in another thread, until it and those of guests are done.

    This thread handles signals, input and output. The loop's thread owns the folder, if needed.
    """
    ours, theirs = Pipe()

    def own() -> None:
        terminal = Terminal(theirs)
        try:
            asyncio.run(_serve(ownership, paths, name, terminal))
        finally:
            if ownership is not None:
                ownership.release()
            terminal.send("gone")

    threading.Thread(target=own, name="owner", daemon=True).start()
    return attend(ours, name, options, is_owner=True)


def attend(connection: Connection, name: str, options: object, *, is_owner: bool = False) -> int:
    """Print the command's output and send it typed input until it is done; return the exit code.

    `is_owner`: this process owns the data and closes everything before it ends. Raises KvchatError, NotBegun.
    """
    with contextlib.suppress(OSError):  # owner quitting: no answer
        connection.send((name, _absolute(options), str(Path.cwd()), tuple(map(_is_terminal, range(3)))))
    messages: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()

    def receive() -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                messages.put(connection.recv())
        messages.put(("gone",))
        connection.close()

    threading.Thread(target=receive, name="messages", daemon=True).start()
    begun = converses = reads = False
    code: int | None = None
    failed: KvchatError | None = None

    def take(number: int) -> None:
        if not reads:
            # put() may interrupt get() in this thread. An exception could lose a message or escape in between.
            messages.put(("signal", number))
        elif converses and number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise Ended(number)

    take_signals(take)
    while is_owner or (code is None and not failed):
        try:
            message = messages.get(timeout=_LOOK_S)
        except queue.Empty:
            continue
        match message:
            case ("begun",):
                begun = True
            case ("out", text):
                print(text, end="", flush=True)
            case ("err", text):
                print(text, end="", file=sys.stderr, flush=True)
            case ("converse",):
                converses = True
                take_each_interrupt(take)
            case ("read", prompt):
                reads = True
                try:
                    line = _line(prompt)
                except Ended as ended:
                    messages.put(("signal", ended.number))
                    continue
                finally:
                    reads = False
                connection.send(("line", line))
            case ("signal", number):
                if code is not None or failed:
                    return INTERRUPTED
                with contextlib.suppress(OSError):
                    stops = converses and number == signal.SIGINT
                    connection.send(("stop",) if stops else ("end", 128 + number))
            case ("done", code):
                pass
            case ("failed", title, detail, advice):
                failed = KvchatError(title, detail, advice)
            case ("gone",):
                break
    with contextlib.suppress(OSError):
        connection.send(("bye",))
    if failed:
        raise failed
    if code is not None:
        return code
    if not begun:
        raise NotBegun
    raise KvchatError(
        _("kvchat ended unexpectedly while running this command"),
        _("Your input is saved."),
        _("Run the command again to see the result."),
    )


async def _serve(ownership: Ownership | None, paths: Paths, name: str, terminal: Terminal) -> None:
    asyncio.get_running_loop().set_default_executor(Threads())
    commands = Commands(paths, _title(name))
    commands.own = terminal
    if ownership is not None:
        from kvchat.transfer.backup import finish_restore

        try:
            await asyncio.to_thread(finish_restore, paths)
        except KvchatError as error:
            terminal.fail(error)
            return
        ownership.listen(commands.welcome)
    threading.Thread(target=commands.serve, args=(terminal,), name="own-command", daemon=True).start()
    await commands.begun.wait()
    await commands.idle()
    if ownership is not None:
        ownership.stop_listening()
        await commands.idle()
    if commands.is_open:
        await (await commands.runtime()).close()


def _absolute(options: Any) -> Any:
    def absolute(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return tuple(map(absolute, value))
        return value.absolute() if isinstance(value, Path) and value != STANDARD_STREAM else value

    if not dataclasses.is_dataclass(options):
        return options
    names = [field.name for field in dataclasses.fields(options)]
    return dataclasses.replace(options, **{name: absolute(getattr(options, name)) for name in names})  # type: ignore[type-var]


def _is_terminal(stream: int) -> bool:
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return (sys.stdin, sys.stdout, sys.stderr)[stream].isatty()
    return False


def _line(prompt: str) -> str | None:
    try:
        if sys.stdin.isatty():
            return input(prompt)
        return sys.stdin.readline() or None
    except Ended:
        raise
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return ""
    except EOFError:
        print()
        return None
