"""The programs window: what other programs ask, how much of it was remembered, and what had it read again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QWidget

from kvchat.chat.events import EngineChanged, Event, SettingsChanged
from kvchat.gateway.requests import Total
from kvchat.runtime import Runtime
from kvchat.ui.base.building import STRETCH, button, column, label, row
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import confirm
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.programs.last_requests import LastRequests
from kvchat.ui.programs.live_rows import LiveRows
from kvchat.ui.programs.program_details import ProgramDetails
from kvchat.ui.programs.wording import all_together, found_share, program_line
from kvchat.ui.widgets.layouts import ScrollPage
from kvchat.ui.widgets.lists import Row, RowList, Tone
from kvchat.words.language import N_, _

_EMPTY = N_(
    "No program has asked anything yet. Editors and agents on this computer can use the model that is loaded here, and "
    "need not wait until it has read everything again."
)
_SHUT, _LET_IN = N_("Other programs are shut out."), N_("Settings of other programs")
_SOON_MS = 120  # a request that is read tells so often
_MOST_SHOWN = 4  # programs without scrolling
_GOOD = 0.7  # of what a program sends


class ProgramsWindow(Panel):
    """A list of programs, what is known of the one chosen in it, and its last requests."""

    settings_requested = Signal()

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(look, runner, _("Programs"), parent, size=(760, 800), least=(440, 420))
        self._runtime, self._door = runtime, runtime.door
        self._totals: Mapping[str, Total] = {}
        self._titles: Mapping[str, str] = {}  # of chats that are in the engine
        self._soon = QTimer(self, singleShot=True, interval=_SOON_MS)
        self._soon.timeout.connect(self.refresh)
        self.follow(self._door.subscribe, self._soon.start)
        self.follow(runtime.events.subscribe, self._hear)
        self.total = label(kind="muted", wraps=True)
        self.shut = label(_(_SHUT), wraps=True)
        self.let_in = button(_("Settings…"), self.settings_requested, "link", name=_(_LET_IN))
        self.now = LiveRows(look)
        self.list = RowList(look, _("Programs"))
        self.details = ProgramDetails(look)
        self.requests = LastRequests(look)
        self.empty = QWidget()
        self._build()
        self.list.current_changed.connect(self._show_current)
        self.details.rule_wanted.connect(self._switch)
        look.changed.connect(self._fit)

    def refresh(self) -> None:
        door = self._door
        self._totals = door.totals.by_program()
        some, is_open = bool(self._totals or door.under_way or door.last), self._runtime.settings.door
        self._shut.setVisible(some and not is_open)
        self.now.show_now(door.under_way, door.in_engine, self._titles)
        names = sorted(self._totals, key=lambda name: -self._totals[name].last_at)
        before = self.list.current
        self.list.show_rows([_row(name, self._totals[name]) for name in names])
        if before is None and names:
            self.list.select(names[0])
        self.total.setText(all_together(list(self._totals.values())) if self._totals else "")
        for part, shown in ((self._page, some), (self.empty, not some), (self.forget, some)):
            part.setVisible(shown)
        self._fit()
        self._show_current()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._leave.setFocus()
        self.refresh()
        self.run(self._ask_titles())

    async def _ask_titles(self) -> None:
        self._titles = {one.id: one.title for one in await self._runtime.chat.conversations()}
        self.refresh()

    def _hear(self, event: Event) -> None:
        if isinstance(event, SettingsChanged | EngineChanged):
            self._soon.start()

    def _show_current(self) -> None:
        chosen = self.list.current
        name = str(chosen.value) if chosen else ""
        total = self._totals.get(name)
        self.details.setVisible(total is not None)
        if total is not None:
            self.details.show_program(name, total, self._door.rules(name))
        self.requests.show_requests([one for one in reversed(self._door.last) if one.program == name])
        self.forget.setEnabled(total is not None)

    def _switch(self, rule: str, on: bool) -> None:
        chosen = self.list.current
        if chosen is None:
            return
        entry, settings = f"{chosen.value} {rule}", self._runtime.settings
        others = tuple(one for one in settings.door_rules if one != entry)
        self.run(self._runtime.apply_settings(replace(settings, door_rules=(*others, entry) if on else others)))

    def _ask_forget(self) -> None:
        chosen = self.list.current
        if chosen is None:
            return
        confirm(
            self,
            _("Forget “{name}”?", name=chosen.value),
            _("Its figures go from this page, and what is remembered of its prompts is deleted."),
            _("Forget"),
            lambda: self.run(self._forget(str(chosen.value))),
        )

    async def _forget(self, name: str) -> None:
        await self._door.forget(name)
        self.refresh()

    def _fit(self) -> None:
        rows = min(max(len(self.list.rows), 1), _MOST_SHOWN)
        height = self.list.sizeHintForRow(0) if self.list.rows else self._look.px(54)
        self.list.setFixedHeight(rows * max(height, 1) + 2 * self.list.frameWidth() + self._look.px(6))

    def _build(self) -> None:
        self._shut, self._page = QWidget(), ScrollPage("settingsPage")
        row((self.shut, 1), self.let_in, on=self._shut, spacing=10, margins=(22, 0, 22, 0))
        parts = (self.now, label(_("Programs"), "strong"), self.total, self.list, self.details, self.requests, STRETCH)
        column(*parts, on=self._page.ground, spacing=8, margins=(22, 12, 22, 12))
        nothing, top = label(_(_EMPTY), "muted", wraps=True), Qt.AlignmentFlag.AlignHCenter
        nothing.setAlignment(Qt.AlignmentFlag.AlignCenter)
        set_up = button(_("Set one up…"), self.settings_requested, name=_("Set a program up"))
        column(STRETCH, nothing, (set_up, 0, top), STRETCH, on=self.empty, spacing=14, margins=(60, 0, 60, 0))
        self.forget = button(
            _("Forget this one…"), self._ask_forget, "danger", name=_("Forget the program that is chosen")
        )
        self._leave = button(_("Close"), self.close, "primary", name=_("Close programs"))
        below = row(self.forget, STRETCH, self._leave, margins=(22, 0, 22, 0))
        shown = self.notices, self._shut, (self._page, 1), (self.empty, 1), below
        column(*shown, on=self, spacing=12, margins=(0, 14, 0, 16))


def _row(name: str, total: Total) -> Row:
    tone = Tone.GOOD if total.share >= _GOOD else Tone.PLAIN
    return Row(name, name, program_line(total, datetime.now(UTC)), found_share(total), tone)
