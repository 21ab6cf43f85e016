"""The engine window with the staged runtime: figures, and a log that can be followed, searched and copied."""

import pytest_asyncio
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from kvchat.chat.events import Prefilling, Speed
from kvchat.engine.api import vitals
from kvchat.engine.api.connection import EngineState
from kvchat.engine.api.errors import EngineFailure, FailureKind
from kvchat.engine.api.vitals import SlotState, Vitals
from kvchat.library.memory.demand import COMPUTER, MemoryUse
from kvchat.settings import GB
from kvchat.ui.app.engine_window import EngineWindow
from kvchat.ui.app.main_window import MainWindow
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until

LOG = [f"0.00.000.{number:03} I line {number}" for number in range(200)]
TROUBLE = ["0.00.300.000 W a warning", "0.00.300.001 E an error", "and more of it"]


@pytest_asyncio.fixture
async def engine(runtime: StagedRuntime, window: MainWindow) -> EngineWindow:
    runtime.engine.log_lines = [*LOG, *TROUBLE]
    runtime.engine.seen = Vitals(4711, 2_000_000_000, None, SlotState(False, 512, 2048), vitals.Speed(800.0, 41.4))
    return window.side_windows.open_engine()


async def test_numbers_that_are_looked_up(engine: EngineWindow) -> None:
    await until(lambda: engine.live_page.value("process") == "4711")
    assert "ready" in engine.live_page.value("state")
    assert "/usr/bin/llama-server" in engine.live_page.value("state")
    assert engine.live_page.value("context") == "512 of 2K tokens"
    assert engine.live_page.context_bar.value() / engine.live_page.context_bar.maximum() == 0.25
    assert (engine.live_page.value("memory"), engine.live_page.value("graphics")) == ("2 GB", "–")
    assert engine.live_page.value("decode").startswith("41 tokens/s")
    assert engine.live_page.value("now") == "idle"


async def test_what_happens_is_followed_while_the_window_is_on_show(
    engine: EngineWindow, runtime: StagedRuntime
) -> None:
    await until(lambda: engine.live_page.value("now") == "idle")
    runtime.events.publish(Prefilling("a", 1000, 2000))
    assert engine.live_page.value("now") == "processing, 1,000 of 2,000 tokens"
    runtime.events.publish(Speed("a", 40.4, 100))
    assert engine.live_page.value("now") == "generating, 40 tokens/s"
    engine.close()
    runtime.events.publish(Speed("a", 99.0, 100))
    assert engine.live_page.value("now") == "generating, 40 tokens/s"


async def test_a_failure_is_told_in_words(engine: EngineWindow, runtime: StagedRuntime) -> None:
    failure = EngineFailure(FailureKind.HANGS, "The engine stopped responding", "It did not answer.", "")
    runtime.engine.seen = None
    runtime.set_engine(EngineState.STARTING, failure=failure, restart_attempt=2)
    assert engine.live_page.value("state").startswith(
        "starting (restarts: 2)\nThe engine stopped responding. It did not answer."
    )
    await until(lambda: engine.live_page.value("memory") == "–")
    assert not engine.live_page.context_bar.isVisible()


async def test_model_in_memory_names_rpc_servers_by_their_address(engine: EngineWindow, runtime: StagedRuntime) -> None:
    assert not engine.live_page.charts.findChildren(QWidget)
    runtime.engine.memory_uses = (
        MemoryUse("RPC0[den:50052]", 24 * GB, 2 * GB, 4 * GB, GB, GB // 2, 0, measured=True),
        MemoryUse("RPC1[den:50052]", 24 * GB, 2 * GB, 3 * GB, GB, GB // 2, 0, measured=True),
        MemoryUse(COMPUTER, 16 * GB, 2 * GB, GB, 0, GB // 2, 0, measured=True),
    )
    runtime.set_engine(EngineState.READY)
    await until(lambda: len(charts(engine)) == 3)
    assert charts(engine) == [
        "den:50052: model 4 GB, context 1 GB, compute buffers 500 MB; reserved 2 GB of 24 GB free",
        "den:50052, device 2: model 3 GB, context 1 GB, compute buffers 500 MB; reserved 2 GB of 24 GB free",
        "System memory: model 1 GB, compute buffers 500 MB; reserved 2 GB of 16 GB free",
    ]


def charts(engine: EngineWindow) -> list[str]:
    return [name for widget in engine.live_page.charts.findChildren(QWidget) if (name := widget.accessibleName())]


async def test_the_log_by_level(engine: EngineWindow, qtbot: QtBot) -> None:
    engine.tabs.setCurrentWidget(engine.log_page)
    assert engine.log_page.text.toPlainText().endswith("and more of it")
    for index, lines in ((1, TROUBLE), (2, TROUBLE[1:]), (0, [*LOG, *TROUBLE])):
        engine.log_page.level_box.setCurrentIndex(index)
        engine.log_page.level_box.activated.emit(index)
        assert engine.log_page.text.toPlainText().splitlines() == lines


async def test_the_log_is_followed_until_the_reader_scrolls_up(
    engine: EngineWindow, runtime: StagedRuntime, qtbot: QtBot
) -> None:
    engine.tabs.setCurrentWidget(engine.log_page)
    log, bar = engine.log_page, engine.log_page.text.verticalScrollBar()
    await until(lambda: bar.maximum() > 0)
    runtime.engine.log_lines = [*runtime.engine.log_lines, "0.00.400.000 I newer"]
    engine.refresh()
    assert bar.value() == bar.maximum()
    log.text.setFocus()
    qtbot.keyClick(log.text, Qt.Key.Key_Home, Qt.KeyboardModifier.ControlModifier)
    assert not log.follow_box.isChecked()
    log.text.selectAll()
    runtime.engine.log_lines = [*runtime.engine.log_lines, "0.00.500.000 I newest"]
    engine.refresh()
    assert bar.value() == 0
    assert log.text.textCursor().hasSelection()  # what was being copied is still marked
    log.follow_box.click()
    assert bar.value() == bar.maximum()


async def test_search_marks_counts_and_walks(engine: EngineWindow, qtbot: QtBot) -> None:
    engine.tabs.setCurrentWidget(engine.log_page)
    qtbot.keyClick(engine, Qt.Key.Key_F, Qt.KeyboardModifier.ControlModifier)
    await until(engine.log_page.text_search.hasFocus)
    qtbot.keyClicks(engine.log_page.text_search, "line 19")
    assert engine.log_page.text_search.count.text() == "11 found"
    assert len(engine.log_page.text.extraSelections()) == 11
    rows = []
    for _ in range(12):
        qtbot.keyClick(engine.log_page.text_search, Qt.Key.Key_Return)
        rows.append(engine.log_page.text.textCursor().blockNumber())
    assert len(set(rows)) == 11
    assert rows[0] == rows[-1]
    engine.log_page.text_search.setText("nowhere")
    assert engine.log_page.text_search.count.text() == "0 found"


async def test_what_is_shown_is_copied(engine: EngineWindow) -> None:
    engine.log_page.level_box.setCurrentIndex(2)
    engine.log_page.level_box.activated.emit(2)
    engine.log_page.copy_button.click()
    assert QGuiApplication.clipboard().text().splitlines() == TROUBLE[1:]
    engine.diagnostics_button.click()
    await until(lambda: QGuiApplication.clipboard().text().startswith("kvchat "))
