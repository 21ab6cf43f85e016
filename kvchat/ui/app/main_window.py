"""The main window: lays out its parts, and connects shortcuts and menus to actions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QCloseEvent, QHideEvent, QKeyEvent, QKeySequence, QShowEvent
from PySide6.QtWidgets import QMainWindow, QStackedWidget, QWidget

from kvchat.ui.app.window_state import WindowLayout, WindowState
from kvchat.ui.base.building import column
from kvchat.ui.base.icons import app_icon
from kvchat.ui.base.theme import Look
from kvchat.ui.chat.chat_page import ChatPage, DocumentsLine, Header
from kvchat.ui.chat.composer import Composer, StartupDrafts
from kvchat.ui.chat.status_strip import ContextMeter, StatusStrip
from kvchat.ui.desktop.activation import set_activation_token
from kvchat.ui.sidebar.conversation_list import Row, arrange_chats
from kvchat.ui.sidebar.sidebar import Sidebar

if TYPE_CHECKING:
    from kvchat.chat.record.messages import Conversation
    from kvchat.runtime import Runtime


class MainWindow(QMainWindow):
    """The main window. Construct it, call `join` with the runtime on a running qasync loop, then `await start()`.

    The constructor creates only the parts of the first frame, so that the user can read and type while the other
    modules are imported. Call `await finish()` before closing the runtime.
    """

    quit_requested = Signal()
    shown_changed = Signal()

    def __init__(self, look: Look, config: Path) -> None:
        """`config` is the folder of `window.ini`."""
        super().__init__()
        self.look = look
        self._joined = False
        self._pressed: list[QKeySequence] = []  # keys pressed before the UI was ready
        self.window_state = WindowState(config / "window.ini")
        self.setWindowTitle("kvchat")
        self.setWindowIcon(app_icon())
        self.sidebar, self.header, self.documents = Sidebar(look), Header(look), DocumentsLine(look)
        self.composer, self.context_meter, self.status_strip = Composer(look), ContextMeter(look), StatusStrip(look)
        self._chat_page = ChatPage(look, self.header, self.documents, self.composer, self.context_meter)
        self._pages = QStackedWidget()
        self._pages.addWidget(self._chat_page)
        self.window_layout = WindowLayout(self, look, self.window_state, self.sidebar, self.header, self._pages)
        content = QWidget()
        column((self.window_layout.splitter, 1), self.status_strip, on=content, spacing=0, margins=0)
        self.setCentralWidget(content)
        self.window_layout.restore()
        self.composer.set_starting(True)
        self.startup_drafts = StartupDrafts(self.composer, self)
        self.sidebar.selected.connect(self.startup_drafts.switch_to)
        self.composer.focus()

    def show_initial_chats(self, chats: Sequence[Conversation], drafts: Mapping[str, str]) -> None:
        arranged_chats = arrange_chats(chats, self.sidebar.arrangement)
        newest = arranged_chats[0].id if arranged_chats else None
        self.sidebar.show_chats(chats, Row, newest)
        for chat in arranged_chats[:1]:
            self.header.show_conversation(chat.title, exists=False)
        self.startup_drafts.restore(newest or "", drafts)

    def join(self, runtime: Runtime) -> None:
        """Create the parts missing from the first frame, and connect them to the runtime."""
        from kvchat.ui.base.tasks import TaskRunner
        from kvchat.ui.chat.cards import ContextCard, EngineCard
        from kvchat.ui.dialogs.panel import Notices
        from kvchat.ui.models.first_start import FirstStart
        from kvchat.ui.transcript.find import FindBar
        from kvchat.ui.transcript.transcript import Transcript

        self.runtime, look = runtime, self.look
        self.notices = Notices(look)
        self.runner = TaskRunner(self.notices.show_error, self.notices.show_bug)
        self.transcript = Transcript(look)
        self.find_bar = FindBar(look, self.transcript)
        self.engine_card, self.context_card = EngineCard(), ContextCard()
        self.first_start = FirstStart(runtime, look, self.runner, lambda path: self.models.use(path))
        cards = self.engine_card, self.context_card
        self._chat_page.complete(self.notices, self.find_bar, self.transcript, cards)
        self._pages.addWidget(self.first_start)
        self._make_controllers()
        self._connect()
        self._joined = True
        self._choose_page()

    def _make_controllers(self) -> None:
        from kvchat.ui.app.keyboard import FocusController, KeyboardController
        from kvchat.ui.app.side_windows import SideWindows
        from kvchat.ui.app.tray import QuitController
        from kvchat.ui.commands import fill_menu_bar
        from kvchat.ui.controllers.attachments import AttachmentLoader
        from kvchat.ui.controllers.chat import ChatController
        from kvchat.ui.controllers.context import ChatDocumentsController, ContextController
        from kvchat.ui.controllers.model import ModelController
        from kvchat.ui.controllers.tools import ToolsController
        from kvchat.ui.controllers.transfer import TransferController
        from kvchat.ui.models.model_choice import ModelMenu

        runtime = self.runtime
        self.chat = ChatController(runtime, self, self)
        page = self._chat_page
        self.attachments = AttachmentLoader(
            runtime, self.look, self.composer, self.chat.drafts, self.runner, self.notices, page
        )
        self.chat.conversation_changed.connect(self.attachments.switch_chat)
        self.attachments.bundle_given.connect(self.install_bundle)
        self._unsubscribe = runtime.events.subscribe(self.attachments.handle_event)
        self.context = ContextController(runtime, self, self.chat)
        self.chat_documents = ChatDocumentsController(runtime, self, self.chat, self)
        self.tools = ToolsController(runtime, self, self.chat, self)
        self.transfer = TransferController(runtime, self, self.chat.conversations, self)
        self.models = ModelController(runtime, self, self.chat, self)
        self.model_menu = ModelMenu(runtime, self.header.model_menu, self.runner, lambda: self.models.current)
        self.side_windows = SideWindows(runtime, self.look, self.runner, self.chat.conversations, self)
        self.quit_controller = QuitController(runtime, self)
        self.keyboard = KeyboardController(
            runtime, self.chat, self.runner, self, self.composer.editor, self._handlers(), self._useless_actions
        )
        FocusController(self, self.composer, self.transcript)
        if sys.platform == "darwin":
            fill_menu_bar(self.menuBar(), self.keyboard.actions)

    async def start(self) -> None:
        self.sidebar.selected.disconnect(self.startup_drafts.switch_to)
        await self.chat.start(self.startup_drafts)
        self.composer.emit_pending_texts()
        self.runtime.chat.finder.start_indexing()
        self.composer.focus()
        for keys in self._pressed:
            for action in self.actions():
                if keys in action.shortcuts():
                    action.trigger()

    async def finish(self) -> None:
        """Save the window's position, stop listening, end tasks. The caller closes the runtime.

        Raises StorageFailed if unsent text could not be saved.
        """
        self.window_layout.remember()
        import asyncio

        from kvchat.ui.controllers.views import Controller

        await self.chat.drafts.wait_until_released()
        for controller in self.findChildren(Controller):
            controller.close()
        self._unsubscribe()
        try:
            await self.chat.drafts.save()
        finally:
            await self.runner.close()
            await asyncio.to_thread(self.window_state.wait_until_written)

    def raise_window(self, activation_token: str = "") -> None:
        set_activation_token(activation_token)
        if self.isMinimized():
            self.showNormal()
        self.show()
        self.raise_()
        self.activateWindow()

    def show_chat(self, conversation_id: str | None, activation_token: str = "", _checked: bool = False) -> None:
        self.raise_window(activation_token)
        self._pages.setCurrentWidget(self._chat_page)
        self.window_layout.show_page()
        self.chat.open(conversation_id)
        if conversation_id is None:
            self.composer.focus()

    def new_conversation(self) -> None:
        self.show_chat(None)

    def install_bundle(self, path: Path) -> None:
        from kvchat.ui.settings.tools import ToolsPage

        self.side_windows.open_tool_settings().page(ToolsPage).install(path)

    def show_first_start(self) -> None:
        self.first_start.show_choices()
        self._pages.setCurrentWidget(self.first_start)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if not self._joined:
            self._pressed.append(QKeySequence(event.keyCombination()))
        super().keyPressEvent(event)

    def focusNextPrevChild(self, next: bool) -> bool:
        return self.transcript.focus_next_in_window(next) if self._joined else super().focusNextPrevChild(next)

    def closeEvent(self, event: QCloseEvent) -> None:
        self.window_layout.remember()
        event.ignore()
        if self._joined:
            self.quit_controller.close_window()
        else:
            self.quit()

    def quit(self) -> None:
        (self.quit_controller.ask if self._joined else self.quit_requested.emit)()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.shown_changed.emit()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.shown_changed.emit()

    def _connect(self) -> None:
        chat, runtime, sidebar, header = self.chat, self.runtime, self.sidebar, self.header
        chat.content_changed.connect(self._chat_page.show_messages)
        chat.model_changed.connect(self._choose_page)
        self.first_start.back_button.clicked.connect(lambda: self._pages.setCurrentWidget(self._chat_page))
        for pair in (self.first_start.other_computer_button, self.engine_card.pair_button):
            pair.clicked.connect(self.side_windows.open_engine_settings)
        for new in (self.context_card.new_chat_button, sidebar.new_button):
            new.clicked.connect(self.new_conversation)
        for leave in (self.find_bar.closed, header.rename_ended):
            leave.connect(self.composer.focus)
        sidebar.selected.connect(lambda chosen: self._pages.setCurrentWidget(self._chat_page))
        for chosen in (sidebar.selected, sidebar.search_panel.results.chosen):
            chosen.connect(lambda chosen: self.window_layout.show_page())
        sidebar.list.typed.connect(self.composer.insert_text)
        sidebar.library_button.clicked.connect(self.side_windows.open_library)
        self.chat_documents.library_requested.connect(self.side_windows.open_library)
        sidebar.usage_button.clicked.connect(self.side_windows.open_storage)
        for toggle in (header.sidebar_button, sidebar.hide_button):
            toggle.clicked.connect(self.window_layout.toggle_sidebar)
        header.renamed.connect(lambda title: self.runner.start(runtime.chat.rename(chat.current or "", title)))

        def fill_chat_menu() -> None:
            id = chat.current or ""
            chat.conversations.fill_menu(header.chat_menu, id, [id], header.begin_rename)

        header.chat_menu.aboutToShow.connect(fill_chat_menu)
        chat.conversations.settings_requested.connect(self.open_chat_settings)
        chat.conversations.export_requested.connect(self.transfer.export)
        chat.conversations.export_with_memory_requested.connect(self.transfer.export_with_memory)
        self.transfer.imported.connect(lambda ids: self.runner.start(chat.conversations.show_imported(ids)))
        self.transfer.imported.connect(lambda chosen: self.window_layout.show_sidebar())
        self.engine_card.start_button.clicked.connect(lambda: self.runner.start(runtime.start_engine()))
        self.engine_card.restart_button.clicked.connect(lambda: self.runner.start(runtime.restart_engine()))
        self.engine_card.own_engine_button.clicked.connect(lambda: self.runner.start(runtime.use_server(None)))
        self.engine_card.log_button.clicked.connect(lambda: self.side_windows.open_engine(show_log=True))
        self.side_windows.chat_started.connect(chat.open)
        self.tools.settings_requested.connect(self.side_windows.open_tool_settings)
        chat.forked.connect(self.show_chat)  # also from the quick window
        self.side_windows.model_used.connect(self.models.apply_default)
        self.side_windows.starter_requested.connect(self.show_first_start)
        self.side_windows.starter_requested.connect(self.first_start.fetch_starter)
        self.model_menu.chosen.connect(lambda path: self.runner.start(self.models.switch(path)))
        for choosing in (self.models.models_requested, self.model_menu.more_requested, chat.models_requested):
            choosing.connect(self.side_windows.open_models)
        self.models.repository_requested.connect(lambda name: self.side_windows.open_models().open_repository(name))
        self.quit_controller.agreed.connect(self.quit_requested)
        header.requested.connect(self.keyboard.run)

    def _choose_page(self) -> None:
        if self.runtime.model.is_configured:
            self._pages.setCurrentWidget(self._chat_page)
        else:
            self.show_first_start()

    def open_chat_settings(self, id: str | None = None) -> None:
        """Open the settings of a chat, by default the open one, which may be a new chat that is not stored yet."""
        conversations, id = self.chat.conversations, id or self.chat.current
        conversation = conversations.conversation(id)
        model = conversation.model if conversation else None
        self.side_windows.open_chat_settings().show_chat(id, conversations.title(id), model)

    def _handlers(self) -> dict[str, Callable[[], object]]:
        return {
            "new": self.new_conversation,
            "previous": lambda: self.sidebar.select_neighbor(-1),
            "next": lambda: self.sidebar.select_neighbor(1),
            "list": lambda: self._in_sidebar(self.sidebar.list.setFocus),
            "rename": self._rename,
            "sidebar": self.window_layout.toggle_sidebar,
            "full-screen": lambda: self.setWindowState(self.windowState() ^ Qt.WindowState.WindowFullScreen),
            "name": lambda: self._run_for_open_chat(
                lambda id: self.runner.start(self.runtime.chat.title_generator.generate(id))
            ),
            "delete": lambda: self._run_for_open_chat(lambda id: self.sidebar.delete_requested.emit([id])),
            "undo": self.notices.undo_last,
            "deleted": self.side_windows.open_deleted,
            "library": self.side_windows.open_library,
            "compose": self.composer.focus,
            "stop": lambda: (self.find_bar.close_bar if self.find_bar.isVisible() else self.chat.stop)(),
            "regenerate": self.chat.regenerate_last,
            "edit": self.chat.edit_last,
            "attach": self.attachments.choose_files,
            "screenshot": self.attachments.take_screenshot,
            "find": self.find_bar.start_search,
            "find-next": lambda: self.find_bar.step(1),
            "find-previous": lambda: self.find_bar.step(-1),
            "search": lambda: self._in_sidebar(self.sidebar.search_panel.focus),
            "chat-settings": self.open_chat_settings,
            "tools": self.tools.open,
            "settings": self.side_windows.open_settings,
            "models": self.side_windows.open_models,
            "engine": self.side_windows.open_engine,
            "log": lambda: self.side_windows.open_engine(show_log=True),
            "restart-engine": lambda: self.runner.start(self.runtime.restart_engine()),
            "disk": self.side_windows.open_storage,
            "saved": self.side_windows.open_time_saved,
            "programs": self.side_windows.open_programs,
            "manual": self.side_windows.open_manual,
            "quit": self.quit,
            "export": lambda: self._run_for_open_chat(lambda id: self.transfer.export([id])),
            "export-memory": lambda: self._run_for_open_chat(self.transfer.export_with_memory),
            "export-all": self.transfer.export,
            "import": self.transfer.choose_import,
            "import-folder": self.transfer.choose_import_folder,
            "back-up": self.transfer.back_up,
            "restore": self.transfer.restore,
        }

    def _useless_actions(self) -> set[str]:
        from kvchat.chat.record.messages import Role
        from kvchat.engine.api.connection import EngineState

        chat, messages, settings = self.chat.current, self.transcript.messages, self.runtime.settings
        is_answering = self.chat.is_answering
        has_reply = bool(messages) and messages[-1].role is Role.ASSISTANT
        useful = {
            **dict.fromkeys(("rename", "name", "delete", "export", "export-memory"), chat is not None),
            **dict.fromkeys(("previous", "next", "list", "export-all"), bool(self.chat.conversations.titles)),
            "stop": is_answering,
            "regenerate": has_reply and not is_answering,
            "edit": not is_answering and any(message.role is Role.USER for message in messages),
            "find": bool(messages),
            "undo": bool(self.notices.undos),
            "restart-engine": self.runtime.engine.status.state is not EngineState.STOPPED,
            "dark": settings.theme != "dark",
            "light": settings.theme != "light",
            "like-system": settings.theme != "system",
        }
        return {action for action, is_useful in useful.items() if not is_useful}

    def _in_sidebar(self, action: Callable[[], object]) -> None:
        self.window_layout.show_sidebar()
        action()

    def _rename(self) -> None:
        if not self.sidebar.begin_rename():
            self.header.begin_rename()

    def _run_for_open_chat(self, action: Callable[[str], object]) -> None:
        if self.chat.current is not None:
            action(self.chat.current)
