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

        The data folder must exist.
        """
        if not self._lock.tryLock(0):
            self._ask_to_raise()
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

    def _ask_to_raise(self) -> None:
        socket = QLocalSocket()
        socket.connectToServer(self.name)
        if socket.waitForConnected(_ASK_MS):
            socket.write(_RAISE)
            socket.waitForBytesWritten(_ASK_MS)
            socket.disconnectFromServer()

    def _greet(self) -> None:
        if self._server is None:
            return
        socket = self._server.nextPendingConnection()
        socket.disconnected.connect(socket.deleteLater)
        self.raise_requested.emit()
