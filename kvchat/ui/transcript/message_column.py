"""The scrolling column of messages. It follows a reply as it streams, unless the user scrolls up.

A row is a part of a message, or its end. Only rows near the viewport have widgets; the heights of the others are
estimated, and messages that were never near it are not parsed: they have only an end, as high as the message. When the
height of a row above the viewport is corrected, the column scrolls by the difference, so that the visible text stays in
place.
"""

import math
import time
from collections.abc import Sequence
from itertools import chain, takewhile, zip_longest
from typing import Any

from PySide6.QtCore import QSize, Qt, QTimer
from PySide6.QtGui import QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QApplication, QScrollArea, QTextEdit, QWidget

from kvchat.chat.record.messages import Message, Role
from kvchat.text.language import _
from kvchat.ui.base.building import button
from kvchat.ui.base.theme import Look
from kvchat.ui.rendering.markdown_stream import parse_blocks
from kvchat.ui.rendering.text_page import PageStyle, TextPage
from kvchat.ui.transcript.footer import TranscriptTail
from kvchat.ui.transcript.message_view import MessageEditor, MessageView
from kvchat.ui.transcript.parts import END, Part, Row, RowList, estimated_height, whole_text
from kvchat.ui.widgets.layouts import COLUMN_WIDTH

_GAP, _GAP_AFTER_USER = 22, 4  # pixels below a message; the buttons below a user message add space
_LEFT, _RIGHT, _BOTTOM = 24, 24, 28
_JUMP_SIZE, _JUMP_MARGIN = 32, 14  # pixels
JUMP_ROOM = _JUMP_SIZE + 2 * _JUMP_MARGIN  # pixels of the viewport covered by the jump button
_END_DISTANCE = 40  # pixels; closer to the end counts as scrolled to the end
_MAX_STEP_S = 0.025  # while scrolling
_NEARBY, _MAX_WIDGETS = 60, 160  # number of rows that get widgets around the viewport, and of all widgets


class MessageColumn(QScrollArea):
    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self._style = PageStyle(look)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOn)  # so that the text does not shift
        self._bar = self.verticalScrollBar()
        self._bar.setEnabled(False)  # hidden until there is something to scroll
        self._bar.rangeChanged.connect(lambda low, high: self._bar.setEnabled(high > low))
        self.messages: Sequence[Message] = []
        self.views: dict[str, MessageView] = {}  # messages that are parsed
        self._rows = RowList()
        self._ends: dict[str, Row] = {}  # the last row of each message
        self.shown_rows: list[Row] = []  # rows that have widgets
        self._stale: set[MessageView] = set()  # messages whose parts may have changed
        self._follow = True
        self._value = 0  # last scroll bar value
        self._is_arranging = False
        self._content = QWidget()
        self._content.setObjectName("transcriptColumn")
        self.setWidget(self._content)
        self.tail = TranscriptTail(self._content)
        self.tail.changed.connect(self._fit_tail)
        self._tail_height = self._room_below = 0
        self.jump_button = button("", self.scroll_to_end, "jump", name=_("Go to the newest message"))
        self.jump_button.setParent(self)
        self.jump_button.setFixedSize(_JUMP_SIZE, _JUMP_SIZE)
        self.jump_button.setIconSize(QSize(18, 18))
        self.jump_button.setIcon(look.icon("arrow-down", "text"))
        self.jump_button.hide()
        self._filler = QTimer(self, singleShot=True)
        self._filler.timeout.connect(self._create_nearby_widget)
        self._bar.valueChanged.connect(self._handle_scroll)

    @property
    def rows(self) -> list[Row]:
        return self._rows.rows

    def top_of(self, row: Row) -> int:
        return self.rows[row.index].top

    def first_row(self, message_id: str) -> Row:
        return self.rows[self._ends[message_id].index - len(self.views[message_id].rows)]

    def has_message(self, message_id: str) -> bool:
        return message_id in self._ends

    def scroll_to_end(self) -> None:
        self._follow = True
        self._arrange()

    def reserve_space(self, pixels: int) -> None:
        if pixels != self._room_below:
            self._room_below = pixels
            self._arrange()

    def scroll_by(self, pixels: int) -> None:
        self._bar.setValue(self._bar.value() + pixels)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            for row in self.rows:
                row.is_measured = False
        self._arrange()
        self.jump_button.move((self.width() - _JUMP_SIZE) // 2, self.height() - _JUMP_SIZE - _JUMP_MARGIN)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Scroll with the Home and End keys, which QScrollArea ignores."""
        if event.key() == Qt.Key.Key_End:
            self.scroll_to_end()
        elif event.key() == Qt.Key.Key_Home:
            self._bar.setValue(0)
        else:
            super().keyPressEvent(event)

    def whole_message(self, message: Message, *, markdown: bool) -> str:
        if markdown or message.role is Role.USER:
            return message.content.strip("\n")
        return whole_text(parse_blocks(self._style.markdown, message.content))

    def ensure_view(self, message_id: str) -> MessageView:
        """Return a message's view. The first call parses the message."""
        view = self.views.get(message_id)
        if view is None:
            message = next(message for message in self.messages if message.id == message_id)
            view = self.views[message_id] = self._create_view(message)
            self._update_rows(view)
        return view

    def ensure_widget(self, row: Row) -> Any:
        """Return the widget of a row that is no end."""
        if row.widget is None and row.part is not END:
            view = self.views[row.message_id]
            row.widget = widget = view.create_part(row.part)
            widget.setParent(view)
            row.text = widget if isinstance(widget, QTextEdit) else getattr(widget, "body", None)
            row.is_measured = False
            self.shown_rows.append(row)
            self._show_part(row)
            widget.show()
            view.show()
            self._row_shown(row)
            if len(self.shown_rows) > _MAX_WIDGETS:
                kept = [*self._kept_rows(), row]
                others = [other for other in self.shown_rows if other not in kept]
                self._delete_widget(max(others, key=lambda other: abs(other.index - row.index)))
        return row.widget

    def _create_view(self, message: Message) -> MessageView:
        raise NotImplementedError

    def _row_shown(self, row: Row) -> None:
        raise NotImplementedError

    def _kept_rows(self) -> list[Row]:
        """Return rows far from the viewport whose widgets must stay."""
        return [row for row in self.shown_rows if row.part.widget_class is MessageEditor]

    def _estimated_height(self, message: Message) -> int:
        return estimated_height(message.content, self._style, self._column_width())

    def _set_messages(self, messages: list[Message]) -> None:
        """Set the messages. Those that were there before keep their rows and widgets."""
        self.messages = messages
        ids = {message.id for message in messages}
        self._delete_views([id for id in self.views if id not in ids])
        old = self._ends
        self._ends = {
            message.id: old.get(message.id) or Row(message.id, END, self._estimated_height(message))
            for message in messages
        }
        parts = {id: view.rows for id, view in self.views.items()}
        rows = chain.from_iterable((*parts.get(id, ()), end) for id, end in self._ends.items())
        self._rows.replace(0, len(self.rows), rows)

    def _column_width(self) -> int:
        return max(min(self._look.px(COLUMN_WIDTH), self.viewport().width() - _LEFT - _RIGHT), 100)

    def _arrange(self, shift: int = 0, nearby: Sequence[Row] = (), max_s: float = math.inf) -> None:
        """Scroll by `shift` pixels, measure the visible and `nearby` rows, and place all widgets.

        After `max_s` seconds, the rest of the rows is left to the next rounds of the event loop.
        """
        if self._is_arranging:
            return
        self._is_arranging = True
        try:
            self._place_widgets(self._measure_visible(self._bar.value() + shift, nearby, max_s))
        finally:
            self._is_arranging = False
        self._value = self._bar.value()
        self.jump_button.setVisible(not self._follow and self._bar.maximum() > 0)
        self._filler.start(0)

    def _fit_tail(self) -> None:
        if self.tail.needed_height(self._column_width()) != self._tail_height:
            self._arrange()

    def _measure_visible(self, top: int, nearby: Sequence[Row], max_s: float) -> int:
        """Measure the visible rows whose height is not known. Return the corrected scroll position."""
        width, area = self._column_width(), self.viewport().height()
        self._tail_height = self.tail.needed_height(width)
        # Keep the first visible row that has a widget in place: the user may be reading it.
        visible = self._rows.between(self._clamp_top(top), self._clamp_top(top) + area)
        anchor = next((row for row in visible if row.widget is not None), None)
        above = top - anchor.top if anchor is not None else top  # pixels of it above the viewport
        while self._stale:
            self._update_rows(self._stale.pop())
        if anchor is not None and anchor not in self.rows:  # its message was folded
            anchor, above = self.first_row(anchor.message_id), 0
        until, has_changed = time.thread_time() + max_s, True
        while has_changed:
            has_changed = False
            top = self._clamp_top(above + (self.top_of(anchor) if anchor is not None else 0))
            visible = self._rows.between(top, top + area)
            if anchor is not None:  # outwards from it, so that the next anchor has none to measure below
                visible.sort(key=lambda row: abs(row.index - anchor.index))
            for row in (*visible, *nearby) if time.thread_time() < until else ():
                if row.message_id not in self.views:
                    self.ensure_view(row.message_id)
                    has_changed = True
                elif row.part is not END and (row.widget is None or not row.is_measured):
                    has_changed |= self._measure(row, width)
                if has_changed:
                    break  # positions may have changed
        return top

    def _measure(self, row: Row, width: int) -> bool:
        """Measure a row that is no end. Return True if its height has changed."""
        row.is_measured = True
        widget = self.ensure_widget(row)
        _left, width = self.views[row.message_id].part_box(row.part, width)
        height = min(widget.heightForWidth(width), row.part.max_height)
        return self._rows.set_height(row, row.part.gap + height)

    def _clamp_top(self, top: int) -> int:
        last = max(self._content_height() - self.viewport().height(), 0)
        return last if self._follow else min(max(top, 0), last)

    def _content_height(self) -> int:
        return self._rows.bottom + self._tail_height + max(_BOTTOM, self._room_below)

    def _place_widgets(self, top: int) -> None:
        width, area = self._column_width(), self.viewport().width()
        left = max((area - width) // 2, _LEFT)
        bottom = self._rows.bottom
        for id in {row.message_id for row in self.shown_rows}:
            view = self.views[id]
            view.setGeometry(left, view.rows[0].top, width, self._ends[id].top - view.rows[0].top)
            view.place_frame()
        for row in self.shown_rows:
            view, part = self.views[row.message_id], row.part
            x, part_width = view.part_box(part, width)
            row.widget.setGeometry(x, row.top - view.rows[0].top + part.gap, part_width, row.height - part.gap)
        self.tail.setGeometry(left, bottom, width, self._tail_height)
        self._content.resize(area, max(self._content_height(), self.viewport().height()))
        self._bar.setValue(top)

    def _update_rows(self, view: MessageView) -> None:
        """Fit a message's rows to its parts. Rows whose part is the same keep their widgets."""
        old, parts, width = view.rows, view.parts, self._column_width()
        last = self.rows[self._ends[view.message.id].index]
        pairs = list(zip(old, parts, strict=False))
        same = takewhile(lambda pair: pair[0].part is pair[1] or pair[0].part == pair[1], pairs)
        start = sum(1 for _ in same)
        end = 0
        while end < len(pairs) - start and old[-1 - end].part == parts[-1 - end]:
            end += 1
        changed: list[Row] = []
        for row, part in zip_longest(old[start : len(old) - end], parts[start : len(parts) - end]):
            if part is None:
                self._delete_widget(row)
                continue
            changed.append(row or Row(view.message.id, END, 0))
            self._set_part(changed[-1], part, width)
        view.rows = [*old[:start], *changed, *old[len(old) - end :]]
        last.height = _GAP_AFTER_USER if view.message.role is Role.USER else _GAP
        if view.unparsed_share:
            last.height += round(self._estimated_height(view.message) * view.unparsed_share)
        self._rows.replace(last.index - len(old), last.index, [*view.rows, last])

    def _set_part(self, row: Row, part: Part, width: int) -> None:
        before, row.part, row.is_measured = row.part, part, False
        if row.widget is not None:
            keeps_state = before.state == part.state or hasattr(row.widget, "show_state")
            if before.widget_class is part.widget_class and keeps_state:
                self._show_part(row)
                return
            self._delete_widget(row)
        row.height = part.estimated_height(self._style, width)

    def _show_part(self, row: Row) -> None:
        if row.part.blocks:
            row.widget.show_blocks(row.part.blocks)
        if hasattr(row.widget, "show_state"):
            row.widget.show_state(row.part.state)

    def _view_changed(self, view: MessageView, *, at_once: bool = True) -> None:
        if self.views.get(view.message.id) is not view:
            return  # deleted
        for row in self.shown_rows:
            if row.message_id == view.message.id and not isinstance(row.widget, TextPage):
                row.is_measured = False
        self._stale.add(view)
        if at_once:
            self._arrange()
        else:
            self._filler.start(0)

    def _create_nearby_widget(self) -> None:
        """Create the nearest missing widget outside the viewport, or measure one whose height is unknown."""
        if self._stale:
            self._arrange(max_s=_MAX_STEP_S)
            return
        top = self._bar.value()
        visible = self._rows.between(top, top + self.viewport().height()) or self.rows[-1:]
        if not visible:
            return
        first = visible[0].index
        begin = max(min(first - _NEARBY // 2, len(self.rows) - _NEARBY), 0)
        for row in sorted(self.rows[begin : begin + _NEARBY], key=lambda row: abs(row.index - first)):
            is_measured = row.part is END or (row.widget is not None and row.is_measured)
            if row.message_id not in self.views or not is_measured:
                self._arrange(nearby=[row], max_s=_MAX_STEP_S)
                break

    def _delete_widget(self, row: Row) -> None:
        """Delete a row's widget. First take the focus from it, or Qt would give it to some other widget."""
        if row.widget is None:
            return
        focus = QApplication.focusWidget()
        if focus is not None and (focus is row.widget or row.widget.isAncestorOf(focus)):
            self.setFocus()
        view = row.widget.parent()
        row.widget.hide()  # setting no parent would style it again
        row.widget.deleteLater()
        row.widget = row.text = None
        self.shown_rows.remove(row)
        view.setVisible(any(other.message_id == row.message_id for other in self.shown_rows))

    def _delete_views(self, ids: Sequence[str]) -> None:
        """Delete these messages' widgets and parts. They are parsed again when needed."""
        for id in ids:
            view, end = self.views.pop(id), self._ends[id]
            for row in view.rows:
                self._delete_widget(row)
            first = self.rows[end.index - len(view.rows)]
            end.height = end.bottom - first.top
            self._rows.replace(first.index, end.index, [end])
            self._stale.discard(view)
            view.setParent(None)
            view.deleteLater()

    def _handle_scroll(self, value: int) -> None:
        if self._is_arranging:
            return
        end = self._bar.maximum()
        if value < self._value:  # scrolled up by the user, or by a change at the end
            self._follow = self._follow and value == end
        elif value >= end - _END_DISTANCE:
            self._follow = True
        self._value = value
        self._arrange(max_s=_MAX_STEP_S)
