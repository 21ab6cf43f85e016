"""The engine window: the engine's live state and speed, refreshed only while visible, and its log."""

from collections.abc import Sequence

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QGuiApplication, QHideEvent, QShowEvent
from PySide6.QtWidgets import QCheckBox, QFormLayout, QLabel, QPlainTextEdit, QTabWidget, QWidget

from kvchat.chat.events import EngineChanged, Event, FirstToken, Prefilling, ReplyFinished, Speed
from kvchat.engine.api.connection import EngineState, EngineStatus
from kvchat.engine.api.vitals import Vitals
from kvchat.engine.process.log import Level, filter_by_level
from kvchat.library.memory.demand import MemoryUse
from kvchat.runtime import Runtime
from kvchat.text.formatting import format_rate, format_size, format_tokens
from kvchat.text.language import N_, _, format_number, join_sentences
from kvchat.ui.base.building import STRETCH, button, column, label, plain_text, progress_bar, row
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look, page_font
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.settings.model import MemoryCharts
from kvchat.ui.widgets.entries import ChoiceBox
from kvchat.ui.widgets.layouts import ScrollPage
from kvchat.ui.widgets.text_search import TextSearch

_ROWS = (
    ("state", N_("Engine")),
    ("model", N_("Model")),
    ("now", N_("Activity")),
    ("context", N_("Context used")),
    ("prefill", N_("Processing")),
    ("decode", N_("Generating")),
    ("memory", N_("Memory used")),
    ("graphics", N_("GPU memory used")),
    ("process", N_("Process ID")),
)
_UNKNOWN = "–"


class LivePage(ScrollPage):
    def __init__(self, look: Look) -> None:
        super().__init__("page")
        self._values: dict[str, QLabel] = {}
        self.context_bar = progress_bar(_("Context used"))
        self.context_bar.setFixedWidth(260)
        rows = QWidget()
        form = QFormLayout(rows, horizontalSpacing=28, verticalSpacing=9)
        form.setContentsMargins(0, 0, 0, 0)
        for key, title in _ROWS:
            name, value = label(_(title), "muted"), label(_UNKNOWN, wraps=True, selectable=True)
            self._values[key] = value
            value.setAccessibleName(_(title))
            name.setAlignment(Qt.AlignmentFlag.AlignTop)  # aligned with the first line
            if key == "context":
                form.addRow(name, column(value, (self.context_bar, 0, Qt.AlignmentFlag.AlignLeft), spacing=5))
            else:
                form.addRow(name, value)
        self._charts_name, self.charts = label(_("Model in memory"), "muted"), MemoryCharts(look)
        # Below the rows, because the legends need the whole width.
        column(rows, self._charts_name, self.charts, STRETCH, on=self.content, spacing=9, margins=(4, 6, 4, 0))

    def value(self, key: str) -> str:
        return self._values[key].text()

    def _show(self, **texts: str | None) -> None:
        for key, text in texts.items():
            self._values[key].setText(_UNKNOWN if text is None else text)

    def show_memory(self, bars: Sequence[MemoryUse]) -> None:
        self._charts_name.setVisible(bool(bars))
        self.charts.show_memory(bars)

    def show_engine(self, status: EngineStatus, location: str, model: str | None) -> None:
        state = _(status.state.value)
        if status.restart_attempt:
            state = _("{state} (restarts: {times})", state=state, times=status.restart_attempt)
        failure = join_sentences(status.failure.title, status.failure.detail) if status.failure else ""
        self._show(state="\n".join(filter(None, (state, failure, location))), model=model or _("none"))
        if status.state is not EngineState.READY:
            self._show(now=None)

    def show_vitals(self, vitals: Vitals | None) -> None:
        slot = vitals.slot if vitals else None
        self.context_bar.setVisible(slot is not None)
        context = None
        if slot:
            tokens, context_size = format_tokens(slot.tokens), format_tokens(slot.context_size)
            context = _("{tokens} of {context_size} tokens", tokens=tokens, context_size=context_size)
            self.context_bar.setRange(0, max(1, slot.context_size))
            self.context_bar.setValue(slot.tokens)
            if not slot.busy or self.value("now") in (_UNKNOWN, _("idle")):
                self._show(now=_("busy") if slot.busy else _("idle"))

        def average(rate: float | None) -> str | None:
            return None if rate is None else _("{rate} on average", rate=format_rate(rate))

        memory, graphics = (vitals.memory, vitals.graphics_memory) if vitals else (None, None)
        self._show(
            context=context,
            prefill=average(vitals.speed.prefill) if vitals else None,
            decode=average(vitals.speed.decode) if vitals else None,
            memory=None if memory is None else format_size(memory),
            graphics=None if graphics is None else format_size(graphics),
            process=str(vitals.pid) if vitals and vitals.pid is not None else None,
        )

    def handle_event(self, event: Event) -> None:
        match event:
            case Prefilling(done_tokens=done, total=total):
                done_text, total_text = format_number(done), format_number(total)
                self._show(now=_("processing, {done} of {total} tokens", done=done_text, total=total_text))
            case FirstToken():
                self._show(now=_("generating"))
            case Speed(tokens_per_second=rate) if rate:
                self._show(now=_("generating, {rate}", rate=format_rate(rate)))
            case ReplyFinished():
                self._show(now=_("idle"))


_LEVELS = ((Level.DETAIL, N_("All messages")), (Level.WARNING, N_("Warnings and errors")), (Level.ERROR, N_("Errors")))


class LogPage(QWidget):
    """The engine's log. It scrolls to new lines until the user scrolls up; scrolling to the end resumes this."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._source: tuple[list[str], Level] = [], Level.DETAIL  # all lines, and the level shown
        self._shown_lines: list[str] = []
        self._is_updating = False
        self.level_box = ChoiceBox(look)
        self.level_box.setAccessibleName(_("Log level"))
        for level, title in _LEVELS:
            self.level_box.addItem(_(title), level.value)
        self.follow_box = QCheckBox(_("Auto-scroll"))
        self.follow_box.setChecked(True)
        self.follow_box.setAccessibleDescription(_("Scroll to new lines automatically"))
        clipboard = QGuiApplication.clipboard()
        self.copy_button = button(
            _("Copy"), lambda: clipboard.setText("\n".join(self._shown_lines)), name=_("Copy the log")
        )
        self.text = plain_text(_("Engine log"), page_font(look.fonts.mono, look.fonts.small))
        self.text.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.text.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # engine output is English
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.text_search = TextSearch(look, _("Search the log"), self.text)
        below = row(self.level_box, self.follow_box, self.text_search.count, STRETCH, self.copy_button, spacing=10)
        column(self.text_search, below, (self.text, 1), on=self, spacing=10, margins=0)
        bar = self.text.verticalScrollBar()
        bar.valueChanged.connect(self._scrolled)
        self.text_search.match_selected.connect(lambda: self.follow_box.setChecked(False))
        self.level_box.activated.connect(lambda _: self.show_lines(self._source[0]))
        self.follow_box.toggled.connect(lambda is_on: bar.setValue(bar.maximum()) if is_on else None)

    def show_lines(self, all_lines: list[str]) -> None:
        """Show these lines. Only new ones are appended, so that selected text stays selected."""
        source = all_lines, Level(self.level_box.currentData())
        if source == self._source:
            return
        self._source, lines = source, filter_by_level(*source)
        bar = self.text.verticalScrollBar()
        position = bar.value()
        self._is_updating = True
        if self._shown_lines and lines[: len(self._shown_lines)] == self._shown_lines:
            if added := lines[len(self._shown_lines) :]:
                self.text.appendPlainText("\n".join(added))
        else:
            self.text.setPlainText("\n".join(lines))
        self._shown_lines = lines
        self.text_search.mark_all()
        bar.setValue(bar.maximum() if self.follow_box.isChecked() else position)
        self._is_updating = False

    def _scrolled(self, value: int) -> None:
        if not self._is_updating:  # scrolled by the user
            self.follow_box.setChecked(value >= self.text.verticalScrollBar().maximum() - 1)


_REFRESH_MS = 1000


class EngineWindow(Panel):
    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _("Engine"), parent, size=(840, 560), min_size=(480, 360))
        self._is_loading = False
        self.live_page, self.log_page = LivePage(look), LogPage(look)
        self.tabs = QTabWidget()
        self.tabs.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # its tab bar takes focus and tells screen readers more
        self.tabs.setAccessibleName(_("Engine"))
        self.tabs.setDocumentMode(True)
        self.tabs.tabBar().setDrawBase(False)
        self.tabs.addTab(self.live_page, _("Status"))
        self.tabs.addTab(self.log_page, _("Log"))
        tip = _("Versions, settings and the log for a bug report, without keys and names")
        self.diagnostics_button = button(_("Copy diagnostics"), lambda: self.run(self._copy_diagnostics()), tip=tip)
        buttons = row(
            self.diagnostics_button, STRETCH, button(_("Close"), self.close, name=_("Close the engine window"))
        )
        column(self.notices, (self.tabs, 1), buttons, on=self, spacing=12, margins=(20, 14, 20, 16))
        self._timer = QTimer(self, interval=_REFRESH_MS)
        self._timer.timeout.connect(self.refresh)

    def refresh(self) -> None:
        runtime = self._runtime
        self.log_page.show_lines(runtime.engine.log_lines)
        self.live_page.show_engine(runtime.engine.status, runtime.engine.location, runtime.model.label)
        self.live_page.show_memory(runtime.engine.memory_uses)

        async def load_vitals() -> None:
            try:
                self.live_page.show_vitals(await runtime.engine_vitals())
            finally:
                self._is_loading = False

        if not self._is_loading:
            self._is_loading = True  # a slow engine is not asked again before it has answered
            self.run(load_vitals())

    async def _copy_diagnostics(self) -> None:
        QGuiApplication.clipboard().setText(await self._runtime.diagnostics())
        self.diagnostics_button.setText(_("Copied"))
        QTimer.singleShot(2000, self.diagnostics_button, lambda: self.diagnostics_button.setText(_("Copy diagnostics")))

    def _handle_event(self, event: Event) -> None:
        self.live_page.handle_event(event)
        if isinstance(event, EngineChanged):
            self.refresh()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()
        self._timer.start()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._timer.stop()
