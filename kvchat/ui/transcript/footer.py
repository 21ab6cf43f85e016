"""The buttons, state and receipt below a message, and the widgets after the last message."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

from PySide6.QtCore import QEvent, QObject, QRectF, Qt, Signal
from PySide6.QtGui import QMouseEvent, QPainter, QPointingDevice
from PySide6.QtWidgets import QBoxLayout, QFrame, QGridLayout, QSizePolicy, QToolButton, QWidget

from kvchat.chat.record.messages import UNFINISHED_STATES, Message, MessageState, Receipt
from kvchat.chat.turn import receipts
from kvchat.chat.turn.receipts import Phase, PhaseSpan
from kvchat.engine.api.errors import EngineFailed, FailureKind
from kvchat.engine_host.choice import ModelMissing
from kvchat.errors import KvchatError
from kvchat.text.formatting import format_date, format_datetime, format_duration, format_short_day
from kvchat.text.language import N_, _, join_list
from kvchat.ui.base.building import STRETCH, button, column, label, leading_alignment, row, styled, tool_button
from kvchat.ui.base.theme import Look
from kvchat.ui.transcript.call_card import CallCard
from kvchat.ui.widgets.controls import Card, RoundBar, mix_colours
from kvchat.ui.widgets.layouts import ElidedButton, ElidedLabel, FlowLayout, height_for_width

_MIN_STEP, _GAP, _LEGEND_MARK = 3.0, 1.0, 8  # pixels: minimum width of a step, gap between steps, size of a legend mark
_BUTTON_GAP = 6  # pixels between the text of a reply's footer and its buttons
_STATE_TEXTS = {
    MessageState.EDITED: N_("You edited this reply."),
    MessageState.STOPPED: N_("You stopped this reply."),
    MessageState.LIMITED: N_("This reply reached the length limit."),
    MessageState.INTERRUPTED: N_("This reply was interrupted."),
}


class RequestKind(Enum):
    REGENERATE = "regenerate"  # new alternative reply
    REGENERATE_WITH = "regenerate-with"  # the same with another model, which the user chooses
    CONTINUE = "continue"  # extend the reply
    EDIT = "edit"  # replace the text, on a new branch
    EDIT_CALL = "edit-call"  # replace a tool call's arguments, on a new branch
    FORK = "fork"  # continue in a new chat from here
    DELETE = "delete"
    SWITCH = "switch"  # switch to the sibling branch that starts with `text`


@dataclass(frozen=True)
class MessageRequest:
    kind: RequestKind
    message: Message
    text: str = ""


class Action(NamedTuple):
    glyph: str
    name: str
    run: Callable[[], object]


class MessageActions(QWidget):
    """A message's time and buttons. They always take space, but are painted only if `is_shown`."""

    def __init__(
        self, look: Look, message: Message, actions: Sequence[Action], on_switch: Callable[[str], object]
    ) -> None:
        """`on_switch` is called with the id of the previous or next branch."""
        super().__init__()
        self.is_last = self.is_hovered = False  # call update() after changing them
        self.was_painted = False
        at, now = message.created_at.astimezone(), datetime.now().astimezone()
        day = format_short_day(at) if at.year == now.year else format_date(at)
        time = label(f"{at:%H:%M}" if at.date() == now.date() else day, "small")
        time.setToolTip(format_datetime(at))
        time.setAccessibleName(format_datetime(at))
        self.buttons = [
            tool_button(action.name, lambda _=False, run=action.run: run(), "quiet", icon=look.icon(action.glyph))
            for action in actions
        ]
        for widget in (time, *self.buttons):
            widget.installEventFilter(self)
        for shown in self.buttons:
            shown.setFocusPolicy(Qt.FocusPolicy.StrongFocus)  # else a click would focus the page
        self.pager_buttons: list[QToolButton] = []  # previous and next branch, if there are several
        pager: list[QWidget] = []
        if siblings := message.siblings:
            position, count = siblings.index(message.id), len(siblings)
            place = label(f"{position + 1} / {count}", "small")
            place.setAccessibleName(_("Branch {position} of {count}", position=position + 1, count=count))
            previous = "chevron-left", _("Previous branch"), position - 1
            for glyph, name, target in (previous, ("chevron-right", _("Next branch"), position + 1)):
                exists = 0 <= target < count
                picture = look.icon(glyph, "muted" if exists else "line")
                arrow = tool_button(name, lambda _=False, to=target: on_switch(siblings[to]), "quiet", icon=picture)
                arrow.setEnabled(exists)
                self.pager_buttons.append(arrow)
            pager = [self.pager_buttons[0], place, self.pager_buttons[1]]
        row(STRETCH, time, *pager, *self.buttons, on=self, spacing=2, margins=0)

    def heightForWidth(self, width: int) -> int:
        return self.sizeHint().height()

    @property
    def is_shown(self) -> bool:
        return self.is_hovered or self.is_last or any(shown.hasFocus() for shown in self.buttons)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        match event.type():
            case QEvent.Type.Paint:
                self.was_painted = self.is_shown
                return not self.was_painted
            case QEvent.Type.FocusIn | QEvent.Type.FocusOut:
                self.update()
            case QEvent.Type.MouseButtonPress if isinstance(event, QMouseEvent) and not self.was_painted:
                # A finger cannot hover, so its first tap only shows the row.
                return event.pointerType() is QPointingDevice.PointerType.Finger
        return False


class TimelineBar(RoundBar):
    """Bar of a reply's steps; widths are proportional to durations. Steps before Send are paler."""

    def __init__(self, look: Look, steps: Sequence[PhaseSpan], width: int = 200, height: int = 10) -> None:
        super().__init__(look, width, height)
        self._steps = steps

    def paint_inside(self, painter: QPainter, box: QRectF) -> None:
        theme = self._look.theme
        colours = {
            Phase.LOADING: theme.code_name,
            Phase.READING: theme.warn,
            Phase.FIRST_TOKEN: theme.code_keyword,
            Phase.WRITING: theme.accent,
        }
        room = max(box.width() - (_MIN_STEP + _GAP) * len(self._steps), 0.0)
        total, left = sum(step.ms for step in self._steps) or 1.0, box.left()
        for step in self._steps:
            end = box.right() if step is self._steps[-1] else left + _MIN_STEP + room * step.ms / total
            is_paler = step.before_send or step.phase is Phase.SAVING
            colour = mix_colours(colours.get(step.phase, theme.muted), theme.code, 0.5 if is_paler else 1.0)
            painter.fillRect(QRectF(left, box.top(), end - left, box.height()), colour)
            left = end + _GAP


class Timeline(QWidget):
    def __init__(self, look: Look, steps: Sequence[PhaseSpan]) -> None:
        super().__init__()
        self.texts = [f"{step.label} {format_duration(step.ms)}" for step in steps]
        legend = FlowLayout(spacing=3)
        for step, text in zip(steps, self.texts, strict=True):
            mark = TimelineBar(look, [step], _LEGEND_MARK, _LEGEND_MARK)
            mark.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
            entry, middle = QWidget(), Qt.AlignmentFlag.AlignVCenter
            row((mark, 0, middle), label(text, "small"), on=entry, spacing=5, margins=(0, 0, 9, 0))
            legend.addWidget(entry)
        column(TimelineBar(look, steps), legend, on=self, spacing=6, margins=(0, 0, 0, 6))
        self.setAccessibleName(_("Timeline: {steps}", steps=join_list(self.texts)))


class ReceiptView(QWidget):
    def __init__(
        self,
        receipt: Receipt,
        look: Look,
        details_layout: QBoxLayout | None = None,
        steps: Sequence[receipts.TurnStep] = (),
    ) -> None:
        """`details_layout` is where to add the details, if given. It may be wider than this widget.

        `steps` are the rounds of a turn with tool calls.
        """
        super().__init__()
        self.receipt, self._look, self._steps = receipt, look, steps
        self.text = ("⚠ " if receipt.hollow else "") + receipts.turn_line(receipt, steps)
        self.summary_button = ElidedButton(kind="quiet")
        self.summary_button.setProperty("tone", "warn" if receipt.hollow else "")
        self.summary_button.setCursor(Qt.CursorShape.PointingHandCursor)
        self.summary_button.clicked.connect(self.toggle)
        self.details: QFrame | None = None
        layout = column(self.summary_button, on=self, spacing=4, margins=0)
        self._details_layout = details_layout or layout
        self._show_arrow()

    @property
    def is_open(self) -> bool:
        return self.details is not None and not self.details.isHidden()

    def toggle(self) -> None:
        if self.details is None:
            self.details = _details_frame(self.receipt, self._look, self._steps)
            self._details_layout.addWidget(self.details)
            self.details.show()
        else:
            self.details.setVisible(self.details.isHidden())
        self._show_arrow()

    def _show_arrow(self) -> None:
        arrow = "▾" if self.is_open else "◂" if self.isRightToLeft() else "▸"
        self.summary_button.set_text(self.text, arrow, receipts.receipt_sentence(self.receipt))
        name = _("Statistics: {text}, details collapsed", text=self.text)
        if self.is_open:
            name = _("Statistics: {text}, details expanded", text=self.text)
        self.summary_button.setAccessibleName(name)


class ReplyFooter(QWidget):
    def __init__(
        self,
        message: Message,
        actions: MessageActions,
        look: Look,
        retry: Any,
        on_continue: Any,
        steps: Sequence[receipts.TurnStep] = (),
    ) -> None:
        """`retry` and `on_continue` are callables or signals. Without `on_continue`, there is no button "Continue"."""
        super().__init__()
        self.receipt: ReceiptView | None = None
        self._lines, self._column = column(spacing=2), column(on=self, spacing=4, margins=0)
        if message.state in _STATE_TEXTS:
            ending = FlowLayout(spacing=10)
            ending.addWidget(label(_(_STATE_TEXTS[message.state]), "small"))
            if message.state is MessageState.INTERRUPTED:
                ending.addWidget(button(_("Try again"), retry, "link", name=_("Try this reply again")))
            if message.state in UNFINISHED_STATES and on_continue is not None:
                ending.addWidget(button(_("Continue"), on_continue, "link", name=_("Continue this reply")))
            self._lines.addLayout(ending)
        if message.receipt is not None and look.shows_numbers:
            self.receipt = ReceiptView(message.receipt, look, self._column, steps)
            self._lines.addWidget(self.receipt)
        elif message.receipt is not None and message.receipt.model_name:
            model = ElidedLabel("small")
            model.set_text(receipts.receipt_model(message.receipt))
            self._lines.addWidget(model)
        self.action_row = actions
        end = Qt.AlignmentFlag.AlignTop | Qt.AlignmentFlag.AlignRight
        self._row = row((self._lines, 1), (actions, 0, end), spacing=_BUTTON_GAP, margins=0)
        self._column.addLayout(self._row)

    def heightForWidth(self, width: int) -> int:
        """Return the height at this width. If the width is too small, the buttons are below the text."""
        beside = self._lines.minimumSize().width() + _BUTTON_GAP + self.action_row.minimumSizeHint().width()
        direction = QBoxLayout.Direction.TopToBottom if width < beside else QBoxLayout.Direction.LeftToRight
        self._row.setDirection(direction)
        return height_for_width(self._column, width)


def _details_frame(receipt: Receipt, look: Look, steps: Sequence[receipts.TurnStep]) -> QFrame:
    frame = styled(QFrame(), "details")
    grid = QGridLayout(frame)
    grid.setHorizontalSpacing(18)
    grid.setVerticalSpacing(4)
    grid.setContentsMargins(14, 10, 14, 10)
    grid.setColumnStretch(1, 1)
    if spans := receipts.timeline(receipt):
        grid.addWidget(Timeline(look, spans), 0, 0, 1, 2)
    details = *receipts.step_details(steps), *receipts.receipt_details(receipt)
    for line, (title, text) in enumerate(details, 1):
        name = label(title.strip(), "small", wraps=True)
        value = label(text, "small", wraps=True, selectable=True)
        value.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        for cell in (name, value):
            cell.setAlignment(leading_alignment() | Qt.AlignmentFlag.AlignTop)  # aligned with the first line
        grid.addLayout(row(18 if title.startswith(" ") else 0, name, spacing=0, margins=0), line, 0)
        grid.addWidget(value, line, 1)
    return frame


class FailureCard(Card):
    def __init__(self) -> None:
        super().__init__()
        self.setProperty("tone", "bad")
        self.title.setProperty("tone", "bad")
        self.retry_button, self.use_current_button = self.add_button(_("Try again")), self.add_button("", "primary")
        self.locate_button = self.add_button(_("Locate file…"))
        self.model_button = self.add_button(_("Choose another model"))

    def show_error(self, error: KvchatError | None, model: str | None = None) -> None:
        """Show the error, or hide the card if it is None. `model` can be used instead of a missing model."""
        missing = isinstance(error, ModelMissing)
        if error is not None:
            self.set_text(error.title, error.detail, error.advice)
        self.use_current_button.setText(_("Use {model}", model=model).replace("&", "&&"))
        self.use_current_button.setAccessibleName(_("Use {model}", model=model))
        kinds = FailureKind.BAD_MODEL, FailureKind.MODEL_MISSING  # failures caused by the model file
        of_the_model = missing or (isinstance(error, EngineFailed) and error.failure.kind in kinds)
        use_current = missing and model is not None and self.use_current_button
        self.show_buttons(
            not missing and self.retry_button,
            use_current,
            missing and self.locate_button,
            of_the_model and self.model_button,
        )
        self.setVisible(error is not None)


class TranscriptTail(QWidget):
    retry_requested = Signal()
    changed = Signal()  # its height may have changed

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.pending_label = label(kind="muted", wraps=True)  # progress before the first token
        self.prioritize_button = button(_("Prioritize this chat"), kind="link")
        self.failure_card, self.call_card = FailureCard(), CallCard()
        self.unanswered_row = QWidget()  # shown if the last message has no reply
        self.answer_button = button(_("Try again"), self.retry_requested, "link", name=_("Try again to get a reply"))
        self.resend_button = button(_("Send when the computer is back"), kind="link")  # while a paired computer is away
        self.unanswered_label = label(kind="small")
        row(self.unanswered_label, self.answer_button, self.resend_button, STRETCH, on=self.unanswered_row, margins=0)
        first = self.prioritize_button, 0, Qt.AlignmentFlag.AlignLeft
        shown = self.failure_card, self.call_card, self.unanswered_row
        self._column = column(self.pending_label, first, *shown, on=self, spacing=22, margins=0)
        for widget in (self.pending_label, self.prioritize_button, *shown):
            widget.hide()
        self.failure_card.retry_button.clicked.connect(self.retry_requested)

    def event(self, event: QEvent) -> bool:
        done = super().event(event)
        if event.type() == QEvent.Type.LayoutRequest:
            self.changed.emit()
        return done

    def needed_height(self, width: int) -> int:
        shown = self.pending_label, self.failure_card, self.call_card, self.unanswered_row
        if all(widget.isHidden() for widget in shown):
            return 0
        return height_for_width(self._column, width)
