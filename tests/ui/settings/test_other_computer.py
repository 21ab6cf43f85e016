"""Settings, Engine: pairing with another computer, with the staged runtime."""

from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from kvchat.engine.api.connection import EngineState
from kvchat.engine.api.errors import EngineFailure, FailureKind
from kvchat.engine.api.wire import ServerFacts
from kvchat.engine_host.paired_computer import PairedComputer, PairingFailed
from kvchat.errors import KvchatError
from kvchat.system.pairing import WrongCode
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.settings.engines import EnginePage
from kvchat.ui.settings.other_computer import OtherComputerEntry
from kvchat.ui.storage.storage_panel import EMPTY
from kvchat.ui.storage.usage_summary import describe_computer
from kvchat.ui.widgets.layouts import allow_line_breaks
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until
from tests.ui.windows import button, question

LEFT = Qt.MouseButton.LeftButton
GPUBOX = "https://192.168.1.5:8738"


@pytest.fixture
def entry(window: MainWindow) -> OtherComputerEntry:
    return window.side_windows.open_settings(EnginePage.name).page(EnginePage).computer


class Pairing:
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.refuse: KvchatError | None = None

    async def __call__(self, address: str, code: str) -> PairedComputer:
        self.calls.append((address, code))
        if self.refuse is not None:
            raise self.refuse
        return PairedComputer(GPUBOX, "key", "PEM", "gpubox & 显卡", "1")


@pytest.fixture
def pairing(monkeypatch: pytest.MonkeyPatch) -> Pairing:
    made = Pairing()
    monkeypatch.setattr("kvchat.engine_host.paired_computer.pair", made)
    return made


async def test_found_computers_fill_in_the_address_and_errors_are_shown_as_worded(
    in_network: dict[str, str], pairing: Pairing, entry: OtherComputerEntry, qtbot: QtBot
) -> None:
    await until(lambda: entry.search_label.text() == "No computer that shares its models was found.")
    in_network["gpubox"] = GPUBOX
    entry.stop_searching()
    entry.start_searching()
    await until(lambda: entry.found)
    qtbot.mouseClick(entry.pair_button, LEFT)
    assert entry.refusal.text() == "Enter the address of the other computer."
    qtbot.mouseClick(button(entry, "Pair with gpubox"), LEFT)
    assert entry.address_field.text() == "192.168.1.5:8738"
    qtbot.keyClicks(entry.code_field, "12345")
    qtbot.keyClick(entry.code_field, Qt.Key.Key_Return)
    assert entry.refusal.text() == "Enter the six digits that the other computer shows."
    assert not pairing.calls
    qtbot.keyClicks(entry.code_field, " 6")
    for error in (WrongCode(), PairingFailed("The other computer does not answer.")):
        pairing.refuse = error
        qtbot.keyClick(entry.code_field, Qt.Key.Key_Return)
        await until(lambda error=error: entry.refusal.text() == allow_line_breaks(str(error)))
        assert (entry.code_field if isinstance(error, WrongCode) else entry.address_field).hasFocus()
    assert pairing.calls == [("192.168.1.5:8738", "123456")] * 2
    entry._page.panel.close()
    assert entry.code_field.text() == ""
    assert entry._searching is None


async def test_a_paired_computer_is_named_used_left_and_unpaired(
    runtime: StagedRuntime, pairing: Pairing, entry: OtherComputerEntry, qtbot: QtBot
) -> None:
    page, name = entry._page, "gpubox & 显卡"
    server = page.settings["engine_url"]
    qtbot.keyClicks(entry.address_field, "gpubox")
    qtbot.keyClicks(entry.code_field, "123 456")
    qtbot.mouseClick(entry.pair_button, LEFT)
    await until(lambda: server.field.text() == f"In use: {name}")
    assert runtime.settings.engine_url == GPUBOX
    assert entry.state_label.text() == f"Paired with {name} at 192.168.1.5:8738. Chats use the models of that computer."
    assert server.field.isReadOnly()
    assert not server.clear_button.isVisible()
    assert not entry.address_field.isVisible()
    assert not page.key_entry.isVisible()  # type: ignore[attr-defined]
    page.panel.close()
    page.panel.bring_forward()
    await until(lambda: server.field.text() == f"In use: {name}")

    qtbot.mouseClick(entry.stop_using_button, LEFT)
    await until(entry.use_button.isVisible)
    assert runtime.settings.engine_url is None
    assert not server.field.isReadOnly()
    assert server.field.text() == ""
    assert entry.use_button.text() == "Use gpubox && 显卡"
    qtbot.mouseClick(entry.use_button, LEFT)
    await until(entry.stop_using_button.isVisible)
    assert runtime.settings.engine_url == GPUBOX

    qtbot.mouseClick(entry.unpair_button, LEFT)
    question(page.panel).confirm_button.click()
    await until(entry.address_field.isVisible)
    assert runtime.settings.engine_url is None
    assert await runtime.engines.paired_computer() is None


async def test_a_computer_that_has_removed_this_one_is_paired_again(
    runtime: StagedRuntime, window: MainWindow, pairing: Pairing, entry: OtherComputerEntry, qtbot: QtBot
) -> None:
    qtbot.keyClicks(entry.address_field, "gpubox")
    qtbot.keyClicks(entry.code_field, "123456")
    qtbot.mouseClick(entry.pair_button, LEFT)
    await until(entry.stop_using_button.isVisible)
    failure = EngineFailure(FailureKind.UNPAIRED, "gpubox refused access", "It has removed this one.", "Pair again.")
    runtime.set_engine(EngineState.FAILED, failure=failure)
    card = window.engine_card
    assert not card.restart_button.isVisible()
    card.pair_button.click()
    await until(entry.code_field.isVisible)
    assert entry.state_label.text() == allow_line_breaks("gpubox refused access. It has removed this one. Pair again.")
    qtbot.keyClicks(entry.code_field, "654321")
    qtbot.mouseClick(entry.pair_button, LEFT)
    await until(lambda: pairing.calls[1:] == [("192.168.1.5:8738", "654321")])


async def test_the_computer_is_named_where_the_engine_is(runtime: StagedRuntime, window: MainWindow) -> None:
    engine = runtime.engine
    engine.external.paired_computer = PairedComputer(GPUBOX, "key", "PEM", "gpubox", "1")
    engine.current = engine.external
    runtime.settings = replace(runtime.settings, engine_url=GPUBOX)
    window.chat.show_engine()
    assert runtime.model.label == window.status_strip.model.full_text == "gpubox", "its model is not known yet"
    engine.external.server_facts = ServerFacts(
        8192, "/models/Qwen3.6-27B-Q4_K_M.gguf", "", 1, has_vision=False, media_marker=""
    )
    window.chat.show_engine()
    assert window.status_strip.model.full_text == "Qwen3.6-27B-Q4_K_M on gpubox"
    window.side_windows.open_engine()
    assert window.side_windows.open_engine().live_page.value("model") == "Qwen3.6-27B-Q4_K_M on gpubox"
    storage = window.side_windows.open_storage()
    await until(storage.computer_label.isVisible)
    assert storage.computer_label.text() == "The memory of your chats is kept on gpubox."
    assert not storage.prune_card.isVisible(), "there is no memory on this computer"
    assert storage.empty_label.text() == EMPTY
    runtime.set_engine(EngineState.FAILED)
    storage.refresh()
    away = "gpubox is not available, so the memory of your chats cannot be shown."
    await until(lambda: storage.empty_label.text() == away)
    assert describe_computer("gpubox", 1_300_000) == (
        "The memory of your chats is kept on gpubox. It takes 1.3 MB there. The figures below are for this computer."
    )
