"""What the keyboard can do: one table, from which keys are installed, the palette filled and the sheet drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QDialog, QGridLayout, QMenu, QVBoxLayout, QWidget

from kvchat.ui.base.building import button, column, label, row
from kvchat.words.wording import ALWAYS_KEEP, NEVER_KEEP, NUMBERS, STORAGE, TIME_SAVED


@dataclass(frozen=True)
class Shortcut:
    """One thing that can be done. Without keys it is in the palette only."""

    action: str
    words: str
    group: str
    keys: tuple[str, ...] = ()  # portable, as QKeySequence reads them; the first one is shown
    in_palette: bool = True
    also: str = ""  # what else somebody may type who looks for it
    own: bool = True  # False: a field or a list answers to these keys itself, and the sheet tells of them


_CHATS, _MESSAGES, _VIEW, _WINDOWS, _KEEPING = "Chats", "Messages", "View", "Windows", "Housekeeping"

SHORTCUTS = (
    Shortcut("palette", "Go to a chat, or do something", _CHATS, ("Ctrl+K",), in_palette=False),
    Shortcut("new", "New chat", _CHATS, ("Ctrl+N",), also="begin start conversation"),
    Shortcut("previous", "Previous chat", _CHATS, ("Ctrl+Up", "Ctrl+PgUp")),
    Shortcut("next", "Next chat", _CHATS, ("Ctrl+Down", "Ctrl+PgDown")),
    Shortcut("list", "Go to the list of chats", _CHATS, ("Ctrl+1",)),
    Shortcut("search", "Search in all chats", _CHATS, ("Ctrl+Shift+F",), also="find"),
    Shortcut("find", "Find in this chat", _CHATS, ("Ctrl+F",), also="search"),
    Shortcut("find-next", "Next place found", _CHATS, ("F3",), in_palette=False),
    Shortcut("find-previous", "Previous place found", _CHATS, ("Shift+F3",), in_palette=False),
    Shortcut("chat-settings", "Chat settings…", _CHATS, also="system prompt temperature sampling preset thinking"),
    Shortcut("rename", "Rename this chat", _CHATS, ("F2",), also="title name"),
    Shortcut("name", "Name this chat by the model", _CHATS, also="title rename"),
    Shortcut("delete", "Delete this chat", _CHATS, also="remove trash"),
    Shortcut("undo", "Undo what was deleted", _CHATS, ("Ctrl+Z",), also="restore back"),
    Shortcut("deleted", "Recently deleted…", _CHATS, also="trash bin restore recover undo"),
    Shortcut("compose", "Write a message", _MESSAGES, ("Ctrl+L",)),
    Shortcut("send", "Send", _MESSAGES, ("Return",), in_palette=False, own=False),
    Shortcut("line", "New line", _MESSAGES, ("Shift+Return",), in_palette=False, own=False),
    Shortcut("stop", "Stop the reply", _MESSAGES, ("Esc",), also="cancel end"),
    Shortcut("regenerate", "Make another reply", _MESSAGES, ("Ctrl+R",), also="regenerate retry again"),
    Shortcut("edit", "Edit my last message", _MESSAGES, ("Ctrl+E",), also="change correct"),
    Shortcut("edit-up", "Edit my last message, from an empty field", _MESSAGES, ("Up",), in_palette=False, own=False),
    Shortcut("attach", "Attach files…", _MESSAGES, ("Ctrl+O",), also="upload picture image pdf document add open"),
    Shortcut("larger", "Larger text", _VIEW, ("Ctrl++", "Ctrl+="), also="font size zoom in bigger"),
    Shortcut("smaller", "Smaller text", _VIEW, ("Ctrl+-",), also="font size zoom out"),
    Shortcut("normal", "Normal text size", _VIEW, ("Ctrl+0",), also="font zoom reset"),
    Shortcut("dark", "Dark theme", _VIEW, also="colours colors appearance night mode"),
    Shortcut("light", "Light theme", _VIEW, also="colours colors appearance day mode bright"),
    Shortcut("like-system", "Theme like the system", _VIEW, also="colours colors appearance dark light"),
    Shortcut("sidebar", "Show or hide the sidebar", _VIEW, ("Ctrl+B",), also="panel chats list"),
    Shortcut("full-screen", "Full screen", _VIEW, ("F11",), also="fullscreen maximise maximize"),
    Shortcut("numbers", f"Show or hide {NUMBERS.lower()}", _VIEW, also="figures statistics receipt time"),
    Shortcut("settings", "Settings…", _WINDOWS, ("Ctrl+,",), also="preferences options configure theme font language"),
    Shortcut("models", "Models…", _WINDOWS, ("Ctrl+M",), also="download gguf hugging face switch change llm"),
    Shortcut("library", "Library…", _WINDOWS, also="documents folder repository files prepare knowledge read begin"),
    Shortcut("programs", "Programs…", _WINDOWS, also="gateway server api agents editors requests openai anthropic"),
    Shortcut("engine", "Engine…", _WINDOWS, ("Ctrl+Shift+E",), also="server llama memory speed gpu"),
    Shortcut("log", "Engine’s log…", _WINDOWS, also="output errors messages debug diagnostics"),
    Shortcut("restart-engine", "Restart engine", _WINDOWS, also="start stop server llama reload"),
    Shortcut("disk", f"{STORAGE}…", _WINDOWS, ("Ctrl+D",), also="disk usage space cache memory of chats delete shrink"),
    Shortcut("saved", f"{TIME_SAVED}…", _WINDOWS, also="statistics plots seconds energy hot warm disk cold csv"),
    Shortcut("manual", "Manual", _WINDOWS, ("F1",), also="help how privacy folders troubleshooting errors"),
    Shortcut("shortcuts", "Keyboard shortcuts", _WINDOWS, ("Ctrl+/",), also="keys help hotkeys"),
    Shortcut("quit", "Quit", _WINDOWS, ("Ctrl+Q",), also="exit close leave"),
    Shortcut("export", "Export this chat…", _KEEPING, also="save share download markdown html json"),
    Shortcut("export-memory", "Export with its memory…", _KEEPING, also="save share move computer passphrase encrypt"),
    Shortcut("export-all", "Export all chats…", _KEEPING, also="save share download"),
    Shortcut("import", "Import chats…", _KEEPING, also="load open chatgpt claude"),
    Shortcut("import-folder", "Import a folder of chats…", _KEEPING, also="load open"),
    Shortcut("back-up", "Back up…", _KEEPING, also="backup copy save"),
    Shortcut("restore", "Restore from a backup…", _KEEPING, also="recover load"),
)


class ShortcutSheet(QDialog):
    """Two columns of groups. Esc and Enter close it."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle("Keyboard shortcuts")
        self.setAccessibleName("Keyboard shortcuts")
        columns = column(spacing=18), column(spacing=18)
        with_keys = [shortcut for shortcut in SHORTCUTS if shortcut.keys]
        for group, entries in groupby(with_keys, lambda shortcut: shortcut.group):
            least = min(columns, key=QVBoxLayout.count)
            least.addLayout(_group(group, list(entries)))
        for side in columns:
            side.addStretch(1)
        close = button("Close", self.close, name="Close the shortcuts")
        close.setDefault(True)
        title, last = label("Keyboard shortcuts", "title"), (close, 0, Qt.AlignmentFlag.AlignRight)
        column(title, row(*columns, spacing=44), last, on=self, spacing=16, margins=(28, 24, 28, 20))


def words_of(action: str) -> str:
    """What an action is called in a menu, with its keys at the right edge."""
    shortcut = next(one for one in SHORTCUTS if one.action == action)
    return "\t".join(part for part in (shortcut.words, shown_keys(shortcut)) if part)


def shown_keys(shortcut: Shortcut) -> str:
    """Its first keys as this desktop writes them; empty without any."""
    if not shortcut.keys:
        return ""
    return QKeySequence(shortcut.keys[0]).toString(QKeySequence.SequenceFormat.NativeText)


def install_shortcuts(window: QWidget, handlers: Mapping[str, Callable[[], object]]) -> dict[str, QAction]:
    """Give `window` an action for each entry of the table that is not a field's own; each must have a handler."""
    actions: dict[str, QAction] = {}
    for shortcut in SHORTCUTS:
        if not shortcut.own:
            continue
        action = QAction(shortcut.words, window)
        action.setShortcuts([QKeySequence(keys) for keys in shortcut.keys])
        action.setShortcutContext(Qt.ShortcutContext.WindowShortcut)
        action.triggered.connect(lambda _checked, do=handlers[shortcut.action]: do())
        window.addAction(action)
        actions[shortcut.action] = action
    return actions


def add_keep_actions(
    menu: QMenu, on_pin: Callable[[bool], object], on_never_save: Callable[[bool], object]
) -> tuple[QAction, QAction]:
    """Append what is to be kept of a conversation, two entries; each calls back with whether it holds from now on."""
    pin, never = menu.addAction(ALWAYS_KEEP), menu.addAction(NEVER_KEEP)
    pin.setToolTip("It is never deleted to make room")
    never.setToolTip("After a restart the chat is read again from the beginning")
    for action, run in ((pin, on_pin), (never, on_never_save)):
        action.setCheckable(True)
        action.triggered.connect(lambda on, run=run: run(on))
    menu.setToolTipsVisible(True)
    return pin, never


def _group(name: str, entries: list[Shortcut]) -> QGridLayout:
    grid = QGridLayout()
    grid.setHorizontalSpacing(26)
    grid.setVerticalSpacing(7)
    grid.addWidget(label(name, "strong"), 0, 0, 1, 2)
    for line, shortcut in enumerate(entries, 1):
        grid.addWidget(label(shortcut.words), line, 0)
        grid.addWidget(label(shown_keys(shortcut), "key"), line, 1, Qt.AlignmentFlag.AlignRight)
    grid.setColumnStretch(0, 1)
    return grid
