"""Window state kept for the next start in `window.ini`."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSettings

from kvchat.system.concurrency import LAST_MOMENT_S


class WindowMemory:
    """Read once, before there is a window. QSettings would write on the window's thread, which a slow disk holds up."""

    def __init__(self, file: Path) -> None:
        self._file = str(file)
        stored = self._open()
        self._values: dict[str, Any] = {key: stored.value(key) for key in stored.allKeys()}
        self._thread: threading.Thread | None = None
        self._writing = threading.Lock()

    def get(self, key: str) -> Any:
        """Return the value kept under a name, else None; a number or a bool may come back as text."""
        return self._values.get(key)

    def is_true(self, key: str, default: bool) -> bool:
        return str(self._values.get(key, default)).lower() == "true"

    def keep(self, **values: Any) -> None:
        """Remember these, on disk soon after."""
        if any(self._values.get(key) != value for key, value in values.items()):
            self._values |= values
            self._thread = threading.Thread(target=self._write, name="window-memory", daemon=True)
            self._thread.start()

    def written(self) -> None:
        """Wait until all is on disk, within `LAST_MOMENT_S`. Not for the loop."""
        if self._thread is not None:
            self._thread.join(LAST_MOMENT_S)

    def _write(self) -> None:
        with self._writing:
            stored = self._open()
            for key, value in self._values.items():
                stored.setValue(key, value)
            stored.sync()

    def _open(self) -> QSettings:
        return QSettings(self._file, QSettings.Format.IniFormat)
