"""One kvchat for one data folder: a second start raises the first one's window and goes away."""

from __future__ import annotations

import hashlib
from pathlib import Path

from PySide6.QtCore import QLockFile, QObject, Signal
from PySide6.QtNetwork import QLocalServer, QLocalSocket

_ASK_MS = 2000
_RAISE = b"raise\n"


class SingleInstance(QObject):
    """Holds the data folder's lock and listens for later starts."""

    raise_requested = Signal()

    def __init__(self, data_folder: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        digest = hashlib.sha256(str(data_folder.resolve()).encode()).hexdigest()[:16]
        self.name = f"kvchat-{digest}"
        self._lock = QLockFile(str(data_folder / "app.lock"))
        self._lock.setStaleLockTime(0)  # only a dead owner makes it stale, never its age
        self._server: QLocalServer | None = None

    def claim(self) -> bool:
        """True: this is the only kvchat here. False: there is another, and it was asked to raise its window.

        The data folder must exist. Where its lock cannot be made, who answers to the name is the other one: chats have
        locks of their own, and a window is worth more than this one.
        """
        if not self._lock.tryLock(0):
            raised = self._ask_to_raise()
            if raised or self._is_held():
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

    def _is_held(self) -> bool:
        """Whether there is a lock of another process's, and not only none to be had."""
        return self._lock.error() is QLockFile.LockError.LockFailedError and bool(self._lock.getLockInfo()[0])

    def _ask_to_raise(self) -> bool:
        """Whether somebody hears it."""
        socket = QLocalSocket()
        socket.connectToServer(self.name)
        if not socket.waitForConnected(_ASK_MS):
            return False
        socket.write(_RAISE)
        socket.waitForBytesWritten(_ASK_MS)
        socket.disconnectFromServer()
        return True

    def _greet(self) -> None:
        if self._server is None:
            return
        socket = self._server.nextPendingConnection()
        socket.disconnected.connect(socket.deleteLater)
        self.raise_requested.emit()
