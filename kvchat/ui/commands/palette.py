"""Command palette (Ctrl+K): fuzzy search for chats and commands; letters that begin words score higher."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QObject, QPoint, QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QDialog, QListWidget, QListWidgetItem, QWidget

from kvchat.ui.base.building import column, label, line_edit, row
from kvchat.ui.widgets.layouts import ElidedLabel
from kvchat.words.folding import folded
from kvchat.words.language import _, listed

_WHOLE, _START, _WORD, _INSIDE, _SCATTERED = 5, 4, 3, 2, 1  # match quality, best to worst
_MOST_CHATS, _MOST_ACTIONS, _CHATS_AT_FIRST = 9, 20, 7
_LETTERS, _LEAST_ROW, _TOP = 84, 18, 70  # width; pixels: row height beyond its text, offset from the window's top
_MOST_SEEN, _AROUND = 14, 100  # rows at a time, and pixels of window height not used for rows
_ALSO = "\n "  # separates an action's name from its other search terms
_TO_LIST = frozenset((Qt.Key.Key_Up, Qt.Key.Key_Down, Qt.Key.Key_PageUp, Qt.Key.Key_PageDown))


@dataclass(frozen=True)
class PaletteEntry:
    words: str
    note: str  # right-aligned
    do: Callable[[], object]
    also: str = ""  # extra search terms


class Palette(QDialog):
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
        self._chats, self._chat_words = chats, [folded(entry.words) for entry in chats]
        self.commands = actions
        self._action_words = [folded(entry.words) + _ALSO + folded(entry.also) for entry in actions]
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
        most = _MOST_CHATS if typed.strip() else _CHATS_AT_FIRST
        self._shown = [self._chats[i] for i in best(typed, self._chat_words, most)]
        self._shown += [self.commands[i] for i in best(typed, self._action_words, _MOST_ACTIONS)]
        self.list.clear()
        for entry in self._shown:
            item = QListWidgetItem(self.list)
            item.setData(Qt.ItemDataRole.AccessibleTextRole, listed((entry.words, entry.note)))
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
        room = (self._window.height() - _TOP - _AROUND) // self.row_height
        self.list.setFixedHeight(self.row_height * min(len(self._shown), max(room, 1), _MOST_SEEN) + 2)
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
    wanted = " ".join(folded(typed).split())
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
