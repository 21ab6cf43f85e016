"""The sidebar's list of chats: order and headings, and display and renaming of rows."""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import Enum
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QModelIndex, QPoint, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QMouseEvent, QPainter, QPen
from PySide6.QtWidgets import QLineEdit, QStyle, QStyleOptionViewItem, QWidget

from kvchat.text.formatting import one_line
from kvchat.text.language import N_, _, join_list
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look
from kvchat.ui.widgets.lists import ROW, ItemDelegate, ItemList, ItemModel, ModelIndex, draw_text, mirrored_box

if TYPE_CHECKING:
    from kvchat.chat.record.messages import Conversation
    from kvchat.chat.turn.forecasts import Forecast
    from kvchat.kvstore.savepoint import ConversationUsage


class SortOrder(Enum):
    """Order of the chats. Pinned chats always come first."""

    USED = N_("Last used first")
    CREATED = N_("Newest first")
    NAME = N_("By name")


@dataclass(frozen=True)
class Arrangement:
    """Selection and order of the listed chats: all that are not archived, those in a folder, or the archive."""

    order: SortOrder = SortOrder.USED
    folder: str | None = None
    archive: bool = False

    @property
    def title(self) -> str:
        return _("Archive") if self.archive else self.folder or _("All chats")

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "order": self.order.name})

    @staticmethod
    def from_json(text: str) -> Arrangement:
        try:
            values = json.loads(text)
            folder = values["folder"]
            return Arrangement(
                SortOrder[values["order"]], None if folder is None else str(folder), bool(values["archive"])
            )
        except (ValueError, LookupError, TypeError):
            return Arrangement()


def arrange_chats(chats: Sequence[Conversation], arrangement: Arrangement) -> list[Conversation]:
    """Return the chats to list, in order. `chats` are all chats, the last used first."""
    folder = arrangement.folder
    visible = [chat for chat in chats if chat.archived == arrangement.archive and folder in (None, chat.folder)]
    if arrangement.order is SortOrder.CREATED:
        visible.sort(key=lambda chat: -chat.created_at.timestamp())
    elif arrangement.order is SortOrder.NAME:
        visible.sort(key=lambda chat: chat.title.casefold())
    return sorted(visible, key=lambda chat: not chat.on_top)


@dataclass(frozen=True)
class Heading:
    id: str  # differs from all chat ids
    title: str


_GROUP_DAYS = 0, 1, 7, 30  # days back, by group
_GROUP_TITLES = N_("Today"), N_("Yesterday"), N_("Last 7 days"), N_("Last 30 days"), N_("Earlier")


def with_headings(
    chats: Sequence[Conversation], order: SortOrder, now: datetime | None = None
) -> Sequence[Conversation | Heading]:
    """Insert date headings between the chats, unless they are ordered by name."""
    if order is SortOrder.NAME:
        return chats
    now = now or datetime.now().astimezone()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    top = bisect(chats, False, key=lambda chat: not chat.on_top)
    ages = [-at for at in _plausible_times(chats[top:], order, now.timestamp())]
    limits = [-(midnight - timedelta(days=days)).timestamp() for days in _GROUP_DAYS]
    ends = [top, *(top + bisect(ages, limit) for limit in limits), len(chats)]
    rows: list[Conversation | Heading] = []
    for title, begin, end in zip((N_("Pinned"), *_GROUP_TITLES), [0, *ends], ends, strict=False):
        if begin < end:
            rows += [Heading(f"# {title}", _(title)), *chats[begin:end]]
    return rows


def _plausible_times(chats: Sequence[Conversation], order: SortOrder, now: float) -> list[float]:
    """Return when each chat was last used or created, in seconds since 1970, in descending order and at most `now`.

    A time that contradicts the list's order or lies in the future, due to a wrong clock, is replaced by a neighbor's.
    """
    times = [(chat.updated_at if order is SortOrder.USED else chat.created_at).timestamp() for chat in chats]
    latest = 0.0
    for place in reversed(range(len(times))):
        if times[place] <= now:
            times[place] = latest = max(latest, times[place])
    return list(accumulate(times, min, initial=now))[1:]


def folders_of(chats: Iterable[Conversation]) -> list[str]:
    return sorted({chat.folder for chat in chats if chat.folder}, key=str.casefold)


_BADGE_SIZE, _MENU_SIZE = 15, 20  # pixels


@dataclass(frozen=True)
class Row:
    chat: Conversation
    forecast: Forecast | None = None  # of the next reply; None: unknown
    is_busy: bool = False
    usage: ConversationUsage | None = None

    @property
    def badges(self) -> tuple[tuple[str, str], ...]:
        usage = self.usage
        badges = (
            (self.chat.on_top, "on-top", _("pinned")),
            (usage and usage.pinned, "pin", _("always kept")),
            (usage and usage.never_save, "disk-off", _("never kept")),
        )
        return tuple((name, text) for is_on, name, text in badges if is_on)

    @property
    def state(self) -> str:
        return join_list([*([self.forecast.chat_text] if self.forecast else []), *(text for _, text in self.badges)])


class ConversationModel(ItemModel["Conversation | Heading"]):
    """List model of chats and headings. Only visible rows get their data, because there may be thousands."""

    renamed = Signal(str, str)  # conversation id, title; the row itself stays unchanged

    def __init__(self) -> None:
        super().__init__(key=lambda chat: chat.id)
        self._row_of: Callable[[Conversation], Row] = Row
        self._row_numbers: dict[str, int] = {}

    @property
    def chats(self) -> list[Conversation]:
        return [row for row in self.rows if not isinstance(row, Heading)]

    def show_chats(self, chats: Sequence[Conversation | Heading], row_of: Callable[[Conversation], Row]) -> None:
        self._row_of, self._row_numbers = row_of, {chat.id: place for place, chat in enumerate(chats)}
        self.set_rows(chats)

    def data(self, index: ModelIndex, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        row = self.rows[index.row()]
        return self._row_of(row) if role == ROW and not isinstance(row, Heading) else super().data(index, role)

    def accessible_text(self, row: Conversation | Heading) -> str:
        return row.title if isinstance(row, Heading) else join_list((row.title, self._row_of(row).state))

    def tip(self, row: Conversation | Heading) -> str:
        if isinstance(row, Heading):
            return ""
        folder = row.folder and _("In {folder}", folder=row.folder)
        return "\n".join(filter(None, (row.title, folder, self._row_of(row).state)))

    def index_of(self, conversation_id: str | None) -> QModelIndex:
        place = self._row_numbers.get(conversation_id or "")
        return QModelIndex() if place is None else self.index(place)

    def setData(self, index: ModelIndex, value: Any, role: int = Qt.ItemDataRole.EditRole) -> bool:
        title = str(value).strip()
        if role != Qt.ItemDataRole.EditRole or not title or title == self.rows[index.row()].title:
            return False
        self.renamed.emit(self.rows[index.row()].id, title)
        return True

    def flags(self, index: ModelIndex) -> Qt.ItemFlag:
        if isinstance(self.rows[index.row()], Heading):
            return Qt.ItemFlag.NoItemFlags
        return Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable | Qt.ItemFlag.ItemIsEditable


class ConversationDelegate(ItemDelegate):
    def sizeHint(self, option: QStyleOptionViewItem, index: ModelIndex) -> QSize:
        return QSize(80, option.fontMetrics.height() + 18)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: ModelIndex) -> None:
        row: Row | Heading = index.data(ROW)
        if isinstance(row, Heading):
            painter.setFont(self.small_font(option.font))
            painter.setPen(QColor(self.look.theme.muted))
            box = QRect(0, 0, option.rect.width() - self.look.px(9) - 8, painter.fontMetrics().height())
            box.moveBottomLeft(option.rect.bottomLeft() + QPoint(self.look.px(9), -self.look.px(4)))
            draw_text(painter, option, box, row.title)
            return
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self.paint_background(painter, option)
        self._paint_dot(painter, option, row)
        if option.state & QStyle.StateFlag.State_MouseOver:
            icon("dots", self.look.theme.text).paint(painter, menu_box(self.look, option))
            reserved = self.look.px(_MENU_SIZE)
        else:
            side, rect = self.look.px(_BADGE_SIZE), option.rect
            names = [name for name, _text in row.badges]
            # A clock icon marks a slow reply. Beside a chat, the time itself would look like the chat's age.
            names += ["clock"] if row.forecast and row.forecast.is_noticeable else []
            for number, name in enumerate(names, 1):
                box = QRect(rect.right() - 8 - number * side, rect.center().y() - side // 2 + 1, side, side)
                icon(name, self.look.theme.muted).paint(painter, mirrored_box(option, box))
            reserved = len(names) * side
        painter.setFont(option.font)
        painter.setPen(QColor(self.look.theme.text))
        draw_text(
            painter, option, option.rect.adjusted(self.look.px(30), 0, -10 - reserved, 0), one_line(row.chat.title)
        )
        painter.restore()

    def createEditor(self, parent: QWidget, option: QStyleOptionViewItem, index: ModelIndex) -> QWidget:
        editor = QLineEdit(parent, maxLength=200)
        editor.setAccessibleName(_("New title"))
        return editor

    def setEditorData(self, editor: QWidget, index: ModelIndex) -> None:
        """Set the title, but not after the user has typed: a refresh of the list must not replace the input."""
        if isinstance(editor, QLineEdit) and not editor.isModified():
            super().setEditorData(editor, index)

    def updateEditorGeometry(self, editor: QWidget, option: QStyleOptionViewItem, index: ModelIndex) -> None:
        editor.setGeometry(mirrored_box(option, option.rect.adjusted(self.look.px(26), 2, -2, -2)))

    def _paint_dot(self, painter: QPainter, option: QStyleOptionViewItem, row: Row) -> None:
        """Draw a dot for the chat's memory: full if in a slot, with a core if in RAM, half if on disk, else hollow."""
        theme, source = self.look.theme, row.forecast.source.value if row.forecast else "cold"
        colour = QColor(theme.accent if source != "cold" else theme.muted)
        side, rect = self.look.px(9), option.rect
        box = mirrored_box(option, QRectF(rect.left() + self.look.px(11), rect.center().y() - side // 2, side, side))
        painter.setPen(QPen(colour, 1.4))
        painter.setBrush(colour if source == "hot" else Qt.BrushStyle.NoBrush)
        painter.drawEllipse(box)
        painter.setBrush(colour)
        if source == "warm":
            inset = side / 4
            painter.drawEllipse(box.adjusted(inset, inset, -inset, -inset))
        if source == "disk":
            painter.drawPie(box, 90 * 16, 180 * 16)
        if row.is_busy:
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(colour, 1))
            painter.drawEllipse(box.adjusted(-3, -3, 3, 3))


def menu_box(look: Look, option: QStyleOptionViewItem) -> QRect:
    side, rect = look.px(_MENU_SIZE), option.rect
    return mirrored_box(option, QRect(rect.right() - 6 - side, rect.center().y() - side // 2 + 1, side, side))


class ChatList(ItemList):
    """List of chats. Delete asks before it deletes, F2 renames in the list, and typed text goes to the composer."""

    delete_pressed = Signal()
    typed = Signal(str)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        position = event.position().toPoint()
        index = self.indexAt(position)
        if event.button() is Qt.MouseButton.LeftButton and index.flags() & Qt.ItemFlag.ItemIsSelectable:
            option = QStyleOptionViewItem()
            self.initViewItemOption(option)
            option.rect = self.visualRect(index)
            if menu_box(self.look, option).contains(position):
                self.customContextMenuRequested.emit(position)
                return
        if event.button() is not Qt.MouseButton.RightButton:
            super().mousePressEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        commands = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier
        if event.key() == Qt.Key.Key_Delete:
            self.delete_pressed.emit()
        elif event.text().isprintable() and event.text() and not event.modifiers() & commands:
            self.typed.emit(event.text())
        else:
            super().keyPressEvent(event)
