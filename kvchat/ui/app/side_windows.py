"""The secondary windows: each is created at its first use, and only brought to the front afterwards."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from PySide6.QtCore import QObject, Signal, SignalInstance
from PySide6.QtWidgets import QWidget

from kvchat.runtime import Runtime
from kvchat.ui.app.engine_window import EngineWindow
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.controllers.sidebar import SidebarController
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.manual.manual_window import ManualWindow
from kvchat.ui.models.models_window import ModelsWindow
from kvchat.ui.programs.programs_window import ProgramsWindow
from kvchat.ui.settings.api_server import ApiServerPage
from kvchat.ui.settings.engines import EnginePage
from kvchat.ui.settings.presets import ChatSettingsWindow, PresetsPage
from kvchat.ui.settings.settings_window import SettingsWindow
from kvchat.ui.settings.storage import StoragePage
from kvchat.ui.settings.tools import ToolsPage
from kvchat.ui.sidebar.deleted_window import DeletedWindow
from kvchat.ui.sidebar.library_window import LibraryWindow
from kvchat.ui.storage.saved_panel import TimeSavedPanel
from kvchat.ui.storage.storage_panel import StoragePanel

P = TypeVar("P", bound=Panel)


class SideWindows(QObject):
    starter_requested = Signal()
    model_used = Signal()  # a model was chosen in the models window
    chat_started = Signal(str)  # conversation id: started with settings or documents

    def __init__(
        self, runtime: Runtime, look: Look, runner: TaskRunner, conversations: SidebarController, parent: QWidget
    ) -> None:
        super().__init__(parent)
        self._arguments = runtime, look, runner, parent
        self._conversations = conversations
        self._windows: dict[Callable[..., Panel], Any] = {}
        self._open_limits = partial(self.open_settings, StoragePage.name)
        conversations.usage_changed.connect(self._show_usage)

    def _open(self, kind: Callable[..., P], **slots: Callable[..., object] | SignalInstance) -> P:
        """Show the only window of this class. If it is new, connect each of `slots` to the signal of the same name."""
        if kind not in self._windows:
            self._windows[kind] = kind(*self._arguments)
            for signal, slot in slots.items():
                getattr(self._windows[kind], signal).connect(slot)
        window: P = self._windows[kind]
        window.bring_forward()
        return window

    def open_storage(self) -> StoragePanel:
        changed, limits = self._conversations.reload_soon, self._open_limits
        panel = self._open(StoragePanel, changed=changed, saved_requested=self.open_time_saved, limits_requested=limits)
        self._show_usage()  # show the last result: a large store answers slowly
        panel.refresh()
        return panel

    def open_time_saved(self) -> TimeSavedPanel:
        panel = self._open(TimeSavedPanel)
        panel.refresh()
        return panel

    def open_settings(self, page: str = "") -> SettingsWindow:
        openers = {"models": self.open_models, "storage": self.open_storage, "programs": self.open_programs}
        window = self._open(SettingsWindow, window_requested=lambda name: openers[name]())
        window.show_page(page)
        return window

    def open_tool_settings(self) -> SettingsWindow:
        return self.open_settings(ToolsPage.name)

    def open_engine_settings(self) -> SettingsWindow:
        return self.open_settings(EnginePage.name)

    def open_chat_settings(self) -> ChatSettingsWindow:
        presets = partial(self.open_settings, PresetsPage.name)
        return self._open(ChatSettingsWindow, chat_started=self.chat_started, presets_requested=presets)

    def open_models(self) -> ModelsWindow:
        window = self._open(ModelsWindow, model_used=self.model_used, starter_requested=self.starter_requested)
        window.open_local()
        return window

    def open_engine(self, *, show_log: bool = False) -> EngineWindow:
        window = self._open(EngineWindow)
        window.tabs.setCurrentWidget(window.log_page if show_log else window.live_page)
        return window

    def open_deleted(self) -> DeletedWindow:
        window = self._open(DeletedWindow, storage_requested=self._open_limits)
        window.list.setFocus()
        return window

    def open_library(self, prepared_id: str = "") -> LibraryWindow:
        window = self._open(LibraryWindow, chat_started=self.chat_started)
        if prepared_id:
            window.choose(prepared_id)
        return window

    def open_manual(self) -> ManualWindow:
        return self._open(ManualWindow)

    def open_programs(self) -> ProgramsWindow:
        return self._open(ProgramsWindow, settings_requested=partial(self.open_settings, ApiServerPage.name))

    def _show_usage(self) -> None:
        usage = self._conversations.usage
        if usage is not None and StoragePanel in self._windows:
            self._windows[StoragePanel].show_usage(usage, self._conversations.owners)
