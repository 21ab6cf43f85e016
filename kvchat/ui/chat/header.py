"""Above the transcript: the conversation's title and its menu, the model, and the menu of everything else."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QAction, QKeyEvent, QMouseEvent, QResizeEvent
from PySide6.QtWidgets import QLineEdit, QMenu, QPushButton, QSizePolicy, QWidget

from kvchat.ui.base.building import button, row, tool_button
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look
from kvchat.ui.commands.shortcuts import words_of
from kvchat.ui.widgets.elided import ElidedLabel
from kvchat.words.language import _

_MODEL_WIDTH = 260  # pixels at most, at 100 % text


class Header(QWidget):
    """Title, this chat's menu, model button, kvchat's menu. Every entry is a signal."""

    renamed = Signal(str)  # the title that was typed
    rename_ended = Signal()
    requested = Signal(str)  # an action of the table of shortcuts

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._look, self._exists, self._model_name = look, False, _("No model")
        self.setObjectName("header")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.sidebar = tool_button(_("Show the sidebar"), tip=_("Show the sidebar (Ctrl+B)"))
        self.title, self.field = ElidedLabel("title"), QLineEdit(maxLength=200)
        self.field.setAccessibleName(_("New title"))
        self.field.editingFinished.connect(self._end_rename)
        self.field.hide()
        self.model = button(_("No model"), kind="flat")
        self.model.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
        both = Qt.LayoutDirection.LeftToRight, Qt.LayoutDirection.RightToLeft
        self.model.setLayoutDirection(both[not self.isRightToLeft()])  # the arrow after the name
        self.model_menu = QMenu(self)
        self.model.setMenu(self.model_menu)
        self.chat_menu, self.menu = QMenu(self), self._build_menu()  # the first is filled as it opens
        self.chat = _menu_button(_("This chat"), self.chat_menu)
        self.more = _menu_button(_("More"), self.menu)
        parts = self.sidebar, 8, (self.title, 1), (self.field, 1), self.chat, self.model, self.more
        row(*parts, on=self, spacing=8, margins=(16, 10, 16, 10))
        for watched in (self.model, self.title, self.field):
            watched.installEventFilter(self)
        self.model.hide()  # until it is known
        look.changed.connect(self._restyle)
        self._restyle()

    def show_conversation(self, title: str, *, exists: bool) -> None:
        """The open conversation. One that does not exist yet cannot be renamed."""
        if title != self.title.whole or exists != self._exists:
            self._exists = exists
            self.title.set_text(title)

    def show_model(self, name: str | None) -> None:
        self._model_name = name or _("No model")
        self.model.show()
        self.model.setAccessibleName(_("Model: {name}", name=name or _("none")))
        self.model.setToolTip(name or "")
        self._fit_model()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """The model's name is cut anew as soon as its button has another font: that is after the look has changed.

        A double click on the title renames. Esc is meant for the field here, not for what it does in the window.
        """
        match event:
            case _ if event.type() == QEvent.Type.FontChange:
                self._fit_model()
            case QMouseEvent() if watched is self.title and event.type() == QEvent.Type.MouseButtonDblClick:
                self.begin_rename()
            case QKeyEvent() if watched is self.field and event.key() == Qt.Key.Key_Escape:
                event.accept()
                if event.type() == QEvent.Type.KeyPress:
                    self.field.setModified(False)
                    self._end_rename()
                return True
        return False

    def begin_rename(self) -> None:
        """Let the user write another title in place; Esc leaves the old one."""
        if self._exists:
            self.field.setText(self.title.whole)
            self.title.hide()
            self.field.show()
            self.field.setFocus()
            self.field.selectAll()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_model()

    def _end_rename(self) -> None:
        if self.field.isHidden():
            return
        title = self.field.text().strip()
        self.field.hide()
        self.title.show()
        if self.field.isModified() and title and title != self.title.whole:
            self.renamed.emit(title)
        self.rename_ended.emit()

    def _fit_model(self) -> None:
        room = min(self._look.px(_MODEL_WIDTH), max(int(self.width() * 0.3), 80))
        self.model.setMaximumWidth(room)
        words = self.model.fontMetrics().elidedText(
            self._model_name, Qt.TextElideMode.ElideMiddle, room - self._look.px(16) - 30
        )
        self.model.setText(words.replace("&", "&&"))  # a lone & would mark a shortcut key

    def _build_menu(self) -> QMenu:
        menu = QMenu(self)
        for action in ("models", "disk", "engine", "restart-engine"):
            self._entry(menu, action)
        menu.addSeparator()
        self._entry(menu, "deleted")
        keeping = menu.addMenu(_("Import, export, back up"))
        for action in ("export-all", "import", "import-folder", "back-up", "restore"):
            self._entry(keeping, action)
        menu.addSeparator()
        for action in ("settings", "manual", "shortcuts", "quit"):
            self._entry(menu, action)
        return menu

    def _entry(self, menu: QMenu, action: str) -> QAction:
        return menu.addAction(words_of(action), partial(self.requested.emit, action))

    def _restyle(self) -> None:
        theme = self._look.theme
        self.model.setIcon(icon("chevron-down", theme.muted))
        self.chat.setIcon(icon("dots", theme.text))
        self.more.setIcon(icon("menu", theme.text))
        self.sidebar.setIcon(icon("sidebar", theme.muted))
        self._fit_model()


def _menu_button(name: str, menu: QMenu) -> QPushButton:
    """A screen reader can open its menu, which Qt does not let it do with a tool button's."""
    made = button("", kind="menu", name=name, tip=name)
    made.setMenu(menu)

    def leave() -> None:
        """A window that opens over the button keeps Qt from telling that the pointer has left it."""
        made.setAttribute(Qt.WidgetAttribute.WA_UnderMouse, False)
        made.update()

    menu.aboutToHide.connect(leave)
    return made
