"""Execution of commands that change data, in the process that owns the data folder.

The client, in the main thread of the process that the user started, prints the output of a command and sends it input
and signals. The command runs on the owner's event loop, with the owner's runtime. Both may be the same process.
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
from collections.abc import AsyncIterator, Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvchat.cli.options import Command, CommandKind, find_command
from kvchat.cli.terminal import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    SignalReceived,
    Terminal,
    current_terminal,
    print_err,
    set_interrupt_handler,
    set_signal_handler,
)
from kvchat.errors import KvchatError
from kvchat.settings import Settings, load_settings, save_settings
from kvchat.system.concurrency import LoopThreads
from kvchat.system.owner import InstanceLock, StartRequest, allow_owner_to_raise_window, connect
from kvchat.system.paths import Paths, resolve_paths
from kvchat.text.language import _

if TYPE_CHECKING:
    from kvchat.runtime import Runtime

_RETRY_INTERVAL_S = 0.1  # between attempts to become or reach the owner, while it starts or quits
_GREETING, _GREETING_TOKENS = "Say hello in one sentence.", 64
_POLL_INTERVAL_S = 0.3  # for signals on Windows, and for any that arrives just before a wait


class DataFolderInUse(KvchatError):
    def __init__(self, name: str, pid: int) -> None:
        super().__init__(
            _("kvchat is already running"),
            _("The chats are in use by {name} (process {pid}). Nothing has been changed.", name=name, pid=pid),
            _("Quit kvchat, then try again."),
        )


class CommandRunner:
    """Runs all clients' commands with one runtime. Only the `serve_` methods are called outside the event loop."""

    def __init__(self, paths: Paths, name: str) -> None:
        self.paths, self.name = paths, name
        self.show_window: Callable[[StartRequest], None] | None = None  # None without a window
        self.open_runtime: Runtime | None = None
        self.runtime_lock = asyncio.Lock()  # held while opening the runtime, or to prevent others from opening it
        self.own_terminal: Terminal | None = None  # of this process's own command
        self.is_long_running = False  # True if this process's own command runs until the user ends it
        self.first_command_started = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._running: dict[asyncio.Task[None], Terminal] = {}
        self._closed = False

    @property
    def settings(self) -> Settings:
        """The current settings, read from disk if no runtime is open."""
        return self.open_runtime.settings if self.open_runtime else load_settings(self.paths.settings_file)

    @property
    def is_own_command(self) -> bool:
        """True if the current command was started in this process, False if another process sent it."""
        return self.own_terminal is not None and current_terminal.get() is self.own_terminal

    async def runtime(self, settings: Settings | None = None) -> Runtime:
        """Return the runtime. Open it first if needed, with these settings. Raises KvchatError."""
        if self.open_runtime is None:
            async with self.runtime_lock:
                if self.open_runtime is None:
                    from kvchat.runtime import open_runtime

                    if settings is None:
                        settings = await asyncio.to_thread(load_settings, self.paths.settings_file)
                    self.open_runtime = await open_runtime(self.paths, settings)
        return self.open_runtime

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Return a context in which the runtime cannot be opened. Raises DataFolderInUse if it is already open."""
        async with self.runtime_lock:
            if self.open_runtime is not None:
                raise DataFolderInUse(self.name, os.getpid())
            yield

    async def change_settings(self, **changes: Any) -> None:
        """Apply and save changed settings. Raises SettingsNotSaved."""
        if (runtime := self.open_runtime) is not None:
            await runtime.apply_settings(dataclasses.replace(runtime.settings, **changes))
        else:
            settings = await asyncio.to_thread(load_settings, self.paths.settings_file)
            await asyncio.to_thread(save_settings, self.paths.settings_file, dataclasses.replace(settings, **changes))

    def serve_connection(self, connection: Connection) -> None:
        """Run the command of another process and wait until it disconnects. Called in a thread of its own."""
        self.serve_terminal(Terminal(connection))

    def serve_terminal(self, terminal: Terminal) -> None:
        try:
            name, options = terminal.receive_command()
            self._loop.call_soon_threadsafe(self._start_command, terminal, name, options)
            while (message := terminal.receive()) != ("bye",):
                self._loop.call_soon_threadsafe(terminal.handle_message, message)
        except (OSError, EOFError, RuntimeError):  # client or loop gone
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(terminal.handle_message, ("end", EXIT_INTERRUPTED))
        finally:
            terminal.close()

    async def wait_until_idle(self) -> None:
        while self._running:
            await asyncio.wait(self._running)

    async def close(self) -> None:
        self._closed = True
        for task, terminal in self._running.items():
            terminal.send_error(KvchatError(_("kvchat quit before the command finished"), "", _("Try again.")))
            task.cancel()
        await self.wait_until_idle()

    def _start_command(self, terminal: Terminal, name: str, options: object) -> None:
        if self._closed or (name == "open" and not (self.show_window or self.is_long_running)):
            terminal.send("gone")  # the client becomes the owner
            return
        terminal.send("begun")
        self.first_command_started.set()
        task = self._loop.create_task(self._run_command(terminal, name, options))
        terminal.end_command = task.cancel
        self._running[task] = terminal
        task.add_done_callback(lambda _: self._running.pop(task))

    async def _run_command(self, terminal: Terminal, name: str, options: Any) -> None:
        current_terminal.set(terminal)
        try:
            if name != "open":
                function = await asyncio.to_thread(find_command(name).load_function)
                code = int(await function(options, self))
            elif self.show_window is None:
                raise DataFolderInUse(self.name, os.getpid())
            else:
                self.show_window(options)
                code = 0
            terminal.send("done", code)
        except asyncio.CancelledError:
            terminal.send("done", terminal.end_code)
        except KvchatError as error:
            terminal.send_error(error)
        except Exception:
            print_err(traceback.format_exc())
            terminal.send("done", EXIT_FAILED)


def show_running_window(paths: Paths, request: StartRequest) -> bool:
    """Send the request to the running window and return True, or return False without one. Raises DataFolderInUse."""
    if (connection := connect(paths.data)) is None:
        return False
    allow_owner_to_raise_window()
    return run_client(connection, "open", request) == 0


def run_command(command: Command, options: Any) -> int:
    """Run a command and return its exit code. Raises KvchatError.

    A command that needs the data folder runs in the process that owns the folder. Without an owner, this process
    becomes it.
    """
    options, paths = options.with_input(), resolve_paths()
    if command.kind is CommandKind.SYNC:
        return int(command.load_function()(options))
    if command.kind is CommandKind.ASYNC:
        return _run_locally(None, paths, command.name, options)
    paths.ensure()
    while True:
        ownership = InstanceLock(paths.data, f"kvchat {command.name.split()[0]}")
        if ownership.claim():
            return _run_locally(ownership, paths, command.name, options)
        if (connection := connect(paths.data)) is not None:
            code = run_client(connection, command.name, options)
            if code is not None:
                return code
        time.sleep(_RETRY_INTERVAL_S)


def _run_locally(ownership: InstanceLock | None, paths: Paths, name: str, options: object) -> int:
    """Run a command on an event loop in another thread, and serve other clients' commands until all have ended.

    This thread handles signals, input and output. The other thread releases `ownership`, if any, at the end.
    """
    ours, theirs = Pipe()

    def run_loop() -> None:
        terminal = Terminal(theirs)
        try:
            asyncio.run(_serve_commands(ownership, paths, name, terminal))
        finally:
            if ownership is not None:
                ownership.release()
            terminal.send("gone")

    threading.Thread(target=run_loop, name="owner", daemon=True).start()
    code = run_client(ours, name, options, is_owner=True)
    return EXIT_FAILED if code is None else code


def run_client(connection: Connection, name: str, options: object, *, is_owner: bool = False) -> int | None:
    """Print the command's output and send the user's input. Return the exit code, or None if the command never started.

    With `is_owner`, the command runs in this process, and the call lasts until the runtime is closed. Raises
    KvchatError.
    """
    with contextlib.suppress(OSError):  # the owner is quitting
        connection.send((name, options, str(Path.cwd()), tuple(map(os.isatty, range(3)))))
    messages: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()

    def receive() -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                messages.put(connection.recv())
        messages.put(("gone",))
        connection.close()

    threading.Thread(target=receive, name="messages", daemon=True).start()
    has_begun = converses = reads = False
    code: int | None = None
    failed: KvchatError | None = None

    def on_signal(number: int) -> None:
        if not reads:
            # This may interrupt get() in this thread, where an exception could lose a message.
            messages.put(("signal", number))
        elif converses and number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SignalReceived(number)

    set_signal_handler(on_signal)
    while is_owner or (code is None and not failed):
        try:
            message = messages.get(timeout=_POLL_INTERVAL_S)
        except queue.Empty:
            continue
        match message:
            case ("begun",):
                has_begun = True
            case ("out", text):
                print(text, end="", flush=True)
            case ("err", text):
                print(text, end="", file=sys.stderr, flush=True)
            case ("converse",):
                converses = True
                set_interrupt_handler(on_signal)
            case ("read", prompt):
                reads = True
                try:
                    line = _read_line(prompt)
                except SignalReceived as ended:
                    messages.put(("signal", ended.number))
                    continue
                finally:
                    reads = False
                connection.send(("line", line))
            case ("signal", number):
                if code is not None or failed:
                    return EXIT_INTERRUPTED
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
    if code is not None or not has_begun:
        return code
    raise KvchatError(
        _("kvchat ended unexpectedly while running this command"),
        _("Your input is saved."),
        _("Run the command again to see the result."),
    )


async def _serve_commands(ownership: InstanceLock | None, paths: Paths, name: str, terminal: Terminal) -> None:
    asyncio.get_running_loop().set_default_executor(LoopThreads())
    runner = CommandRunner(paths, f"kvchat {name.split()[0]}")
    runner.own_terminal = terminal
    if ownership is not None:
        from kvchat.transfer.backup import finish_restore

        try:
            await asyncio.to_thread(finish_restore, paths)
        except KvchatError as error:
            terminal.send_error(error)
            return
        ownership.listen(runner.serve_connection)
    threading.Thread(target=runner.serve_terminal, args=(terminal,), name="own-command", daemon=True).start()
    await runner.first_command_started.wait()
    await runner.wait_until_idle()
    if ownership is not None:
        ownership.stop_listening()
        await runner.wait_until_idle()
    if runner.open_runtime is not None:
        await runner.open_runtime.close()


def _read_line(prompt: str) -> str | None:
    try:
        if sys.stdin.isatty():
            return input(prompt)
        return sys.stdin.readline() or None
    except SignalReceived:
        raise
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return ""
    except EOFError:
        print()
        return None


def explain_missing_window(detail: str, advice: str, *, starter: bool) -> int:
    """Print why no window can be opened, and return the exit code.

    With `starter`, chat with the starter model in the terminal instead or, without a terminal, send it one greeting.
    """
    print(_("kvchat cannot open a window. {detail}\n  {advice}", detail=detail, advice=advice), file=sys.stderr)
    if not starter:
        return 1
    from kvchat.cli.arguments import AskOptions

    options = AskOptions(new=True, starter=True)
    if sys.stdin.isatty():
        print(_("Chatting in the terminal instead."), file=sys.stderr)
    else:
        print(_("Asking the starter model one question instead: {greeting}", greeting=_GREETING), file=sys.stderr)
        options = dataclasses.replace(options, prompt=_GREETING, max_tokens=_GREETING_TOKENS)
    return run_command(find_command("ask"), options)
