"""The programs window: requests of other programs, cache hits, and causes of reprocessing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QGridLayout, QProgressBar, QVBoxLayout, QWidget

from kvchat.api_service import LoadedSlot
from kvchat.chat.events import EngineChanged, Event, SettingsChanged
from kvchat.gateway.diagnosis.causes import RULE_BY_CAUSE
from kvchat.gateway.diagnosis.rules import RULES, Rule
from kvchat.gateway.records import Cost, RequestRecord, Stage, Total
from kvchat.kvstore.savepoint import program_of
from kvchat.runtime import Runtime
from kvchat.text.formatting import format_tokens
from kvchat.text.language import N_, _, format_number, join_sentences, plural
from kvchat.text.reasons import Reason, ReasonCode
from kvchat.ui.base.building import STRETCH, button, clear, column, label, progress_bar, row
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import confirm
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.programs.last_requests import LastRequests, all_together, program_row, stage_of, told_of
from kvchat.ui.widgets.controls import Switch
from kvchat.ui.widgets.entries import Entry
from kvchat.ui.widgets.layouts import ElidedLabel, ScrollPage
from kvchat.ui.widgets.lists import RowList

_MAX_CAUSES = 6
_MAX = 12  # rows; the rest is counted
_NAME_WIDTH, _BAR_WIDTH = 140, 90  # pixels at 100 % text


class LiveRows(QWidget):
    """Rows of current requests, reused because they change many times a second."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self.rows: list[LiveRow] = []
        self.more = label(kind="small")
        self._lines: QVBoxLayout = column(spacing=4)
        title = label(_("Currently in the engine"), "strong")
        column(title, self._lines, self.more, on=self, spacing=6, margins=(0, 0, 0, 10))

    def show_now(
        self, under_way: Sequence[RequestRecord], loaded_slots: Sequence[LoadedSlot], titles: Mapping[str, str]
    ) -> None:
        busy = {record.slot for record in under_way if record.stage is not Stage.QUEUED}
        told: list[tuple[str, str, float | None]] = []
        for record in under_way:
            done = None
            if record.stage is Stage.READING and record.prompt:
                done = min(1.0, ((record.found or 0) + record.read) / record.prompt)
            told.append((record.program, stage_of(record), done))
        for held in loaded_slots:
            if held.number not in busy and held.tokens:
                words = _("loaded, {tokens} tokens", tokens=format_tokens(held.tokens))
                told.append((program_of(held.owner) or titles.get(held.owner, _("a chat")), words, None))
        while len(self.rows) < min(len(told), _MAX):
            self.rows.append(LiveRow(self._look))
            self._lines.addWidget(self.rows[-1])
        for at, line in enumerate(self.rows):
            line.setVisible(at < len(told))
            if at < len(told):
                line.show_request(*told[at])
        self.more.setText(plural(len(told) - _MAX, "and {count} other", "and {count} others"))
        self.more.setVisible(len(told) > _MAX)
        self.setVisible(bool(told))


class LiveRow(QWidget):
    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self.name, self.words = ElidedLabel(), ElidedLabel("muted")
        self.bar: QProgressBar = progress_bar(_("Processing progress"))
        row(self.name, (self.words, 1), self.bar, on=self, spacing=12, margins=0)
        look.changed.connect(self._fit)
        self._fit()

    def show_request(self, name: str, words: str, done: float | None) -> None:
        self.name.set_text(name)
        self.words.set_text(words)
        self.bar.setVisible(done is not None)
        self.bar.setValue(round(1000 * (done or 0.0)))

    def _fit(self) -> None:
        self.name.setFixedWidth(self._look.px(_NAME_WIDTH))
        self.bar.setFixedWidth(self._look.px(_BAR_WIDTH))


class ProgramDetails(QWidget):
    rule_wanted = Signal(str, bool)  # rule name, enabled

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self.causes = QGridLayout()
        self.causes.setHorizontalSpacing(14)
        self.causes.setVerticalSpacing(5)
        self.causes.setColumnStretch(0, 1)
        self._shown: object = None
        self.rules = {name: RuleSwitch(look, rule) for name, rule in RULES.items()}
        for name, switch in self.rules.items():
            switch.wanted.connect(lambda on, name=name: self.rule_wanted.emit(name, on))
        why, mend = label(_("Reasons for reprocessing"), "strong"), label(_("Prompt rewriting"), "strong")
        column(why, self.causes, 6, mend, *self.rules.values(), on=self, spacing=6, margins=(0, 10, 0, 0))
        look.changed.connect(self._fit)
        self._fit()

    def show_program(self, name: str, total: Total, on: Collection[str]) -> None:
        for rule, switch in self.rules.items():
            lost = Cost()
            for cost in (cost for cause, cost in total.misses.items() if RULE_BY_CAUSE.get(ReasonCode(cause)) == rule):
                lost.add(cost)
            switch.show_rule(on=rule in on, spared=total.saved_by_rule.get(rule), lost=lost)
        if self._shown != (name, total.misses):
            self._shown = name, {cause: Cost(cost.times, cost.tokens, cost.ms) for cause, cost in total.misses.items()}
            self._fill(total)

    def _fill(self, total: Total) -> None:
        clear(self.causes)
        causes = sorted(total.misses.items(), key=lambda known: (-known[1].ms, -known[1].tokens))
        if not causes:
            nothing = label(_("None of its prompts had to be reprocessed."), "muted", wraps=True)
            self.causes.addWidget(nothing, 0, 0, 1, 3)
        most = max((cost.tokens for _, cost in causes), default=1) or 1
        for line, (cause, cost) in enumerate(causes[:_MAX_CAUSES]):
            reason = Reason(ReasonCode(cause)).text
            words, bar = ElidedLabel(), progress_bar(f"{reason}: {told_of(cost)}")
            words.set_text(reason[:1].upper() + reason[1:])
            bar.setValue(1000 * cost.tokens // most)
            self.causes.addWidget(words, line, 0)
            self.causes.addWidget(bar, line, 1)
            self.causes.addWidget(label(told_of(cost)), line, 2, Qt.AlignmentFlag.AlignRight)

    def _fit(self) -> None:
        self.causes.setColumnMinimumWidth(1, self._look.px(110))


class RuleSwitch(Entry):
    wanted = Signal(bool)

    def __init__(self, look: Look, rule: Rule) -> None:
        self._words = _(rule.description)
        self.switch = Switch(look, _(rule.title), self._words)
        super().__init__(_(rule.title), self._words, self.switch)
        self.switch.clicked.connect(self.wanted)

    @property
    def on(self) -> bool:
        return self.switch.isChecked()

    def show_rule(self, *, on: bool, spared: Cost | None, lost: Cost) -> None:
        """lost: tokens reprocessed without it"""
        self.switch.setChecked(on)
        words = [self._words]
        if spared:
            tokens, came_to = format_number(spared.tokens), told_of(spared)
            words.append(_("Avoided reprocessing {tokens} tokens ({came_to}).", tokens=tokens, came_to=came_to))
        if lost.times and not on:
            tokens, came_to = format_number(lost.tokens), told_of(lost)
            without = _("{tokens} tokens had to be reprocessed without it ({came_to}).", tokens=tokens, came_to=came_to)
            words.append(without)
        self.set_help(join_sentences(*words))


_EMPTY = N_(
    "No app has sent a request yet. Editors and agents on this computer can use the loaded model "
    "without waiting for it to reprocess their prompts."
)
_SHUT, _LET_IN = N_("The API server is off."), N_("API server settings")
_SOON_MS = 120  # update interval while processing
_MAX_SHOWN = 4  # programs without scrolling


class ProgramsWindow(Panel):
    settings_requested = Signal()

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _("Connected apps"), parent, size=(760, 800), least=(440, 420))
        self._api_server = runtime.api_server
        self._totals: Mapping[str, Total] = {}
        self._titles: Mapping[str, str] = {}  # of chats in the engine
        self._soon = QTimer(self, singleShot=True, interval=_SOON_MS)
        self._soon.timeout.connect(self.refresh)
        self.follow(self._api_server.subscribe, self._soon.start)
        self.total = label(kind="muted", wraps=True)
        self.shut = label(_(_SHUT), wraps=True)
        self.let_in = button(_("Settings…"), self.settings_requested, "link", name=_(_LET_IN))
        self.now = LiveRows(look)
        self.list = RowList(look, _("Connected apps"))
        self.details = ProgramDetails(look)
        self.requests = LastRequests(look)
        self.list.current_changed.connect(self._show_current)
        self.details.rule_wanted.connect(self._switch)
        look.changed.connect(self._fit)
        self.empty, self._shut, self._page = QWidget(), QWidget(), ScrollPage("settingsPage")
        row((self.shut, 1), self.let_in, on=self._shut, spacing=10, margins=(22, 0, 22, 0))
        title = label(_("Connected apps"), "strong")
        parts = self.now, title, self.total, self.list, self.details, self.requests, STRETCH
        column(*parts, on=self._page.content, spacing=8, margins=(22, 12, 22, 12))
        nothing, top = label(_(_EMPTY), "muted", wraps=True), Qt.AlignmentFlag.AlignHCenter
        nothing.setAlignment(Qt.AlignmentFlag.AlignCenter)
        set_up = button(_("Connect an app…"), self.settings_requested, name=_("Connect an app"))
        column(STRETCH, nothing, (set_up, 0, top), STRETCH, on=self.empty, spacing=14, margins=(60, 0, 60, 0))
        self.forget = button(_("Forget app…"), self._ask_forget, "danger", name=_("Forget the chosen app"))
        self._leave = button(_("Close"), self.close, "primary", name=_("Close connected apps"))
        below = row(self.forget, STRETCH, self._leave, margins=(22, 0, 22, 0))
        shown = self.notices, self._shut, (self._page, 1), (self.empty, 1), below
        column(*shown, on=self, spacing=12, margins=(0, 14, 0, 16))

    def refresh(self) -> None:
        server = self._api_server
        self._totals = server.totals.by_program()
        some, is_open = bool(self._totals or server.active or server.recent), self._runtime.settings.api_server
        self._shut.setVisible(some and not is_open)
        self.now.show_now(server.active, server.loaded_slots, self._titles)
        names = sorted(self._totals, key=lambda name: -self._totals[name].last_at)
        before = self.list.current
        self.list.show_rows([program_row(name, self._totals[name]) for name in names])
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

        async def ask_titles() -> None:
            chats = await self._runtime.chat.conversations()
            self._titles = {chat.id: chat.title for chat in chats}
            self.refresh()

        self.run(ask_titles())

    def _handle_event(self, event: Event) -> None:
        if isinstance(event, SettingsChanged | EngineChanged):
            self._soon.start()

    def _show_current(self) -> None:
        chosen = self.list.current
        name = str(chosen.value) if chosen else ""
        total = self._totals.get(name)
        self.details.setVisible(total is not None)
        if total is not None:
            self.details.show_program(name, total, self._api_server.rules(name))
        self.requests.show_requests([record for record in reversed(self._api_server.recent) if record.program == name])
        self.forget.setEnabled(total is not None)

    def _switch(self, rule: str, on: bool) -> None:
        chosen = self.list.current
        if chosen is None:
            return
        entry, settings = f"{chosen.value} {rule}", self._runtime.settings
        others = tuple(other for other in settings.api_rules if other != entry)
        self.run(self._runtime.apply_settings(replace(settings, api_rules=(*others, entry) if on else others)))

    def _ask_forget(self) -> None:
        if (chosen := self.list.current) is None:
            return

        async def forget() -> None:
            await self._api_server.forget(str(chosen.value))
            self.refresh()

        words = _("This deletes its statistics and the saved memory of its prompts.")
        title = _("Forget “{name}”?", name=chosen.value)
        confirm(self, title, words, _("Forget"), lambda: self.run(forget()))

    def _fit(self) -> None:
        self.list.limit_height(_MAX_SHOWN)
