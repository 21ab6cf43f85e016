"""Time saved: what replies went on from, what that saved, and why some had to be read again, day by day."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QShowEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QWidget

from kvchat.chat.events import Event, ReplyFinished
from kvchat.chat.turn.statistics import KINDS, Statistics
from kvchat.kvstore.savepoint import StoreUsage
from kvchat.runtime import Runtime
from kvchat.transfer.exporting import export_table
from kvchat.ui.base.building import STRETCH, button, column, label, progress_bar, row
from kvchat.ui.base.colors import Theme
from kvchat.ui.base.file_dialog import save_dialog
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.storage.day_bars import DayBars
from kvchat.ui.widgets.elided import ElidedLabel
from kvchat.ui.widgets.layouts import ScrollPage
from kvchat.ui.widgets.round_bar import mix
from kvchat.words.language import N_, _, listed, mark, number, retold, sentences, several
from kvchat.words.wording import (
    MEMORY_OF_CHATS,
    TIME_SAVED,
    brief,
    day_of,
    energy,
    rough_duration,
    roughly,
    size,
    size_of,
)

EMPTY = N_("No replies yet. From the first one on, this page adds up what your chats did not have to read again.")
MOST_REASONS = 6  # in rows of their own


def colour_of(kind: str, theme: Theme) -> QColor:
    """What replies that went on from there are drawn in; each can be told from the page."""
    loaded = QColor(theme.accent), QColor(theme.code_name), QColor(theme.code_keyword)
    again = mix(theme.code_keyword, theme.page, 0.62), mix(theme.muted, theme.page, 0.75), QColor(theme.warn)
    return (*loaded, *again)[KINDS.index(kind)]


class SavedPanel(Panel):
    """The window. Shows `Runtime.statistics` and writes them to a file."""

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(look, runner, _(TIME_SAVED), parent, size=(700, 800), least=(420, 380))
        self._runtime = runtime
        self._watts: float | None = None
        self.shown: Statistics | None = None
        self.total, self.estimate = label(kind="title", wraps=True), label(kind="muted", wraps=True)
        self.replies = DayBars(look, _("Replies a day"), number)
        self.saved = DayBars(look, _("Time saved a day"), lambda seconds: rough_duration(seconds) if seconds else "0")
        self.stored = DayBars(look, _("Memory on disk"), lambda count: size(count) if count else "0")
        self.day = label(kind="small", wraps=True)
        self._swatches: dict[str, QFrame] = {}
        self.kinds, self.reasons = QGridLayout(), QGridLayout()
        self.disk, self.share = label(wraps=True), progress_bar(_("Share of the limit in use"))
        self.empty = label(_(EMPTY), "muted", wraps=True)
        self.empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.empty.setMargin(40)
        self._build()
        self.follow(runtime.events.subscribe, self._hear)
        look.changed.connect(self._restyle)
        self._plots = self.replies, self.saved, self.stored
        for plot in self._plots:
            plot.pointed.connect(self._point)

    def refresh(self) -> None:
        """Ask again and show the answer."""
        self.run(self._load())

    def showEvent(self, event: QShowEvent) -> None:
        """Begin at the button that changes nothing; else there would be a ring around the first plot."""
        super().showEvent(event)
        self._leave.setFocus()

    def show_statistics(self, statistics: Statistics) -> None:
        """Show these replies."""
        self.shown, days = statistics, statistics.days
        some = bool(statistics.replies)
        for part, shown in ((self._page, some), (self.save, some), (self.empty, not some)):
            part.setVisible(shown)
        counts = [(partial(self._colour, kind), [statistics.counts[day, kind] for day in days]) for kind in KINDS]
        self.replies.show_days(days, counts)
        saved = [statistics.saved_s.get(day, 0.0) for day in days]
        most = max(saved)
        unit = 1 if most <= 60 else 60 if most <= 3600 else 3600
        self.saved.show_days(days, [(partial(self._colour, KINDS[0]), saved)], unit)
        self._show_disk(statistics)
        self._say_total()
        self._point(-1)
        self._fill_kinds()
        self._fill_reasons()

    def _show_disk(self, statistics: Statistics) -> None:
        """What the memory of chats took day by day, with the limit as a line where it comes near that."""
        days, known = statistics.days, statistics.disk_by_day
        used = [float(known[day].used) if day in known else 0.0 for day in days]
        limits = [float(known[day].quota) if day in known else 0.0 for day in days]
        unit = next((one for one in (1e9, 1e6) if max(used) >= one), 1e3)
        self.stored.show_days(days, [(partial(self._colour, KINDS[0]), used)], unit, limits)

    def show_usage(self, usage: StoreUsage) -> None:
        """Show the disk against the limit."""
        self.disk.setText(usage.problem or _("{size} in use", size=size_of(usage.physical_bytes, usage.quota_bytes)))
        self.share.setValue(int(1000 * min(usage.physical_bytes / max(usage.quota_bytes, 1), 1.0)))
        self.share.setVisible(not usage.problem)

    def ask_where(self) -> None:
        """Choose the file for the table."""
        save_dialog(
            self, _("Save as CSV"), f"{_(TIME_SAVED)}.csv", _("Tables (*.csv)"), lambda path: self.run(self._save(path))
        )

    async def _save(self, target: Path) -> None:
        if self.shown is not None:
            await asyncio.to_thread(export_table, self.shown.as_csv(self._watts), target)
            self.notices.tell_where(_("Saved"), target)

    async def _load(self) -> None:
        self.show_statistics(await self._runtime.statistics())
        self.show_usage(await self._runtime.save_points.usage())
        self._watts = await self._runtime.engine.graphics_watts()
        self._say_total()

    def _hear(self, event: Event) -> None:
        if isinstance(event, ReplyFinished):
            self.refresh()

    def _say_total(self) -> None:
        if self.shown is None:
            return
        seconds, count = sum(self.shown.saved_s.values()), self.shown.counts.total()
        saved = _("{time} saved", time=roughly(seconds))
        self.total.setText(saved[:1].upper() + saved[1:])
        replies = several(count, "{count} reply", "{count} replies")
        words = several(
            len(self.shown.days),
            "So much less waiting in the last {count} day, over {replies}.",
            "So much less waiting in the last {count} days, over {replies}.",
            replies=replies,
        )
        if self._watts and seconds:
            spared = energy(self.shown.watt_hours(self._watts))
            energy_saved = _(
                "Energy saved: up to {spared}, at the {watts} W that the graphics card draws at most.",
                spared=spared,
                watts=f"{self._watts:.0f}",
            )
            words = sentences(words, energy_saved)
        self.estimate.setText(words)

    def _point(self, day: int) -> None:
        """Tell of the day that is pointed at; of none: how to."""
        words = _("Point at a day, or go there with the arrow keys.")
        if self.shown is not None and 0 <= day < len(self.shown.days):
            words = _of_day(self.shown, day)
        self.day.setText(words)
        for plot in self._plots:
            plot.point(day)
            plot.setAccessibleDescription(words)

    def _fill_kinds(self) -> None:
        """The plot's colours with their figures: its legend, and the same as a table."""
        _clear(self.kinds)
        self._swatches.clear()
        assert self.shown is not None
        for place, words in enumerate((_("replies"), _("first word after"), _("saved")), 2):
            self.kinds.addWidget(label(words, "small", wraps=True), 0, place, Qt.AlignmentFlag.AlignRight)
        for kind in KINDS:
            count, saved, first = self.shown.of_kind(kind)
            if not count:
                continue
            line, swatch = self.kinds.rowCount(), QFrame()
            self._swatches[kind] = swatch
            swatch.setFixedSize(self._look.px(11), self._look.px(11))
            self.kinds.addWidget(swatch, line, 0)
            self.kinds.addWidget(label(_(kind), wraps=True), line, 1)
            for place, words in enumerate((number(count), brief(1000 * first), roughly(saved) if saved else "–"), 2):
                self.kinds.addWidget(label(words, wraps=True), line, place, Qt.AlignmentFlag.AlignRight)
        self._restyle()

    def _fill_reasons(self) -> None:
        _clear(self.reasons)
        assert self.shown is not None
        reasons = self.shown.reasons
        if others := reasons[MOST_REASONS:]:
            reasons = [
                *reasons[:MOST_REASONS],
                (
                    several(len(others), "{count} other reason", "{count} other reasons"),
                    sum(count for _why, count in others),
                ),
            ]
        most = max((count for _why, count in reasons), default=1)
        for line, (reason, count) in enumerate(reasons):
            words = ElidedLabel()
            words.set_text(retold(reason))
            replies = several(count, "{count} reply", "{count} replies")
            bar = progress_bar(f"{retold(reason)}: {replies}")
            bar.setValue(1000 * count // most)
            self.reasons.addWidget(words, line, 0)
            self.reasons.addWidget(bar, line, 1)
            self.reasons.addWidget(label(number(count)), line, 2, Qt.AlignmentFlag.AlignRight)
        if not reasons:
            self.reasons.addWidget(label(_("Nothing had to be read again."), "muted", wraps=True), 0, 0, 1, 3)

    def _colour(self, kind: str) -> QColor:
        return colour_of(kind, self._look.theme)

    def _restyle(self) -> None:
        for kind, swatch in self._swatches.items():
            swatch.setStyleSheet(f"background: {self._colour(kind).name()}; border-radius: 2px;")
        self.reasons.setColumnMinimumWidth(1, self._look.px(120))

    def _build(self) -> None:
        self._page = ScrollPage("settingsPage")
        for grid in (self.kinds, self.reasons):
            grid.setHorizontalSpacing(14)
            grid.setVerticalSpacing(5)
        self.kinds.setColumnStretch(1, 1)
        self.reasons.setColumnStretch(0, 1)
        self.day.setAlignment(Qt.AlignmentFlag.AlignTop)
        self.day.setMinimumHeight(2 * self.day.fontMetrics().lineSpacing())
        parts = (
            self.total,
            self.estimate,
            10,
            label(_("What replies went on from"), "strong"),
            self.replies,
            self.kinds,
        )
        time = (10, label(_("Time saved a day"), "strong"), self.saved, self.day)
        why = (10, label(_("Why chats were read again"), "strong"), self.reasons)
        disk = (10, label(_(MEMORY_OF_CHATS), "strong"), self.stored, self.disk, self.share, STRETCH)
        column(*parts, *time, *why, *disk, on=self._page.ground, spacing=8, margins=(22, 18, 22, 18))
        self.save = button(_("Save as CSV…"), self.ask_where)
        self._leave = button(_("Close"), self.close, "primary", name=_("Close time saved"))
        buttons = row(self.save, STRETCH, self._leave, margins=(22, 0, 22, 0))
        column(self.notices, (self._page, 1), (self.empty, 1), buttons, on=self, spacing=12, margins=(0, 12, 0, 16))


def _of_day(statistics: Statistics, place: int) -> str:
    """A day in a sentence: "22 November: 34 replies, 20 still loaded, 14 read again; about 3 min saved"."""
    at = statistics.days[place]
    counts = [(kind, statistics.counts[at, kind]) for kind in KINDS if statistics.counts[at, kind]]
    disk = statistics.disk_by_day.get(at)
    parts = [_("no replies")]
    if counts:
        total = several(sum(count for _kind, count in counts), "{count} reply", "{count} replies")
        parts = [listed([total, *(f"{number(count)} {_(kind)}" for kind, count in counts)])]
        if saved := statistics.saved_s.get(at, 0.0):
            parts.append(_("{time} saved", time=roughly(saved)))
    if disk:
        parts.append(_("{size} on the disk", size=size_of(disk.used, disk.quota)))
    return f"{day_of(at)}{mark(': ')}{mark('; ').join(parts)}"


def _clear(grid: QGridLayout) -> None:
    while (item := grid.takeAt(0)) is not None:
        if (widget := item.widget()) is not None:
            widget.hide()
            widget.deleteLater()
