"""The first-start page: from no model to a model."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from random import randbytes

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

from kvchat.engine.api.connection import EngineState
from kvchat.engine.discovery.engines import EngineLocation
from kvchat.engine.discovery.graphics import GpuVendor, Graphics
from kvchat.errors import KvchatError
from kvchat.library.model_files import Source
from kvchat.library.model_library import FoundModel
from kvchat.library.remote.starter import DOWNLOADING, OnStage
from kvchat.settings import GB, Settings
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import ConfirmDialog
from kvchat.ui.settings.engines import EnginePage
from tests.engine_fixtures import FakeEngine
from tests.library.fake_hub import FakeHub
from tests.ui.staged_runtime import StagedRuntime, a_model
from tests.ui.waiting import until
from tests.ui.windows import begun


@pytest.fixture
def runtime(tmp_path: Path) -> StagedRuntime:
    return StagedRuntime(tmp_path, model=None)


async def test_page_ends_when_another_computer_is_used(runtime: StagedRuntime, window: MainWindow) -> None:
    assert window.first_start.isVisible()
    runtime.settings = replace(runtime.settings, engine_url="https://gpubox:8738")
    runtime.set_engine(EngineState.STARTING)
    await until(window.composer.isVisible)


async def test_without_a_model_the_page_is_shown_and_refuses_a_file_that_is_none(
    runtime: StagedRuntime, window: MainWindow
) -> None:
    assert window.first_start.isVisible()
    assert not window.composer.isVisible()
    page = window.first_start
    await until(lambda: page.machine_label.text())
    assert "of 16 GB memory free" not in page.machine_label.text(), "nothing is made up"
    assert "memory free" in page.machine_label.text()
    assert "on disk" in page.storage_label.text()
    assert "Estimated from the file size" in page.starter_button.toolTip(), "the starter has its verdict, too"
    page.back_button.click()
    assert window.composer.isVisible()
    window.show_first_start()
    assert page.isVisible()
    runtime.refuse = KvchatError("Not a GGUF file", "It is text.", "Pick another.")
    window.runner.start(window.models.use(Path("/x.txt")))
    card = page.error_card
    await until(card.title.isVisible)
    told = card.title.text(), card.detail.text(), card.advice_label.text()
    assert told == ("Not a GGUF file", "It is text.", "Pick another.")
    assert page.starter_button.isVisible()


async def test_models_that_are_here_come_first_and_the_starter_is_what_it_is(
    runtime: StagedRuntime, window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = window.first_start
    monkeypatch.setattr("kvchat.library.remote.starter.installed_starter", lambda: None)
    window.show_first_start()
    await until(lambda: page.starter_button.text() == "Download the starter model (98 MB)")
    assert page.starter_button.property("kind") == "primary"
    small, large = a_model(tmp_path, "Small", 1 * GB), a_model(tmp_path, "Large", 6 * GB)
    broken = FoundModel(tmp_path / "half.gguf", "Half", Source.CHOSEN, 9, None)
    runtime.models.there = [small, a_model(tmp_path, "Huge", 90 * GB), large, broken]
    monkeypatch.setattr("kvchat.library.remote.starter.installed_starter", lambda: Path("/wheel/starter.gguf"))
    window.show_first_start()
    await until(lambda: page.starter_button.text() == "Use the starter model")
    await until(lambda: page.local_model_buttons)
    assert [model_button.text() for model_button in page.local_model_buttons] == [
        "Use Large-Q4_K_M · fits",
        "Use Small-Q4_K_M · fits",
    ]
    assert (page.local_model_buttons[0].property("kind"), page.starter_button.property("kind")) == ("primary", "")
    page.local_model_buttons[0].click()
    await until(lambda: ("use_model", large.path) in runtime.calls)


class Starter:
    """Starter download that completes when the test lets it."""

    def __init__(self) -> None:
        self.asked, self.cancelled, self.arrived = 0, 0, asyncio.Event()
        self.tell: OnStage = lambda stage, done, total: None

    async def fetch(self, folder: Path, tell: OnStage) -> Path:
        self.asked, self.tell = self.asked + 1, tell
        try:
            await self.arrived.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return folder / "starter.gguf"


@pytest.fixture
def starter(monkeypatch: pytest.MonkeyPatch) -> Starter:
    starter = Starter()
    monkeypatch.setattr("kvchat.ui.models.first_start.fetch_starter", starter.fetch)
    monkeypatch.setattr("kvchat.library.remote.starter.installed_starter", lambda: None)
    return starter


async def test_the_starter_model_is_fetched_with_its_progress_cancelled_and_used(
    runtime: StagedRuntime, starter: Starter, window: MainWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def metered() -> bool:
        return True

    page = window.first_start
    await until(lambda: page.starter_button.text() == "Download the starter model (98 MB)")
    with monkeypatch.context() as patch:
        patch.setattr("kvchat.ui.dialogs.confirm.is_metered", metered)
        for answer in ("keep_button", "confirm_button"):
            qtbot.mouseClick(page.starter_button, Qt.MouseButton.LeftButton)
            await until(lambda: page.findChildren(ConfirmDialog))
            question = page.findChildren(ConfirmDialog)[-1]
            assert "the starter model (98 MB)" in " ".join(label.text() for label in question.findChildren(QLabel))
            assert not starter.asked
            getattr(question, answer).click()
            question.setParent(None)
        await until(lambda: starter.asked)
    starter.tell(DOWNLOADING, 49_000_000, 98_000_000)
    assert (page.bar.value(), page.progress_label.text()) == (500, "49 MB of 98 MB")
    assert page.starter_button.isHidden()
    assert page.is_fetching
    qtbot.mouseClick(page.cancel_button, Qt.MouseButton.LeftButton)
    assert page.starter_button.isVisible()
    await until(lambda: starter.cancelled)
    page.fetch_starter()
    await until(lambda: starter.asked == 2)
    starter.arrived.set()
    await until(lambda: ("use_model", runtime.paths.models / "starter.gguf") in runtime.calls)
    await until(lambda: not page.is_fetching)
    with qtbot.waitSignal(window.quit_requested, timeout=0):  # nothing here prevents quitting
        window.keyboard.actions["quit"].trigger()


@pytest.fixture
def with_card(runtime: StagedRuntime, monkeypatch: pytest.MonkeyPatch) -> StagedRuntime:
    """Simulate a computer with a graphics card and only the embedded engine."""
    for module in ("kvchat.engine_host.setup", "kvchat.ui.settings.engines"):
        monkeypatch.setattr(f"{module}.detect_graphics", lambda: Graphics("linux", (GpuVendor.AMD,)))
    monkeypatch.setattr("kvchat.engine_host.setup.installed_engines", lambda: [EngineLocation()])
    return runtime


async def test_a_card_that_would_go_unused_is_offered_an_engine(
    with_card: StagedRuntime, window: MainWindow, github: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = window.first_start.engine_offer
    await until(offer.isVisible)
    assert offer.title.text().endswith("AMD GPU")
    assert "GitHub" in offer.explanation.text()
    assert github.requests == [], "nothing is asked of the network unasked"
    monkeypatch.setattr("kvchat.library.remote.github.builds_for.__defaults__", ("x86_64",))
    github.releases = {"b1": {"llama-b1-bin-ubuntu-vulkan-x64.tar.gz": randbytes(500_000)}}
    github.hold_at = 100_000
    offer.download_button.click()
    await until(github.held.is_set)
    page = window.side_windows.open_settings(EnginePage.name).page(EnginePage)
    await until(page.engine_offer.cancel_button.isVisible)  # the settings show it as well
    window.quit_controller.ask()
    assert window.quit_controller.question is not None
    assert "An engine is being downloaded" in " ".join(
        label.text() for label in window.quit_controller.question.findChildren(QLabel)
    )
    window.quit_controller.question.reject()
    github.go_on.set()
    await until(offer.outcome.isVisible)  # these bytes are no archive
    assert offer.outcome.title.text() == "The engine archive is invalid"
    assert with_card.settings.engine_path is None


@pytest.mark.parametrize("then", ["a model is chosen", "a model is set", "its file is back"])
async def test_after_a_restart_a_message_written_without_a_model_is_answered(
    tmp_path: Path, fake_engine: FakeEngine, smollm2: Path, look: Look, then: str
) -> None:
    model, home = tmp_path / "model.gguf", tmp_path / "home"
    settings = Settings(engine_path=str(fake_engine.path), context_size=8192, model_titles=False)
    if then == "its file is back":
        settings = replace(settings, model_path=str(model))
    answered = ["Hello", "You said: Hello"]
    for start in range(2):
        async with begun(home, settings, look) as opened:
            if start == 0:
                opened.window.first_start.back_button.click()
                opened.send("Hello")
            tail = opened.window.transcript.tail
            await opened.until(lambda: opened.shown() == ["Hello"] and tail.unanswered_row.isVisibleTo(tail))  # noqa: B023
            if start == 1 and then == "a model is chosen":
                await opened.window.models.use(smollm2)
                await opened.until(lambda: opened.shown() == answered)
            await opened.runtime.chat.wait_until_idle()
    if then != "a model is chosen":
        os.link(smollm2, model)
        async with begun(home, replace(settings, model_path=str(model)), look) as opened:
            await opened.until(lambda: opened.shown() == answered)
            await opened.runtime.chat.wait_until_idle()
