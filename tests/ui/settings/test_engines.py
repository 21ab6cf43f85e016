"""The engine page of the settings window, over the fake runtime."""

from __future__ import annotations

from dataclasses import replace

import pytest
import pytest_asyncio
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from kvchat.engine.finding.graphics import Graphics, Maker
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.settings import engines as settings_engines
from kvchat.ui.settings.engines import EnginePage
from kvchat.ui.settings.page import TextEntry
from tests.ui.fake_runtime import FakeEngines, FakeRuntime
from tests.ui.waiting import until


@pytest_asyncio.fixture
async def page(window: MainWindow, runtime: FakeRuntime) -> EnginePage:
    page = window.side_windows.open_settings(EnginePage.name).engine
    await until(lambda: bool(page.found))
    return page


def typed(qtbot: QtBot, entry: TextEntry, text: str) -> None:
    entry.field.selectAll()
    qtbot.keyClick(entry.field, Qt.Key.Key_Delete)
    qtbot.keyClicks(entry.field, text)
    qtbot.keyClick(entry.field, Qt.Key.Key_Return)


async def test_every_engine_is_told_with_what_is_wrong_with_it(page: EnginePage) -> None:
    words = page.engine.words.text()
    assert "○ /usr/bin/llama-server: This engine is too old. It is build 6000." in words
    assert "● The engine inside kvchat: xllamacpp 2026.10.11549; AMD EPYC" in words
    assert page.box.itemText(0) == "kvchat decides"


async def test_choosing_an_engine(page: EnginePage, runtime: FakeRuntime) -> None:
    row = page.box.findData("embedded")
    page.box.activated.emit(row)
    await until(lambda: runtime.settings.engine_path == "embedded")
    page.refresh()
    assert page.box.currentData() == "embedded"
    page.box.activated.emit(0)
    await until(lambda: runtime.settings.engine_path is None)


async def test_a_file_from_anywhere_can_be_chosen(page: EnginePage, runtime: FakeRuntime) -> None:
    page._choose("/opt/晚餐/llama-server")
    await until(lambda: runtime.settings.engine_path == "/opt/晚餐/llama-server")
    page.refresh()
    assert page.box.currentText() == "/opt/晚餐/llama-server"


async def test_a_trial_is_told_step_by_step(page: EnginePage) -> None:
    page.test.click()
    await until(lambda: "✗" in page.trial.words.text())
    assert page.trial.words.text().splitlines() == ["✓ Version: embedded engine", "✗ The engine crashed: SIGSEGV"]
    await until(page.test.isEnabled)


@pytest.mark.parametrize("makers", [(Maker.NVIDIA,), ()])
async def test_advice_where_a_card_goes_unused(
    page: EnginePage, monkeypatch: pytest.MonkeyPatch, makers: tuple[Maker, ...]
) -> None:
    monkeypatch.setattr(settings_engines, "find_graphics", lambda: Graphics("linux", makers))
    page.refresh()
    assert page.advice.isVisible() is bool(makers)
    assert ("conda-forge" in page.advice.words.text()) is bool(makers)


async def test_what_cannot_be_used_is_refused_in_place_and_kept_to_be_corrected(
    page: EnginePage, runtime: FakeRuntime, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeEngines, "refuse", "--port is not for you to set here.")
    typed(qtbot, page.arguments, "--port 1")
    await until(page.arguments.refusal.isVisible)
    assert page.arguments.refusal.text() == "--port is not for you to set here."
    assert runtime.settings.engine_arguments == ""
    page.refresh()
    assert page.arguments.field.text() == "--port 1"
    monkeypatch.setattr(FakeEngines, "refuse", "")
    typed(qtbot, page.arguments, "--threads 2")
    await until(lambda: runtime.settings.engine_arguments == "--threads 2")
    assert not page.arguments.refusal.isVisible()
    page.arguments.clear.click()
    await until(lambda: runtime.settings.engine_arguments == "")


async def test_a_server_and_its_key(page: EnginePage, runtime: FakeRuntime, qtbot: QtBot) -> None:
    assert not page.key.isVisible()
    typed(qtbot, page.url, "http://127.0.0.1:8080")
    await until(lambda: runtime.settings.engine_url == "http://127.0.0.1:8080")
    page.refresh()
    assert page.key.isVisible()
    qtbot.keyClicks(page.key.field, "s3cret")
    qtbot.keyClick(page.key.field, Qt.Key.Key_Return)
    await until(lambda: runtime.engines.kept == "s3cret")
    assert page.key.field.text() == ""
    assert "keyring" in page.key.words.text()
    page.key.forget.click()
    await until(lambda: runtime.engines.kept is None)
    page.url.clear.click()
    await until(lambda: runtime.settings.engine_url is None)
    runtime.settings = replace(runtime.settings)
    page.refresh()
    assert not page.key.isVisible()
