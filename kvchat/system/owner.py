"""Ownership of the data folder by one process, to which others connect.

The operating system releases the lock when its process ends. A file next to it has the owner's address and a key that
both sides of a connection must know. Only the user can read the folder, so others cannot connect.
"""

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from pathlib import Path

from filelock import FileLock, Timeout

from kvchat.system.files import atomic_write, read_json

_MAX_OWNER_FILE_BYTES = 10_000
_MAX_PATH_BYTES = 100  # macOS's sun_path holds 103, Linux's 107
_OWNER_FILE = "owner.json"
_CONNECTION_ERRORS = (OSError, EOFError, AuthenticationError, AssertionError)


@dataclass(frozen=True)
class Owner:
    name: str  # such as "kvchat serve"
    pid: int
    address: str = ""  # of its socket or named pipe; empty if it accepts no connections
    key: str = field(default="", repr=False)
    api_key: str = field(default="", repr=False)  # for the API server; shows the requests of all apps


@dataclass(frozen=True)
class StartRequest:
    targets: tuple[str, ...] = ()  # links and absolute file paths to open
    quick: bool = False  # open the quick window
    token: str = ""  # the desktop's activation token, with which kvchat may raise its window


def make_start_request(names: tuple[str, ...] = (), *, quick: bool = False) -> StartRequest:
    paths = tuple(name if "://" in name else os.path.abspath(name) for name in names)  # noqa: PTH100 - no link is followed
    token = os.environ.get("XDG_ACTIVATION_TOKEN") or os.environ.get("DESKTOP_STARTUP_ID", "")
    return StartRequest(paths, quick, token)


def allow_owner_to_raise_window() -> None:
    """On Windows, let the owner raise its window, which only the process that the user just started may do.

    https://learn.microsoft.com/windows/win32/api/winuser/nf-winuser-allowsetforegroundwindow
    """
    if sys.platform == "win32":
        ctypes.windll.user32.AllowSetForegroundWindow(-1)  # ASFW_ANY


class InstanceLock:
    """Lock on an existing data folder. Where files cannot be locked, every process becomes an owner."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._lock = FileLock(folder / "owner.lock", timeout=0, mode=0o600, thread_local=False)
        self._listener: Listener | None = None
        self._private: str | None = None  # folder of the socket if the data folder's path is too long

    def claim(self) -> bool:
        try:
            self._lock.acquire()
        except Timeout:
            return False
        except OSError:
            pass
        return True

    def listen(self, on_connection: Callable[[Connection], None]) -> None:
        """Accept connections. `on_connection` is called for each of them in a thread of its own."""
        key = secrets.token_bytes(32)
        self._listener = listener = self._make_listener()
        address = "" if listener is None else str(listener.address)
        owner = Owner(self._name, os.getpid(), address, key.hex(), secrets.token_urlsafe(32))
        with contextlib.suppress(OSError), atomic_write(self._folder / _OWNER_FILE, private=True) as new:
            new.write_text(json.dumps(asdict(owner)), "utf-8")
        if listener is not None:
            threading.Thread(
                target=self._accept, args=(listener, key, on_connection), name="clients", daemon=True
            ).start()

    def stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is None:
            return
        with contextlib.suppress(OSError):
            (self._folder / _OWNER_FILE).unlink(missing_ok=True)
        with contextlib.suppress(*_CONNECTION_ERRORS):
            Client(listener.address).close()  # ends the call of `accept` in the other thread
        listener.close()
        if self._private:
            shutil.rmtree(self._private, ignore_errors=True)

    def release(self) -> None:
        self.stop_listening()
        self._lock.release()

    def _make_listener(self) -> Listener | None:
        if os.name == "nt":
            return Listener(rf"\\.\pipe\kvchat-{secrets.token_hex(16)}", "AF_PIPE")
        socket_path = self._folder.absolute() / "owner.socket"
        with contextlib.suppress(OSError):
            socket_path.unlink(missing_ok=True)  # left by a killed process
            if len(os.fsencode(socket_path)) <= _MAX_PATH_BYTES:
                return Listener(str(socket_path), "AF_UNIX", backlog=32)
        with contextlib.suppress(OSError):
            self._private = tempfile.mkdtemp(prefix="kvchat-")
            return Listener(str(Path(self._private) / "owner.socket"), "AF_UNIX", backlog=32)
        return None

    def _accept(self, listener: Listener, key: bytes, on_connection: Callable[[Connection], None]) -> None:
        while self._listener is listener:
            try:
                client = listener.accept()
            except _CONNECTION_ERRORS:
                time.sleep(0.1)  # the client has left, or no file descriptor is free
                continue
            threading.Thread(
                target=_authenticate, args=(client, key, on_connection), name="client", daemon=True
            ).start()


def owner_of(folder: Path) -> Owner | None:
    try:
        content = read_json(folder / _OWNER_FILE, _MAX_OWNER_FILE_BYTES)
        return Owner(**content) if isinstance(content, dict) else None
    except (OSError, ValueError, TypeError):
        return None


def connect(folder: Path) -> Connection | None:
    """Connect to the owner; return None if it accepts no connections. Blocks while the owner hangs."""
    owner = owner_of(folder)
    if owner is None or not owner.address:
        return None
    try:
        return Client(owner.address, authkey=bytes.fromhex(owner.key))
    except (*_CONNECTION_ERRORS, ValueError):
        return None


def _authenticate(client: Connection, key: bytes, on_connection: Callable[[Connection], None]) -> None:
    try:
        deliver_challenge(client, key)
        answer_challenge(client, key)
    except _CONNECTION_ERRORS:
        client.close()
    else:
        on_connection(client)
