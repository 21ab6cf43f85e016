"""The settings window: its list of pages, the general page, and the button that restarts the engine."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import ClassVar, TypeVar

from PySide6.QtCore import QRect, QSize, Qt, Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QListWidget, QListWidgetItem, QStackedWidget, QWidget

from kvchat.chat.events import EngineChanged, Event, SettingsChanged
from kvchat.runtime import Runtime
from kvchat.settings import Settings
from kvchat.system import login
from kvchat.text.language import N_, _
from kvchat.ui.base.building import STRETCH, button, column, label, row, styled
from kvchat.ui.base.icons import app_svg
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.settings.api_server import ApiServerPage
from kvchat.ui.settings.devices import DevicesPage
from kvchat.ui.settings.engines import EnginePage
from kvchat.ui.settings.model import ModelPage
from kvchat.ui.settings.page import SettingsPage
from kvchat.ui.settings.presets import PresetsPage
from kvchat.ui.settings.storage import StoragePage
from kvchat.ui.settings.tools import ToolsPage
from kvchat.ui.widgets.entries import SwitchEntry

P = TypeVar("P", bound=SettingsPage)

_PAGE_PADDING = 16  # pixels above plus below a page name
_LIST_PADDING = 66  # pixels beside a page name, including the list's


class GeneralPage(SettingsPage):
    name, key = N_("General"), "general"

    def __init__(self, runtime: Runtime, look: Look, panel: Panel) -> None:
        super().__init__(runtime, look, panel)
        self.add_settings(through="quick_key_enabled")
        text = _("Starts kvchat in the tray when you log in, without opening the window.")
        title = _("Start at login")
        self.login = self.add(
            DesktopSwitch(
                look, self, title, text, login.can_start_at_login, login.starts_at_login, login.start_at_login
            )
        )
        text = _("Adds kvchat to the desktop’s app menu. Some desktops require this for the Quick question shortcut.")
        add, is_added = partial(login.add_to_menu, icon=app_svg()), login.menu_entry().exists
        title = _("Show in the app menu")
        self.menu = self.add(DesktopSwitch(look, self, title, text, login.can_add_to_menu, is_added, add))
        self.add_settings()


class DesktopSwitch(SwitchEntry):
    """Switch for a desktop integration. Its state is stored in the desktop's own file, not in kvchat's settings."""

    def __init__(
        self,
        look: Look,
        page: SettingsPage,
        title: str,
        text: str,
        is_available: Callable[[], bool],
        is_on: Callable[[], bool],
        change: Callable[[bool], None],
    ) -> None:
        super().__init__(look, "", title, text, lambda _, on: page.run(self._change(on)))
        self._page, self._is_available, self._is_on, self._apply = page, is_available, is_on, change

    def refresh(self, settings: Settings) -> None:
        async def show() -> None:
            self.setVisible(await asyncio.to_thread(self._is_available))
            self.switch.setChecked(await asyncio.to_thread(self._is_on))

        self._page.run(show())

    async def _change(self, enabled: bool) -> None:
        try:
            await asyncio.to_thread(self._apply, enabled)
        finally:
            self.refresh(self._page.runtime.settings)


class SettingsWindow(Panel):
    pages: ClassVar = (
        GeneralPage,
        ModelPage,
        PresetsPage,
        ToolsPage,
        EnginePage,
        StoragePage,
        ApiServerPage,
        DevicesPage,
    )
    window_requested = Signal(str)  # see `SettingsPage`

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _("Settings"), parent, size=(780, 620), min_size=(560, 400))
        look.changed.connect(self._fit_list)
        self.list, self._stack = QListWidget(), QStackedWidget()
        self.list.setObjectName("settingsPages")
        self.list.setWordWrap(True)
        self.list.setAccessibleName(_("Pages"))
        for page in self.pages:
            QListWidgetItem(_(page.name), self.list)
        self._fit_list()
        frame, self.pending = styled(QFrame(), "notice"), QWidget()
        text = label(_("Your changes apply the next time the engine starts."), wraps=True)
        self.restart_button = button(_("Restart engine now"), lambda: self.run(runtime.restart_engine()), "primary")
        row((text, 1), self.restart_button, on=frame, margins=(14, 8, 8, 8))
        column(frame, on=self.pending, margins=(24, 8, 24, 4))
        around = column(self.notices, spacing=8, margins=(24, 12, 24, 0))
        close = button(_("Close"), self.close, name=_("Close the settings"))
        below = row(STRETCH, close, margins=(28, 12, 24, 16))
        right = column(around, (self._stack, 1), self.pending, below, spacing=0)
        row(self.list, (right, 1), on=self, spacing=0, margins=0)
        self.list.currentRowChanged.connect(lambda row: self._stack.setCurrentWidget(self.page(self.pages[row])))
        self.list.setCurrentRow(0)

    def page(self, page_type: type[P]) -> P:
        page = self.findChild(page_type)
        if page is None:
            page = page_type(self._runtime, self._look, self)
            page.window_requested.connect(self.window_requested)
            self._stack.addWidget(page)
            page.refresh()
        return page

    def _fit_list(self) -> None:
        self.list.ensurePolished()
        metrics, names = self.list.fontMetrics(), [_(page.name) for page in self.pages]
        widest = max(map(metrics.horizontalAdvance, names))
        if widest > self.screen().availableSize().width() // 5:
            widest = max(metrics.horizontalAdvance(word) for name in names for word in name.split())
        room = QRect(0, 0, widest, 10 * metrics.height())
        for number, name in enumerate(names):
            high = metrics.boundingRect(room, Qt.TextFlag.TextWordWrap, name).height()
            self.list.item(number).setSizeHint(QSize(0, high + _PAGE_PADDING))
        self.list.setFixedWidth(widest + _LIST_PADDING)

    def show_page(self, name: str = "") -> None:
        names = [page.name for page in self.pages]
        if name in names:
            self.list.setCurrentRow(names.index(name))
        self.bring_forward()
        self.list.setFocus()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.pending.setVisible(self._runtime.engine.restart_pending)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        for page in self.findChildren(SettingsPage):
            page.discard_edits()

    def _handle_event(self, event: Event) -> None:
        if isinstance(event, SettingsChanged | EngineChanged):
            self._refresh()

    def _refresh(self) -> None:
        for page in self.findChildren(SettingsPage):
            page.refresh()
        self.pending.setVisible(self._runtime.engine.restart_pending)
