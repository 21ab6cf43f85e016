"""The language is another one at once: the window is made again, over the same runtime, as it was."""

from __future__ import annotations

import asyncio
import gettext
import re
from collections.abc import Iterator

import pytest
from PySide6.QtWidgets import QApplication

from kvchat.application import Application
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.theme import Look
from kvchat.words import language
from kvchat.words.language import spoken
from tests.ui.fake_runtime import FakeRuntime
from tests.ui.waiting import until


class Shouting(gettext.NullTranslations):
    """A language in which everything is upper case, its places apart."""

    def gettext(self, message: str) -> str:
        return "".join(part if part.startswith("{") else part.upper() for part in re.split(r"(\{\w*\})", message))


@pytest.fixture(autouse=True)
def english_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real = gettext.translation
    monkeypatch.setattr(
        gettext, "translation", lambda *given, **more: Shouting() if given[2] == ["de"] else real(*given, **more)
    )
    yield
    language.speak("en")


async def test_the_window_speaks_another_language_at_once(furnished: FakeRuntime, look: Look) -> None:
    first = MainWindow(look, furnished.paths.config)
    app = Application(furnished, look, first, asyncio.Event())
    first.show()
    await first.start()
    try:
        await until(lambda: first.chat.current is not None)
        first.chat.open("b")
        first.composer.set_draft("not sent yet")
        settings = first.side_windows.open_settings("General")
        settings.general.change("language", "de")
        await until(lambda: app._window is not first and app._window.chat.current == "b")
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
    finally:
        app._close_beside()
        app._unsubscribe()
        await app._runner.close()
        await app._window.finish()
        for one in QApplication.topLevelWidgets():
            one.close()
