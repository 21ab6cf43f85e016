"""Commands: their shortcuts, the window that lists the shortcuts, and the command palette (Ctrl+K)."""

import heapq
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
    QMenuBar,
    QVBoxLayout,
    QWidget,
)

from kvchat.text.formatting import ALWAYS_KEEP, NEVER_KEEP
from kvchat.text.language import N_, _, join_list
from kvchat.text.search import fold
from kvchat.ui.base.building import button, column, label, left_to_right, line_edit, row
from kvchat.ui.widgets.layouts import ElidedLabel, ScrollPage, max_window_size


@dataclass(frozen=True)
class Shortcut:
    """Command with its keys. A command without keys is in the palette but not in the list of shortcuts.

    If `is_installed` is false, other code handles the keys; the command is then only in the list of shortcuts.
    """

    group: str
    action: str
    title: str
    keys: tuple[str, ...] = ()  # portable QKeySequence text; the first is shown
    in_palette: bool = True
    terms: str = ""  # extra search terms
    is_installed: bool = True  # False: a field or a list handles these keys; the sheet only lists them

    @property
    def key_text(self) -> str:
        """The first key combination in the platform's notation, or an empty string."""
        return QKeySequence(self.keys[0]).toString(QKeySequence.SequenceFormat.NativeText) if self.keys else ""


_chat, _message, _view = (partial(Shortcut, group) for group in (N_("Chats"), N_("Messages"), N_("View")))
_window, _transfer = partial(Shortcut, N_("Windows")), partial(Shortcut, N_("Import and backup"))

_FULL_SCREEN = ("Meta+Ctrl+F",) if sys.platform == "darwin" else ("F11",)  # on macOS, F11 shows the desktop

SHORTCUTS = (
    _chat("palette", N_("Go to a chat or run a command"), ("Ctrl+K",), in_palette=False),
    _chat("new", N_("New chat"), ("Ctrl+N",), terms=N_("begin start conversation")),
    _chat("previous", N_("Previous chat"), ("Ctrl+Up", "Ctrl+PgUp")),
    _chat("next", N_("Next chat"), ("Ctrl+Down", "Ctrl+PgDown")),
    _chat("list", N_("Go to the chat list"), ("Ctrl+1",)),
    _chat("search", N_("Search in all chats"), ("Ctrl+Shift+F",), terms=N_("find")),
    _chat("find", N_("Find in this chat"), ("Ctrl+F",), terms=N_("search")),
    _chat("find-next", N_("Next match"), ("F3", "Ctrl+G"), in_palette=False),
    _chat("find-previous", N_("Previous match"), ("Shift+F3", "Ctrl+Shift+G"), in_palette=False),
    _chat("chat-settings", N_("Chat settings…"), terms=N_("system prompt temperature sampling preset thinking")),
    _chat("tools", N_("Tools for this chat…"), ("Ctrl+Shift+T",), terms=N_("mcp functions servers permission allow")),
    _chat("rename", N_("Rename this chat"), ("F2",), terms=N_("title name")),
    _chat("name", N_("Generate a title for this chat"), terms=N_("title rename")),
    _chat("delete", N_("Delete this chat"), terms=N_("remove trash")),
    _chat("undo", N_("Undo deletion"), ("Ctrl+Z",), terms=N_("restore undelete")),
    _chat("deleted", N_("Recently deleted…"), terms=N_("trash bin restore recover undo")),
    _message("compose", N_("Write a message"), ("Ctrl+L",)),
    _message("send", N_("Send"), ("Enter",), is_installed=False),
    _message("line", N_("New line"), ("Shift+Enter",), is_installed=False),
    _message("stop", N_("Stop the reply"), ("Esc",), terms=N_("cancel end")),
    _message("regenerate", N_("Regenerate reply"), ("Ctrl+R",), terms=N_("regenerate retry again")),
    _message("edit", N_("Edit my last message"), ("Ctrl+E",), terms=N_("change correct")),
    _message("edit-up", N_("Edit my last message (in an empty field)"), ("Up",), is_installed=False),
    _message("attach", N_("Attach files…"), ("Ctrl+O",), terms=N_("upload picture image pdf document add open")),
    _message("screenshot", N_("Attach a screenshot"), ("Ctrl+Shift+S",), terms=N_("capture screen region picture")),
    _view("larger", N_("Larger text"), ("Ctrl++", "Ctrl+="), terms=N_("font size zoom in bigger")),
    _view("smaller", N_("Smaller text"), ("Ctrl+-",), terms=N_("font size zoom out")),
    _view("normal", N_("Normal text size"), ("Ctrl+0",), terms=N_("font zoom reset")),
    _view("dark", N_("Dark theme"), terms=N_("colours colors appearance night mode")),
    _view("light", N_("Light theme"), terms=N_("colours colors appearance day mode bright")),
    _view("like-system", N_("System theme"), terms=N_("colours colors appearance dark light")),
    _view("sidebar", N_("Show or hide the sidebar"), ("Ctrl+B",), terms=N_("panel chats list")),
    _view("full-screen", N_("Full screen"), _FULL_SCREEN, terms=N_("fullscreen maximise maximize")),
    _view("numbers", N_("Show or hide speed and token counts"), terms=N_("figures statistics receipt time")),
    _window("settings", N_("Settings…"), ("Ctrl+,",), terms=N_("preferences options configure theme font language")),
    _window("models", N_("Models…"), ("Ctrl+M",), terms=N_("download gguf hugging face switch change llm")),
    _window("library", N_("Library…"), terms=N_("documents folder repository files prepare knowledge read begin")),
    _window(
        "programs",
        N_("Connected apps…"),
        terms=N_("gateway server api agents editors requests openai anthropic"),
    ),
    _window("engine", N_("Engine…"), ("Ctrl+Shift+E",), terms=N_("server llama memory speed gpu")),
    _window("log", N_("Engine log…"), terms=N_("output errors messages debug diagnostics")),
    _window("restart-engine", N_("Restart engine"), terms=N_("start stop server llama reload")),
    _window("disk", N_("Storage…"), ("Ctrl+D",), terms=N_("disk usage space cache memory of chats delete shrink")),
    _window("saved", N_("Time saved…"), terms=N_("statistics plots seconds hot warm disk cold")),
    _window("manual", N_("Manual"), ("F1",), terms=N_("help how privacy folders troubleshooting errors")),
    _window("shortcuts", N_("Keyboard shortcuts"), ("Ctrl+/",), terms=N_("keys help hotkeys")),
    _window("quit", N_("Quit"), ("Ctrl+Q",), terms=N_("exit close leave")),
    _transfer("export", N_("Export this chat…"), terms=N_("save share download markdown html json")),
    _transfer("export-memory", N_("Export with memory…"), terms=N_("save share move computer passphrase encrypt")),
    _transfer("export-all", N_("Export all chats…"), terms=N_("save share download")),
    _transfer("import", N_("Import chats…"), terms=N_("load open chatgpt claude")),
    _transfer("import-folder", N_("Import a folder of chats…"), terms=N_("load open")),
    _transfer("back-up", N_("Back up…"), terms=N_("backup copy save")),
    _transfer("restore", N_("Restore from a backup…"), terms=N_("recover load")),
)


_SCROLL_BAR_WIDTH, _SHEET_MARGIN = (
    12,
    QSize(56, 190),
)  # pixels: width of a scroll bar; space around the list of keys at 200 % text


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
                grid.addWidget(label(_(shortcut.title)), line, 0)
                keys = label(shortcut.key_text, "key")
                grid.addWidget(keys, line, 1, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignTop)
            grid.setColumnStretch(0, 1)
            min(columns, key=QVBoxLayout.count).addLayout(grid)
        for side in columns:
            side.addStretch(1)
        close = button(_("Close"), self.close, name=_("Close the shortcuts"))
        close.setDefault(True)
        title, last = label(_("Keyboard shortcuts"), "title"), (close, 0, Qt.AlignmentFlag.AlignRight)
        self._page = ScrollPage("page")
        self._sides = row(*columns, on=self._page.content, spacing=44, margins=(0, 0, _SCROLL_BAR_WIDTH, 0))
        column(title, (self._page, 1), last, on=self, spacing=16, margins=(28, 24, 28 - _SCROLL_BAR_WIDTH, 20))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        for widget in self.findChildren(QWidget):
            widget.ensurePolished()
        self._sides.invalidate()
        self._sides.activate()  # updates the columns inside
        room, hint = max_window_size() - _SHEET_MARGIN, self._sides.sizeHint()
        if hint.width() > room.width():
            self._sides.setDirection(QBoxLayout.Direction.TopToBottom)
            for text in self._page.findChildren(QLabel):
                text.setWordWrap(text.property("kind") != "key")
            self._sides.activate()
            hint = QSize(room.width(), self._sides.totalHeightForWidth(room.width()))
        self._page.setMinimumSize(hint.boundedTo(room))
        self.adjustSize()


def menu_title(action: str) -> str:
    """Return an action's title and keys for a menu, separated by a tab."""
    shortcut = next(entry for entry in SHORTCUTS if entry.action == action)
    return "\t".join(part for part in (_(shortcut.title), left_to_right(shortcut.key_text)) if part)


def with_key(tip: str, action: str) -> str:
    """Return a tooltip with the action's key, written as on this system."""
    shortcut = next(entry for entry in SHORTCUTS if entry.action == action)
    return f"{tip} ({shortcut.key_text})"


def install_shortcuts(window: QWidget, handlers: Mapping[str, Callable[[], object]]) -> dict[str, QAction]:
    actions: dict[str, QAction] = {}
    for shortcut in SHORTCUTS:
        if shortcut.action not in handlers:
            continue
        action = QAction(_(shortcut.title), window)
        action.setShortcuts([QKeySequence(keys) for keys in shortcut.keys])
        action.setShortcutContext(Qt.ShortcutContext.WindowShortcut)
        action.triggered.connect(lambda _checked, do=handlers[shortcut.action]: do())
        window.addAction(action)
        actions[shortcut.action] = action
    return actions


def fill_menu_bar(bar: QMenuBar, actions: Mapping[str, QAction]) -> None:
    """Add the windows to the macOS menu bar, where Qt moves Settings and Quit to the app menu."""
    actions["settings"].setMenuRole(QAction.MenuRole.PreferencesRole)
    actions["quit"].setMenuRole(QAction.MenuRole.QuitRole)
    menu = bar.addMenu(_("Windows"))
    menu.addActions([actions[entry.action] for entry in SHORTCUTS if entry.group == "Windows"])


def add_keep_actions(
    menu: QMenu, pinned: bool, on_pin: Callable[[bool], object], never_save: bool, on_never: Callable[[bool], object]
) -> None:
    for title, tip, is_on, run in (
        (ALWAYS_KEEP, _("Never deleted to free up space"), pinned, on_pin),
        (NEVER_KEEP, _("After a restart, the chat is reprocessed from the beginning"), never_save, on_never),
    ):
        action = menu.addAction(_(title))
        action.setToolTip(tip)
        action.setCheckable(True)
        action.setChecked(is_on)
        action.triggered.connect(run)
    menu.setToolTipsVisible(True)


_WHOLE_MATCH, _PREFIX_MATCH, _WORD_MATCH, _INNER_MATCH, _SCATTERED_MATCH = 5, 4, 3, 2, 1  # match quality, best to worst
_MAX_CHATS, _MAX_ACTIONS, _MAX_CHATS_WITHOUT_QUERY = 9, 20, 7
_LETTERS, _ROW_PADDING, _TOP_OFFSET = (
    84,
    18,
    70,
)  # width in average characters; pixels: row height beyond its text, distance from the window's top
_MAX_ROWS, _OTHER_HEIGHT = 14, 100  # visible rows, and pixels of the window height that rows cannot use
_TERMS_SEPARATOR = "\n "  # separates an action's name from its other search terms
_LIST_KEYS = frozenset((Qt.Key.Key_Up, Qt.Key.Key_Down, Qt.Key.Key_PageUp, Qt.Key.Key_PageDown))


@dataclass(frozen=True)
class PaletteEntry:
    title: str
    note: str  # right-aligned
    run: Callable[[], object]
    terms: str = ""  # extra search terms


class Palette(QDialog):
    dismissed = Signal(str)  # the typed text, if closed without an action

    def __init__(
        self, parent: QWidget, chats: Sequence[PaletteEntry], actions: Sequence[PaletteEntry], name: str = ""
    ) -> None:
        """`name` is given if the entries are not commands; the palette then closes as soon as nothing matches."""
        # A tool window has no taskbar entry; a frameless dialog has one on some desktops.
        super().__init__(parent, Qt.WindowType.Tool | Qt.WindowType.FramelessWindowHint)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._window, self._closes_without_matches = parent, bool(name)
        name = name or _("Go to a chat or run a command")
        self.setAccessibleName(name)
        self.setObjectName("palette")
        self._chats, self.commands = chats, actions
        self._chat_texts, self._command_texts = (
            [fold(entry.title) + (_TERMS_SEPARATOR + fold(entry.terms) if entry.terms else "") for entry in part]
            for part in (chats, actions)
        )
        self.entries: list[PaletteEntry] = []  # those shown
        self.row_height = self.fontMetrics().height() + _ROW_PADDING
        self.field = line_edit(name, name)
        self.field.installEventFilter(self)
        self.field.textChanged.connect(self._fill)
        self.field.returnPressed.connect(self._run_selected)
        self.list = QListWidget()
        self.list.setObjectName("paletteList")
        self.list.setAccessibleName(_("Matches"))
        self.list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.itemClicked.connect(lambda _: self._run_selected())
        self.empty_label = label(_("No matching chats or commands."), "muted")
        self.empty_label.setContentsMargins(10, 4, 10, 6)
        self._column = column(self.field, self.empty_label, self.list, on=self, spacing=6, margins=10)
        once = Qt.ConnectionType.SingleShotConnection  # closing deactivates the window, which would close it again
        self.rejected.connect(lambda: self.dismissed.emit(self.field.text()), once)
        self.setFixedWidth(min(self.fontMetrics().averageCharWidth() * _LETTERS, parent.width() - 40))
        self._fill("")
        self.move(parent.mapToGlobal(QPoint((parent.width() - self.width()) // 2, _TOP_OFFSET)))
        self.show()
        self.activateWindow()
        self.field.setFocus()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress and event.key() in _LIST_KEYS:
            self.list.keyPressEvent(event)
            return True
        return super().eventFilter(watched, event)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.ActivationChange and self.isVisible() and not self.isActiveWindow():
            self.reject()

    def _fill(self, query: str) -> None:
        count = _MAX_CHATS if query.strip() else _MAX_CHATS_WITHOUT_QUERY
        self.entries = [self._chats[i] for i in best_matches(query, self._chat_texts, count)]
        self.entries += [self.commands[i] for i in best_matches(query, self._command_texts, _MAX_ACTIONS)]
        self.list.clear()
        for entry in self.entries:
            item = QListWidgetItem(self.list)
            item.setData(Qt.ItemDataRole.AccessibleTextRole, join_list((entry.title, entry.note)))
            item.setSizeHint(QSize(0, self.row_height))
            line, title = QWidget(), ElidedLabel()
            line.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
            title.set_text(entry.title)
            row((title, 1), label(entry.note, "small"), on=line, margins=(10, 0, 10, 0))
            self.list.setItemWidget(item, line)
        self.list.setCurrentRow(0)
        self.list.setVisible(bool(self.entries))
        self.empty_label.setVisible(not self.entries)
        room = (self._window.height() - _TOP_OFFSET - _OTHER_HEIGHT) // self.row_height
        self.list.setFixedHeight(self.row_height * min(len(self.entries), max(room, 1), _MAX_ROWS) + 2)
        self._column.activate()
        self.setFixedHeight(self._column.sizeHint().height())
        if self._closes_without_matches and not self.entries:
            self.reject()

    def _run_selected(self) -> None:
        if self.entries:
            entry = self.entries[self.list.currentRow()]
            self.accept()
            entry.run()


def best_matches(typed: str, texts: Sequence[str], count: int) -> list[int]:
    """Return the indices of the `count` best matches or, if nothing is typed, the first `count` indices.

    Of two equally good matches, the one with the shorter title comes first, then the earlier one. `texts` are
    case-folded titles, each followed by `_TERMS_SEPARATOR` and further search terms.
    """
    query = " ".join(fold(typed).split())
    if not query:
        return list(range(min(count, len(texts))))
    titles = (text.partition(_TERMS_SEPARATOR)[0] for text in texts)
    scored = ((_score(query, texts[i], title), -len(title), -i) for i, title in enumerate(titles))
    return [-i for _, _, i in heapq.nlargest(count, (match for match in scored if match[0]))]


def _score(query: str, text: str, title: str) -> int:
    position = text.find(query)
    if position == 0:
        return _WHOLE_MATCH if title == query else _PREFIX_MATCH
    if position > 0:
        return _WORD_MATCH if f" {query}" in text else _INNER_MATCH
    if all(word in text for word in query.split(" ")):
        return _INNER_MATCH
    position = -1
    for letter in query.replace(" ", ""):
        position = title.find(letter, position + 1)
        if position < 0:
            return 0
    return _SCATTERED_MATCH
