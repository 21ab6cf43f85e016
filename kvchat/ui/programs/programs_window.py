"""The programs window: requests of other programs, reuse of their prompts, and causes of reprocessing."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QGridLayout, QWidget

from kvchat.api_service import LoadedSlot
from kvchat.chat.events import EngineChanged, Event, SettingsChanged
from kvchat.gateway.diagnosis.causes import RULE_BY_CAUSE
from kvchat.gateway.diagnosis.rules import RULES, Rule
from kvchat.gateway.records import ProgramTotal, RequestRecord, Stage, TokenCost
from kvchat.kvstore.savepoint import is_device, program_of
from kvchat.runtime import Runtime
from kvchat.text.formatting import format_tokens
from kvchat.text.language import N_, _, capitalize_first, format_number, join_sentences, plural
from kvchat.text.reasons import Reason, ReasonCode
from kvchat.ui.base.building import STRETCH, button, clear, column, label, progress_bar, row
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import confirm
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.programs.last_requests import LastRequests, describe_stage, describe_totals, format_cost, program_row
from kvchat.ui.widgets.controls import Switch
from kvchat.ui.widgets.entries import Entry
from kvchat.ui.widgets.layouts import ElidedLabel, ScrollPage
from kvchat.ui.widgets.lists import RowList

_MAX_CAUSES = 6
_MAX_ROWS = 12  # current requests shown; the others are only counted
_NAME_WIDTH, _BAR_WIDTH = 140, 90  # pixels at 100 % text


class LiveRows(QWidget):
    """Rows for the requests in progress. They are reused, because their contents change many times a second."""

    def __init__(self, look: Look, label_of: Callable[[str], str]) -> None:
        """`label_of` returns a program's name on screen."""
        super().__init__()
        self._look, self._label_of = look, label_of
        self.rows: list[LiveRow] = []
        self.overflow_label = label(kind="small")
        self._lines = column(spacing=4)
        title = label(_("Currently in the engine"), "strong")
        column(title, self._lines, self.overflow_label, on=self, spacing=6, margins=(0, 0, 0, 10))

    def show_current(
        self, requests: Sequence[RequestRecord], loaded_slots: Sequence[LoadedSlot], titles: Mapping[str, str]
    ) -> None:
        busy = {record.slot for record in requests if record.stage is not Stage.QUEUED}
        rows: list[tuple[str, str, float | None]] = []
        for record in requests:
            done = None
            if record.stage is Stage.READING and record.prompt_tokens:
                done = min(1.0, ((record.found_tokens or 0) + record.processed_tokens) / record.prompt_tokens)
            rows.append((self._label_of(record.program), describe_stage(record), done))
        for slot in loaded_slots:
            if slot.number not in busy and slot.tokens:
                state = _("loaded, {tokens} tokens", tokens=format_tokens(slot.tokens))
                program = self._label_of(program_of(slot.owner))
                rows.append((program or titles.get(slot.owner, _("a chat")), state, None))
        while len(self.rows) < min(len(rows), _MAX_ROWS):
            self.rows.append(LiveRow(self._look))
            self._lines.addWidget(self.rows[-1])
        for number, line in enumerate(self.rows):
            line.setVisible(number < len(rows))
            if number < len(rows):
                line.show_request(*rows[number])
        self.overflow_label.setText(plural(len(rows) - _MAX_ROWS, "and {count} other", "and {count} others"))
        self.overflow_label.setVisible(len(rows) > _MAX_ROWS)
        self.setVisible(bool(rows))


class LiveRow(QWidget):
    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self.name, self.state = ElidedLabel(), ElidedLabel("muted")
        self.bar = progress_bar(_("Processing progress"))
        row(self.name, (self.state, 1), self.bar, on=self, spacing=12, margins=0)
        look.changed.connect(self._fit)
        self._fit()

    def show_request(self, name: str, state: str, fraction: float | None) -> None:
        self.name.set_text(name)
        self.state.set_text(state)
        self.bar.setVisible(fraction is not None)
        self.bar.setValue(round(1000 * (fraction or 0.0)))

    def _fit(self) -> None:
        self.name.setFixedWidth(self._look.px(_NAME_WIDTH))
        self.bar.setFixedWidth(self._look.px(_BAR_WIDTH))


class ProgramDetails(QWidget):
    def __init__(self, look: Look, set_rule: Callable[[str, bool], object]) -> None:
        """`set_rule` turns the rule with this name on or off for the program."""
        super().__init__()
        self._look = look
        self.causes = QGridLayout()
        self.causes.setHorizontalSpacing(14)
        self.causes.setVerticalSpacing(5)
        self.causes.setColumnStretch(0, 1)
        self._shown_values: object = None
        self.rules = {name: RuleSwitch(look, rule) for name, rule in RULES.items()}
        for name, rule in self.rules.items():
            rule.switch.clicked.connect(lambda on, name=name: set_rule(name, on))
        why, mend = label(_("Reasons for reprocessing"), "strong"), label(_("Prompt rewriting"), "strong")
        self._rewriting = QWidget()
        column(8, mend, *self.rules.values(), on=self._rewriting, spacing=6, margins=0)
        column(why, self.causes, self._rewriting, on=self, spacing=6, margins=(0, 10, 0, 0))
        look.changed.connect(self._fit)
        self._fit()

    def show_program(self, name: str, total: ProgramTotal, enabled_rules: Collection[str]) -> None:
        self._rewriting.setVisible(not is_device(name))  # the rules are for the prompts of agents
        for rule, switch in self.rules.items():
            lost = TokenCost()
            for cost in (cost for cause, cost in total.misses.items() if RULE_BY_CAUSE.get(ReasonCode(cause)) == rule):
                lost.add(cost)
            switch.show_rule(is_on=rule in enabled_rules, avoided=total.saved_by_rule.get(rule), avoidable=lost)
        if self._shown_values != (name, total.misses):
            self._shown_values = (
                name,
                {cause: TokenCost(cost.times, cost.tokens, cost.ms) for cause, cost in total.misses.items()},
            )
            self._fill(total)

    def _fill(self, total: ProgramTotal) -> None:
        clear(self.causes)
        causes = sorted(total.misses.items(), key=lambda known: (-known[1].ms, -known[1].tokens))
        if not causes:
            nothing = label(_("None of its prompts had to be reprocessed."), "muted", wraps=True)
            self.causes.addWidget(nothing, 0, 0, 1, 3)
        most = max((cost.tokens for _, cost in causes), default=1) or 1
        for line, (cause, cost) in enumerate(causes[:_MAX_CAUSES]):
            reason = Reason(ReasonCode(cause)).text
            text, bar = ElidedLabel(), progress_bar(f"{reason}: {format_cost(cost)}")
            text.set_text(capitalize_first(reason))
            bar.setValue(1000 * cost.tokens // most)
            self.causes.addWidget(text, line, 0)
            self.causes.addWidget(bar, line, 1)
            self.causes.addWidget(label(format_cost(cost)), line, 2, Qt.AlignmentFlag.AlignRight)

    def _fit(self) -> None:
        self.causes.setColumnMinimumWidth(1, self._look.px(110))


class RuleSwitch(Entry):
    def __init__(self, look: Look, rule: Rule) -> None:
        self._description = _(rule.description)
        self.switch = Switch(look, _(rule.title), self._description)
        super().__init__(_(rule.title), self._description, self.switch)

    @property
    def on(self) -> bool:
        return self.switch.isChecked()

    def show_rule(self, *, is_on: bool, avoided: TokenCost | None, avoidable: TokenCost) -> None:
        """Show a rule's switch and effect.

        `avoided` is the reprocessing that the rule has prevented; `avoidable` would also have been prevented with the
        rule on.
        """
        self.switch.setChecked(is_on)
        sentences = [self._description]
        if avoided:
            tokens, cost = format_number(avoided.tokens), format_cost(avoided)
            sentences.append(_("Avoided reprocessing {tokens} tokens ({time}).", tokens=tokens, time=cost))
        if avoidable.times and not is_on:
            tokens, cost = format_number(avoidable.tokens), format_cost(avoidable)
            without = _("Without this rule, {tokens} tokens had to be reprocessed ({time}).", tokens=tokens, time=cost)
            sentences.append(without)
        self.set_help(join_sentences(*sentences))


_EMPTY = N_(
    "No app has sent a request yet. Editors and agents on this computer can use the loaded model "
    "without waiting for it to reprocess their prompts."
)
_UPDATE_MS = 120  # interval while processing
_PROGRAM_ROWS = 4  # programs visible without scrolling


class ProgramsWindow(Panel):
    settings_requested = Signal()

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _("Connected apps"), parent, size=(760, 800), min_size=(440, 420))
        self._api_server, self._label_of = runtime.api_server, runtime.api_server.sharing.label_of
        self._totals: Mapping[str, ProgramTotal] = {}
        self._titles: Mapping[str, str] = {}  # chat titles by id
        self._update_timer = QTimer(self, singleShot=True, interval=_UPDATE_MS)
        self._update_timer.timeout.connect(self.refresh)
        self.subscribe_while_open(self._api_server.subscribe, self._update_timer.start)
        self.total = label(kind="muted", wraps=True)
        self.settings_button = button(_("Settings…"), self.settings_requested, "link", name=_("API server settings"))
        self.live_rows = LiveRows(look, self._label_of)
        self.list = RowList(look, _("Connected apps"))
        self.details = ProgramDetails(look, self._set_rule)
        self.requests = LastRequests(look)
        self.list.current_changed.connect(self._show_current)
        look.changed.connect(self._fit)
        self.empty_page, self.server_off_page, self._page = QWidget(), QWidget(), ScrollPage("settingsPage")
        off = label(_("The API server is off."), wraps=True)
        row((off, 1), self.settings_button, on=self.server_off_page, spacing=10, margins=(22, 0, 22, 0))
        title = label(_("Connected apps"), "strong")
        parts = self.live_rows, title, self.total, self.list, self.details, self.requests, STRETCH
        column(*parts, on=self._page.content, spacing=8, margins=(22, 12, 22, 12))
        nothing, top = label(_(_EMPTY), "muted", wraps=True), Qt.AlignmentFlag.AlignHCenter
        nothing.setAlignment(Qt.AlignmentFlag.AlignCenter)
        set_up = button(_("Connect an app…"), self.settings_requested, name=_("Connect an app"))
        column(STRETCH, nothing, (set_up, 0, top), STRETCH, on=self.empty_page, spacing=14, margins=(60, 0, 60, 0))
        self.forget_button = button(_("Forget app…"), self._ask_forget, "danger", name=_("Forget the chosen app"))
        self.close_button = button(_("Close"), self.close, "primary", name=_("Close connected apps"))
        below = row(self.forget_button, STRETCH, self.close_button, margins=(22, 0, 22, 0))
        shown = self.notices, self.server_off_page, (self._page, 1), (self.empty_page, 1), below
        column(*shown, on=self, spacing=12, margins=(0, 14, 0, 16))

    def refresh(self) -> None:
        server = self._api_server
        self._totals = server.totals.by_program()
        some = bool(self._totals or server.active_requests or server.recent_requests)
        is_open = self._runtime.settings.api_server or self._runtime.settings.share_devices
        self.server_off_page.setVisible(some and not is_open)
        self.live_rows.show_current(server.active_requests, server.loaded_slots, self._titles)
        names = sorted(self._totals, key=lambda name: -self._totals[name].last_at)
        before = self.list.current
        self.list.show_rows([program_row(name, self._label_of(name), self._totals[name]) for name in names])
        if before is None and names:
            self.list.select(names[0])
        self.total.setText(describe_totals(list(self._totals.values())) if self._totals else "")
        for part, shown in ((self._page, some), (self.empty_page, not some), (self.forget_button, some)):
            part.setVisible(shown)
        self._fit()
        self._show_current()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

        async def load_titles() -> None:
            self._titles = {chat.id: chat.title for chat in await self._runtime.chat.conversations()}
            self.refresh()

        self.run(load_titles())

    def _handle_event(self, event: Event) -> None:
        if isinstance(event, SettingsChanged | EngineChanged):
            self._update_timer.start()

    def _show_current(self) -> None:
        chosen = self.list.current
        name = str(chosen.value) if chosen else ""
        total = self._totals.get(name)
        self.details.setVisible(total is not None)
        if total is not None:
            self.details.show_program(name, total, self._api_server.rules(name))
        self.requests.show_requests(
            [record for record in reversed(self._api_server.recent_requests) if record.program == name]
        )
        self.forget_button.setEnabled(total is not None)

    def _set_rule(self, rule: str, is_on: bool) -> None:
        chosen = self.list.current
        if chosen is None:
            return
        entry, settings = f"{chosen.value} {rule}", self._runtime.settings
        others = tuple(other for other in settings.api_rules if other != entry)
        self.run(self._runtime.apply_settings(replace(settings, api_rules=(*others, entry) if is_on else others)))

    def _ask_forget(self) -> None:
        if (chosen := self.list.current) is None:
            return

        async def forget() -> None:
            await self._api_server.forget(str(chosen.value))
            self.refresh()

        text = _("This deletes its statistics and the saved memory of its prompts.")
        title = _("Forget “{name}”?", name=chosen.title)
        confirm(self, title, text, _("Forget"), lambda: self.run(forget()))

    def _fit(self) -> None:
        self.list.limit_height(_PROGRAM_ROWS)
