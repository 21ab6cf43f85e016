import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

os.environ["QT_QPA_PLATFORM"] = "offscreen"
os.environ.setdefault("QT_QPA_FONTDIR", r"C:\Windows\Fonts")  # on Windows, this platform has no fonts by itself
os.environ["DBUS_SYSTEM_BUS_ADDRESS"] = "unix:path=/nowhere"  # tests must not depend on whether this network is metered

import pytest
import pytest_asyncio
from PySide6.QtCore import QTimerEvent
from PySide6.QtWidgets import QApplication
from qasync import QEventLoop, _SimpleTimer

from kvchat.chat.record.messages import Role
from kvchat.settings import Settings
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.theme import Look
from tests.engine_fixtures import FakeEngine
from tests.library.gguf_files import LLAMA, write_gguf
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.windows import on_show

_app: list[QApplication] = []  # keeps a reference: otherwise Python deletes the QApplication
_loops: list[QEventLoop] = []  # kept: collected by another thread, their timers would fire in freed memory


class _Timer(_SimpleTimer):
    """Timers of a loop that, like asyncio's own, does nothing while it does not run.

    Between setup, test and teardown pytest-qt makes Qt handle its events. Tasks would continue there and fail when
    they ask for the running loop. Nor do timers fire within a step of a task: `qtbot.mouseMove` makes Qt handle its
    events, and asyncio refuses to start another task there, which would then never start. `_SimpleTimer` and the
    loop's `_timer` are private: https://github.com/CabbageDevelopment/qasync/blob/v0.28.0/src/qasync/__init__.py
    """

    def timerEvent(self, event: QTimerEvent) -> None:
        loop = asyncio.events._get_running_loop()
        if self._stopped or (loop is not None and asyncio.current_task(loop) is None):
            super().timerEvent(event)  # else it fires again


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], QEventLoop]]:
    """Coroutine tests in this folder run on Qt's loop, as the app does."""
    return {"qt": _qt_loop}


def _qt_loop() -> QEventLoop:
    if QApplication.instance() is None:
        _app.append(QApplication(["kvchat-tests"]))
    loop = QEventLoop(QApplication.instance())
    loop._timer = _Timer()
    _loops.append(loop)
    return loop


@pytest.fixture
def look(qapp: QApplication) -> Iterator[Look]:
    qapp.setQuitOnLastWindowClosed(False)  # as in the app
    look = Look(qapp, "light")
    yield look
    look.deleteLater()
    for left in qapp.topLevelWidgets():  # else later style sheets restyle them, too: a window took ten times as long
        left.deleteLater()


@pytest.fixture(autouse=True)
def in_network(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the computers that the window finds in the network; a test may add some."""
    found: dict[str, str] = {}

    async def find_shared() -> dict[str, str]:
        return dict(found)

    monkeypatch.setattr("kvchat.ui.settings.other_computer.find_shared", find_shared)
    return found


@pytest.fixture
def real_settings(tmp_path: Path, fake_engine: FakeEngine) -> Settings:
    """Return settings of a real kvchat with the fake engine; its servers have free ports."""
    with socket.socket() as api, socket.socket() as sharing:
        for port in (api, sharing):
            port.bind(("127.0.0.1", 0))
        api_port, share_port = api.getsockname()[1], sharing.getsockname()[1]
    return Settings(
        model_path=str(write_gguf(tmp_path / "heron.gguf", dict(LLAMA))),
        engine_path=str(fake_engine.path),
        context_size=8192,
        free_floor_bytes=0,
        api_port=api_port,
        api_any_model=True,
        share_port=share_port,
    )


@pytest.fixture
def runtime(tmp_path: Path) -> StagedRuntime:
    return StagedRuntime(tmp_path)


@pytest.fixture
def furnished(runtime: StagedRuntime) -> StagedRuntime:
    """Add chats a to d; d is the newest, and open."""
    for id in "abcd":
        runtime.chat.add(f"Chat {id}", id=id)
        runtime.chat.write(id, Role.USER, f"Hello {id}")
    return runtime


@pytest_asyncio.fixture
async def window(runtime: StagedRuntime, look: Look) -> AsyncIterator[MainWindow]:
    """Yield the window over a runtime that earlier fixtures have filled (fixtures run in argument order)."""
    async with on_show(runtime, look) as window:
        yield window
