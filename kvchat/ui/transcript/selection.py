"""Selection across several texts and messages, copying it, and the context menu."""

from dataclasses import dataclass
from operator import itemgetter

from PySide6.QtCore import QEvent, QObject, QPoint, Qt, QTimer
from PySide6.QtGui import QContextMenuEvent, QGuiApplication, QKeyEvent, QKeySequence, QMouseEvent
from PySide6.QtWidgets import QMenu, QTextEdit
from shiboken6 import isValid

from kvchat.chat.record.messages import Role
from kvchat.text.language import _
from kvchat.ui.transcript.message_column import MessageColumn
from kvchat.ui.transcript.message_view import MessageView
from kvchat.ui.transcript.part_column import selected_text
from kvchat.ui.widgets.text_search import select_range

_SCROLL_MS = 30  # scroll interval while dragging beyond the viewport
_COPY_MARKDOWN = QKeySequence("Ctrl+Shift+C")


@dataclass(frozen=True)
class TextPosition:
    message_id: str
    text: QTextEdit
    position: int


class Selection(QObject):
    def __init__(self, page: MessageColumn) -> None:
        super().__init__(page)
        self._page = page
        self._anchor: TextPosition | None = None
        self._head: TextPosition | None = None  # None if the selection is within one text
        self._mouse = QPoint()
        self._scroller = QTimer(self, interval=_SCROLL_MS)
        self._scroller.timeout.connect(self._scroll_while_dragging)

    def attach(self, text: QTextEdit, view: MessageView) -> None:
        for watched in (text, text.viewport()):
            watched.installEventFilter(self)
        if self._head is not None:
            rows, row = self._end_rows(), self._page.row_of(view.message.id)
            if row is not None and rows and rows[0] < row < rows[-1]:
                text.selectAll()

    def clear(self) -> None:
        self._clear_others(None)
        self._anchor = self._head = None
        self._scroller.stop()

    def end_message_ids(self) -> set[str]:
        """Return the ids of the messages where the selection begins and ends. Their widgets must not be deleted."""
        ends = [spot for spot in (self._anchor, self._head) if spot is not None]
        if not all(isValid(spot.text) for spot in ends):
            self._anchor = self._head = None
            return set()
        return {spot.message_id for spot in ends}

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if not isinstance(event, QContextMenuEvent | QMouseEvent | QKeyEvent):
            return False
        view: QObject | None = watched
        while view is not None and not isinstance(view, MessageView):
            view = view.parent()
        if view is None:
            return False
        text = watched if isinstance(watched, QTextEdit) else watched.parent()  # its viewport gets the mouse events
        if watched is view or not isinstance(text, QTextEdit):
            text = None
        if isinstance(event, QContextMenuEvent) and (text is not None or view.editor is None):
            self._open_menu(text, view, event)
            return True
        if isinstance(event, QMouseEvent) and text is not None and text is not watched:
            return self._handle_mouse(text, view, event)
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress and text is watched:
            markdown = QKeySequence(event.keyCombination()) == _COPY_MARKDOWN
            if markdown or event.matches(QKeySequence.StandardKey.Copy):
                self._adopt_native_selection(text, view)
                QGuiApplication.clipboard().setText(self.selected_text(markdown=markdown))
                return True
            if event.matches(QKeySequence.StandardKey.SelectAll):
                self.select_message(view)
                return True
        return False

    def _handle_mouse(self, text: QTextEdit, view: MessageView, event: QMouseEvent) -> bool:
        is_left = event.button() is Qt.MouseButton.LeftButton
        if event.type() == QEvent.Type.MouseButtonPress and is_left:
            spot = TextPosition(view.message.id, text, text.cursorForPosition(event.position().toPoint()).position())
            shift = bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
            if shift and self._anchor is not None and self._anchor.text is not text:
                self._extend_to(spot)
                return True
            if not shift:
                self._clear_others(text)
                self._anchor, self._head = spot, None
            return False
        if event.type() == QEvent.Type.MouseMove and event.buttons() & Qt.MouseButton.LeftButton and self._anchor:
            return self._drag(event.globalPosition().toPoint())
        if event.type() == QEvent.Type.MouseButtonRelease and is_left:
            self._scroller.stop()
            return self._head is not None
        return False

    def _drag(self, mouse: QPoint) -> bool:
        self._mouse = mouse
        page = self._page.viewport()
        if 0 <= page.mapFromGlobal(mouse).y() < page.height():
            self._scroller.stop()
        elif not self._scroller.isActive():
            self._scroller.start()
        spot = self._position_at(mouse)
        if spot is None or self._anchor is None:
            return False
        if spot.text is self._anchor.text:
            if self._head is not None:
                self._clear_others(spot.text)
                self._head = None
            return False
        self._extend_to(spot)
        return True

    def _scroll_while_dragging(self) -> None:
        page = self._page.viewport()
        y = page.mapFromGlobal(self._mouse).y()
        self._page.scroll_by((y if y < 0 else y - page.height()) // 2)
        self._drag(self._mouse)

    def _extend_to(self, head: TextPosition) -> None:
        anchor, texts = self._anchor, self._texts()
        self._head = head
        if anchor is None or anchor.text not in texts or head.text not in texts:
            return
        first, last = texts.index(anchor.text), texts.index(head.text)
        for i, text in enumerate(texts):
            end = text.document().characterCount() - 1
            if i == first:
                select_range(text, anchor.position, end if first < last else 0)
            elif i == last:
                select_range(text, 0 if first < last else end, head.position)
            elif min(first, last) < i < max(first, last):
                select_range(text, 0, end)
            elif text.textCursor().hasSelection():
                select_range(text, 0, 0)

    def _texts(self) -> list[QTextEdit]:
        views = sorted(self._page.views.values(), key=lambda view: self._page.row_of(view.message.id) or 0)
        return [text for view in views for text in view.texts]

    def _position_at(self, mouse: QPoint) -> TextPosition | None:
        """Return the text position nearest to the mouse. `mouse` is in screen coordinates."""
        distances: list[tuple[int, QTextEdit, str]] = []
        for view in self._page.views.values():
            for text in view.texts:
                top, bottom = text.mapToGlobal(QPoint(0, 0)).y(), view.mapToGlobal(QPoint(0, view.height())).y()
                if top < bottom:  # not folded away
                    distance = max(top - mouse.y(), mouse.y() - min(top + text.height(), bottom), 0)
                    distances.append((distance, text, view.message.id))
        if not distances:
            return None
        _distance, text, message_id = min(distances, key=itemgetter(0))
        return TextPosition(message_id, text, text.cursorForPosition(text.viewport().mapFromGlobal(mouse)).position())

    def _clear_others(self, text: QTextEdit | None) -> None:
        for other in self._texts():
            if other is not text and other.textCursor().hasSelection():
                select_range(other, 0, 0)

    def _end_rows(self) -> list[int]:
        """Return the rows of the messages where the selection begins and ends, in ascending order."""
        return sorted(row for id in self.end_message_ids() if (row := self._page.row_of(id)) is not None)

    def selected_text(self, *, markdown: bool = False) -> str:
        pieces: list[str] = []
        rows = self._end_rows()
        for row in range(rows[0], rows[-1] + 1) if rows else ():
            message = self._page.messages[row]
            view = self._page.views.get(message.id)
            if view is None or rows[0] < row < rows[-1]:
                pieces.append(self._page.whole_message(message, markdown=markdown))
                continue
            is_markdown = markdown and message.role is Role.ASSISTANT
            texts = [text for text in view.texts if text.textCursor().hasSelection()]
            pieces += map(view.column.selected_markdown if is_markdown else selected_text, texts)
        return "\n\n".join(filter(None, pieces))

    def select_message(self, view: MessageView) -> None:
        view.unfold()
        texts = view.texts
        self._clear_others(texts[0])
        last = texts[-1].document().characterCount() - 1
        self._anchor = TextPosition(view.message.id, texts[0], 0)
        if len(texts) > 1:
            self._extend_to(TextPosition(view.message.id, texts[-1], last))
        else:
            self._head = None
            select_range(texts[0], 0, last)

    def _adopt_native_selection(self, text: QTextEdit, view: MessageView) -> None:
        if not self.end_message_ids() or (self._head is None and self._anchor and self._anchor.text is not text):
            self._anchor = TextPosition(view.message.id, text, text.textCursor().anchor())

    def _open_menu(self, text: QTextEdit | None, view: MessageView, event: QContextMenuEvent) -> None:
        menu = QMenu(text or view)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        copy, whole = QGuiApplication.clipboard().setText, self._page.whole_message
        has_selection, link = False, ""
        if text is not None:
            self._adopt_native_selection(text, view)
            has_selection = self._head is not None or text.textCursor().hasSelection()
            link = text.anchorAt(text.viewport().mapFromGlobal(event.globalPos()))
        if has_selection:
            menu.addAction(_("Copy as text"), lambda: copy(self.selected_text()))
            menu.addAction(_("Copy as Markdown"), lambda: copy(self.selected_text(markdown=True)))
        else:
            menu.addAction(_("Copy message as text"), lambda: copy(whole(view.message, markdown=False)))
            menu.addAction(_("Copy message as Markdown"), lambda: copy(whole(view.message, markdown=True)))
        if link:
            menu.addAction(_("Copy link address"), lambda: copy(link))
        menu.addSeparator()
        menu.addAction(_("Select this message"), lambda: self.select_message(view))
        menu.addSeparator()
        for action in view.action_row.buttons[1:]:
            if not view.action_row.isHidden() and not action.isHidden():
                menu.addAction(action.icon(), action.toolTip(), action.click)
        menu.popup(event.globalPos())
