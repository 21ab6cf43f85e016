"""A look inside the engine: how it is doing, and what it says."""

from __future__ import annotations

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QGuiApplication, QHideEvent, QShowEvent
from PySide6.QtWidgets import QTabWidget, QWidget

from kvchat.chat.events import EngineChanged, Event
from kvchat.runtime import Runtime
from kvchat.ui.base.building import STRETCH, button, column, row
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.engine.engine_live import LivePage
from kvchat.ui.engine.engine_log import LogPage
from kvchat.words.language import _

_REFRESH_MS = 1000


class EngineWindow(Panel):
    """Two pages. Looks things up while it is on show, and never otherwise."""

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(look, runner, _("Engine"), parent, size=(840, 560), least=(480, 360))
        self._runtime = runtime
        self.follow(runtime.events.subscribe, self._hear)
        self._looking = False
        self.live, self.log = LivePage(), LogPage(look)
        self.tabs = QTabWidget()
        self.tabs.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # its bar takes the keyboard, and tells a screen reader more
        self.tabs.setAccessibleName(_("Engine"))
        self.tabs.setDocumentMode(True)
        self.tabs.tabBar().setDrawBase(False)
        for page, words in ((self.live, _("Live")), (self.log, _("Log"))):
            self.tabs.addTab(page, words)
        tip = _("Versions, settings and the log, without keys and names: for a report")
        self.diagnostics = button(_("Copy diagnostics"), lambda: self.run(self._copy_diagnostics()), tip=tip)
        buttons = row(self.diagnostics, STRETCH, button(_("Close"), self.close, name=_("Close the engine window")))
        column(self.notices, (self.tabs, 1), buttons, on=self, spacing=12, margins=(20, 14, 20, 16))
        self._timer = QTimer(self, interval=_REFRESH_MS)
        self._timer.timeout.connect(self.refresh)

    def show_page(self, page: QWidget) -> None:
        self.tabs.setCurrentWidget(page)
        self.bring_forward()

    def refresh(self) -> None:
        """Show what is now. A slow engine is not asked again before it has answered."""
        runtime = self._runtime
        self.log.show_lines(runtime.engine.log_lines)
        self.live.show_engine(runtime.engine.status, runtime.engine.location, runtime.model.name)
        if not self._looking:
            self._looking = True
            self.run(self._look_up())

    async def _look_up(self) -> None:
        try:
            self.live.show_vitals(await self._runtime.engine_vitals())
        finally:
            self._looking = False

    async def _copy_diagnostics(self) -> None:
        QGuiApplication.clipboard().setText(await self._runtime.diagnostics())
        self.diagnostics.setText(_("Copied"))
        QTimer.singleShot(2000, self.diagnostics, lambda: self.diagnostics.setText(_("Copy diagnostics")))

    def _hear(self, event: Event) -> None:
        self.live.hear(event)
        if isinstance(event, EngineChanged):
            self.refresh()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()
        self._timer.start()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._timer.stop()
