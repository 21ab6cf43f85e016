"""Selection across several texts and messages, copying it, and the context menu."""

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from PySide6.QtCore import QEvent, QObject, QPoint, Qt, QTimer
from PySide6.QtGui import QContextMenuEvent, QGuiApplication, QKeyEvent, QKeySequence, QMouseEvent
from PySide6.QtWidgets import QMenu, QTextEdit

from kvchat.text.language import _
from kvchat.ui.transcript.message_column import MessageColumn
from kvchat.ui.transcript.message_view import MessageView
from kvchat.ui.transcript.parts import Part, Row, selected_markdown, selected_text, whole_markdown, whole_text
from kvchat.ui.widgets.text_search import select_range

_SCROLL_MS = 30  # scroll interval while dragging beyond the viewport
_COPY_MARKDOWN = QKeySequence("Ctrl+Shift+C")


class TextPosition(NamedTuple):
    row: Row
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

    def attach(self, row: Row, text: QTextEdit) -> None:
        for watched in (text, text.viewport()):
            watched.installEventFilter(self)
        ends = self.end_rows()
        if self._head is not None and ends and ends[0].index < row.index < ends[-1].index:
            text.selectAll()

    def clear(self) -> None:
        self._clear_others(None)
        self._anchor = self._head = None
        self._scroller.stop()

    def end_rows(self) -> Sequence[Row]:
        """Return the rows where the selection begins and ends, in page order. Their widgets must not be deleted."""
        ends = [spot.row for spot in (self._anchor, self._head) if spot is not None]
        if not all(row.text is not None for row in ends):
            self._anchor = self._head = None
            return ()
        return sorted(ends, key=self._page.top_of)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if not isinstance(event, QContextMenuEvent | QMouseEvent | QKeyEvent):
            return False
        texts = watched, watched.parent()  # a text's viewport gets its mouse events
        row = next((row for row in self._page.shown_rows if row.text in texts), None)
        view = watched if row is None else self._page.views[row.message_id]
        if not isinstance(view, MessageView):
            return False
        if isinstance(event, QContextMenuEvent) and (row is not None or view.editor is None):
            self._open_menu(row, view, event)
            return True
        if row is None or row.text is None:
            return False
        if isinstance(event, QMouseEvent) and row.text is not watched:
            return self._handle_mouse(row, row.text, event)
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress and row.text is watched:
            markdown = QKeySequence(event.keyCombination()) == _COPY_MARKDOWN
            if markdown or event.matches(QKeySequence.StandardKey.Copy):
                self._adopt_native_selection(row, row.text)
                QGuiApplication.clipboard().setText(self.selected_text(markdown=markdown))
                return True
            if event.matches(QKeySequence.StandardKey.SelectAll):
                self.select_message(view)
                return True
        return False

    def _handle_mouse(self, row: Row, text: QTextEdit, event: QMouseEvent) -> bool:
        is_left = event.button() is Qt.MouseButton.LeftButton
        if event.type() == QEvent.Type.MouseButtonPress and is_left:
            spot = TextPosition(row, text.cursorForPosition(event.position().toPoint()).position())
            shift = bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
            if shift and self._anchor is not None and self._anchor.row is not row:
                self._extend_to(spot)
                return True
            if not shift:
                self._clear_others(row)
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
        if spot.row is self._anchor.row:
            if self._head is not None:
                self._clear_others(spot.row)
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
        anchor, self._head = self._anchor, head
        ends = self.end_rows()
        if anchor is None or not ends:
            return
        is_down = ends[0] is anchor.row
        for row in self._page.shown_rows:
            if (text := row.text) is None:
                continue
            end = text.document().characterCount() - 1
            if row is anchor.row:
                select_range(text, anchor.position, end if is_down else 0)
            elif row is head.row:
                select_range(text, 0 if is_down else end, head.position)
            elif ends[0].index < row.index < ends[-1].index:
                select_range(text, 0, end)
            elif text.textCursor().hasSelection():
                select_range(text, 0, 0)

    def _position_at(self, mouse: QPoint) -> TextPosition | None:
        """Return the text position nearest to the mouse. `mouse` is in screen coordinates."""

        def distance(row: Row) -> int:
            y, height = row.widget.mapFromGlobal(mouse).y(), row.widget.height()
            return max(-y, y - height, 0)  # type: ignore[no-any-return]

        row = min((row for row in self._page.shown_rows if row.text is not None), key=distance, default=None)
        if row is None or row.text is None:
            return None
        return TextPosition(row, row.text.cursorForPosition(row.text.viewport().mapFromGlobal(mouse)).position())

    def _clear_others(self, kept: Row | None) -> None:
        for row in self._page.shown_rows:
            if row is not kept and row.text is not None and row.text.textCursor().hasSelection():
                select_range(row.text, 0, 0)

    def selected_text(self, *, markdown: bool = False) -> str:
        def piece(part: Part, text: QTextEdit | None) -> str:
            if text is None:
                return (whole_markdown if markdown else whole_text)(part.blocks)
            if not text.textCursor().hasSelection():
                return ""
            return selected_markdown(part, text) if markdown else selected_text(text)

        pieces: list[str] = []
        ends = self.end_rows()
        rows = self._page.rows[ends[0].index : ends[-1].index + 1] if ends else ()
        messages = {message.id: message for message in self._page.messages}
        for id, group in groupby(rows, key=attrgetter("message_id")):
            if id in (ends[0].message_id, ends[-1].message_id):
                pieces += [piece(row.part, row.text) for row in group if row.part.blocks]
            else:
                pieces.append(self._page.whole_message(messages[id], markdown=markdown))
        return "\n\n".join(filter(None, pieces))

    def select_message(self, view: MessageView) -> None:
        view.unfold()
        rows = [row for row in view.rows if row.part.blocks]
        if not rows:
            return
        for row in (rows[0], rows[-1]):
            self._page.ensure_widget(row)
        self._clear_others(rows[0])
        first, last = rows[0].text, rows[-1].text
        assert first is not None
        assert last is not None
        end = last.document().characterCount() - 1
        self._anchor, self._head = TextPosition(rows[0], 0), None
        if len(rows) > 1:
            self._extend_to(TextPosition(rows[-1], end))
        else:
            select_range(first, 0, end)

    def _adopt_native_selection(self, row: Row, text: QTextEdit) -> None:
        if not self.end_rows() or (self._head is None and self._anchor and self._anchor.row is not row):
            self._anchor = TextPosition(row, text.textCursor().anchor())

    def _open_menu(self, row: Row | None, view: MessageView, event: QContextMenuEvent) -> None:
        text = row.text if row is not None else None
        menu = QMenu(text or view)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        copy, whole = QGuiApplication.clipboard().setText, self._page.whole_message
        has_selection, link = False, ""
        if row is not None and text is not None:
            self._adopt_native_selection(row, text)
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
        for glyph, name, run in view.message_actions()[1:]:
            menu.addAction(view.page_style.look.icon(glyph), name, run)
        menu.popup(event.globalPos())
