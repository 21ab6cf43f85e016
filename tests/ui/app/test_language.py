"""The language is another one at once: the window is made again, over the same runtime, as it was."""

from __future__ import annotations

import asyncio
import gettext
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication

from kvchat.application import Application
from kvchat.runtime import Runtime
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.speaking import speak_here
from kvchat.ui.base.theme import Look
from kvchat.words.language import spoken
from tests.engine_fixtures import FakeEngine
from tests.running import running
from tests.ui.fake_runtime import FakeRuntime
from tests.ui.waiting import until


class Shouting(gettext.NullTranslations):
    """A language in which everything is upper case, its places apart."""

    def gettext(self, message: str) -> str:
        return "".join(part if part.startswith("{") else part.upper() for part in re.split(r"(\{\w*\})", message))


@pytest.fixture(autouse=True)
def english_again(qapp: QApplication, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real = gettext.translation
    monkeypatch.setattr(
        gettext, "translation", lambda *given, **more: Shouting() if given[2] == ["de"] else real(*given, **more)
    )
    yield
    speak_here("en")  # Qt as well: the next test's keys were still called Strg


@asynccontextmanager
async def the_app(runtime: FakeRuntime | Runtime, look: Look) -> AsyncIterator[Application]:
    """As it is joined, without its start and its end: others own the runtime here."""
    QApplication.setQuitOnLastWindowClosed(False)  # as in the app: the one before it is closed
    window = MainWindow(look, runtime.paths.config)
    app = Application(runtime, look, window, asyncio.Event())
    window.show()
    await window.start()
    try:
        yield app
    finally:
        app._close_beside()
        app._unsubscribe()
        await app._runner.close()
        await app._window.finish()
        for one in QApplication.topLevelWidgets():
            one.close()


async def test_the_window_speaks_another_language_at_once(furnished: FakeRuntime, look: Look) -> None:
    async with the_app(furnished, look) as app:
        first = app._window
        await until(lambda: first.chat.current is not None)
        first.chat.open("b")
        first.composer.set_draft("not sent yet")
        listening = first.side_windows.open_programs()._unsubscribe
        assert listening
        settings = first.side_windows.open_settings("General")
        settings.general.change("language", "de")
        await until(lambda: app._window is not first and app._window.chat.current == "b")
        assert not listening, "what was open in the other language is no more"
        window = app._window
        await until(lambda: window.composer.draft == "not sent yet")
        assert spoken() == "de"
        assert window.isVisible()
        assert not first.isVisible()
        again = window.side_windows.settings_shown
        assert again is not None
        assert again.windowTitle() == "SETTINGS"
        assert again.page_name == "General"
        assert again.list.item(0).text() == "GENERAL"
        again.general.change("language", "en")
        await until(lambda: app._window is not window)
        assert spoken() == "en"


async def test_a_reply_goes_on_while_the_language_changes(tmp_path: Path, fake_engine: FakeEngine, look: Look) -> None:
    fake_engine.set(FAKE_HOLD_DURING="stream")
    async with running(tmp_path, fake_engine) as runtime, the_app(runtime, look) as app:
        first = app._window
        first.composer.set_draft("Zero")
        first.composer.button.click()
        await until(lambda: first.chat.current and runtime.chat.is_answering(first.chat.current))
        await runtime.apply_settings(replace(runtime.settings, language="de"))
        await until(lambda: app._window is not first and app._window.transcript.messages)
        window = app._window
        assert window.chat.current
        assert runtime.chat.is_answering(window.chat.current)
        fake_engine.set(FAKE_HOLD_DURING=None)
        await until(lambda: [one.content for one in window.transcript.messages] == ["Zero", "You said: Zero"])
        await runtime.chat.idle()
        assert window.notices.report is None
