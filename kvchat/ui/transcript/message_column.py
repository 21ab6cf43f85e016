"""The scrolling column of messages. It follows a reply as it streams, unless the user scrolls up.

Only messages near the viewport have widgets; the heights of the others are estimated. When the height of a message
above the viewport is corrected, the column scrolls by the difference, so that the visible text stays in place.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, takewhile

from PySide6.QtCore import QSize, Qt, QTimer
from PySide6.QtGui import QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QApplication, QScrollArea, QWidget

from kvchat.chat.record.messages import Message
from kvchat.text.language import _
from kvchat.ui.base.building import button
from kvchat.ui.base.theme import Look
from kvchat.ui.rendering.formulas import Formulas
from kvchat.ui.rendering.text_page import PageStyle
from kvchat.ui.transcript.footer import TranscriptTail
from kvchat.ui.transcript.message_view import UserView
from kvchat.ui.transcript.part_column import message_text
from kvchat.ui.transcript.reply_view import ReplyView
from kvchat.ui.widgets.layouts import COLUMN_WIDTH

GAP, _GAP_AFTER_USER = 22, 4  # pixels below a message; the buttons below a user message add space
_LEFT, TOP, _RIGHT, _BOTTOM = 24, 20, 24, 28
_JUMP_SIZE, _JUMP_MARGIN = 32, 14  # pixels
JUMP_ROOM = _JUMP_SIZE + 2 * _JUMP_MARGIN  # pixels of the viewport covered by the jump button
_END_DISTANCE = 40  # pixels; closer to the end counts as scrolled to the end
_NEARBY, _MAX_VIEWS = 40, 120  # number of messages with widgets: around the viewport, in all

AnyMessageView = UserView | ReplyView


class RowHeights:
    def __init__(self) -> None:
        self.heights: list[int] = []
        self.measured: list[bool] = []  # False: estimated
        self._tops: list[int] = []  # empty if it must be recomputed

    def top(self, row: int) -> int:
        """Return a row's y position. For a row number of `len(heights)`, return the bottom of the last row."""
        if not self._tops:
            self._tops = list(accumulate(self.heights, initial=0))
        return self._tops[row]

    def row_at(self, position: int) -> int:
        """Return the row nearest to a y position. There must be at least one row."""
        last = len(self.heights) - 1
        return min(max(bisect_right(range(last + 1), position, key=self.top) - 1, 0), last)

    def measure(self, row: int, height: int) -> bool:
        has_changed = height != self.heights[row]
        self.measured[row] = True
        if has_changed:
            self.heights[row] = height
            self._tops = []
        return has_changed

    def replace(self, start: int, estimates: Sequence[int]) -> None:
        self.heights[start:] = estimates
        self.measured[start:] = [False] * len(estimates)
        self._tops = []


class MessageColumn(QScrollArea):
    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self._formulas = Formulas(self)
        self._style = PageStyle(look, self._formulas)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOn)  # so that the text does not shift
        self._bar = self.verticalScrollBar()
        self._bar.setEnabled(False)  # hidden until there is something to scroll
        self._bar.rangeChanged.connect(lambda low, high: self._bar.setEnabled(high > low))
        self.messages: Sequence[Message] = []
        self._rows = RowHeights()
        self._row_by_id: dict[str, int] = {}
        self.views: dict[str, AnyMessageView] = {}  # messages that have widgets
        self._pinned_ids: Callable[[], set[str]] = set  # more messages whose widgets must stay
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

    def row_of(self, message_id: str) -> int | None:
        return self._row_by_id.get(message_id)

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
        if event.size().width() != event.oldSize().width() and self.messages:
            # Measure everything again, keeping the first visible line in place.
            value = self._bar.value()
            row = self._rows.row_at(value - TOP)
            share_above = (value - TOP - self._rows.top(row)) / max(self._rows.heights[row], 1)
            self._rows.measured = [False] * len(self.messages)
            self._measure(row, self._ensure_view(row), self._column_width())
            self._arrange(TOP + self._rows.top(row) + round(share_above * self._rows.heights[row]) - value)
        else:
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
        return message.content.strip("\n") if markdown else message_text(self._style.markdown, message)

    def _create_view(self, message: Message) -> AnyMessageView:
        raise NotImplementedError

    def _estimated_height(self, message: Message) -> int:
        letters = max(int(self._column_width() / self._style.letter_width), 1)
        lines = 1 + message.content.count("\n") + len(message.content) // letters
        return round(lines * self._style.line_height * 0.9) + 60

    def _set_messages(self, messages: list[Message]) -> None:
        """Set the messages. Those at the start that have not changed keep their heights and widgets."""
        pairs = zip(self.messages, messages, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0].id == pair[1].id, pairs))
        self.messages = messages
        self._rows.replace(same, list(map(self._estimated_height, messages[same:])))
        self._row_by_id = {message.id: row for row, message in enumerate(messages)}
        self._delete_views([id for id in self.views if id not in self._row_by_id])

    def _column_width(self) -> int:
        return max(min(self._look.px(COLUMN_WIDTH), self.viewport().width() - _LEFT - _RIGHT), 100)

    def _arrange(self, shift: int = 0, nearby: Sequence[int] = ()) -> None:
        """Scroll by `shift` pixels, measure the visible and `nearby` rows, and place all widgets."""
        if self._is_arranging:
            return
        self._is_arranging = True
        try:
            self._place_views(self._measure_visible(self._bar.value() + shift, nearby))
        finally:
            self._is_arranging = False
        self._value = self._bar.value()
        self.jump_button.setVisible(not self._follow and self._bar.maximum() > 0)
        self._filler.start(0)

    def _fit_tail(self) -> None:
        if self.tail.needed_height(self._column_width()) != self._tail_height:
            self._arrange()

    def _measure_visible(self, top: int, nearby: Sequence[int]) -> int:
        """Measure the visible rows whose height is not known. Return the corrected scroll position."""
        width, area = self._column_width(), self.viewport().height()
        self._tail_height = self.tail.needed_height(width)
        # Keep the first complete visible row in place: the user may be reading it.
        visible = self._rows_between(self._clamp_top(top), self._clamp_top(top) + area)
        views = ((row, self.views.get(self.messages[row].id)) for row in visible)
        anchor = next((row for row, view in views if view is not None and view.is_complete), visible.start)
        above = top - self._rows.top(anchor)  # pixels of it above the viewport
        has_changed = True
        while has_changed:
            has_changed = False
            top = self._clamp_top(self._rows.top(anchor) + above)
            for row in (*self._rows_between(top, top + area), *nearby):
                view = self._ensure_view(row)
                if not self._rows.measured[row]:
                    has_changed |= self._measure(row, view, width)
        return top

    def _measure(self, row: int, view: AnyMessageView, width: int) -> bool:
        height = view.heightForWidth(width) + _gap_below(view)
        if not view.is_complete:
            height = max(height, self._rows.heights[row])
        return self._rows.measure(row, height)

    def _clamp_top(self, top: int) -> int:
        last = max(self._content_height() - self.viewport().height(), 0)
        return last if self._follow else min(max(top, 0), last)

    def _content_height(self) -> int:
        return TOP + self._rows.top(len(self.messages)) + self._tail_height + max(_BOTTOM, self._room_below)

    def _rows_between(self, top: int, bottom: int) -> range:
        if not self.messages:
            return range(0)
        return range(self._rows.row_at(top - TOP), self._rows.row_at(bottom - TOP) + 1)

    def _place_views(self, top: int) -> None:
        width, area = self._column_width(), self.viewport().width()
        left = max((area - width) // 2, _LEFT)
        for id, view in self.views.items():
            row = self._row_by_id[id]
            view.setGeometry(left, TOP + self._rows.top(row), width, self._rows.heights[row] - _gap_below(view))
        self.tail.setGeometry(left, TOP + self._rows.top(len(self.messages)), width, self._tail_height)
        self._content.resize(area, max(self._content_height(), self.viewport().height()))
        self._bar.setValue(top)

    def _ensure_view(self, row: int) -> AnyMessageView:
        message = self.messages[row]
        view = self.views.get(message.id)
        if view is None:
            view = self.views[message.id] = self._create_view(message)
            self._rows.measured[row] = False
            kept = self._pinned_ids() | self._edited_ids()
            others = [id for id in self.views if id not in kept] if len(self.views) > _MAX_VIEWS else []
            if others:
                self._delete_views([max(others, key=lambda id: abs(self._row_by_id[id] - row))])
        return view

    def _edited_ids(self) -> set[str]:
        return {id for id, view in self.views.items() if view.editor is not None}

    def _view_changed(self, message_id: str) -> None:
        row = self.row_of(message_id)
        if row is not None and message_id in self.views:
            self._rows.measured[row] = False
            self._arrange()

    def _create_nearby_widget(self) -> None:
        """Create the nearest missing widget outside the viewport, or measure one whose height is unknown."""
        if not self.messages:
            return
        first = self._rows.row_at(self._bar.value() - TOP)
        begin = max(min(first - _NEARBY // 2, len(self.messages) - _NEARBY), 0)
        rows = sorted(range(begin, min(begin + _NEARBY, len(self.messages))), key=lambda row: abs(row - first))
        for row in rows:
            if self.messages[row].id not in self.views or not self._rows.measured[row]:
                self._arrange(nearby=[row])
                break

    def _delete_views(self, ids: Sequence[str]) -> None:
        """Delete these messages' widgets. First take the focus from them, or Qt would give it to some other widget."""
        focus = QApplication.focusWidget()
        if focus is not None and any(self.views[id].isAncestorOf(focus) for id in ids):
            self.setFocus()
        for id in ids:
            view = self.views.pop(id)
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
        self._arrange()


def _gap_below(view: AnyMessageView) -> int:
    return _GAP_AFTER_USER if isinstance(view, UserView) else GAP
