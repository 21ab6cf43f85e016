"""Commands: the table of shortcuts, the sheet that lists them, and the command palette (Ctrl+K)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from PySide6.QtCore import QEvent, QObject, QPoint, QSize, Qt, Signal
from PySide6.QtGui import QAction, QKeyEvent, QKeySequence, QShowEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QDialog,
    QGridLayout,
    QLabel,
    QListWidget,
    QListWidgetItem,
    QMenu,
    QVBoxLayout,
    QWidget,
)

from kvchat.text.formatting import ALWAYS_KEEP, NEVER_KEEP
from kvchat.text.language import N_, _, join_list
from kvchat.text.search import fold
from kvchat.ui.base.building import button, column, label, left_to_right, line_edit, row
from kvchat.ui.widgets.layouts import ElidedLabel, ScrollPage, room_on_screen


@dataclass(frozen=True)
class Shortcut:
    """Action; without keys it is only in the palette."""

    action: str
    words: str
    group: str
    keys: tuple[str, ...] = ()  # portable QKeySequence text; the first is shown
    in_palette: bool = True
    also: str = ""  # extra search terms
    own: bool = True  # False: a field or a list handles these keys; the sheet only lists them


_CHATS, _MESSAGES, _VIEW = N_("Chats"), N_("Messages"), N_("View")
_WINDOWS, _KEEPING = N_("Windows"), N_("Import and backup")

SHORTCUTS = (
    Shortcut("palette", N_("Go to a chat or run a command"), _CHATS, ("Ctrl+K",), in_palette=False),
    Shortcut("new", N_("New chat"), _CHATS, ("Ctrl+N",), also=N_("begin start conversation")),
    Shortcut("previous", N_("Previous chat"), _CHATS, ("Ctrl+Up", "Ctrl+PgUp")),
    Shortcut("next", N_("Next chat"), _CHATS, ("Ctrl+Down", "Ctrl+PgDown")),
    Shortcut("list", N_("Go to the chat list"), _CHATS, ("Ctrl+1",)),
    Shortcut("search", N_("Search in all chats"), _CHATS, ("Ctrl+Shift+F",), also=N_("find")),
    Shortcut("find", N_("Find in this chat"), _CHATS, ("Ctrl+F",), also=N_("search")),
    Shortcut("find-next", N_("Next match"), _CHATS, ("F3",), in_palette=False),
    Shortcut("find-previous", N_("Previous match"), _CHATS, ("Shift+F3",), in_palette=False),
    Shortcut(
        "chat-settings", N_("Chat settings…"), _CHATS, also=N_("system prompt temperature sampling preset thinking")
    ),
    Shortcut("rename", N_("Rename this chat"), _CHATS, ("F2",), also=N_("title name")),
    Shortcut("name", N_("Generate a title for this chat"), _CHATS, also=N_("title rename")),
    Shortcut("delete", N_("Delete this chat"), _CHATS, also=N_("remove trash")),
    Shortcut("undo", N_("Undo deletion"), _CHATS, ("Ctrl+Z",), also=N_("restore undelete")),
    Shortcut("deleted", N_("Recently deleted…"), _CHATS, also=N_("trash bin restore recover undo")),
    Shortcut("compose", N_("Write a message"), _MESSAGES, ("Ctrl+L",)),
    Shortcut("send", N_("Send"), _MESSAGES, ("Enter",), in_palette=False, own=False),
    Shortcut("line", N_("New line"), _MESSAGES, ("Shift+Enter",), in_palette=False, own=False),
    Shortcut("stop", N_("Stop the reply"), _MESSAGES, ("Esc",), also=N_("cancel end")),
    Shortcut("regenerate", N_("Regenerate reply"), _MESSAGES, ("Ctrl+R",), also=N_("regenerate retry again")),
    Shortcut("edit", N_("Edit my last message"), _MESSAGES, ("Ctrl+E",), also=N_("change correct")),
    Shortcut(
        "edit-up", N_("Edit my last message (in an empty field)"), _MESSAGES, ("Up",), in_palette=False, own=False
    ),
    Shortcut(
        "attach", N_("Attach files…"), _MESSAGES, ("Ctrl+O",), also=N_("upload picture image pdf document add open")
    ),
    Shortcut(
        "screenshot", N_("Attach a screenshot"), _MESSAGES, ("Ctrl+Shift+S",), also=N_("capture screen region picture")
    ),
    Shortcut("larger", N_("Larger text"), _VIEW, ("Ctrl++", "Ctrl+="), also=N_("font size zoom in bigger")),
    Shortcut("smaller", N_("Smaller text"), _VIEW, ("Ctrl+-",), also=N_("font size zoom out")),
    Shortcut("normal", N_("Normal text size"), _VIEW, ("Ctrl+0",), also=N_("font zoom reset")),
    Shortcut("dark", N_("Dark theme"), _VIEW, also=N_("colours colors appearance night mode")),
    Shortcut("light", N_("Light theme"), _VIEW, also=N_("colours colors appearance day mode bright")),
    Shortcut("like-system", N_("System theme"), _VIEW, also=N_("colours colors appearance dark light")),
    Shortcut("sidebar", N_("Show or hide the sidebar"), _VIEW, ("Ctrl+B",), also=N_("panel chats list")),
    Shortcut("full-screen", N_("Full screen"), _VIEW, ("F11",), also=N_("fullscreen maximise maximize")),
    Shortcut("numbers", N_("Show or hide speed and token counts"), _VIEW, also=N_("figures statistics receipt time")),
    Shortcut(
        "settings", N_("Settings…"), _WINDOWS, ("Ctrl+,",), also=N_("preferences options configure theme font language")
    ),
    Shortcut("models", N_("Models…"), _WINDOWS, ("Ctrl+M",), also=N_("download gguf hugging face switch change llm")),
    Shortcut(
        "library", N_("Library…"), _WINDOWS, also=N_("documents folder repository files prepare knowledge read begin")
    ),
    Shortcut(
        "programs",
        N_("Connected apps…"),
        _WINDOWS,
        also=N_("gateway server api agents editors requests openai anthropic"),
    ),
    Shortcut("engine", N_("Engine…"), _WINDOWS, ("Ctrl+Shift+E",), also=N_("server llama memory speed gpu")),
    Shortcut("log", N_("Engine log…"), _WINDOWS, also=N_("output errors messages debug diagnostics")),
    Shortcut("restart-engine", N_("Restart engine"), _WINDOWS, also=N_("start stop server llama reload")),
    Shortcut(
        "disk", N_("Storage…"), _WINDOWS, ("Ctrl+D",), also=N_("disk usage space cache memory of chats delete shrink")
    ),
    Shortcut("saved", N_("Time saved…"), _WINDOWS, also=N_("statistics plots seconds hot warm disk cold")),
    Shortcut("manual", N_("Manual"), _WINDOWS, ("F1",), also=N_("help how privacy folders troubleshooting errors")),
    Shortcut("shortcuts", N_("Keyboard shortcuts"), _WINDOWS, ("Ctrl+/",), also=N_("keys help hotkeys")),
    Shortcut("quit", N_("Quit"), _WINDOWS, ("Ctrl+Q",), also=N_("exit close leave")),
    Shortcut("export", N_("Export this chat…"), _KEEPING, also=N_("save share download markdown html json")),
    Shortcut(
        "export-memory", N_("Export with memory…"), _KEEPING, also=N_("save share move computer passphrase encrypt")
    ),
    Shortcut("export-all", N_("Export all chats…"), _KEEPING, also=N_("save share download")),
    Shortcut("import", N_("Import chats…"), _KEEPING, also=N_("load open chatgpt claude")),
    Shortcut("import-folder", N_("Import a folder of chats…"), _KEEPING, also=N_("load open")),
    Shortcut("back-up", N_("Back up…"), _KEEPING, also=N_("backup copy save")),
    Shortcut("restore", N_("Restore from a backup…"), _KEEPING, also=N_("recover load")),
)


_SCROLL_BAR, _AROUND = 12, QSize(56, 190)  # pixels; the second: around the keys, 200 % text


class ShortcutSheet(QDialog):
    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(_("Keyboard shortcuts"))
        self.setAccessibleName(_("Keyboard shortcuts"))
        columns = column(spacing=18), column(spacing=18)
        with_keys = [shortcut for shortcut in SHORTCUTS if shortcut.keys]
        for group, entries in groupby(with_keys, lambda shortcut: shortcut.group):
            grid = QGridLayout()
            grid.setHorizontalSpacing(26)
            grid.setVerticalSpacing(7)
            grid.addWidget(label(_(group), "strong"), 0, 0, 1, 2)
            for line, shortcut in enumerate(entries, 1):
                grid.addWidget(label(_(shortcut.words)), line, 0)
                keys = label(shown_keys(shortcut), "key")
                grid.addWidget(keys, line, 1, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignTop)
            grid.setColumnStretch(0, 1)
            min(columns, key=QVBoxLayout.count).addLayout(grid)
        for side in columns:
            side.addStretch(1)
        close = button(_("Close"), self.close, name=_("Close the shortcuts"))
        close.setDefault(True)
        title, last = label(_("Keyboard shortcuts"), "title"), (close, 0, Qt.AlignmentFlag.AlignRight)
        self._page = ScrollPage("page")
        self._sides = row(*columns, on=self._page.content, spacing=44, margins=(0, 0, _SCROLL_BAR, 0))
        column(title, (self._page, 1), last, on=self, spacing=16, margins=(28, 24, 28 - _SCROLL_BAR, 20))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        for widget in self.findChildren(QWidget):
            widget.ensurePolished()
        self._sides.invalidate()
        self._sides.activate()  # updates the columns inside
        room, wanted = room_on_screen() - _AROUND, self._sides.sizeHint()
        if wanted.width() > room.width():
            self._sides.setDirection(QBoxLayout.Direction.TopToBottom)
            for words in self._page.findChildren(QLabel):
                words.setWordWrap(words.property("kind") != "key")
            self._sides.activate()
            wanted = QSize(room.width(), self._sides.totalHeightForWidth(room.width()))
        self._page.setMinimumSize(wanted.boundedTo(room))
        self.adjustSize()


def words_of(action: str) -> str:
    shortcut = next(entry for entry in SHORTCUTS if entry.action == action)
    return "\t".join(part for part in (_(shortcut.words), left_to_right(shown_keys(shortcut))) if part)


def shown_keys(shortcut: Shortcut) -> str:
    if not shortcut.keys:
        return ""
    return QKeySequence(shortcut.keys[0]).toString(QKeySequence.SequenceFormat.NativeText)


def install_shortcuts(
    window: QWidget, handlers: Mapping[str, Callable[[], object]], table: Iterable[Shortcut] = SHORTCUTS
) -> dict[str, QAction]:
    actions: dict[str, QAction] = {}
    for shortcut in table:
        if not shortcut.own:
            continue
        action = QAction(_(shortcut.words), window)
        action.setShortcuts([QKeySequence(keys) for keys in shortcut.keys])
        action.setShortcutContext(Qt.ShortcutContext.WindowShortcut)
        action.triggered.connect(lambda _checked, do=handlers[shortcut.action]: do())
        window.addAction(action)
        actions[shortcut.action] = action
    return actions


def add_keep_actions(
    menu: QMenu, pinned: bool, pin: Callable[[bool], object], never_save: bool, never: Callable[[bool], object]
) -> None:
    """Append "always keep" and "never keep", checked if set; `pin` and `never` get the new state."""
    for words, tip, on, run in (
        (ALWAYS_KEEP, _("It is never deleted to free up space"), pinned, pin),
        (NEVER_KEEP, _("After a restart, the chat is reprocessed from the beginning"), never_save, never),
    ):
        action = menu.addAction(_(words))
        action.setToolTip(tip)
        action.setCheckable(True)
        action.setChecked(on)
        action.triggered.connect(run)
    menu.setToolTipsVisible(True)


_WHOLE, _START, _WORD, _INSIDE, _SCATTERED = 5, 4, 3, 2, 1  # match quality, best to worst
_MAX_CHATS, _MAX_ACTIONS, _CHATS_AT_FIRST = 9, 20, 7
_LETTERS, _LEAST_ROW, _TOP = 84, 18, 70  # width; pixels: row height beyond its text, offset from the window's top
_MAX_SEEN, _NOT_ROWS = 14, 100  # rows at a time, and pixels of window height not used for rows
_ALSO = "\n "  # separates an action's name from its other search terms
_TO_LIST = frozenset((Qt.Key.Key_Up, Qt.Key.Key_Down, Qt.Key.Key_PageUp, Qt.Key.Key_PageDown))


@dataclass(frozen=True)
class PaletteEntry:
    words: str
    note: str  # right-aligned
    do: Callable[[], object]
    also: str = ""  # extra search terms


class Palette(QDialog):
    """Fuzzy search for chats and commands; letters that begin words score higher."""

    left = Signal(str)  # closed without an action; the typed text

    def __init__(
        self, parent: QWidget, chats: Sequence[PaletteEntry], actions: Sequence[PaletteEntry], name: str = ""
    ) -> None:
        """chats, actions: in the order shown without input; name: what the entries are, if not commands

        With a name, the palette completes a text: it closes as soon as nothing matches.
        """
        # A tool window has no taskbar entry; a frameless dialog has one on some desktops.
        super().__init__(parent, Qt.WindowType.Tool | Qt.WindowType.FramelessWindowHint)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._window, self._completes = parent, bool(name)
        name = name or _("Go to a chat or run a command")
        self.setAccessibleName(name)
        self.setObjectName("palette")
        self._chats, self._chat_words = chats, [fold(entry.words) for entry in chats]
        self.commands = actions
        self._action_words = [fold(entry.words) + _ALSO + fold(entry.also) for entry in actions]
        self._shown: list[PaletteEntry] = []
        self.field = line_edit(name, f"{name}…")
        self.field.installEventFilter(self)
        self.field.textChanged.connect(self._fill)
        self.field.returnPressed.connect(self._do)
        self.list = QListWidget()
        self.list.setObjectName("paletteList")
        self.list.setAccessibleName(_("Matches"))
        self.list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.itemClicked.connect(lambda _: self._do())
        self.nothing = label(_("No matching chats or commands."), "muted")
        self.nothing.setContentsMargins(10, 4, 10, 6)
        self._column = column(self.field, self.nothing, self.list, on=self, spacing=6, margins=10)
        once = Qt.ConnectionType.SingleShotConnection  # closing deactivates the window, which would close it again
        self.rejected.connect(lambda: self.left.emit(self.field.text()), once)
        self._fill("")

    @property
    def shown(self) -> list[str]:
        return [entry.words for entry in self._shown]

    def open_over(self, window: QWidget) -> None:
        self.setFixedWidth(min(self.fontMetrics().averageCharWidth() * _LETTERS, window.width() - 40))
        self._fit()
        self.move(window.mapToGlobal(QPoint((window.width() - self.width()) // 2, _TOP)))
        self.show()
        self.activateWindow()
        self.field.setFocus()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress and event.key() in _TO_LIST:
            self.list.keyPressEvent(event)
            return True
        return super().eventFilter(watched, event)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.ActivationChange and self.isVisible() and not self.isActiveWindow():
            self.reject()

    def _fill(self, typed: str) -> None:
        most = _MAX_CHATS if typed.strip() else _CHATS_AT_FIRST
        self._shown = [self._chats[i] for i in best(typed, self._chat_words, most)]
        self._shown += [self.commands[i] for i in best(typed, self._action_words, _MAX_ACTIONS)]
        self.list.clear()
        for entry in self._shown:
            item = QListWidgetItem(self.list)
            item.setData(Qt.ItemDataRole.AccessibleTextRole, join_list((entry.words, entry.note)))
            item.setSizeHint(QSize(0, self.row_height))
            line, words = QWidget(), ElidedLabel()
            line.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
            words.set_text(entry.words)
            row((words, 1), label(entry.note, "small"), on=line, margins=(10, 0, 10, 0))
            self.list.setItemWidget(item, line)
        self.list.setCurrentRow(0)
        self.list.setVisible(bool(self._shown))
        self.nothing.setVisible(not self._shown)
        self._fit()
        if self._completes and not self._shown:
            self.reject()

    @property
    def row_height(self) -> int:
        return self.fontMetrics().height() + _LEAST_ROW

    def _fit(self) -> None:
        room = (self._window.height() - _TOP - _NOT_ROWS) // self.row_height
        self.list.setFixedHeight(self.row_height * min(len(self._shown), max(room, 1), _MAX_SEEN) + 2)
        self._column.activate()
        self.setFixedHeight(self._column.sizeHint().height())

    def _do(self) -> None:
        if self._shown:
            entry = self._shown[self.list.currentRow()]
            self.accept()
            entry.do()


def best(typed: str, titles: Sequence[str], most: int) -> list[int]:
    """Return the indices of the `most` best matches; without input, the first ones. titles: folded

    Among equal matches, the shorter title comes first, then the earlier one. Search aliases, after `_ALSO`, do
    not count towards length.
    """
    wanted = " ".join(fold(typed).split())
    if not wanted:
        return list(range(min(most, len(titles))))
    names = (title.partition(_ALSO)[0] for title in titles)
    scored = ((_score(wanted, titles[place], name), -len(name), -place) for place, name in enumerate(names))
    return [-place for _, _, place in heapq.nlargest(most, (score for score in scored if score[0]))]


def _score(wanted: str, title: str, name: str) -> int:
    """Return 0 for no match."""
    found = title.find(wanted)
    if found >= 0:
        if found == 0:
            return _WHOLE if name == wanted else _START
        return _WORD if f" {wanted}" in title else _INSIDE
    if all(word in title for word in wanted.split(" ")):
        return _INSIDE
    at = -1
    for letter in wanted.replace(" ", ""):
        at = name.find(letter, at + 1)
        if at < 0:
            return 0
    return _SCATTERED
