"""The page's end: what goes on there, what failed, what can be done about it, and the button that leads there."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSize, Qt, Signal
from PySide6.QtWidgets import QPushButton, QWidget

from kvchat.engine.speaking.errors import EngineFailed, FailureKind
from kvchat.engine_host.choice import ModelMissing
from kvchat.errors import KvchatError
from kvchat.ui.base.building import STRETCH, button, column, label, row, styled
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look
from kvchat.ui.widgets.controls import Card
from kvchat.ui.widgets.layouts import height_for_width
from kvchat.words.language import _

_SIZE, _FROM_BELOW = 32, 14  # pixels
JUMP_ROOM = _SIZE + 2 * _FROM_BELOW  # what it takes of a page's lower end


class FailureCard(Card):
    """Why a turn failed, and what can be done."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("tone", "bad")
        self.title.setProperty("tone", "bad")
        self.retry, self.use_current = self.add_button(_("Try again")), self.add_button("", "primary")
        self.locate, self.model = self.add_button(_("Locate it…")), self.add_button(_("Choose another model"))

    def show_error(self, error: KvchatError | None, model: str | None = None) -> None:
        """Show the error, or hide. Where the conversation's model is gone, `model` names the one in use."""
        missing = isinstance(error, ModelMissing)
        if error is not None:
            self.say(error.title, error.detail, error.advice)
        self.use_current.setText(_("Use {model}", model=model).replace("&", "&&"))
        self.use_current.setAccessibleName(_("Use {model}", model=model))
        kinds = FailureKind.BAD_MODEL, FailureKind.MODEL_MISSING  # no engine can start with the model's file
        of_the_model = missing or (isinstance(error, EngineFailed) and error.failure.kind in kinds)
        use_current = missing and model is not None and self.use_current
        self.offer(not missing and self.retry, use_current, missing and self.locate, of_the_model and self.model)
        self.setVisible(error is not None)


class TranscriptTail(QWidget):
    """Takes no room while there is nothing to say."""

    retry_requested = Signal()
    changed = Signal()  # it may be taller or shorter

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.pending = label(kind="muted", wraps=True)  # what happens before the first token, where the reply will be
        self.first = button(_("Answer this chat first"), kind="link")
        self.failure = FailureCard()
        self.unanswered = QWidget()  # a message was left without a reply
        self.answer = button(_("Try again"), self.retry_requested, "link", name=_("Answer the last message"))
        row(label(_("This message has no reply yet."), "small"), self.answer, STRETCH, on=self.unanswered, margins=0)
        first = self.first, 0, Qt.AlignmentFlag.AlignLeft
        self._column = column(self.pending, first, self.failure, self.unanswered, on=self, spacing=22, margins=0)
        for widget in (self.pending, self.first, self.failure, self.unanswered):
            widget.hide()
        self.failure.retry.clicked.connect(self.retry_requested)

    def event(self, event: QEvent) -> bool:
        done = super().event(event)
        if event.type() == QEvent.Type.LayoutRequest:
            self.changed.emit()
        return done

    def needed_height(self, width: int) -> int:
        if all(widget.isHidden() for widget in (self.pending, self.failure, self.unanswered)):
            return 0
        return height_for_width(self._column, width)


class JumpButton(QPushButton):
    """Stands in the middle of a page's lower edge while the reader is elsewhere."""

    def __init__(self, page: QWidget, look: Look) -> None:
        super().__init__(page)
        self._page, self._look = page, look
        styled(self, "jump").setAccessibleName(_("Go to the newest message"))
        self.setFixedSize(_SIZE, _SIZE)
        self.setIconSize(QSize(18, 18))
        self.hide()
        self._restyle()
        look.changed.connect(self._restyle)

    def _restyle(self) -> None:
        self.setIcon(icon("arrow-down", self._look.theme.text))

    def place(self) -> None:
        page = self._page
        self.move((page.width() - _SIZE) // 2, page.height() - _SIZE - _FROM_BELOW)
