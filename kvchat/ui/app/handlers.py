"""Handlers of the window for the table of shortcuts, and which of them would do nothing now."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kvchat.chat.record.messages import Role
from kvchat.engine.speaking.connection import EngineState

if TYPE_CHECKING:
    from kvchat.ui.app.main_window import MainWindow


def handlers(window: MainWindow) -> dict[str, Callable[[], object]]:
    """Map each action of the table of shortcuts to what the window does."""
    return {
        "new": window.new_conversation,
        "previous": lambda: window.sidebar.step(-1),
        "next": lambda: window.sidebar.step(1),
        "list": lambda: _in_sidebar(window, window.sidebar.list.setFocus),
        "rename": partial(_rename, window),
        "sidebar": window.place.toggle_sidebar,
        "full-screen": window.place.toggle_full_screen,
        "name": lambda: _with_open(window, for_chat(window)["name"]),
        "delete": lambda: _with_open(window, lambda id: window.sidebar.delete_requested.emit([id])),
        "undo": window.notices.undo_last,
        "deleted": window.side_windows.open_deleted,
        "library": window.side_windows.open_library,
        "compose": window.composer.focus,
        "stop": partial(_escape, window),
        "regenerate": window.messages.regenerate_last,
        "edit": window.messages.edit_last,
        "attach": window.attachments.choose,
        "screenshot": window.attachments.take_screenshot,
        "find": window.find_bar.begin,
        "find-next": lambda: window.find_bar.step(1),
        "find-previous": lambda: window.find_bar.step(-1),
        "search": lambda: _in_sidebar(window, window.sidebar.search.focus),
        "chat-settings": window.open_chat_settings,
        "settings": window.side_windows.open_settings,
        "models": window.side_windows.open_models,
        "engine": window.side_windows.open_engine,
        "log": lambda: window.side_windows.open_engine(log=True),
        "restart-engine": lambda: window.runner.start(window.runtime.restart_engine()),
        "disk": window.side_windows.open_storage,
        "saved": window.side_windows.open_saved,
        "programs": window.side_windows.open_programs,
        "manual": window.side_windows.open_manual,
        "quit": window.quitting.ask,
        "export": lambda: _with_open(window, lambda id: window.transfer.export([id])),
        "export-memory": lambda: _with_open(window, for_chat(window)["export-memory"]),
        "export-all": window.transfer.export_all,
        "import": window.transfer.take_in,
        "import-folder": window.transfer.take_in_folder,
        "back-up": window.transfer.back_up,
        "restore": window.transfer.restore,
    }


def for_chat(window: MainWindow) -> dict[str, Callable[[str], object]]:
    """Map the chat menu's actions that are not signals of the sidebar to functions of a conversation id."""
    return {
        "name": lambda id: window.runner.start(window.runtime.chat.titles.name(id)),
        "chat-settings": lambda id: window.open_settings_of(id or None),
        "export-memory": window.transfer.export_with_memory,
    }


def senseless(window: MainWindow) -> set[str]:
    """Return the actions that would do nothing now."""
    chat, messages, settings = window.chat.current, window.transcript.messages, window.runtime.settings
    answers = chat is not None and window.runtime.chat.is_answering(chat)
    replied = bool(messages) and messages[-1].role is Role.ASSISTANT
    possible = {
        **dict.fromkeys(("rename", "name", "delete", "export", "export-memory"), chat is not None),
        **dict.fromkeys(("previous", "next", "list", "export-all"), bool(window.chat.conversations.titles)),
        "stop": answers,
        "regenerate": replied and not answers,
        "edit": not answers and any(message.role is Role.USER for message in messages),
        "find": bool(messages),
        "undo": window.notices.can_undo,
        "restart-engine": window.runtime.engine.status.state is not EngineState.STOPPED,
        "dark": settings.theme != "dark",
        "light": settings.theme != "light",
        "like-system": settings.theme != "system",
    }
    return {action for action, does_something in possible.items() if not does_something}


def _in_sidebar(window: MainWindow, do: Callable[[], object]) -> None:
    window.place.show_sidebar()
    do()


def _rename(window: MainWindow) -> None:
    if not window.sidebar.begin_rename():
        window.header.begin_rename()


def _with_open(window: MainWindow, do: Callable[[str], object]) -> None:
    if window.chat.current is not None:
        do(window.chat.current)


def _escape(window: MainWindow) -> None:
    if window.find_bar.isVisible():
        window.find_bar.close_bar()
    else:
        window.chat.stop()
