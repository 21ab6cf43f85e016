"""Changing the language: kvchat offers a restart, and uses the new language afterwards."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from PySide6.QtWidgets import QApplication

from kvchat.application import Application
from kvchat.runtime import Runtime
from kvchat.text.language import current_language
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.theme import Look
from kvchat.ui.settings.settings_window import GeneralPage
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until


@asynccontextmanager
async def the_app(runtime: StagedRuntime | Runtime, look: Look) -> AsyncIterator[Application]:
    """Yield the joined application without startup and shutdown: the tests own the runtime."""
    QApplication.setQuitOnLastWindowClosed(False)  # as in the app: the one before it is closed
    window = MainWindow(look, runtime.paths.config)
    app = Application(runtime, look, window, asyncio.Event())
    window.show()
    await window.start()
    try:
        yield app
    finally:
        for part in (app.start_requests, app._reply_notifier, app._tray):
            part.close()
        app._unsubscribe()
        await app._window.finish()
        for widget in QApplication.topLevelWidgets():
            widget.close()


async def test_another_language_comes_with_the_next_start(furnished: StagedRuntime, look: Look) -> None:
    async with the_app(furnished, look) as app:
        window = app._window
        settings = window.side_windows.open_settings("General")
        settings.page(GeneralPage).change("language", "de")
        await until(lambda: settings.notices.visible_notices)
        assert current_language() == "en", "nothing is half in one language and half in the other"
        (notice,) = settings.notices.visible_notices
        assert notice.on_click is not None
        notice.on_click()
        assert app.quitting.is_set()
        assert app.should_restart
