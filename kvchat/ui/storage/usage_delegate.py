"""How a row of the disk panel's list is drawn: title and size, the two-tone bar, the words."""

from __future__ import annotations

from PySide6.QtCore import QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPainterPath
from PySide6.QtWidgets import (
    QStyleOptionViewItem,
)

from kvchat.ui.base.icons import icon
from kvchat.ui.storage.usage_picture import shared_colour
from kvchat.ui.storage.usage_row import UsageRow
from kvchat.ui.storage.usage_words import split_of
from kvchat.ui.widgets.item_list import ROW, Index, ItemDelegate
from kvchat.ui.widgets.round_bar import mix
from kvchat.words.wording import one_line, size

_LEFT = int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft)
_RIGHT = int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight)
_BUTTON, _PAD, _GAP, _BAR = 28, 9, 6, 7  # pixels


def button_box(row: QRect) -> QRect:
    """Where a row's button goes."""
    return QRect(row.right() - _BUTTON - 4, row.center().y() - _BUTTON // 2, _BUTTON, _BUTTON)


class UsageDelegate(ItemDelegate):
    """Draws a row of the list."""

    shows_selection = False

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        """Title, bar, words."""
        small = QFontMetrics(self.small(option.font)).height()
        return QSize(120, 2 * _PAD + option.fontMetrics.height() + small + 2 * _GAP + _BAR)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        """The ground, then the three lines from the top."""
        row: UsageRow = index.data(ROW)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self.paint_ground(painter, option)
        box = option.rect.adjusted(8, _PAD, -_BUTTON - 12, -_PAD)
        height = option.fontMetrics.height()
        self._paint_title(painter, option, QRect(box.left(), box.top(), box.width(), height), row)
        self._paint_bar(painter, QRectF(box.left(), box.top() + height + _GAP, box.width(), _BAR), row)
        below = box.top() + height + 2 * _GAP + _BAR
        self._paint_words(painter, option, QRect(box.left(), below, box.width(), box.bottom() - below + 1), row)
        painter.restore()

    def _paint_title(self, painter: QPainter, option: QStyleOptionViewItem, box: QRect, row: UsageRow) -> None:
        theme, metrics = self.look.theme, option.fontMetrics
        amount = size(row.usage.bytes) if row.usage.bytes else "nothing"
        painter.setPen(QColor(theme.text if row.usage.bytes else theme.muted))
        painter.drawText(box, _RIGHT, amount)
        right = box.right() - metrics.horizontalAdvance(amount) - 12
        if row.usage.never_save:
            right = self._paint_chip(painter, option, QRect(box.left(), box.top(), right - box.left(), box.height()))
        if row.usage.pinned:
            side = metrics.height() - 1
            right -= side
            icon("pin", theme.accent).paint(painter, right, box.top(), side, side)
            right -= 8
        title = one_line(row.title)
        shown = metrics.elidedText(title, Qt.TextElideMode.ElideRight, max(right - box.left(), 24))
        painter.setFont(option.font)
        painter.setPen(QColor(theme.text))
        painter.drawText(box, _LEFT, shown)

    def _paint_chip(self, painter: QPainter, option: QStyleOptionViewItem, box: QRect) -> int:
        """The words "never kept" at the right of the box; returns where they begin."""
        theme = self.look.theme
        painter.setFont(self.small(option.font))
        width = QFontMetrics(painter.font()).horizontalAdvance("never kept") + 14
        chip = QRectF(box.right() - width, box.top(), width, box.height())
        path = QPainterPath()
        path.addRoundedRect(chip, chip.height() / 2, chip.height() / 2)
        painter.fillPath(path, QColor(theme.bubble))
        painter.setPen(QColor(theme.muted))
        painter.drawText(chip, int(Qt.AlignmentFlag.AlignCenter), "never kept")
        painter.setFont(option.font)
        return int(chip.left()) - 8

    def _paint_bar(self, painter: QPainter, box: QRectF, row: UsageRow) -> None:
        """Its own bytes, then the shared ones; what the prune in preview takes is crossed out at the end."""
        usage, theme = row.usage, self.look.theme
        if not usage.bytes:
            return
        width = max(box.width() * usage.bytes / max(row.largest, 1), _BAR)
        bar = QRectF(box.left(), box.top(), width, box.height())
        path = QPainterPath()
        path.addRoundedRect(bar, _BAR / 2, _BAR / 2)
        painter.save()
        painter.setClipPath(path)
        own = width * usage.exclusive_bytes / usage.bytes
        painter.fillRect(bar, shared_colour(self.look))
        painter.fillRect(QRectF(bar.left(), bar.top(), own, bar.height()), QColor(theme.accent))
        if row.loss:
            lost = width * min(row.loss.bytes_freed / usage.bytes, 1.0) if row.loss.save_points_left else width
            gone = QRectF(bar.right() - lost, bar.top(), lost, bar.height())
            painter.fillRect(gone, mix(theme.warn, theme.page, 0.3))
            painter.setPen(QColor(theme.warn))
            for x in range(int(gone.left()) - _BAR, int(gone.right()) + 1, 5):
                painter.setClipRect(gone, Qt.ClipOperation.IntersectClip)
                painter.drawLine(x, int(gone.bottom()), x + _BAR, int(gone.top()))
        painter.restore()

    def _paint_words(self, painter: QPainter, option: QStyleOptionViewItem, box: QRect, row: UsageRow) -> None:
        theme = self.look.theme
        painter.setFont(self.small(option.font))
        metrics = QFontMetrics(painter.font())
        split = split_of(row.usage)
        room = box.width() - metrics.horizontalAdvance(split) - 16
        painter.setPen(QColor(theme.muted))
        if room > 80:
            painter.drawText(box, _RIGHT, split)
        else:
            room = box.width()
        painter.setPen(QColor(theme.warn if row.loss else theme.muted))
        painter.drawText(box, _LEFT, metrics.elidedText(row.details, Qt.TextElideMode.ElideRight, room))
