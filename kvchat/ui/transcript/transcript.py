"""The transcript: one conversation's messages, progress below them, selection, find and message actions."""

from __future__ import annotations

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
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look
from kvchat.ui.rendering.text_page import PageStyle, TextPage, ask_to_open
from kvchat.ui.transcript.find import HitMarks
from kvchat.ui.transcript.footer import MessageRequest, Request
from kvchat.ui.transcript.message_column import GAP, JUMP_ROOM, TOP, MessageColumn, View
from kvchat.ui.transcript.message_view import UserView
from kvchat.ui.transcript.reply_view import ReplyView
from kvchat.ui.transcript.selection import Selection

_MAX_SAID = 2000  # letters of a reply that are announced
_AROUND = 12  # pixels left around a scroll target
_GATHER_MS = 30  # finished formulas are collected this long before drawing


def _takes_tab(widget: QWidget) -> bool:
    wanted = widget.focusPolicy().value & Qt.FocusPolicy.TabFocus.value
    return bool(wanted) and widget.isVisible() and widget.isEnabled()


def _stops_in(area: QWidget) -> list[QWidget]:
    """Return an area's Tab stops, including itself, in reading order: by line, each from the left."""
    stops = list(filter(_takes_tab, _family(area)))
    boxes = {stop: QRect(stop.mapTo(area, QPoint(0, 0)), stop.size()) for stop in stops}
    stops.sort(key=lambda stop: boxes[stop].top())
    line = dict.fromkeys(stops, 0)
    for above, below in pairwise(stops):
        line[below] = line[above] + (boxes[below].center().y() > boxes[above].bottom())
    return sorted(stops, key=lambda stop: (line[stop], boxes[stop].left()))


def _family(widget: QWidget, closed: QWidget | None = None) -> Iterator[QWidget]:
    """Yield a widget and its descendants in creation order, visible or not, but none inside `closed`."""
    yield widget
    for child in widget.children() if widget is not closed else ():
        if isinstance(child, QWidget) and not child.isWindow():
            yield from _family(child, closed)


class Transcript(MessageColumn):
    accessible_role = QAccessible.Role.Pane
    jump_room = JUMP_ROOM
    retry_requested = Signal()
    message_requested = Signal(MessageRequest)

    def __init__(self, look: Look) -> None:
        super().__init__(look)
        self.setObjectName("transcript")
        self.setAccessibleName(_("Chat"))
        self._live: tuple[str, str, str, float | None] | None = None
        self._edits: dict[str, str] = {}  # started in messages without a widget
        self._came_by: tuple[str, bool] | None = None  # branch switched to, and True if forwards
        self.tail.retry_requested.connect(self.retry_requested)
        self.selection = Selection(self)
        self._pinned = self.selection.pinned
        self.marks = HitMarks(self, look)
        self._gather = QTimer(self, singleShot=True, interval=_GATHER_MS)
        self._gather.timeout.connect(self._show_formulas)
        self._formulas.ready.connect(lambda: self._gather.isActive() or self._gather.start())
        look.changing.connect(self._let_go)
        look.changed.connect(self._restyle)

    def show_conversation(self, messages: Sequence[Message]) -> None:
        self.selection.clear()
        self.marks.clear()
        self._drop(list(self.views))
        self._show_rows([])
        self._follow = True
        self._live = None
        self.update_messages(messages)

    def update_messages(self, messages: Sequence[Message]) -> None:
        shown = [message for message in messages if message.role is not Role.SYSTEM]
        self._show_rows(shown)
        for id, view in list(self.views.items()):  # growing rows may reveal others
            if id not in self.views:
                continue
            message = shown[self._row_of[id]]
            if isinstance(view, ReplyView) and view.message != message:
                view.show_message(message)
            self._tell_place(view)
        self._arrange()

    def set_live(self, message_id: str, text: str, thinking: str, thinking_ms: float | None = None) -> None:
        """Show the running reply so far; `thinking_ms` once thinking is over."""
        self._live = (message_id, text, thinking, thinking_ms)
        view = self.views.get(message_id)
        if isinstance(view, ReplyView):
            view.set_live(text, thinking, thinking_ms)

    def edit(self, message_id: str) -> None:
        row = self._row_of.get(message_id)
        if row is not None:
            view = self._view(row)
            view.edit()
            self._arrange()
            self.ensureWidgetVisible(view)

    def end_edit(self, message_id: str) -> None:
        self._edits.pop(message_id, None)
        if message_id in self.views:
            self.views[message_id].end_edit()

    def show_pending(self, words: str, *, waits: bool = False) -> None:
        """Show progress before the first token. `waits`: for another chat, which can be postponed."""
        self.tail.pending.setText(words)
        self.tail.pending.setAccessibleName(words)
        self.tail.pending.setVisible(bool(words))
        self.tail.first.setVisible(waits and bool(words))
        self._fit_tail()

    def show_failure(self, error: KvchatError | None, model: str | None = None) -> None:
        self.tail.failure.show_error(error, model)
        self._fit_tail()

    def show_unanswered(self, unanswered: bool) -> None:
        self.tail.unanswered.setVisible(unanswered)
        self._fit_tail()

    def announce_reply(self, message_id: str) -> None:
        """Have a screen reader read a finished reply, or the beginning of a long one."""
        view = self.views.get(message_id)
        if isinstance(view, ReplyView):
            said = "\n".join(text.toPlainText() for text in view.column.texts)
            announce(self, _("Reply: {text}", text=shorten(said, _MAX_SAID, placeholder="…")))

    def show_message(self, message_id: str, number: int = 0) -> int:
        """Scroll to a message: to mark `number` (−1: the last), or else to its beginning.

        Return its number of marks.
        """
        row = self._row_of.get(message_id)
        if row is None:
            return 0
        self._follow = False
        self._view(row)
        self._arrange(TOP + self._rows.top(row) - GAP - self.verticalScrollBar().value())
        if self.marks.terms:
            self.views[message_id].unfold()
        found = self.marks.in_message(message_id)
        if found:
            text, cursor = found[number if number < len(found) else -1]
            self.marks.lead_to(text, cursor)
            mark = text.cursorRect(cursor)
            top = text.mapTo(self._ground, mark.topLeft()).y() - self.verticalScrollBar().value()
            if not 0 <= top <= self.viewport().height() - mark.height():
                self._arrange(top - self.viewport().height() // 3)
        return len(found)

    def focusNextPrevChild(self, next: bool) -> bool:
        here = QApplication.focusWidget()
        stop: QWidget | None = None
        if here is self:
            stop = self._stop_in_sight(forwards=True) if next else None
        elif here is not None and self.isVisible() and self.isAncestorOf(here):
            # Qt moves the focus away from hidden widgets, maybe while messages are placed.
            stop = self if not _takes_tab(here) else self._stop_beside(here, next) or (None if next else self)
        return self._give_keys(stop, next) if stop is not None else self.step_in_window(next)

    def step_in_window(self, forwards: bool) -> bool:
        """Focus the window's next Tab stop in creation order; the page counts as one stop."""
        here, family = QApplication.focusWidget(), list(_family(self.window(), closed=self))
        start = family.index(here if here in family else self)
        around = [*family[start + 1 :], *family[:start]]
        stop = next(filter(_takes_tab, around if forwards else reversed(around)), None)
        if stop is self and not forwards:
            stop = self._stop_in_sight(forwards=False) or self
        return stop is not None and self._give_keys(stop, forwards)

    def _give_keys(self, stop: QWidget, forwards: bool) -> bool:
        stop.setFocus(Qt.FocusReason.TabFocusReason if forwards else Qt.FocusReason.BacktabFocusReason)
        if self._ground.isAncestorOf(stop):
            self._show_inside(stop, stop.rect())
        return True

    def _stops(self, places: Iterable[int], forwards: bool) -> Iterator[QWidget]:
        """Yield the Tab stops in these rows; the two after the messages are tail and jump button.

        Creates the widgets of messages on the way.
        """
        for place in places:
            area: QWidget = self.tail if place == len(self.messages) else self.jump
            if place < len(self.messages):
                area = self._view(place)
                if not self._rows.measured[place]:
                    self._arrange()
            yield from _stops_in(area)[:: 1 if forwards else -1]

    def _stop_beside(self, here: QWidget, forwards: bool) -> QWidget | None:
        end = len(self.messages)
        areas = {self._row_of[id]: view for id, view in self.views.items()} | {end: self.tail, end + 1: self.jump}
        begin = next(place for place, area in areas.items() if area.isAncestorOf(here))
        stops = self._stops(range(begin, end + 2) if forwards else range(begin, -1, -1), forwards)
        return next((stop for stop in dropwhile(lambda stop: stop is not here, stops) if stop is not here), None)

    def _stop_in_sight(self, forwards: bool) -> QWidget | None:
        top, sight, end = self.verticalScrollBar().value(), self.viewport().rect(), len(self.messages)
        places = [*self._rows_between(top, top + sight.height()), end, end + 1]
        stops = self._stops(places if forwards else reversed(places), forwards)
        return next((s for s in stops if sight.intersects(QRect(s.mapTo(self, QPoint(0, 0)), s.size()))), None)

    def _show_inside(self, widget: QWidget, box: QRect) -> None:
        """Scroll if necessary to show all of a widget's `box`, or its nearer end."""
        top, height = widget.mapTo(self._ground, box.topLeft()).y(), box.height()
        above, area = self.verticalScrollBar().value(), self.viewport().height()
        if min(top + height, above + area) - max(top, above) >= min(height, area // 2):
            return
        to_top, to_bottom = top - _AROUND, top + height + _AROUND - area
        self.scroll_by((to_top if (top < above) == (height <= area) else to_bottom) - above)

    def _drop(self, ids: Sequence[str]) -> None:
        for id in ids:
            editor = self.views[id].editor
            if editor is not None:
                self._edits[id] = editor.field.toPlainText()
        super()._drop(ids)

    def _new_view(self, message: Message) -> View:
        view: View
        if message.role is Role.USER:
            view = UserView(self._style, message, self._ground)
        else:
            view = ReplyView(self._style, message, self._ground)
            view.retry_requested.connect(self.retry_requested)
        view.requested.connect(self._pass_on)
        view.text_made.connect(lambda text: self._watch(text, view))
        view.link_activated.connect(lambda url: ask_to_open(self.window(), url))
        view.installEventFilter(self.selection)  # menu outside the texts
        self.marks.watch_documents(view)
        view.begin()
        if self._live is not None and self._live[0] == message.id and isinstance(view, ReplyView) and view.streaming:
            view.set_live(*self._live[1:])
            view.render_now()
        view.show()
        view.changed.connect(lambda: self._view_changed(message.id))
        view.opened.connect(lambda: self._hold(message.id))
        if message.id in self._edits:
            view.edit(self._edits.pop(message.id))
        self._tell_place(view)
        if self._came_by and message.id == self._came_by[0]:
            wanted, other = view.action_row.pager[:: -1 if self._came_by[1] else 1]
            (wanted if wanted.isEnabled() else other).setFocus()
            self._came_by = None
        return view

    def _watch(self, text: QTextEdit, view: View) -> None:
        self.selection.watch(text, view)
        self.marks.watch(text)
        if isinstance(text, TextPage):
            text.link_reached.connect(lambda: self._show_inside(text, text.cursorRect()))

    def _hold(self, message_id: str) -> None:
        """Keep what the reader unfolds in place, growing downwards; keep the last reply's end in view."""
        follow, bar = self._follow, self.verticalScrollBar()
        is_last = self.row_of(message_id) == len(self.messages) - 1
        self._follow = follow and is_last and isinstance(self.views.get(message_id), ReplyView)
        self._view_changed(message_id)
        self._follow = follow and bar.value() == bar.maximum()
        if self._follow:
            self._arrange()

    def _tell_place(self, view: View) -> None:
        if isinstance(view, ReplyView):
            view.set_last(self._row_of[view.message.id] == len(self.messages) - 1)

    def _pass_on(self, requested: MessageRequest) -> None:
        """When branches are switched by keyboard, focus the same button of the next branch."""
        siblings, pager = requested.message.siblings, self.views[requested.message.id].action_row.pager
        if requested.run is Request.SWITCH and any(button.hasFocus() for button in pager):
            self._came_by = requested.text, siblings.index(requested.text) > siblings.index(requested.message.id)
        self.message_requested.emit(requested)

    def _show_formulas(self) -> None:
        for view in list(self.views.values()):
            view.show_formulas()

    def _let_go(self) -> None:
        """Delete the widgets at once: they are recreated, and restyling those of 40 messages took 0.5 s."""
        self.selection.clear()
        gone = {id: view for id, view in self.views.items() if id not in self._editing()}
        self._drop(list(gone))
        for view in gone.values():
            QCoreApplication.sendPostedEvents(view, QEvent.Type.DeferredDelete)

    def _restyle(self) -> None:
        self._style = PageStyle(self._look, self._formulas)
        self.jump.setIcon(icon("arrow-down", self._look.theme.text))
        self.selection.clear()
        self._drop([id for id in self.views if id not in self._editing()])
        self._arrange()
