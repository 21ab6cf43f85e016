"""One kvchat for one data folder: a second start tells the first one what it is for and goes away."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from PySide6.QtCore import QLockFile, QObject, Signal
from PySide6.QtNetwork import QLocalServer, QLocalSocket

_ASK_MS = 2000
_MOST = 1_000_000  # bytes of what a start is for


@dataclass(frozen=True)
class Wish:
    """What a start is for; when nothing is said, the window in front."""

    open: tuple[str, ...] = ()  # links, and files with their whole paths
    quick: bool = False  # the small window to ask something in
    token: str = ""  # with which the desktop lets a window come to the front

    def written(self) -> bytes:
        """As it goes from one kvchat to the other."""
        return json.dumps(asdict(self)).encode()


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


class SingleInstance(QObject):
    """Holds the data folder's lock and listens for later starts."""

    asked = Signal(Wish)

    def __init__(self, data_folder: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        digest = hashlib.sha256(str(data_folder.resolve()).encode()).hexdigest()[:16]
        self.name = f"kvchat-{digest}"
        self._lock = QLockFile(str(data_folder / "app.lock"))
        self._lock.setStaleLockTime(0)  # only a dead owner makes it stale, never its age
        self._server: QLocalServer | None = None

    def claim(self, wish: Wish = Wish()) -> bool:
        """True: this is the only kvchat here. False: there is another, and it was told what this one is for.

        The data folder must exist. Where its lock cannot be made, who answers to the name is the other one: chats have
        locks of their own, and a window is worth more than this one.
        """
        if not self._lock.tryLock(0):
            told = self.tell(wish)
            if told or self._is_held():
                return False
        QLocalServer.removeServer(self.name)  # a leftover of a process that was killed
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(self._greet)
        self._server.listen(self.name)
        return True

    def release(self) -> None:
        """Let another kvchat have the folder."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._lock.unlock()

    def tell(self, wish: Wish) -> bool:
        """Whether there is another kvchat that hears it. Needs no application of Qt's."""
        socket = QLocalSocket()
        socket.connectToServer(self.name)
        if not socket.waitForConnected(_ASK_MS):
            return False
        _give_way()
        socket.write(wish.written())
        socket.waitForBytesWritten(_ASK_MS)
        socket.disconnectFromServer()
        return True

    def _is_held(self) -> bool:
        """Whether there is a lock of another process's, and not only none to be had."""
        return self._lock.error() is QLockFile.LockError.LockFailedError and bool(self._lock.getLockInfo()[0])

    def _greet(self) -> None:
        if self._server is None:
            return
        socket = self._server.nextPendingConnection()

        def hear() -> None:
            self.asked.emit(_read(bytes(socket.read(_MOST).data())))
            socket.deleteLater()

        if socket.state() is QLocalSocket.LocalSocketState.UnconnectedState:  # it has said all and gone
            hear()
        else:
            socket.disconnected.connect(hear)
