"""Above the transcript: the conversation's title, the model, and the rest behind three dots."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QMenu, QPushButton, QSizePolicy, QToolButton, QWidget

from kvchat.ui.elided import ElidedLabel
from kvchat.ui.icons import icon
from kvchat.ui.keep_menu import add_keep_actions
from kvchat.ui.theme import Look


class Header(QWidget):
    """Title, model button, overflow menu. Every entry is a signal."""

    rename_requested = Signal()
    name_requested = Signal()
    delete_requested = Signal()
    pin_requested = Signal(bool)  # pinned from now on
    never_save_requested = Signal(bool)  # never saved from now on
    disk_requested = Signal()
    engine_requested = Signal()
    export_requested = Signal()
    export_all_requested = Signal()
    import_requested = Signal()
    import_folder_requested = Signal()
    back_up_requested = Signal()
    restore_requested = Signal()
    restart_requested = Signal()
    shortcuts_requested = Signal()
    model_requested = Signal()
    chat_settings_requested = Signal()
    settings_requested = Signal()
    quit_requested = Signal()

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._look = look
        self.setObjectName("header")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.title = ElidedLabel("title")
        self.model = QPushButton("No model")
        self.model.setProperty("kind", "flat")
        self.model.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
        self.model.setMaximumWidth(260)
        self.model.setLayoutDirection(Qt.LayoutDirection.RightToLeft)  # the arrow after the name
        self.model_menu = QMenu(self)
        self.model.setMenu(self.model_menu)
        self.more = QToolButton()
        self.more.setAccessibleName("More")
        self.more.setToolTip("More")
        self.more.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.menu = self._build_menu()
        self.more.setMenu(self.menu)
        row = QHBoxLayout(self)
        row.setContentsMargins(24, 10, 16, 10)
        row.setSpacing(8)
        row.addWidget(self.title, 1)
        row.addWidget(self.model)
        row.addWidget(self.more)
        self.show_model(None, "")
        look.changed.connect(self._restyle)
        self._restyle()

    def show_conversation(self, title: str, *, exists: bool, pinned: bool, never_save: bool) -> None:
        """The open conversation. One that does not exist yet cannot be renamed, deleted, pinned."""
        self.title.set_text(title)
        for action in (self._rename, self.name_by_model, self._delete, self._export, self.pin, self.never_save):
            action.setEnabled(exists)
        self.pin.setChecked(pinned)
        self.never_save.setChecked(never_save)

    def show_model(self, name: str | None, context_reason: str) -> None:
        """The model's name, and why its context is as large as it is."""
        shown = self.model.fontMetrics().elidedText(name or "No model", Qt.TextElideMode.ElideMiddle, 210)
        self.model.setText(shown.replace("&", "&&"))  # a lone & would mark a shortcut key
        self.model.setAccessibleName(f"Model: {name or 'none'}")
        self.model.setToolTip(name or "")
        self.model_menu.clear()
        self.model_menu.addAction("Choose another model…", self.model_requested.emit)
        if context_reason:
            self.model_menu.addSeparator()
            self.model_menu.addAction(context_reason).setEnabled(False)

    def _build_menu(self) -> QMenu:
        menu = QMenu(self)
        self._rename = menu.addAction("Rename", self.rename_requested.emit)
        self.name_by_model = menu.addAction("Name by the model", self.name_requested.emit)
        self._delete = menu.addAction("Delete chat", self.delete_requested.emit)
        menu.addSeparator()
        self.pin, self.never_save = add_keep_actions(menu, self.pin_requested.emit, self.never_save_requested.emit)
        menu.addSeparator()
        menu.addAction("Chat settings…", self.chat_settings_requested.emit)
        menu.addSeparator()
        self._export = menu.addAction("Export this chat…", self.export_requested.emit)
        keeping = menu.addMenu("Import, export, back up")
        keeping.addAction("Export all chats…", self.export_all_requested.emit)
        keeping.addAction("Import chats…", self.import_requested.emit)
        keeping.addAction("Import a folder of chats…", self.import_folder_requested.emit)
        keeping.addSeparator()
        keeping.addAction("Back up…", self.back_up_requested.emit)
        keeping.addAction("Restore from a backup…", self.restore_requested.emit)
        menu.addSeparator()
        menu.addAction("Disk usage…", self.disk_requested.emit)
        menu.addAction("Engine…", self.engine_requested.emit)
        menu.addAction("Restart engine", self.restart_requested.emit)
        menu.addSeparator()
        menu.addAction("Settings…\tCtrl+,", self.settings_requested.emit)
        menu.addAction("Keyboard shortcuts\tF1", self.shortcuts_requested.emit)
        menu.addAction("Quit", self.quit_requested.emit)
        return menu

    def _restyle(self) -> None:
        self.model.setIcon(icon("chevron-down", self._look.theme.muted))
        self.more.setIcon(icon("dots", self._look.theme.text))
