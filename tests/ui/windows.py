"""The main window in tests, over a fake or real runtime; always closed at the end."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from PySide6.QtWidgets import QAbstractButton, QApplication, QWidget

from kvchat.engine.api.errors import LOG_ADVICE, EngineFailure, FailureKind
from kvchat.runtime import Runtime
from kvchat.settings import Settings
from kvchat.text.language import _
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import ConfirmDialog
from kvchat.ui.transcript.reply_view import ReplyView
from tests.running import opened
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until

W = TypeVar("W", bound=QWidget)


def engine_hangs() -> EngineFailure:
    detail = _("It did not respond for too long and was stopped.")
    return EngineFailure(FailureKind.HANGS, _("The engine stopped responding"), detail, _(LOG_ADVICE))


def button(within: QWidget, name: str) -> QAbstractButton:
    """Return the button with this name; of several, the visible one."""
    found = [
        child_button for child_button in within.findChildren(QAbstractButton) if child_button.accessibleName() == name
    ]
    return max(found, key=QAbstractButton.isVisible)


def child(within: QWidget, kind: type[W]) -> W:
    """Return the first child of this kind; there must be one."""
    found = within.findChild(kind)
    assert isinstance(found, kind)
    return found


def question(within: QWidget) -> ConfirmDialog:
    return next(dialog for dialog in within.findChildren(ConfirmDialog) if dialog.isVisible())


def joined(runtime: StagedRuntime | Runtime, look: Look) -> MainWindow:
    """Return the complete window, not shown and not started."""
    window = MainWindow(look, runtime.paths.config)
    window.join(runtime)
    return window


@asynccontextmanager
async def on_show(runtime: StagedRuntime | Runtime, look: Look) -> AsyncIterator[MainWindow]:
    """Yield the started window over this runtime."""
    QApplication.setQuitOnLastWindowClosed(False)  # as in the app: shutdown continues after the window is closed
    window = joined(runtime, look)
    window.show()
    await window.start()
    try:
        yield window
    finally:
        await window.finish()
        window.close()
        window.deleteLater()


class Open:
    """The real window over a real kvchat."""

    def __init__(self, runtime: Runtime, window: MainWindow) -> None:
        self.runtime, self.window = runtime, window

    def send(self, text: str) -> None:
        self.window.composer.set_draft(text)
        self.window.composer.send_button.click()

    def shown(self) -> list[str]:
        """Return the page's texts, message by message."""
        views = self.window.transcript.views
        return [
            view.text.strip() if isinstance(view, ReplyView) else message.content
            for message in self.window.transcript.messages
            if (view := views.get(message.id)) is not None
        ]

    async def until(self, condition: Callable[[], object]) -> None:
        await until(condition)
        assert self.window.notices.report is None

    def titles(self) -> list[str]:
        return list(self.window.chat.conversations.titles.values())


@asynccontextmanager
async def begun(home: Path, settings: Settings, look: Look) -> AsyncIterator[Open]:
    """Yield the real window over a real kvchat, started."""
    async with opened(home, settings) as runtime, on_show(runtime, look) as window:
        await runtime.start()
        yield Open(runtime, window)
