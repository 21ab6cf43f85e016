"""What the keyboard can do: one table, from which keys are installed, the palette filled and the sheet drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QWidget

from kvchat.wording import NUMBERS, STORAGE


@dataclass(frozen=True)
class Shortcut:
    """One thing that can be done. Without keys it is in the palette only."""

    action: str
    words: str
    group: str
    keys: tuple[str, ...] = ()  # portable, as QKeySequence reads them; the first one is shown
    in_palette: bool = True
    own: bool = True  # False: a field or a list answers to these keys itself, and the sheet tells of them


_CHATS, _MESSAGES, _VIEW, _WINDOWS, _KEEPING = "Chats", "Messages", "View", "Windows", "Keeping"

SHORTCUTS = (
    Shortcut("palette", "Go to a chat, or do something", _CHATS, ("Ctrl+K",), in_palette=False),
    Shortcut("new", "New chat", _CHATS, ("Ctrl+N",)),
    Shortcut("previous", "Previous chat", _CHATS, ("Ctrl+Up", "Ctrl+PgUp")),
    Shortcut("next", "Next chat", _CHATS, ("Ctrl+Down", "Ctrl+PgDown")),
    Shortcut("list", "Go to the list of chats", _CHATS, ("Ctrl+1",)),
    Shortcut("search", "Search in all chats", _CHATS, ("Ctrl+Shift+F",)),
    Shortcut("find", "Find in this chat", _CHATS, ("Ctrl+F",)),
    Shortcut("find-next", "Next place found", _CHATS, ("F3",), in_palette=False),
    Shortcut("find-previous", "Previous place found", _CHATS, ("Shift+F3",), in_palette=False),
    Shortcut("chat-settings", "Chat settings…", _CHATS),
    Shortcut("rename", "Rename this chat", _CHATS, ("F2",)),
    Shortcut("delete", "Delete this chat", _CHATS),
    Shortcut("compose", "Write a message", _MESSAGES, ("Ctrl+L",)),
    Shortcut("send", "Send", _MESSAGES, ("Return",), in_palette=False, own=False),
    Shortcut("line", "New line", _MESSAGES, ("Shift+Return",), in_palette=False, own=False),
    Shortcut("stop", "Stop the reply", _MESSAGES, ("Esc",)),
    Shortcut("regenerate", "Make another reply", _MESSAGES, ("Ctrl+R",)),
    Shortcut("edit", "Edit my last message", _MESSAGES, ("Ctrl+E",)),
    Shortcut("edit-up", "Edit my last message, from an empty field", _MESSAGES, ("Up",), in_palette=False, own=False),
    Shortcut("attach", "Attach files…", _MESSAGES, ("Ctrl+O",)),
    Shortcut("larger", "Larger text", _VIEW, ("Ctrl++", "Ctrl+=")),
    Shortcut("smaller", "Smaller text", _VIEW, ("Ctrl+-",)),
    Shortcut("normal", "Normal text size", _VIEW, ("Ctrl+0",)),
    Shortcut("sidebar", "Show or hide the sidebar", _VIEW, ("Ctrl+B",)),
    Shortcut("full-screen", "Full screen", _VIEW, ("F11",)),
    Shortcut("numbers", f"Show or hide {NUMBERS.lower()}", _VIEW),
    Shortcut("settings", "Settings…", _WINDOWS, ("Ctrl+,",)),
    Shortcut("models", "Models…", _WINDOWS, ("Ctrl+M",)),
    Shortcut("engine", "Engine…", _WINDOWS, ("Ctrl+Shift+E",)),
    Shortcut("disk", f"{STORAGE}…", _WINDOWS, ("Ctrl+D",)),
    Shortcut("shortcuts", "Keyboard shortcuts", _WINDOWS, ("F1", "Ctrl+/")),
    Shortcut("quit", "Quit", _WINDOWS, ("Ctrl+Q",)),
    Shortcut("export", "Export this chat…", _KEEPING),
    Shortcut("export-all", "Export all chats…", _KEEPING),
    Shortcut("import", "Import chats…", _KEEPING),
    Shortcut("import-folder", "Import a folder of chats…", _KEEPING),
    Shortcut("back-up", "Back up…", _KEEPING),
    Shortcut("restore", "Restore from a backup…", _KEEPING),
)


def shown_keys(shortcut: Shortcut) -> str:
    """Its first keys as this desktop writes them; empty without any."""
    if not shortcut.keys:
        return ""
    return QKeySequence(shortcut.keys[0]).toString(QKeySequence.SequenceFormat.NativeText)


def install_shortcuts(window: QWidget, doings: Mapping[str, Callable[[], object]]) -> dict[str, QAction]:
    """Give `window` an action for each entry of the table that is not a field's own. Every one must have its doing."""
    actions: dict[str, QAction] = {}
    for shortcut in SHORTCUTS:
        if not shortcut.own:
            continue
        action = QAction(shortcut.words, window)
        action.setShortcuts([QKeySequence(keys) for keys in shortcut.keys])
        action.setShortcutContext(Qt.ShortcutContext.WindowShortcut)
        action.triggered.connect(_caller(doings[shortcut.action]))
        window.addAction(action)
        actions[shortcut.action] = action
    return actions


def _caller(doing: Callable[[], object]) -> Callable[[], None]:
    """Without the `checked` that Qt would hand over."""

    def call() -> None:
        doing()

    return call
