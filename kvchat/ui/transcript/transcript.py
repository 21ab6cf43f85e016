"""The transcript of one conversation, with selection, find, message actions and keyboard focus."""

from collections.abc import Iterator, Sequence
from itertools import dropwhile
from textwrap import shorten

from PySide6.QtCore import QCoreApplication, QEvent, QPoint, QRect, Qt, QTimer, Signal
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QApplication, QWidget

from kvchat.chat.record.messages import Attachment, Message, Role, quotable_documents
from kvchat.chat.turn.receipts import turn_steps
from kvchat.chat.turn.tool_calls import PendingCall
from kvchat.errors import KvchatError
from kvchat.text.language import _
from kvchat.text.passages import quote_at, quoted_ranges
from kvchat.ui.attachments.chips import AttachmentView, ChipRows
from kvchat.ui.base.accessibility import announce
from kvchat.ui.base.theme import Look
from kvchat.ui.rendering.code_view import CodeText
from kvchat.ui.rendering.formulas import formula_renderer
from kvchat.ui.rendering.markdown import PLACE_LINK
from kvchat.ui.rendering.text_page import PageStyle, TextPage, ask_to_open
from kvchat.ui.transcript.find import HitMarks
from kvchat.ui.transcript.footer import MessageRequest, RequestKind
from kvchat.ui.transcript.message_column import JUMP_ROOM, MessageColumn
from kvchat.ui.transcript.message_view import MessageView, UserView
from kvchat.ui.transcript.parts import END, Row
from kvchat.ui.transcript.reply_view import ReplyView
from kvchat.ui.transcript.selection import Selection
from kvchat.ui.transcript.tool_view import ToolView

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
        self.marks = HitMarks(self, look)
        self._formula_timer = QTimer(self, singleShot=True, interval=_FORMULA_MS)
        self._formula_timer.timeout.connect(self._show_formulas)
        formula_renderer().ready.connect(self._show_formulas_soon)  # unlike a lambda, disconnected with this object
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
        self._set_messages([message for message in messages if message.role is not Role.SYSTEM])
        for message in self.messages:
            view = self.views.get(message.id)
            if isinstance(view, ReplyView):
                self._show_reply(view, message)
        self._arrange()

    def show_live_reply(self, message_id: str, text: str, thinking: str, thinking_ms: float | None = None) -> None:
        """Show the streaming reply so far. `thinking_ms` is how long the thinking took, once it is over."""
        self._live_reply = (message_id, text, thinking, thinking_ms)
        view = self.views.get(message_id)
        if isinstance(view, ReplyView):
            view.show_live_reply(text, thinking, thinking_ms)

    def edit(self, message_id: str) -> None:
        if self.has_message(message_id):
            view = self.ensure_view(message_id)
            view.edit()
            self.ensure_widget(view.rows[0])
            self._arrange()
            self.ensureWidgetVisible(view)
            if view.editor is not None:
                view.editor.field.setFocus()

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

    def show_question(self, pending: PendingCall | None) -> None:
        """Ask whether a tool call may run; None: no question."""
        self.tail.call_card.arguments.setFont(self._style.code_font)
        self.tail.call_card.show_call(pending)
        self._fit_tail()

    def show_failure(self, error: KvchatError | None, model: str | None = None) -> None:
        self.tail.failure_card.show_error(error, model)
        self._fit_tail()

    def show_unanswered(self, unanswered: bool, *, is_away: bool = False, resends: bool = False) -> None:
        """Offer to send the last message again and, while a paired computer `is_away`, to do so when it is back."""
        waiting, ended = _("kvchat sends this message when the computer is back."), _("This message has no reply yet.")
        self.tail.unanswered_label.setText(waiting if resends else ended)
        self.tail.resend_button.setVisible(is_away and not resends)
        self.tail.unanswered_row.setVisible(unanswered)
        self._fit_tail()

    def announce_reply(self, message_id: str) -> None:
        """Have screen readers speak a finished reply, or the beginning of a long one."""
        view = self.views.get(message_id)
        if isinstance(view, ReplyView):
            announce(self, _("Reply: {text}", text=shorten(view.plain_text, _MAX_ANNOUNCED, placeholder="…")))

    def show_message(self, message_id: str, number: int = 0) -> int:
        """Scroll to a message's search hit, or to its start if it has none. Return the number of hits.

        `number` is the index of the hit; -1 is the last.
        """
        if not self.has_message(message_id):
            return 0
        self._follow = False
        view = self.ensure_view(message_id)
        if self.marks.terms:
            view.unfold()
        self._arrange(self.top_of(self.first_row(message_id)) - self._bar.value() - _SCROLL_MARGIN)
        hits = self.marks.hits_in_message(message_id)
        if hits:
            row, place = hits[number if number < len(hits) else -1]
            self.ensure_widget(row)
            if isinstance(row.text, CodeText):
                row.text.insert_all()
            self._arrange(nearby=[row])
            assert row.text is not None
            mark = row.text.cursorRect(self.marks.set_current(row.text, place))
            top = row.text.mapTo(self._content, mark.topLeft()).y() - self._bar.value()
            if not 0 <= top <= self.viewport().height() - mark.height():
                self._arrange(top - self.viewport().height() // 3)
        return len(hits)

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

    def _tab_stops(self, area: QWidget | Row, forwards: bool) -> list[QWidget]:
        """Return an area's widgets that take the focus by Tab, in order of creation or, backwards, its reverse."""
        if isinstance(area, Row):
            self.ensure_widget(area)
            if not area.is_measured:
                self._arrange(nearby=[area])
        stops = list(filter(_is_tab_stop, _descendants(area.widget if isinstance(area, Row) else area)))
        return stops if forwards else stops[::-1]

    def _areas_from(self, index: int, forwards: bool) -> Iterator[QWidget | Row]:
        """Yield the rows from `index` on, and what is below them. Messages are parsed when reached."""
        below = self.tail, self.jump_button
        while 0 <= index < len(self.rows) + len(below):
            if index >= len(self.rows):
                yield below[index - len(self.rows)]
            elif self.rows[index].part is not END:
                yield self.rows[index]
            elif (id := self.rows[index].message_id) not in self.views:
                parts = len(self.ensure_view(id).rows)
                index += -1 if forwards else parts
            index += 1 if forwards else -1

    def _next_stop(self, focus: QWidget, forwards: bool) -> QWidget | None:
        end = len(self.rows)
        rows = (row for row in self.shown_rows if row.widget is focus or row.widget.isAncestorOf(focus))
        index = next((row.index for row in rows), end + (focus is self.jump_button))
        stops = (stop for area in self._areas_from(index, forwards) for stop in self._tab_stops(area, forwards))
        return next((stop for stop in dropwhile(lambda stop: stop is not focus, stops) if stop is not focus), None)

    def _visible_stop(self, forwards: bool) -> QWidget | None:
        top, view = self._bar.value(), self.viewport().rect()
        rows = [row for row in self._rows.between(top, top + view.height()) if row.part is not END]
        areas: list[Row | QWidget] = [*rows, self.tail, self.jump_button]
        stops = (stop for area in areas[:: 1 if forwards else -1] for stop in self._tab_stops(area, forwards))
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

    def _create_view(self, message: Message) -> MessageView:
        view: MessageView
        has_results = any(message.role is Role.TOOL for message in self.messages)
        self._style.markdown.links_places = has_results or bool(quotable_documents(self.messages))
        if message.role is Role.USER:
            view = UserView(self._style, message, self._content)
        elif message.role is Role.TOOL:
            view = ToolView(self._style, message, self._content)
        else:
            view = reply = ReplyView(self._style, message, self._content)
            reply.retry_requested.connect(self.retry_requested)
            self._show_reply(reply, message)
            if self._live_reply is not None and self._live_reply[0] == message.id and reply.is_streaming:
                reply.show_live_reply(*self._live_reply[1:])
                reply.render_now()
        view.requested.connect(self._forward_request)
        view.edit_requested.connect(lambda: self.edit(message.id))
        view.link_activated.connect(self._open_link)
        view.installEventFilter(self.selection)  # for the context menu beside the texts
        if message.id in self._edits:
            view.edit(self._edits.pop(message.id))
        view.changed.connect(lambda: self._view_changed(view))
        view.layout_changed.connect(lambda: self._view_changed(view, at_once=False))
        view.toggled.connect(lambda: self._view_toggled(view))
        return view

    def _show_reply(self, view: ReplyView, message: Message) -> None:
        view.show_message(message, is_last=message is self.messages[-1], steps=turn_steps(self.messages, message))

    def _row_shown(self, row: Row) -> None:
        view = self.views[row.message_id]
        if (text := row.text) is not None:
            self.selection.attach(row, text)
            self.marks.keep_marked(text)
            if isinstance(text, TextPage):
                text.link_reached.connect(lambda: self._scroll_into_view(text, text.cursorRect()))
        if isinstance(row.widget, ChipRows):
            row.widget.find_document = self._find_document
            self.marks.mark_attachments(view)
        if self._branch_switch and view.message.id == self._branch_switch[0] and view.action_row is not None:
            arrow, other = view.action_row.pager_buttons[:: -1 if self._branch_switch[1] else 1]
            (arrow if arrow.isEnabled() else other).setFocus()
            self._branch_switch = None

    def _open_link(self, url: str) -> None:
        """Ask whether to open a web link, or show the quoted passage that a reply names."""
        if not url.startswith(PLACE_LINK):
            ask_to_open(self.window(), url)
            return
        line = int(url.removeprefix(PLACE_LINK))
        attachments = [attachment for message in self.messages for attachment in message.attachments]
        quotes = [attachment.text for attachment in attachments if attachment.source]
        quotes += [message.content for message in self.messages if message.role is Role.TOOL]
        for quote in filter(None, (quote_at(text, line) for text in reversed(quotes))):
            for document in attachments:
                if not (document.data or document.source) and any(quoted_ranges(quote, document.full_text)):
                    AttachmentView(self._style.look, document, (), self.window(), quote).open()
                    return

    def _find_document(self, hash: str) -> Attachment | None:
        """Return a looked-up document of the chat."""
        attachments = (attachment for message in self.messages for attachment in message.attachments)
        return next((found for found in attachments if found.whole and found.hash == hash), None)

    def _kept_rows(self) -> list[Row]:
        return [*super()._kept_rows(), *self.selection.end_rows()]

    def _view_toggled(self, view: MessageView) -> None:
        """Lay out a folded or unfolded message: its top stays in place, or the end of the last reply in view."""
        follow = self._follow
        self._follow = follow and view.is_last
        self._view_changed(view)
        self._follow = follow and self._bar.value() == self._bar.maximum()
        if self._follow:
            self._arrange()

    def _forward_request(self, request: MessageRequest) -> None:
        """Emit `message_requested`. If a branch was switched by keyboard, note which button to focus afterwards."""
        siblings, actions = request.message.siblings, self.views[request.message.id].action_row
        if request.kind is RequestKind.SWITCH and actions and any(map(QWidget.hasFocus, actions.pager_buttons)):
            self._branch_switch = request.text, siblings.index(request.text) > siblings.index(request.message.id)
        self.message_requested.emit(request)

    def _show_formulas_soon(self) -> None:
        if not self._formula_timer.isActive():
            self._formula_timer.start()

    def _show_formulas(self) -> None:
        for row in self.shown_rows:
            if isinstance(row.text, TextPage) and row.text.show_formulas():
                row.is_measured = False
        self._arrange()

    def _delete_all_views(self) -> None:
        """Delete all messages' widgets immediately, except those being edited. New ones are created when needed.

        This makes a change of theme faster: restyling the widgets of 40 messages took 0.5 s.
        """
        self.selection.clear()
        deleted = {id: view for id, view in self.views.items() if view.editor is None}
        self._delete_views(list(deleted))
        for view in deleted.values():
            QCoreApplication.sendPostedEvents(view, QEvent.Type.DeferredDelete)

    def _restyle(self) -> None:
        self._style = PageStyle(self._look)
        self._delete_all_views()
        self._arrange()
