"""The time-saved window: how chat memory sped up replies, and the time saved on each day."""

import math
from collections.abc import Callable, Sequence
from datetime import date

from PySide6.QtCore import QEvent, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QAccessible,
    QColor,
    QFocusEvent,
    QFontMetricsF,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
)
from PySide6.QtWidgets import QGridLayout, QSizePolicy, QWidget

from kvchat.chat.events import Event, ReplyFinished
from kvchat.chat.turn.receipts import REPLY_KINDS, ReplyStatistics
from kvchat.runtime import Runtime
from kvchat.text.formatting import (
    TIME_SAVED,
    format_brief_duration,
    format_day,
    format_estimate,
    format_rough_duration,
    format_short_day,
)
from kvchat.text.language import N_, _, capitalize_first, format_number, plural, punctuation
from kvchat.ui.base.building import STRETCH, button, clear, column, label, row
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look, page_font
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.widgets.layouts import ScrollPage

_PLOT_HEIGHT, _MAX_BAR_WIDTH = 116, 26  # pixels at 100 % text: the plot's height, a bar's width
_SCALE_STEPS = (2, 4, 6, 8, 10)  # maximums of the scale, times a power of ten; their halves are round, too


class DayBars(QWidget):
    """Bar chart of one value per day. Its owner sets the accessible description."""

    accessible_role = QAccessible.Role.Chart
    pointed = Signal(int)  # day index; -1: none

    def __init__(self, look: Look, name: str, format_value: Callable[[float], str]) -> None:
        super().__init__()
        self._look, self._format_value = look, format_value
        self._days: Sequence[date] = ()
        self._values: Sequence[float] = ()
        self._top, self.day = 2.0, -1
        self.setAccessibleName(name)
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        look.changed.connect(self.updateGeometry)
        look.changed.connect(self.update)

    def show_days(self, days: Sequence[date], values: Sequence[float], unit: float = 1) -> None:
        self._days, self._values = days, values
        largest = max(values) / unit
        power = 10 ** max(0, math.ceil(math.log10(max(largest, 1))) - 1)
        self._top = next(step * power for step in _SCALE_STEPS if largest <= step * power) * unit
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(200, round(self._look.px(_PLOT_HEIGHT) + 2.6 * self._metrics().height()))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setFont(page_font(self._look.fonts.family, self._look.fonts.small))
        box, theme, metrics = self._plot_box(), self._look.theme, self._metrics()
        if self.hasFocus():
            painter.setPen(QColor(theme.accent))
            painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), 5, 5)
        if 0 <= self.day < len(self._days):
            painter.fillRect(self._day_box(box, self.day), QColor(theme.selected))
        for share in (0.0, 0.5, 1.0):
            y = round(box.bottom() - share * box.height())
            painter.fillRect(QRectF(box.left(), y, box.width(), 1), QColor(theme.muted if not share else theme.line))
            painter.setPen(QColor(theme.muted))
            beside = QRectF(0, y - 20, box.left() - 8, 40)
            right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
            painter.drawText(beside, right, self._format_value(share * self._top))
        for day, value in enumerate(self._values):
            slot = self._day_box(box, day)
            width = min(max(slot.width() * 0.78, slot.width() - 6, 1.0), self._look.px(_MAX_BAR_WIDTH))
            height = box.height() * value / self._top
            bar = QRectF(slot.center().x() - width / 2, box.bottom() - height, width, height)
            painter.fillRect(bar, QColor(theme.accent))
        last, label_width = len(self._days) - 1, metrics.horizontalAdvance(format_short_day(date(2000, 11, 30)))
        step = max(1, math.ceil(2.2 * label_width / box.width() * len(self._days)))
        for day in range(last, -1, -step):
            text = _("today") if day == last else format_short_day(self._days[day])
            width = metrics.horizontalAdvance(text) + 2
            left = min(max(self._day_box(box, day).center().x() - width / 2, box.left()), box.right() - width)
            painter.drawText(
                QRectF(left, box.bottom() + 4, width, metrics.height()), Qt.AlignmentFlag.AlignCenter, text
            )
        painter.end()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        box, x = self._plot_box(), event.position().x()
        inside = box.left() <= x < box.right() and self._days
        self.pointed.emit(int((x - box.left()) / box.width() * len(self._days)) if inside else -1)

    def leaveEvent(self, event: QEvent) -> None:
        self.pointed.emit(-1)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.pointed.emit(-1)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        last = len(self._days) - 1
        day = self.day if self.day >= 0 else last + 1
        days = {Qt.Key.Key_Left: day - 1, Qt.Key.Key_Right: day + 1, Qt.Key.Key_Home: 0, Qt.Key.Key_End: last}
        if event.key() not in days or last < 0:
            super().keyPressEvent(event)
            return
        self.pointed.emit(min(max(days[Qt.Key(event.key())], 0), last))

    def _metrics(self) -> QFontMetricsF:
        return QFontMetricsF(page_font(self._look.fonts.family, self._look.fonts.small))

    def _plot_box(self) -> QRectF:
        metrics = self._metrics()
        left, above = metrics.horizontalAdvance(_("{minutes} min", minutes="00")) + 14, metrics.height() * 0.7
        return QRectF(left, above, self.width() - left - 8, self.height() - 2.4 * metrics.height())

    def _day_box(self, box: QRectF, day: int) -> QRectF:
        width = box.width() / max(len(self._days), 1)
        return QRectF(box.left() + day * width, box.top(), width, box.height())


EMPTY = N_("No replies yet. This page will show how much reprocessing time your chats have saved.")


class TimeSavedPanel(Panel):
    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _(TIME_SAVED), parent, size=(620, 620), min_size=(420, 380))
        self.statistics: ReplyStatistics | None = None
        self.total, self.estimate = label(kind="title", wraps=True), label(kind="muted", wraps=True)

        def axis_label(seconds: float) -> str:
            return format_rough_duration(seconds) if seconds else "0"

        self.saved_bars = DayBars(look, _("Time saved per day"), axis_label)
        self.day_label = label(kind="small", wraps=True)
        self.day_label.setAlignment(Qt.AlignmentFlag.AlignTop)
        self.day_label.setMinimumHeight(2 * self.day_label.fontMetrics().lineSpacing())
        self.kinds = QGridLayout()
        self.kinds.setHorizontalSpacing(14)
        self.kinds.setVerticalSpacing(5)
        self.kinds.setColumnStretch(0, 1)
        self.empty_label = label(_(EMPTY), "muted", wraps=True)
        self.empty_label.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.empty_label.setMargin(40)
        self._page = ScrollPage("settingsPage")
        sums = self.total, self.estimate, 10, label(_("Replies by source"), "strong"), self.kinds
        days = 10, label(_("Time saved per day"), "strong"), self.saved_bars, self.day_label, STRETCH
        column(*sums, *days, on=self._page.content, spacing=8, margins=(22, 18, 22, 18))
        self.close_button = button(_("Close"), self.close, "primary", name=_("Close “Time saved”"))
        buttons = row(STRETCH, self.close_button, margins=(22, 0, 22, 0))
        column(
            self.notices, (self._page, 1), (self.empty_label, 1), buttons, on=self, spacing=12, margins=(0, 12, 0, 16)
        )
        self.saved_bars.pointed.connect(self._show_day)

    def refresh(self) -> None:
        async def load() -> None:
            self.show_statistics(await self._runtime.statistics())

        self.run(load())

    def show_statistics(self, statistics: ReplyStatistics) -> None:
        self.statistics = statistics
        self._page.setVisible(bool(statistics.count))
        self.empty_label.setVisible(not statistics.count)
        per_day = [statistics.day_totals(day)[1] for day in statistics.days]
        unit = next((seconds for seconds in (3600, 60) if max(per_day) > seconds), 1)
        self.saved_bars.show_days(statistics.days, per_day, unit)
        total = _("{time} saved", time=format_estimate(sum(per_day)))
        self.total.setText(capitalize_first(total))
        less_waiting = plural(
            len(statistics.days),
            "{replies} in {count} day.",
            "{replies} in the last {count} days.",
            replies=plural(statistics.count, "{count} reply", "{count} replies"),
        )
        self.estimate.setText(less_waiting)
        self._show_day(-1)
        clear(self.kinds)
        self._add_row("", (_("replies"), _("time to first token"), _("saved")), "small")
        for kind in REPLY_KINDS:
            count, saved, first = statistics.kind_totals(kind)
            if count:
                time = format_estimate(saved) if saved else "–"
                self._add_row(_(kind), (format_number(count), format_brief_duration(1000 * first), time))

    def _add_row(self, title: str, figures: Sequence[str], kind: str = "") -> None:
        line = self.kinds.rowCount()
        self.kinds.addWidget(label(title, wraps=True), line, 0)
        for place, figure in enumerate(figures, 1):
            self.kinds.addWidget(label(figure, kind, wraps=True), line, place, Qt.AlignmentFlag.AlignRight)

    def _handle_event(self, event: Event) -> None:
        if isinstance(event, ReplyFinished):
            self.refresh()

    def _show_day(self, day: int) -> None:
        text = _("Hover over a day or use the arrow keys.")
        if self.statistics is not None and 0 <= day < len(self.statistics.days):
            count, saved = self.statistics.day_totals(self.statistics.days[day])
            parts = [plural(count, "{count} reply", "{count} replies") if count else _("no replies")]
            parts += [_("{time} saved", time=format_estimate(saved))] if saved else []
            text = f"{format_day(self.statistics.days[day])}{punctuation(': ')}{punctuation('; ').join(parts)}"
        self.day_label.setText(text)
        self.saved_bars.day = day
        self.saved_bars.update()
        self.saved_bars.setAccessibleDescription(text)
