"""The storage window's list of chats. Only visible rows are drawn and have a menu button, as there may be thousands."""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from PySide6.QtCore import QPoint, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QContextMenuEvent, QFontMetrics, QKeyEvent, QPainter, QPainterPath, QResizeEvent
from PySide6.QtWidgets import QMenu, QStyle, QStyleOptionViewItem, QToolButton

from kvchat.kvstore.savepoint import ConversationUsage, PrunedConversation, device_of
from kvchat.text.formatting import format_size, one_line
from kvchat.text.language import _, join_list
from kvchat.ui.base.building import tool_button
from kvchat.ui.base.theme import Look
from kvchat.ui.commands import add_keep_actions
from kvchat.ui.storage.usage_summary import describe_loss, describe_split, describe_use
from kvchat.ui.widgets.controls import mix_colours
from kvchat.ui.widgets.lists import ROW, ItemDelegate, ItemList, ItemModel, ModelIndex, draw_text, mirrored_box

_MENU_KEYS = (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space)
MENU_BUTTON_SIZE, _PADDING, _LINE_GAP, _BAR_HEIGHT = 28, 9, 6, 7  # pixels, the first at 100 % text


@dataclass(frozen=True)
class UsageRow:
    title: str
    usage: ConversationUsage
    loss: PrunedConversation | None  # memory that the visible plan would delete
    largest_bytes: int  # size of the largest conversation, whose bar is full
    seconds_saved: float = 0.0  # by reusing its memory

    @property
    def details(self) -> str:
        if self.loss:
            return describe_loss(self.loss)
        return describe_use(self.usage, datetime.now(UTC), self.seconds_saved)

    @property
    def accessible_text(self) -> str:
        pinned = [_("always kept")] if self.usage.pinned else []
        amount, split = format_size(self.usage.bytes), describe_split(self.usage)
        return join_list([self.title, amount, split, *pinned, *self.chips, self.details])

    @property
    def chips(self) -> list[str]:
        chips = (self.usage.never_save, _("never kept")), (self.usage.imported, _("imported, not verified"))
        return [text for applies, text in chips if applies]


def shared_colour(look: Look) -> QColor:
    return mix_colours(look.theme.accent, look.theme.page, 0.4)


class UsageDelegate(ItemDelegate):
    shows_selection = False

    def sizeHint(self, option: QStyleOptionViewItem, index: ModelIndex) -> QSize:
        small = QFontMetrics(self.small_font(option.font)).height()
        return QSize(120, 2 * _PADDING + option.fontMetrics.height() + small + 2 * _LINE_GAP + _BAR_HEIGHT)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: ModelIndex) -> None:
        row: UsageRow = index.data(ROW)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self.paint_background(painter, option)
        box = option.rect.adjusted(8, _PADDING, -self.look.px(MENU_BUTTON_SIZE) - 12, -_PADDING)
        height = option.fontMetrics.height()
        self._paint_title(painter, option, QRect(box.left(), box.top(), box.width(), height), row)
        self._paint_bar(
            painter, option, QRectF(box.left(), box.top() + height + _LINE_GAP, box.width(), _BAR_HEIGHT), row
        )
        box.setTop(box.top() + height + 2 * _LINE_GAP + _BAR_HEIGHT)
        painter.setFont(self.small_font(option.font))
        split = describe_split(row.usage)
        room = box.width() - painter.fontMetrics().horizontalAdvance(split) - 16
        if room > 80:
            painter.setPen(QColor(self.look.theme.muted))
            draw_text(painter, option, box, split, at_end=True)
            box.setWidth(room)
        painter.setPen(QColor(self.look.theme.warn if row.loss else self.look.theme.muted))
        draw_text(painter, option, box, row.details)
        painter.restore()

    def _paint_title(self, painter: QPainter, option: QStyleOptionViewItem, box: QRect, row: UsageRow) -> None:
        theme, metrics = self.look.theme, option.fontMetrics
        amount = format_size(row.usage.bytes) if row.usage.bytes else _("nothing")
        painter.setPen(QColor(theme.text if row.usage.bytes else theme.muted))
        draw_text(painter, option, box, amount, at_end=True)
        right = box.right() - metrics.horizontalAdvance(amount) - 12
        for text in row.chips:
            room = QRect(box.left(), box.top(), right - box.left(), box.height())
            right = self.paint_chip(painter, option, room, text, theme.bubble, theme.muted) - 8
        if row.usage.pinned:
            side = metrics.height() - 1
            right -= side
            self.look.icon("pin", "accent").paint(painter, mirrored_box(option, QRect(right, box.top(), side, side)))
            right -= 8
        painter.setPen(QColor(theme.text))
        room = QRect(box.left(), box.top(), max(right - box.left(), 24), box.height())
        draw_text(painter, option, room, one_line(row.title))

    def _paint_bar(self, painter: QPainter, option: QStyleOptionViewItem, box: QRectF, row: UsageRow) -> None:
        """Draw the bytes of only this chat, then those shared with others, and hatch what the plan would delete."""
        usage, theme = row.usage, self.look.theme
        if not usage.bytes:
            return
        width = max(box.width() * usage.bytes / max(row.largest_bytes, 1), _BAR_HEIGHT)
        bar = QRectF(box.left(), box.top(), width, box.height())
        path = QPainterPath()
        path.addRoundedRect(bar, _BAR_HEIGHT / 2, _BAR_HEIGHT / 2)
        painter.save()
        if option.direction is Qt.LayoutDirection.RightToLeft:
            painter.translate(option.rect.left() + option.rect.right(), 0)
            painter.scale(-1, 1)
        painter.setClipPath(path)
        own = width * usage.exclusive_bytes / usage.bytes
        painter.fillRect(bar, shared_colour(self.look))
        painter.fillRect(QRectF(bar.left(), bar.top(), own, bar.height()), QColor(theme.accent))
        if row.loss:
            lost = width * min(row.loss.bytes_freed / usage.bytes, 1.0) if row.loss.save_points_left else width
            deleted = QRectF(bar.right() - lost, bar.top(), lost, bar.height())
            painter.fillRect(deleted, mix_colours(theme.warn, theme.page, 0.3))
            painter.setPen(QColor(theme.warn))
            painter.setClipRect(deleted, Qt.ClipOperation.IntersectClip)
            for x in range(int(deleted.left()) - _BAR_HEIGHT, int(deleted.right()) + 1, 5):
                painter.drawLine(x, int(deleted.bottom()), x + _BAR_HEIGHT, int(deleted.top()))
        painter.restore()


class UsageModel(ItemModel[UsageRow]):
    def __init__(self) -> None:
        super().__init__(key=lambda row: row.usage.conversation_id)

    def accessible_text(self, row: UsageRow) -> str:
        return row.accessible_text

    def tip(self, row: UsageRow) -> str:
        return "\n".join((row.title, f"{format_size(row.usage.bytes)}: {describe_split(row.usage)}", row.details))


class UsageList(ItemList):
    pin_requested = Signal(str, bool)  # conversation id, pinned
    never_save_requested = Signal(str, bool)  # conversation id, never saved
    delete_requested = Signal(str)  # conversation id

    def __init__(self, look: Look) -> None:
        self.usage = UsageModel()
        self.buttons: dict[int, QToolButton] = {}  # of visible rows, by row; Qt lays out in __init__
        super().__init__(look, _("Chat memory by chat"))
        self.setItemDelegate(UsageDelegate(look, self))
        self.setModel(self.usage)
        self.setUniformItemSizes(True)
        self.verticalScrollBar().valueChanged.connect(self._place_buttons)
        for changed in (self.usage.dataChanged, look.changed):
            changed.connect(self._recreate_buttons)

    def doItemsLayout(self) -> None:
        super().doItemsLayout()
        self._place_buttons()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place_buttons()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in _MENU_KEYS and self.currentIndex().isValid():
            box = self.visualRect(self.currentIndex())
            self.open_menu(self.currentIndex().row(), self.viewport().mapToGlobal(box.center()))
            return
        super().keyPressEvent(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        by_key, at = event.reason() is QContextMenuEvent.Reason.Keyboard, event.globalPos()
        index = self.currentIndex() if by_key else self.indexAt(self.viewport().mapFromGlobal(at))
        if index.isValid():
            center = self.viewport().mapToGlobal(self.visualRect(index).center())
            self.open_menu(index.row(), center if by_key else at)

    def open_menu(self, number: int, at: QPoint) -> QMenu:
        row = self.usage.rows[number]
        id = row.usage.conversation_id
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.setAccessibleName(_("Actions for {title}", title=row.title))
        if not device_of(id):  # each of its chats has flags of its own
            on_pin, on_never = self.pin_requested.emit, self.never_save_requested.emit
            pin, never = (lambda on: on_pin(id, on)), (lambda on: on_never(id, on))
            add_keep_actions(menu, row.usage.pinned, pin, row.usage.never_save, never)
            menu.addSeparator()
        delete = menu.addAction(_("Delete chat memory"))
        delete.setEnabled(row.usage.save_points > 0)
        delete.triggered.connect(lambda: self.delete_requested.emit(id))
        menu.popup(at)
        return menu

    def _open_menu_below(self, number: int) -> None:
        button = self.buttons[number]
        self.open_menu(number, button.mapToGlobal(button.rect().bottomLeft()))

    def _place_buttons(self) -> None:
        view = self.viewport().rect()
        first = self.indexAt(QPoint(view.center().x(), 0)).row()
        last = self.indexAt(QPoint(view.center().x(), view.bottom())).row()
        visible = range(first, (last if last >= 0 else self.usage.rowCount() - 1) + 1) if first >= 0 else range(0)
        self._delete_buttons([number for number in self.buttons if number not in visible])
        for number in visible:
            button = self.buttons.get(number)
            if button is None:
                title, tip = self.usage.rows[number].title, _("Always keep, never keep, delete")
                button = tool_button(_("Actions for {title}", title=title), tip=tip, icon=self.look.icon("dots"))
                button.setParent(self.viewport())
                button.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # the list keeps focus: Space opens this menu
                button.clicked.connect(partial(self._open_menu_below, number))
                self.buttons[number] = button
            row, side = self.visualRect(self.usage.index(number)), self.look.px(MENU_BUTTON_SIZE)
            box = QRect(row.right() - side - 4, row.center().y() - side // 2, side, side)
            button.setGeometry(QStyle.visualRect(self.layoutDirection(), row, box))
            button.show()

    def _delete_buttons(self, numbers: list[int]) -> None:
        for button in map(self.buttons.pop, numbers):
            button.hide()
            button.deleteLater()

    def _recreate_buttons(self) -> None:
        self._delete_buttons(list(self.buttons))
        self._place_buttons()
