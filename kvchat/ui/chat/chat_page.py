"""The page of a conversation: header, transcript or welcome text, notices, cards, composer and context meter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QIcon, QKeyEvent, QMouseEvent, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QMenu, QPushButton, QSizePolicy, QStackedWidget, QWidget

from kvchat.text.language import _, join_list, join_parts
from kvchat.ui.base.building import STRETCH, button, column, label, row, tool_button
from kvchat.ui.base.theme import Look, restyle
from kvchat.ui.chat.composer import Composer
from kvchat.ui.chat.status_strip import ContextMeter
from kvchat.ui.commands import menu_title, with_key
from kvchat.ui.widgets.controls import Card
from kvchat.ui.widgets.layouts import COLUMN_WIDTH, ElidedButton, ElidedLabel, ScrollPage, ShrinkingPage

if TYPE_CHECKING:
    from kvchat.ui.dialogs.panel import Notices
    from kvchat.ui.transcript.find import FindBar
    from kvchat.ui.transcript.transcript import Transcript

_MODEL_WIDTH = 260  # pixels at most, at 100 % text
_MIN_LETTERS, _MAX_LETTERS = 40, 64  # letters per notice line, roughly
_GAP, _SCROLL_BAR = 10, 10  # pixels


class Header(QWidget):
    renamed = Signal(str)  # the new title
    rename_ended = Signal()
    requested = Signal(str)  # action from the shortcuts table

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look, self._exists, self._model_name = look, False, _("No model")
        self.setObjectName("header")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        tip = with_key(title := _("Show the sidebar"), "sidebar")
        self.sidebar_button = tool_button(title, tip=tip, icon=look.icon("sidebar"))
        self.title, self.field = ElidedLabel("title"), QLineEdit(maxLength=200)
        self.field.setAccessibleName(_("New title"))
        self.field.editingFinished.connect(self._end_rename)
        self.field.hide()
        self.model_button = button(_("No model"), kind="flat")
        self.model_button.setIcon(look.icon("chevron-down"))
        self.model_button.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
        ltr, rtl = Qt.LayoutDirection.LeftToRight, Qt.LayoutDirection.RightToLeft
        self.model_button.setLayoutDirection(ltr if self.isRightToLeft() else rtl)  # arrow after the name
        self.model_menu = QMenu(self)
        self.model_button.setMenu(self.model_menu)
        self.chat_menu, self.menu = QMenu(self), self._build_menu()  # the first is filled on opening
        self.chat_button = _menu_button(_("This chat"), look.icon("dots", "text"), self.chat_menu)
        self.menu_button = _menu_button(_("More"), look.icon("menu", "text"), self.menu)
        buttons = self.chat_button, self.model_button, self.menu_button
        parts = self.sidebar_button, 8, (self.title, 1), (self.field, 1), *buttons
        row(*parts, on=self, spacing=8, margins=(16, 10, 16, 10))
        for watched in (self.model_button, self.title, self.field):
            watched.installEventFilter(self)
        self.model_button.hide()  # until it is known
        look.changed.connect(self._fit_model)

    def show_conversation(self, title: str, *, exists: bool) -> None:
        if title != self.title.full_text or exists != self._exists:
            self._exists = exists
            self.title.set_text(title)

    def show_model(self, name: str | None) -> None:
        self._model_name = name or _("No model")
        self.model_button.show()
        self.model_button.setAccessibleName(_("Model: {name}", name=name or _("none")))
        self.model_button.setToolTip(name or "")
        self._fit_model()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Rename on a double click, cancel only the renaming on Esc, and fit the model button to a changed font."""
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
        if self._exists:
            self.field.setText(self.title.full_text)
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
        if self.field.isModified() and title and title != self.title.full_text:
            self.renamed.emit(title)
        self.rename_ended.emit()

    def _fit_model(self) -> None:
        room = min(self._look.px(_MODEL_WIDTH), max(int(self.width() * 0.3), 80))
        self.model_button.setMaximumWidth(room)
        middle, room = Qt.TextElideMode.ElideMiddle, room - self._look.px(16) - 30
        name = self.model_button.fontMetrics().elidedText(self._model_name, middle, room)
        self.model_button.setText(name.replace("&", "&&"))  # a lone & would mark a shortcut key

    def _build_menu(self) -> QMenu:
        menu = QMenu(self)
        files = QMenu(_("Import, export, backup"), menu)

        def add(target: QMenu, *actions: str) -> None:
            for action in actions:
                target.addAction(menu_title(action), partial(self.requested.emit, action))

        add(menu, "models", "disk", "engine", "restart-engine")
        menu.addSeparator()
        add(menu, "deleted")
        menu.addMenu(files)
        add(files, "export-all", "import", "import-folder", "back-up", "restore")
        menu.addSeparator()
        add(menu, "settings", "manual", "shortcuts", "quit")
        return menu


def _menu_button(name: str, icon: QIcon, menu: QMenu) -> QPushButton:
    """Make a button with a menu that screen readers can open. They cannot open the menu of a QToolButton."""
    result = button("", kind="menu", name=name, tip=name)
    result.setIcon(icon)
    result.setMenu(menu)

    def leave() -> None:
        # If a window opens over the button, Qt does not report that the pointer left it.
        result.setAttribute(Qt.WidgetAttribute.WA_UnderMouse, False)
        result.update()

    menu.aboutToHide.connect(leave)
    return result


class DocumentsLine(ElidedButton):
    def __init__(self, look: Look) -> None:
        super().__init__("quiet")
        self.setAccessibleName(_("Documents"))
        self.setIcon(look.icon("document"))
        self.hide()

    def show_documents(self, text: str, warning: str) -> None:
        self.set_text(join_parts((text, warning)), "", _("Show in library"))
        self.setAccessibleName(_("Documents: {filter}", filter=join_list((text, warning))))
        restyle(self, "tone", "warn" if warning else "")


class ChatPage(QWidget):
    """Page of a conversation. Most of its parts are as wide as the transcript's column.

    The constructor adds the parts of the main window's first frame, `complete` those that take longer to import.
    """

    _transcript: Transcript
    _notices: Notices

    def __init__(
        self, look: Look, header: Header, documents: DocumentsLine, composer: Composer, meter: ContextMeter
    ) -> None:
        super().__init__()
        self._look, self._composer = look, composer
        self._centered: list[QWidget] = []  # as wide as the transcript column
        look.changed.connect(self._fit)
        self.setObjectName("page")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._middle = QStackedWidget()
        self._middle.addWidget(QWidget())
        below = self._center(composer, 0), self._center(meter, 6)
        parts = header, self._center(documents, 2), (self._middle, 1), *below
        self._column = column(*parts, on=self, spacing=0, margins=0)

    def complete(self, notices: Notices, find_bar: FindBar, transcript: Transcript, cards: Sequence[Card]) -> None:
        self._transcript, self._notices = transcript, notices
        self._welcome = _welcome()
        self._middle.addWidget(self._welcome)
        self._middle.addWidget(transcript)
        notices.setParent(self)
        notices.changed.connect(self._place_notices)
        for widget in (self._middle, notices.content):
            widget.installEventFilter(self)
        self._column.insertLayout(2, self._center(find_bar, 4))
        below = ShrinkingPage()
        column(*(self._center(card, 10) for card in cards), on=below.content, spacing=0, margins=0)
        self._column.insertWidget(4, below)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        has_moved = watched is self._middle and event.type() in (QEvent.Type.Resize, QEvent.Type.Move, QEvent.Type.Show)
        if has_moved or (watched is self._notices.content and event.type() == QEvent.Type.LayoutRequest):
            self._place_notices()
        return super().eventFilter(watched, event)

    def _place_notices(self) -> None:
        """Place the notices at the page's lower end, beside the jump button if they fit.

        Reserve space below the messages, so that the notices do not cover the last one.
        """
        notices, page = self._notices, self._middle.geometry()
        notices.setVisible(bool(notices.visible_notices))
        letter, jump = notices.fontMetrics().averageCharWidth(), self._transcript.jump_room
        beside = (page.width() - jump) // 2 - _GAP - _SCROLL_BAR
        fits = beside >= letter * _MIN_LETTERS
        width = min(beside if fits else page.width() - 2 * _GAP - _SCROLL_BAR, letter * _MAX_LETTERS)
        left, below = page.right() - width - _SCROLL_BAR - _GAP, _GAP if fits else jump
        height = min(notices.heightForWidth(width), self._composer.y() - page.top() - below)
        top = max(page.bottom() - height - below, page.top())  # on a low page, covers the card below
        notices.setGeometry(left, top, width, height)
        notices.raise_()
        covers = bool(notices.visible_notices) and left < page.center().x() + self._look.px(COLUMN_WIDTH) // 2
        self._transcript.reserve_space(height + below + _GAP if covers else 0)

    def show_messages(self, has_messages: bool) -> None:
        self._middle.setCurrentWidget(self._transcript if has_messages else self._welcome)

    def _center(self, widget: QWidget, below: int) -> QHBoxLayout:
        self._centered.append(widget)
        self._fit()
        begin, end = (26, 16) if self.isRightToLeft() else (16, 26)  # 10 for the transcript's scroll bar
        return row(STRETCH, (widget, 1000), STRETCH, margins=(begin, 0, end, below))

    def _fit(self) -> None:
        for widget in self._centered:
            widget.setMaximumWidth(self._look.px(COLUMN_WIDTH) + 32)


def _welcome() -> QWidget:
    page = ScrollPage("page")  # scrolls to fit a card on small screens
    title = label(_("What’s on your mind?"), "hero", wraps=True)
    detail = label(_("Come back at any time: kvchat saves what the model has already processed."), "muted", wraps=True)
    for text in (title, detail):
        text.setAlignment(Qt.AlignmentFlag.AlignHCenter)
    lines = column(STRETCH, title, detail, STRETCH, on=page.content, spacing=8, margins=24)
    lines.setStretch(0, 2)
    lines.setStretch(3, 3)
    return page
