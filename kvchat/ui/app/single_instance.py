"""One kvchat for one data folder: a second start tells the first one what it is for and goes away."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import socket
import struct
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from PySide6.QtCore import QLockFile, QObject, Signal
from PySide6.QtNetwork import QLocalServer, QLocalSocket

_ASK_MS, _ANSWER_MS = 2000, 10_000
_AGAIN_MS = 200  # between two looks whether the kvchat that is quitting has ended
_HEARD = b"heard\n"
_MOST = 1_000_000  # bytes of what a start is for
_LONGEST_PATH = 100  # bytes: 103 fit into macOS's sun_path, 107 into Linux's


@dataclass(frozen=True)
class Wish:
    """What a start is for; when nothing is said, the window in front."""

    open: tuple[str, ...] = ()  # links, and files with their whole paths
    quick: bool = False  # the small window to ask something in
    token: str = ""  # with which the desktop lets a window come to the front

    def written(self) -> bytes:
        """As it goes from one kvchat to the other."""
        return json.dumps(asdict(self)).encode() + b"\n"


def wish_for(what: tuple[str, ...] = (), *, quick: bool = False) -> Wish:
    """The wish of this process, which was started with these words."""
    here = tuple(one if "://" in one else os.path.abspath(one) for one in what)  # noqa: PTH100 - no link is followed
    return Wish(here, quick, os.environ.get("XDG_ACTIVATION_TOKEN") or os.environ.get("DESKTOP_STARTUP_ID", ""))


def _read(told: bytes) -> Wish:
    """What another kvchat wrote; of what is not understood, as of another version's, the window in front is left."""
    try:
        said = json.loads(told)
        return Wish(tuple(map(str, said["open"])), bool(said["quick"]), str(said["token"]))
    except (ValueError, LookupError, TypeError):
        return Wish()


def _give_way() -> None:
    """Windows lets only who has the user's attention bring a window to the front: that is this process, just started.

    https://learn.microsoft.com/windows/win32/api/winuser/nf-winuser-allowsetforegroundwindow
    """
    if sys.platform == "win32":
        ctypes.windll.user32.AllowSetForegroundWindow(-1)  # any process


def _names(data_folder: Path) -> tuple[str, ...]:
    """Where to listen, best first: in the data folder, which is the user's alone, unless it cannot hold a socket."""
    name = f"kvchat-{hashlib.sha256(str(data_folder.resolve()).encode()).hexdigest()[:16]}"
    if sys.platform == "win32":
        return (name,)
    beside = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / name
    places = data_folder.absolute() / "app.socket", beside
    return tuple(str(place) for place in places if len(os.fsencode(place)) <= _LONGEST_PATH)


def _is_own(end: QLocalSocket) -> bool:
    """True if the process at the other end is this user's. Linux tells; elsewhere the socket's folder is private."""
    if sys.platform != "linux":
        return True
    try:
        with socket.socket(fileno=os.dup(int(end.socketDescriptor()))) as here:
            _pid, uid, _gid = struct.unpack("3i", here.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except OSError:  # it has gone
        return False
    return bool(uid == os.getuid())


class SingleInstance(QObject):
    """Holds the data folder's lock and listens for later starts."""

    asked = Signal(Wish)

    def __init__(self, data_folder: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.names = _names(data_folder)
        self._lock = QLockFile(str(data_folder / "app.lock"))
        self._lock.setStaleLockTime(0)  # only a dead owner makes it stale, never its age
        self._server: QLocalServer | None = None

    def claim(self, wish: Wish = Wish()) -> bool:
        """True: this is the only kvchat here. False: there is another, and it was told what this one is for.

        The data folder must exist. One that is quitting hears nothing any more: its end is waited for. Where the lock
        cannot be made, who answers is the other one: chats have locks of their own, and a window is worth more than
        this one.
        """
        patience_ms = 0
        while not self._lock.tryLock(patience_ms):
            if self.tell(wish):
                return False
            if not self._is_held():
                break
            patience_ms = _AGAIN_MS
        self._server = QLocalServer(self)
        self._server.newConnection.connect(self._greet)
        for name in self.names:
            QLocalServer.removeServer(name)  # a leftover of a process that was killed
            if self._server.listen(name):
                break
        return True

    def stop_listening(self) -> None:
        """Quitting begins: a later start waits for the end instead of telling who cannot do anything for it."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def release(self) -> None:
        """Let another kvchat have the folder."""
        self.stop_listening()
        self._lock.unlock()

    def tell(self, wish: Wish) -> bool:
        """True if another kvchat of this user has heard it. Needs no application of Qt's."""
        return any(self._tell(name, wish) for name in self.names)

    def _tell(self, name: str, wish: Wish) -> bool:
        there = QLocalSocket()
        there.connectToServer(name)
        if not there.waitForConnected(_ASK_MS) or not _is_own(there):
            return False
        _give_way()
        there.write(wish.written())
        there.waitForBytesWritten(_ASK_MS)
        there.waitForReadyRead(_ANSWER_MS)
        still_there = there.state() is QLocalSocket.LocalSocketState.ConnectedState  # one that hangs hears it later
        return bool(there.bytesAvailable()) or still_there

    def _is_held(self) -> bool:
        """Whether there is a lock of another process's, and not only none to be had."""
        return self._lock.error() is QLockFile.LockError.LockFailedError and bool(self._lock.getLockInfo()[0])

    def _greet(self) -> None:
        if self._server is None:
            return
        there = self._server.nextPendingConnection()
        there.setReadBufferSize(_MOST)
        there.disconnected.connect(there.deleteLater)
        if not _is_own(there):
            there.abort()
            return

        def hear() -> None:
            if self._server is None:  # quitting
                there.abort()
            elif there.canReadLine():
                self.asked.emit(_read(bytes(there.readLine(_MOST).data())))
                there.write(_HEARD)
                there.disconnectFromServer()

        there.readyRead.connect(hear)
        hear()
