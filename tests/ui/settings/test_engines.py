"""The engine page of the settings window, with the staged runtime."""

import asyncio
from dataclasses import replace
from pathlib import Path
from random import randbytes

import pytest
import pytest_asyncio
from PySide6.QtCore import Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFileDialog, QPushButton
from pytestqt.qtbot import QtBot

from kvchat.engine.discovery.engines import program_name
from kvchat.engine.discovery.graphics import GpuVendor, Graphics
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.dialogs.confirm import ConfirmDialog
from kvchat.ui.settings import engines as settings_engines
from kvchat.ui.settings.engines import EnginePage
from tests.engine_fixtures import FakeEngine
from tests.library.engine_archives import tarred
from tests.library.fake_hub import FakeHub
from tests.ui.settings.test_settings_window import typed
from tests.ui.staged_runtime import StagedEngines, StagedRuntime
from tests.ui.waiting import until
from tests.ui.windows import child


@pytest_asyncio.fixture
async def page(window: MainWindow, runtime: StagedRuntime) -> EnginePage:
    page = window.side_windows.open_settings(EnginePage.name).page(EnginePage)
    await until(lambda: bool(page.engines))
    return page


async def test_engines_are_described_tested_and_chosen_from_a_file(page: EnginePage, runtime: StagedRuntime) -> None:
    words = page.engine.help.text()
    assert f"○ {Path('/usr/bin/llama-server')}: This engine is too old. It is build 6000." in words
    assert "● Embedded engine: xllamacpp 2026.10.11549; AMD EPYC" in words
    assert page.engine_box.itemText(0) == "Automatic"
    page.test_button.click()
    await until(lambda: "✗" in page.test_entry.help.text())
    assert page.test_entry.help.text().splitlines() == ["✓ Version: embedded engine", "✗ The engine crashed: SIGSEGV"]
    await until(page.test_button.isEnabled)
    page.open_file_dialog()
    child(page, QFileDialog).fileSelected.emit("/opt/晚餐/llama-server")
    await until(lambda: runtime.settings.engine_path == "/opt/晚餐/llama-server")
    page.refresh()
    assert page.engine_box.currentText() == "/opt/晚餐/llama-server"


@pytest.mark.parametrize("vendors", [(GpuVendor.NVIDIA, GpuVendor.AMD), ()])
async def test_an_offer_where_there_is_a_card(
    page: EnginePage, monkeypatch: pytest.MonkeyPatch, vendors: tuple[GpuVendor, ...]
) -> None:
    monkeypatch.setattr(
        settings_engines, "detect_graphics", lambda: Graphics("linux", vendors, has_nvidia_driver=False)
    )
    page.showEvent(QShowEvent())
    if vendors:
        await until(page.card.isVisible)
        assert "NVIDIA and AMD GPU." in page.card.help.text()
        assert "Install the NVIDIA driver first" in page.card.help.text()
        choices = [page.engine_offer.backend_box.itemText(row) for row in range(page.engine_offer.backend_box.count())]
        assert [choice.partition(",")[0] for choice in choices] == ["CUDA", "Vulkan", "ROCm"]
        assert all("about" in choice for choice in choices)
    else:
        await until(lambda: not page.card.isVisible())
    assert not page.downloaded.isVisible()


@pytest.fixture
def released(github: FakeHub, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """Offer an engine for this computer's graphics card on the fake GitHub."""
    monkeypatch.setattr("kvchat.engine_host.setup.installed_starter", lambda: None)
    monkeypatch.setattr("kvchat.library.remote.github.builds_for.__defaults__", ("x86_64",))
    for module in ("kvchat.engine_host.setup", "kvchat.ui.settings.engines"):
        monkeypatch.setattr(f"{module}.detect_graphics", lambda: Graphics("linux", (GpuVendor.AMD,)))
    files = {f"llama-b11457/{program_name()}": fake_engine.path.read_bytes(), "llama-b11457/filler": randbytes(500_000)}
    github.releases = {"b11457": {"llama-b11457-bin-ubuntu-vulkan-x64.tar.gz": tarred(files)}}
    return github


async def test_one_click_gets_an_engine_and_it_can_be_removed(
    released: FakeHub, page: EnginePage, runtime: StagedRuntime, fake_engine: FakeEngine, qtbot: QtBot
) -> None:
    runtime.settings = replace(runtime.settings, model_path=str(fake_engine.plan.model))
    released.hold_at = 200_000
    qtbot.mouseClick(page.engine_offer.download_button, Qt.MouseButton.LeftButton)
    await until(lambda: 0 < page.engine_offer.bar.value() < 1000)
    assert "llama.cpp-b11457-vulkan: " in page.engine_offer.progress_label.text()
    assert page.engine_offer.cancel_button.isVisible()
    assert not page.engine_offer.download_button.isVisible()
    page.panel.close()  # it goes on without the window
    page.panel.bring_forward()
    assert page.engine_offer.cancel_button.isVisible()
    released.go_on.set()
    await until(page.engine_offer.outcome.isVisible)
    assert page.engine_offer.outcome.title.text() == "The new engine works and has been selected"
    assert "✓ Chat memory" in page.engine_offer.outcome.detail.text()
    assert page.engine_offer.download_button.isVisible()
    program = runtime.paths.engines / "llama.cpp-b11457-vulkan" / program_name()
    assert runtime.settings.engine_path == str(program)
    await until(page.downloaded.isVisible)

    remove = child(page.downloaded, QPushButton)
    assert remove.accessibleName() == "Remove llama.cpp-b11457-vulkan"
    qtbot.mouseClick(remove, Qt.MouseButton.LeftButton)
    dialog = child(page, ConfirmDialog)
    dialog.confirm_button.click()
    await until(lambda: not page.downloaded.isVisible())
    assert runtime.settings.engine_path is None
    assert not program.exists()


def listed(page: EnginePage) -> list[str]:
    return [page.engine_box.itemText(row) for row in range(page.engine_box.count())]


async def test_what_was_fetched_is_listed_at_once_also_while_the_engine_starts_anew_with_it(
    released: FakeHub, page: EnginePage, runtime: StagedRuntime, fake_engine: FakeEngine
) -> None:
    """Even if another page started the download: here the first-start page."""
    runtime.settings = replace(runtime.settings, model_path=str(fake_engine.plan.model))
    started, use = asyncio.Event(), runtime.engines._use_engine

    async def use_slowly(path: str | None) -> None:
        await use(path)
        await started.wait()

    runtime.engines._use_engine = use_slowly
    page.panel.run(runtime.engines.install())
    program = str(runtime.paths.engines / "llama.cpp-b11457-vulkan" / program_name())
    await until(lambda: program in listed(page) and page.downloaded.isVisible())
    await until(lambda: f"○ {program}" in page.engine.help.text())
    started.set()


async def test_what_cannot_be_used_is_refused_in_place_and_kept_to_be_corrected(
    page: EnginePage, runtime: StagedRuntime, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StagedEngines, "refuse", "--port is not for you to set here.")
    typed(qtbot, page.settings["engine_arguments"], "--port 1")
    await until(page.settings["engine_arguments"].refusal.isVisible)
    assert page.settings["engine_arguments"].refusal.text() == "--port is not for you to set here."
    assert runtime.settings.engine_arguments == ""
    page.refresh()
    assert page.settings["engine_arguments"].field.text() == "--port 1"
    monkeypatch.setattr(StagedEngines, "refuse", "")
    typed(qtbot, page.settings["engine_arguments"], "--threads 2")
    await until(lambda: runtime.settings.engine_arguments == "--threads 2")
    assert not page.settings["engine_arguments"].refusal.isVisible()
    page.settings["engine_arguments"].clear_button.click()
    await until(lambda: runtime.settings.engine_arguments == "")


async def test_a_server_and_its_key(page: EnginePage, runtime: StagedRuntime, qtbot: QtBot) -> None:
    assert not page.key_entry.isVisible()
    typed(qtbot, page.settings["engine_url"], "http://127.0.0.1:8080")
    await until(lambda: runtime.settings.engine_url == "http://127.0.0.1:8080")
    page.refresh()
    assert page.key_entry.isVisible()
    qtbot.keyClicks(page.api_key_field, "s3cret")
    qtbot.keyClick(page.api_key_field, Qt.Key.Key_Return)
    await until(lambda: runtime.engines.kept == "s3cret")
    assert page.api_key_field.text() == ""
    assert "keyring" in page.key_entry.help.text()
    page.forget_key_button.click()
    await until(lambda: runtime.engines.kept is None)
    page.settings["engine_url"].clear_button.click()
    await until(lambda: runtime.settings.engine_url is None)
    runtime.settings = replace(runtime.settings)
    page.refresh()
    assert not page.key_entry.isVisible()
