"""The windows beside the main one: each made when it is first wanted, and brought to the front from then on."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from kvchat.runtime import Runtime
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.controllers.sidebar import SidebarController
from kvchat.ui.engine.engine_window import EngineWindow
from kvchat.ui.manual.manual_window import ManualWindow
from kvchat.ui.models.models_window import ModelsWindow
from kvchat.ui.presets.chat_settings import ChatSettings, Subject
from kvchat.ui.programs.programs_window import ProgramsWindow
from kvchat.ui.settings.other_programs import OtherProgramsPage
from kvchat.ui.settings.presets import PresetsPage
from kvchat.ui.settings.settings_window import SettingsWindow
from kvchat.ui.settings.storage import StoragePage
from kvchat.ui.sidebar.deleted_window import DeletedWindow
from kvchat.ui.sidebar.library_window import LibraryWindow
from kvchat.ui.storage.saved_panel import SavedPanel
from kvchat.ui.storage.storage_panel import StoragePanel


class SideWindows(QObject):
    """Opens them, and joins those that lead to each other."""

    starter_requested = Signal()
    model_used = Signal()  # another model was chosen in the models window
    begun = Signal(str)  # a conversation began with its settings, or on documents

    def __init__(
        self, runtime: Runtime, look: Look, runner: TaskRunner, conversations: SidebarController, parent: QWidget
    ):
        super().__init__(parent)
        self._runtime, self._look, self._runner, self._parent = runtime, look, runner, parent
        self._conversations = conversations
        self._storage: StoragePanel | None = None
        self._saved: SavedPanel | None = None
        self._engine: EngineWindow | None = None
        self._deleted: DeletedWindow | None = None
        self._library: LibraryWindow | None = None
        self._programs: ProgramsWindow | None = None
        self._settings: SettingsWindow | None = None
        self._models: ModelsWindow | None = None
        self._manual: ManualWindow | None = None
        self._chat_settings: ChatSettings | None = None
        conversations.usage_changed.connect(self._show_usage)

    def open_storage(self) -> StoragePanel:
        if self._storage is None:
            self._storage = StoragePanel(self._runtime, self._look, self._runner, self._parent)
            self._storage.changed.connect(self._conversations.reload_soon)
            self._storage.saved_requested.connect(self.open_saved)
            self._storage.limits_requested.connect(lambda: self.open_settings(StoragePage.name))
        self._show_usage()  # as last told: a large store needs a moment to answer
        self._storage.refresh()
        self._storage.bring_forward()
        return self._storage

    def open_saved(self) -> SavedPanel:
        if self._saved is None:
            self._saved = SavedPanel(self._runtime, self._look, self._runner, self._parent)
        self._saved.refresh()
        self._saved.bring_forward()
        return self._saved

    def open_settings(self, page: str = "") -> SettingsWindow:
        if self._settings is None:
            self._settings = window = SettingsWindow(self._runtime, self._look, self._runner, self._parent)
            opens = {"models": self.open_models, "storage": self.open_storage, "programs": self.open_programs}
            window.leads_to.connect(lambda name: opens[name]())
        self._settings.show_page(page)
        return self._settings

    @property
    def settings_shown(self) -> SettingsWindow | None:
        return self._settings if self._settings is not None and self._settings.isVisible() else None

    def open_chat_settings(self, subject: Subject) -> ChatSettings:
        if self._chat_settings is None:
            self._chat_settings = ChatSettings(self._runtime, self._look, self._runner, self._parent)
            self._chat_settings.begun.connect(self.begun)
            self._chat_settings.presets_requested.connect(lambda: self.open_settings(PresetsPage.name))
        self._chat_settings.show_subject(subject)
        return self._chat_settings

    def open_models(self) -> ModelsWindow:
        if self._models is None:
            self._models = ModelsWindow(self._runtime, self._look, self._runner, self._parent)
            self._models.model_used.connect(self.model_used)
            self._models.starter_requested.connect(self.starter_requested)
        self._models.open_here()
        return self._models

    def open_engine(self, *, log: bool = False) -> EngineWindow:
        if self._engine is None:
            self._engine = EngineWindow(self._runtime, self._look, self._runner, self._parent)
        self._engine.show_page(self._engine.log if log else self._engine.live)
        return self._engine

    def open_deleted(self) -> DeletedWindow:
        if self._deleted is None:
            self._deleted = DeletedWindow(self._runtime, self._look, self._runner, self._parent)
            self._deleted.storage_requested.connect(lambda: self.open_settings(StoragePage.name))
        self._deleted.come()
        return self._deleted

    def open_library(self, prepared_id: str = "") -> LibraryWindow:
        if self._library is None:
            self._library = LibraryWindow(self._runtime, self._look, self._runner, self._parent)
            self._library.begun.connect(self.begun)
        self._library.bring_forward()
        if prepared_id:
            self._library.choose(prepared_id)
        return self._library

    def open_manual(self) -> ManualWindow:
        if self._manual is None:
            self._manual = ManualWindow(self._look, self._runner, self._parent)
        self._manual.bring_forward()
        return self._manual

    def open_programs(self) -> ProgramsWindow:
        if self._programs is None:
            self._programs = ProgramsWindow(self._runtime, self._look, self._runner, self._parent)
            self._programs.settings_requested.connect(lambda: self.open_settings(OtherProgramsPage.name))
        self._programs.bring_forward()
        return self._programs

    def _show_usage(self) -> None:
        usage = self._conversations.usage
        if self._storage is not None and usage is not None:
            self._storage.show_usage(usage, self._conversations.owners)
