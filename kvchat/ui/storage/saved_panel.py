"""Time saved: what replies went on from, and what that saved, day by day."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QGridLayout, QWidget

from kvchat.chat.events import Event, ReplyFinished
from kvchat.chat.turn.statistics import KINDS, Statistics
from kvchat.runtime import Runtime
from kvchat.ui.base.building import STRETCH, button, column, label, row
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.storage.day_bars import DayBars
from kvchat.ui.widgets.layouts import ScrollPage
from kvchat.words.language import N_, _, mark, number, several
from kvchat.words.wording import TIME_SAVED, brief, day_of, rough_duration, roughly

EMPTY = N_("No replies yet. From the first one on, this page adds up what your chats did not have to read again.")


class SavedPanel(Panel):
    """The window. Shows `Runtime.statistics`."""

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(look, runner, _(TIME_SAVED), parent, size=(620, 620), least=(420, 380))
        self._runtime = runtime
        self.shown: Statistics | None = None
        self.total, self.estimate = label(kind="title", wraps=True), label(kind="muted", wraps=True)
        self.saved = DayBars(look, _("Time saved a day"), lambda seconds: rough_duration(seconds) if seconds else "0")
        self.day = label(kind="small", wraps=True)
        self.kinds = QGridLayout()
        self.empty = label(_(EMPTY), "muted", wraps=True)
        self.empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.empty.setMargin(40)
        self._build()
        self.follow(runtime.events.subscribe, self._hear)
        self.saved.pointed.connect(self._point)

    def refresh(self) -> None:
        self.run(self._load())

    def showEvent(self, event: QShowEvent) -> None:
        """Focus the button that changes nothing; else the first plot would open with a focus ring."""
        super().showEvent(event)
        self._leave.setFocus()

    def show_statistics(self, statistics: Statistics) -> None:
        self.shown = statistics
        self._page.setVisible(bool(statistics.count))
        self.empty.setVisible(not statistics.count)
        saved = [statistics.on(day)[1] for day in statistics.days]
        unit = next((one for one in (3600, 60) if max(saved) > one), 1)
        self.saved.show_days(statistics.days, saved, unit)
        self._say_total(sum(saved))
        self._point(-1)
        self._fill_kinds()

    async def _load(self) -> None:
        self.show_statistics(await self._runtime.statistics())

    def _hear(self, event: Event) -> None:
        if isinstance(event, ReplyFinished):
            self.refresh()

    def _say_total(self, seconds: float) -> None:
        assert self.shown is not None
        saved = _("{time} saved", time=roughly(seconds))
        self.total.setText(saved[:1].upper() + saved[1:])
        words = several(
            len(self.shown.days),
            "So much less waiting in the last {count} day, over {replies}.",
            "So much less waiting in the last {count} days, over {replies}.",
            replies=several(self.shown.count, "{count} reply", "{count} replies"),
        )
        self.estimate.setText(words)

    def _point(self, day: int) -> None:
        words = _("Point at a day, or go there with the arrow keys.")
        if self.shown is not None and 0 <= day < len(self.shown.days):
            words = _of_day(self.shown, day)
        self.day.setText(words)
        self.saved.point(day)
        self.saved.setAccessibleDescription(words)

    def _fill_kinds(self) -> None:
        assert self.shown is not None
        while (item := self.kinds.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.hide()
                widget.deleteLater()
        for place, words in enumerate((_("replies"), _("first word after"), _("saved")), 1):
            self.kinds.addWidget(label(words, "small", wraps=True), 0, place, Qt.AlignmentFlag.AlignRight)
        for kind in KINDS:
            count, saved, first = self.shown.of_kind(kind)
            if not count:
                continue
            line = self.kinds.rowCount()
            self.kinds.addWidget(label(_(kind), wraps=True), line, 0)
            for place, words in enumerate((number(count), brief(1000 * first), roughly(saved) if saved else "–"), 1):
                self.kinds.addWidget(label(words, wraps=True), line, place, Qt.AlignmentFlag.AlignRight)

    def _build(self) -> None:
        self._page = ScrollPage("settingsPage")
        self.kinds.setHorizontalSpacing(14)
        self.kinds.setVerticalSpacing(5)
        self.kinds.setColumnStretch(0, 1)
        self.day.setAlignment(Qt.AlignmentFlag.AlignTop)
        self.day.setMinimumHeight(2 * self.day.fontMetrics().lineSpacing())
        sums = self.total, self.estimate, 10, label(_("What replies went on from"), "strong"), self.kinds
        days = 10, label(_("Time saved a day"), "strong"), self.saved, self.day, STRETCH
        column(*sums, *days, on=self._page.ground, spacing=8, margins=(22, 18, 22, 18))
        self._leave = button(_("Close"), self.close, "primary", name=_("Close time saved"))
        buttons = row(STRETCH, self._leave, margins=(22, 0, 22, 0))
        column(self.notices, (self._page, 1), (self.empty, 1), buttons, on=self, spacing=12, margins=(0, 12, 0, 16))


def _of_day(statistics: Statistics, place: int) -> str:
    """Return a day in words: "22 November: 34 replies, about 3 min saved"."""
    day = statistics.days[place]
    count, saved = statistics.on(day)
    parts = [several(count, "{count} reply", "{count} replies") if count else _("no replies")]
    if saved:
        parts.append(_("{time} saved", time=roughly(saved)))
    return f"{day_of(day)}{mark(': ')}{mark('; ').join(parts)}"
