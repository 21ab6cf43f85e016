"""Settings, API server, with the staged runtime."""

import asyncio

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QLineEdit
from pytestqt.qtbot import QtBot

from kvchat.gateway.keys import ANY_PROGRAM
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.settings.api_server import ApiServerPage
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until
from tests.ui.windows import button, question

LEFT = Qt.MouseButton.LeftButton


def page_of(window: MainWindow) -> ApiServerPage:
    return window.side_windows.open_settings(ApiServerPage.name).page(ApiServerPage)


async def switched_on(window: MainWindow, runtime: StagedRuntime) -> ApiServerPage:
    page = page_of(window)
    page.change("api_server", True)
    await until(lambda: page.key_field.text())
    return page


async def test_the_switch_shows_the_address_and_a_key_that_stays(runtime: StagedRuntime, window: MainWindow) -> None:
    page = page_of(window)
    assert not runtime.settings.api_server
    assert [entry for entry in page.entries if entry.isVisible()] == [page.settings["api_server"], page.programs]
    await switched_on(window, runtime)
    assert runtime.settings.api_server
    assert page.address.text() == "http://127.0.0.1:8737"
    assert page.address_entry.help.text() == "Only this computer can connect."
    keys = await runtime.api_server.keys()
    assert list(keys) == [ANY_PROGRAM]
    page.change("api_server", False)
    await until(lambda: not page.key_entry.isVisible())
    page.change("api_server", True)
    await until(page.key_entry.isVisible)
    assert await runtime.api_server.keys() == keys, "the key stays as it was"
    page.show_url("http://192.168.1.7:8737")
    assert page.address_entry.help.text() == "Other computers on the network can also connect."
    page.show_url(None)
    assert "could not start" in page.address_entry.help.text()
    assert not page.copy_address_button.isEnabled()


async def test_the_key_is_shown_only_when_asked_for(runtime: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    page = await switched_on(window, runtime)
    key = (await runtime.api_server.keys())[ANY_PROGRAM]
    assert page.key_field.echoMode() is QLineEdit.EchoMode.Password
    assert key not in page.configuration.toPlainText()
    qtbot.mouseClick(button(page, "Copy the API key"), LEFT)
    assert QGuiApplication.clipboard().text() == key
    assert page.copy_key_button.text() == "Copied"
    await until(lambda: page.copy_key_button.text() == "Copy")
    qtbot.mouseClick(button(page, "Show the API key"), LEFT)
    assert page.key_field.echoMode() is QLineEdit.EchoMode.Normal
    assert key in page.configuration.toPlainText()
    window.side_windows.open_settings().close()
    assert page.key_field.echoMode() is QLineEdit.EchoMode.Password


async def test_the_key_is_renewed_after_a_question_and_an_app_gets_its_own(
    runtime: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    page = await switched_on(window, runtime)
    before = page.key_field.text()
    qtbot.mouseClick(page.replace_key_button, LEFT)
    qtbot.mouseClick(button(question(page.panel), "Create new key"), LEFT)
    await until(lambda: page.key_field.text() not in ("", before))
    assert await runtime.api_server.keys() == {ANY_PROGRAM: page.key_field.text()}
    qtbot.keyClicks(page.app_name, "My Zed ")
    qtbot.keyClick(page.app_name, Qt.Key.Key_Return)
    await until(lambda: "my-zed" in page.keys)
    qtbot.mouseClick(button(page, "Copy the API key of my-zed"), LEFT)
    assert QGuiApplication.clipboard().text() == (await runtime.api_server.keys())["my-zed"]
    qtbot.mouseClick(button(page, "Revoke the API key of my-zed"), LEFT)
    await until(lambda: page.app_keys.count() == 0)
    assert list(await runtime.api_server.keys()) == [ANY_PROGRAM]


async def test_keys_of_an_earlier_load_do_not_replace_newer_ones(
    runtime: StagedRuntime, window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await switched_on(window, runtime)
    load_keys, has_read, may_end = runtime.api_server.keys, asyncio.Event(), asyncio.Event()

    async def load_late() -> dict[str, str]:
        keys = await load_keys()
        has_read.set()
        await may_end.wait()
        return keys

    monkeypatch.setattr(runtime.api_server, "keys", load_late)
    earlier = asyncio.create_task(page.load_keys())
    await has_read.wait()
    monkeypatch.setattr(runtime.api_server, "keys", load_keys)
    await page.make_key("my-zed")
    may_end.set()
    await earlier
    assert "my-zed" in page.keys
