"""The window's position and layout, kept in `window.ini` for the next start."""

import threading
from pathlib import Path
from typing import Any

from PySide6.QtCore import QEvent, QObject, QSettings, QSize, Qt
from PySide6.QtWidgets import QMainWindow, QSplitter, QWidget

from kvchat.ui.base.theme import Look
from kvchat.ui.chat.chat_page import Header
from kvchat.ui.sidebar.conversation_list import Arrangement
from kvchat.ui.sidebar.sidebar import Sidebar
from kvchat.ui.widgets.layouts import max_window_size


class WindowState:
    """Window state, read once at startup and written in a thread, because QSettings would block the GUI thread."""

    def __init__(self, file: Path) -> None:
        self._file = str(file)
        stored = self._open()
        self.values: dict[str, Any] = {key: stored.value(key) for key in stored.allKeys()}  # numbers may be text
        self._thread: threading.Thread | None = None
        self._writing = threading.Lock()

    def is_true(self, key: str, default: bool) -> bool:
        return str(self.values.get(key, default)).lower() == "true"

    def store(self, **values: Any) -> None:
        if self.values != (changed := self.values | values):
            self.values = changed
            self._thread = threading.Thread(target=self._write, name="window-memory", daemon=True)
            self._thread.start()

    def wait_until_written(self) -> None:
        """Block until all values are written, at most `SHUTDOWN_TIMEOUT_S`."""
        from kvchat.system.concurrency import SHUTDOWN_TIMEOUT_S  # the first frame does not need it

        if self._thread is not None:
            self._thread.join(SHUTDOWN_TIMEOUT_S)

    def _write(self) -> None:
        with self._writing:
            stored = self._open()
            for key, value in self.values.items():
                stored.setValue(key, value)
            stored.sync()

    def _open(self) -> QSettings:
        return QSettings(self._file, QSettings.Format.IniFormat)


_MIN_SIZE = 360  # pixels at 100 % text, both axes, if the screen allows
_SIDEBAR, _NARROW = 180, 520  # pixels at 100 % text: minimum for the sidebar, and for sidebar plus page


class WindowLayout(QObject):
    """Layout of the main window: the sidebar is beside the pages or, in a narrow window, replaces them."""

    def __init__(
        self, window: QMainWindow, look: Look, state: WindowState, sidebar: Sidebar, header: Header, pages: QWidget
    ) -> None:
        super().__init__(window)
        self._window, self._look, self._state = window, look, state
        self._sidebar, self._header, self._pages = sidebar, header, pages
        self._has_sidebar = state.is_true("sidebar", True)  # if both fit
        self._is_narrow = self._is_peeking = False  # peeking: sidebar shown briefly in a narrow window
        self.splitter = QSplitter(Qt.Orientation.Horizontal)
        self.splitter.setHandleWidth(1)
        self.splitter.setChildrenCollapsible(False)
        self.splitter.addWidget(sidebar)
        self.splitter.addWidget(pages)
        self.splitter.setStretchFactor(1, 1)
        self.splitter.setSizes([250, 850])
        window.installEventFilter(self)
        look.changed.connect(self._arrange)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() in (QEvent.Type.Resize, QEvent.Type.LayoutRequest):
            self._arrange()
        return super().eventFilter(watched, event)

    def toggle_sidebar(self) -> None:
        if self._is_narrow:
            self._is_peeking = not self._is_peeking
        else:
            self._has_sidebar = not self._has_sidebar
        self._arrange()

    def show_sidebar(self) -> None:
        if self._sidebar.isHidden():
            self.toggle_sidebar()

    def show_page(self) -> None:
        self._is_peeking = False
        self._arrange()

    def remember(self) -> None:
        self._state.store(
            geometry=self._window.saveGeometry(),
            sidebar=self._has_sidebar,
            splitter=self.splitter.saveState(),
            chats=self._sidebar.arrangement.to_json(),
        )

    def restore(self) -> None:
        stored = self._state.values
        geometry, splitter = stored.get("geometry"), stored.get("splitter")
        if geometry is None or not self._window.restoreGeometry(geometry):
            self._window.resize(QSize(1100, 760).boundedTo(max_window_size()))
        if splitter is not None:
            self.splitter.restoreState(splitter)
        self._sidebar.arrange(Arrangement.from_json(str(stored.get("chats") or "")))
        self._arrange()

    def _arrange(self) -> None:
        sidebar = max(self._look.px(_SIDEBAR), self._sidebar.minimumSizeHint().width())
        page = self._pages.minimumSizeHint().width()
        least = (QSize(1, 1) * self._look.px(_MIN_SIZE)).expandedTo(QSize(max(sidebar, page), 0))
        self._window.setMinimumSize(least.boundedTo(max_window_size()))
        self._is_narrow = self._window.width() < max(self._look.px(_NARROW), sidebar + page)
        self._is_peeking = self._is_peeking and self._is_narrow
        is_shown = self._is_peeking if self._is_narrow else self._has_sidebar
        self._sidebar.setMinimumWidth(sidebar)
        self._sidebar.setVisible(is_shown)
        self._pages.setVisible(not self._is_peeking)
        self._header.sidebar_button.setVisible(not is_shown)
