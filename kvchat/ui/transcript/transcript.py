"""The transcript of one conversation, with selection, find, message actions and keyboard focus."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile, pairwise
from textwrap import shorten

from PySide6.QtCore import QCoreApplication, QEvent, QPoint, QRect, Qt, QTimer, Signal
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QApplication, QTextEdit, QWidget

from kvchat.chat.record.messages import Message, Role
from kvchat.errors import KvchatError
from kvchat.text.language import _
from kvchat.ui.base.accessibility import announce
from kvchat.ui.base.theme import Look
from kvchat.ui.rendering.text_page import PageStyle, TextPage, ask_to_open
from kvchat.ui.transcript.find import HitMarks
from kvchat.ui.transcript.footer import MessageRequest, RequestKind
from kvchat.ui.transcript.message_column import GAP, JUMP_ROOM, TOP, AnyMessageView, MessageColumn
from kvchat.ui.transcript.message_view import UserView
from kvchat.ui.transcript.reply_view import ReplyView
from kvchat.ui.transcript.selection import Selection

_MAX_ANNOUNCED = 2000  # characters
_SCROLL_MARGIN = 12  # pixels left around a scroll target
_FORMULA_MS = 30  # delay that combines finished formulas into one layout


def _is_tab_stop(widget: QWidget) -> bool:
    has_focus_by_tab = widget.focusPolicy().value & Qt.FocusPolicy.TabFocus.value
    return bool(has_focus_by_tab) and widget.isVisible() and widget.isEnabled()


def _descendants(widget: QWidget, closed: QWidget | None = None) -> Iterator[QWidget]:
    """Yield a widget and its descendants in creation order, except those inside `closed`."""
    yield widget
    for child in widget.children() if widget is not closed else ():
        if isinstance(child, QWidget) and not child.isWindow():
            yield from _descendants(child, closed)


class Transcript(MessageColumn):
    accessible_role = QAccessible.Role.Pane
    jump_room = JUMP_ROOM
    retry_requested = Signal()
    message_requested = Signal(MessageRequest)

    def __init__(self, look: Look) -> None:
        super().__init__(look)
        self.setObjectName("transcript")
        self.setAccessibleName(_("Chat"))
        self._live_reply: tuple[str, str, str, float | None] | None = None
        self._edits: dict[str, str] = {}  # unfinished edits of messages without a widget
        self._branch_switch: tuple[str, bool] | None = None  # target chosen by keyboard; True if forwards
        self.tail.retry_requested.connect(self.retry_requested)
        self.selection = Selection(self)
        self._pinned_ids = self.selection.end_message_ids
        self.marks = HitMarks(self, look)
        formula_timer = QTimer(self, singleShot=True, interval=_FORMULA_MS)
        formula_timer.timeout.connect(self._show_formulas)
        self._formulas.ready.connect(lambda: formula_timer.isActive() or formula_timer.start())
        look.changing.connect(self._delete_all_views)
        look.changed.connect(self._restyle)

    def show_conversation(self, messages: Sequence[Message]) -> None:
        self.selection.clear()
        self.marks.clear()
        self._delete_views(list(self.views))
        self._set_messages([])
        self._follow = True
        self._live_reply = None
        self.update_messages(messages)

    def update_messages(self, messages: Sequence[Message]) -> None:
        visible_messages = [message for message in messages if message.role is not Role.SYSTEM]
        self._set_messages(visible_messages)
        for id, view in list(self.views.items()):  # showing a message may create and delete other views
            if id not in self.views:
                continue
            message = visible_messages[self._row_by_id[id]]
            if isinstance(view, ReplyView) and view.message != message:
                view.show_message(message)
            self._set_last(view)
        self._arrange()

    def show_live_reply(self, message_id: str, text: str, thinking: str, thinking_ms: float | None = None) -> None:
        """Show the streaming reply so far. `thinking_ms` is how long the thinking took, once it is over."""
        self._live_reply = (message_id, text, thinking, thinking_ms)
        view = self.views.get(message_id)
        if isinstance(view, ReplyView):
            view.show_live_reply(text, thinking, thinking_ms)

    def edit(self, message_id: str) -> None:
        if (row := self.row_of(message_id)) is not None:
            view = self._ensure_view(row)
            view.edit()
            self._arrange()
            self.ensureWidgetVisible(view)

    def end_edit(self, message_id: str) -> None:
        self._edits.pop(message_id, None)
        if message_id in self.views:
            self.views[message_id].end_edit()

    def show_pending(self, text: str, *, is_waiting: bool = False) -> None:
        """Show progress before the first token. If the chat `is_waiting` for another one, offer to prioritize it."""
        self.tail.pending_label.setText(text)
        self.tail.pending_label.setAccessibleName(text)
        self.tail.pending_label.setVisible(bool(text))
        self.tail.prioritize_button.setVisible(is_waiting and bool(text))
        self._fit_tail()

    def show_failure(self, error: KvchatError | None, model: str | None = None) -> None:
        self.tail.failure_card.show_error(error, model)
        self._fit_tail()

    def show_unanswered(self, unanswered: bool) -> None:
        self.tail.unanswered_row.setVisible(unanswered)
        self._fit_tail()

    def announce_reply(self, message_id: str) -> None:
        """Have screen readers speak a finished reply, or the beginning of a long one."""
        view = self.views.get(message_id)
        if isinstance(view, ReplyView):
            reply = "\n".join(text.toPlainText() for text in view.column.texts)
            announce(self, _("Reply: {text}", text=shorten(reply, _MAX_ANNOUNCED, placeholder="…")))

    def show_message(self, message_id: str, number: int = 0) -> int:
        """Scroll to a message's search hit, or to its start if it has none. Return the number of hits.

        `number` is the index of the hit; -1 is the last.
        """
        if (row := self.row_of(message_id)) is None:
            return 0
        self._follow = False
        self._ensure_view(row)
        self._arrange(TOP + self._rows.top(row) - GAP - self._bar.value())
        if self.marks.terms:
            self.views[message_id].unfold()
        marks = self.marks.hits_in_message(message_id)
        if marks:
            text, cursor = marks[number if number < len(marks) else -1]
            self.marks.set_current(text, cursor)
            mark = text.cursorRect(cursor)
            top = text.mapTo(self._content, mark.topLeft()).y() - self._bar.value()
            if not 0 <= top <= self.viewport().height() - mark.height():
                self._arrange(top - self.viewport().height() // 3)
        return len(marks)

    def focusNextPrevChild(self, next: bool) -> bool:
        focus = QApplication.focusWidget()
        stop: QWidget | None = None
        if focus is self:
            stop = self._visible_stop(forwards=True) if next else None
        elif focus is not None and self.isVisible() and self.isAncestorOf(focus):
            # Qt moves focus away from widgets that are hidden, even while messages are placed.
            stop = self if not _is_tab_stop(focus) else self._next_stop(focus, next) or (None if next else self)
        return self._focus_stop(stop, next) if stop is not None else self.focus_next_in_window(next)

    def focus_next_in_window(self, forwards: bool) -> bool:
        """Focus the window's next widget in Tab order (order of creation). The transcript counts as one widget."""
        focus, widgets = QApplication.focusWidget(), list(_descendants(self.window(), closed=self))
        start = widgets.index(focus if focus in widgets else self)
        others = [*widgets[start + 1 :], *widgets[:start]]
        stop = next(filter(_is_tab_stop, others if forwards else reversed(others)), None)
        if stop is self and not forwards:
            stop = self._visible_stop(forwards=False) or self
        return stop is not None and self._focus_stop(stop, forwards)

    def _focus_stop(self, stop: QWidget, forwards: bool) -> bool:
        stop.setFocus(Qt.FocusReason.TabFocusReason if forwards else Qt.FocusReason.BacktabFocusReason)
        if self._content.isAncestorOf(stop):
            self._scroll_into_view(stop, stop.rect())
        return True

    def _tab_stops(self, rows: Iterable[int], forwards: bool) -> Iterator[QWidget]:
        """Yield the widgets in these rows that take the focus by Tab, in reading order or, backwards, its reverse.

        Missing widgets are created. The rows after the last message are the widgets below it and the jump button.
        """
        for row in rows:
            area: QWidget = self.tail if row == len(self.messages) else self.jump_button
            if row < len(self.messages):
                area = self._ensure_view(row)
                if not self._rows.measured[row]:
                    self._arrange()
            stops = list(filter(_is_tab_stop, _descendants(area)))
            boxes = {stop: QRect(stop.mapTo(area, QPoint(0, 0)), stop.size()) for stop in stops}
            stops.sort(key=lambda stop: boxes[stop].top())
            line = dict.fromkeys(stops, 0)
            for above, below in pairwise(stops):
                line[below] = line[above] + (boxes[below].center().y() > boxes[above].bottom())
            yield from sorted(stops, key=lambda stop: (line[stop], boxes[stop].left()), reverse=not forwards)

    def _next_stop(self, focus: QWidget, forwards: bool) -> QWidget | None:
        end = len(self.messages)
        message_rows = (self._row_by_id[id] for id, view in self.views.items() if view.isAncestorOf(focus))
        row = next(message_rows, end + (focus is self.jump_button))
        stops = self._tab_stops(range(row, end + 2) if forwards else range(row, -1, -1), forwards)
        return next((stop for stop in dropwhile(lambda stop: stop is not focus, stops) if stop is not focus), None)

    def _visible_stop(self, forwards: bool) -> QWidget | None:
        top, view, end = self._bar.value(), self.viewport().rect(), len(self.messages)
        places = [*self._rows_between(top, top + view.height()), end, end + 1]
        stops = self._tab_stops(places if forwards else reversed(places), forwards)
        return next((stop for stop in stops if view.intersects(QRect(stop.mapTo(self, QPoint()), stop.size()))), None)

    def _scroll_into_view(self, widget: QWidget, box: QRect) -> None:
        """Scroll to a widget's `box`, or to its nearer end if it is too tall, unless enough of it is visible."""
        top, height = widget.mapTo(self._content, box.topLeft()).y(), box.height()
        above, area = self._bar.value(), self.viewport().height()
        if min(top + height, above + area) - max(top, above) >= min(height, area // 2):
            return
        to_top, to_bottom = top - _SCROLL_MARGIN, top + height + _SCROLL_MARGIN - area
        self.scroll_by((to_top if (top < above) == (height <= area) else to_bottom) - above)

    def _delete_views(self, ids: Sequence[str]) -> None:
        for id in ids:
            editor = self.views[id].editor
            if editor is not None:
                self._edits[id] = editor.field.toPlainText()
        super()._delete_views(ids)

    def _create_view(self, message: Message) -> AnyMessageView:
        view: AnyMessageView
        if message.role is Role.USER:
            view = UserView(self._style, message, self._content)
        else:
            view = ReplyView(self._style, message, self._content)
            view.retry_requested.connect(self.retry_requested)
        view.requested.connect(self._forward_request)
        view.text_added.connect(lambda text: self._attach_text(text, view))
        view.link_activated.connect(lambda url: ask_to_open(self.window(), url))
        view.installEventFilter(self.selection)  # for the context menu beside the texts
        self.marks.mark_attachments(view)
        if isinstance(view, UserView):
            view.build()
        else:
            view.show_message(message)
            if self._live_reply is not None and self._live_reply[0] == message.id and view.is_streaming:
                view.show_live_reply(*self._live_reply[1:])
                view.render_now()
        view.show()
        view.changed.connect(lambda: self._view_changed(message.id))
        view.toggled.connect(lambda: self._view_toggled(message.id))
        if message.id in self._edits:
            view.edit(self._edits.pop(message.id))
        self._set_last(view)
        if self._branch_switch and message.id == self._branch_switch[0]:
            arrow, other = view.action_row.pager_buttons[:: -1 if self._branch_switch[1] else 1]
            (arrow if arrow.isEnabled() else other).setFocus()
            self._branch_switch = None
        return view

    def _attach_text(self, text: QTextEdit, view: AnyMessageView) -> None:
        self.selection.attach(text, view)
        self.marks.keep_marked(text)
        if isinstance(text, TextPage):
            text.link_reached.connect(lambda: self._scroll_into_view(text, text.cursorRect()))

    def _view_toggled(self, message_id: str) -> None:
        """Lay out a folded or unfolded message: its top stays in place, or the end of the last reply in view."""
        follow = self._follow
        is_last = self.row_of(message_id) == len(self.messages) - 1
        self._follow = follow and is_last and isinstance(self.views.get(message_id), ReplyView)
        self._view_changed(message_id)
        self._follow = follow and self._bar.value() == self._bar.maximum()
        if self._follow:
            self._arrange()

    def _set_last(self, view: AnyMessageView) -> None:
        if isinstance(view, ReplyView):
            view.set_is_last(self._row_by_id[view.message.id] == len(self.messages) - 1)

    def _forward_request(self, request: MessageRequest) -> None:
        """Emit `message_requested`. If a branch was switched by keyboard, note which button to focus afterwards."""
        siblings, pager = request.message.siblings, self.views[request.message.id].action_row.pager_buttons
        if request.kind is RequestKind.SWITCH and any(button.hasFocus() for button in pager):
            self._branch_switch = request.text, siblings.index(request.text) > siblings.index(request.message.id)
        self.message_requested.emit(request)

    def _show_formulas(self) -> None:
        for view in list(self.views.values()):
            if view.column.show_formulas():
                view.changed.emit()

    def _delete_all_views(self) -> None:
        """Delete all messages' widgets immediately, except those being edited. New ones are created when needed.

        This makes a change of theme faster: restyling the widgets of 40 messages took 0.5 s.
        """
        self.selection.clear()
        deleted = {id: view for id, view in self.views.items() if id not in self._edited_ids()}
        self._delete_views(list(deleted))
        for view in deleted.values():
            QCoreApplication.sendPostedEvents(view, QEvent.Type.DeferredDelete)

    def _restyle(self) -> None:
        self._style = PageStyle(self._look, self._formulas)
        self._delete_all_views()
        self._arrange()
