"""Cards and lines that are not messages: what is going on, what failed, what can be done about it."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from kvchat.engine.speaking.status import EngineState, EngineStatus, FailureKind
from kvchat.engine_host.choice import ModelMissing
from kvchat.errors import KvchatError
from kvchat.ui.widgets.flow import FlowLayout


class PendingLine(QLabel):
    """What happens before the first token, where the reply will stand."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "muted")
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setWordWrap(True)

    def set_words(self, words: str) -> None:
        """Say `words`; empty hides the line."""
        self.setText(words)
        self.setAccessibleName(words)
        self.setVisible(bool(words))


class UnansweredLine(QWidget):
    """Offers to answer a message that was left without a reply."""

    retry_requested = Signal()

    def __init__(self) -> None:
        super().__init__()
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        words = QLabel("This message has no reply yet.")
        words.setProperty("kind", "small")
        self.button = QPushButton("Try again")
        self.button.setProperty("kind", "link")
        self.button.setAccessibleName("Answer the last message")
        self.button.clicked.connect(self.retry_requested)
        row.addWidget(words)
        row.addWidget(self.button)
        row.addStretch(1)


class Card(QFrame):
    """Title, detail, advice, and a row of buttons."""

    def __init__(self, kind: str = "card") -> None:
        super().__init__()
        self.setProperty("kind", kind)
        self.title, self.detail, self.advice = QLabel(), QLabel(), QLabel()
        self.title.setProperty("kind", "strong")
        self.advice.setProperty("kind", "muted")
        column = QVBoxLayout(self)
        column.setContentsMargins(18, 14, 18, 14)
        column.setSpacing(5)
        for label in (self.title, self.detail, self.advice):
            label.setWordWrap(True)
            label.setTextFormat(Qt.TextFormat.PlainText)
            label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            label.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Minimum)
            column.addWidget(label)
        self._button_row = QWidget()
        self.buttons = FlowLayout(self._button_row)
        self.buttons.setContentsMargins(0, 6, 0, 0)
        column.addWidget(self._button_row)

    def say(self, title: str, detail: str, advice: str) -> None:
        """Fill in the words; empty ones take no room."""
        for label, words in ((self.title, title), (self.detail, detail), (self.advice, advice)):
            label.setText(words)
            label.setVisible(bool(words))
        self.setAccessibleName(" ".join(words for words in (title, detail, advice) if words))

    def add_button(self, words: str, kind: str = "") -> QPushButton:
        """One more button."""
        button = QPushButton(words)
        button.setProperty("kind", kind)
        button.setAccessibleName(words)
        self.buttons.addWidget(button)
        return button


class FailureCard(Card):
    """A turn that failed, in the transcript."""

    retry_requested = Signal()
    use_current_requested = Signal()  # answer with the model in use, the conversation's own being gone
    locate_requested = Signal()
    model_requested = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("tone", "bad")
        self.title.setProperty("tone", "bad")
        self.retry = self.add_button("Try again")
        self.use_current = self.add_button("", "primary")
        self.locate = self.add_button("Locate it…")
        self.model = self.add_button("Choose another model")
        self.retry.clicked.connect(self.retry_requested)
        self.use_current.clicked.connect(self.use_current_requested)
        self.locate.clicked.connect(self.locate_requested)
        self.model.clicked.connect(self.model_requested)

    def show_error(self, error: KvchatError | None, model: str | None = None) -> None:
        """Show the error, or hide. Where the conversation's model is gone, `model` names the one in use."""
        missing = isinstance(error, ModelMissing)
        if error is not None:
            self.say(error.title, error.detail, error.advice)
        self.use_current.setText(f"Use {model}".replace("&", "&&"))
        self.use_current.setAccessibleName(f"Use {model}")
        self.use_current.setVisible(missing and model is not None)
        for button in (self.locate, self.model):
            button.setVisible(missing)
        self.retry.setVisible(not missing)
        self.setVisible(error is not None)


class EngineCard(Card):
    """Above the composer: an engine that is loading, stopped or failed. Hidden while all is well."""

    start_requested = Signal()
    restart_requested = Signal()
    log_requested = Signal()
    model_requested = Signal()
    locate_requested = Signal()
    fetch_requested = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.start = self.add_button("Start", "primary")
        self.restart = self.add_button("Restart", "primary")
        self.log = self.add_button("View log")
        self.locate = self.add_button("Locate it…", "primary")
        self.fetch = self.add_button("Download again…")
        self.model = self.add_button("Choose another model")
        self.start.clicked.connect(self.start_requested)
        self.restart.clicked.connect(self.restart_requested)
        self.log.clicked.connect(self.log_requested)
        self.model.clicked.connect(self.model_requested)
        self.locate.clicked.connect(self.locate_requested)
        self.fetch.clicked.connect(self.fetch_requested)

    def show_status(
        self, status: EngineStatus, model: str | None, *, missing: bool = False, fetchable: bool = False
    ) -> None:
        """Say what the engine's state means for the user.

        Where the model's file is `missing` there are other choices; `fetchable`: where it came from is known.
        """
        state, failure = status.state, status.failure
        failed = state is EngineState.FAILED
        if state in (EngineState.READY, EngineState.RESTING):
            self.hide()
            return
        if failure is not None and failed:
            self.say(failure.title, failure.detail, failure.advice)
        elif failure is not None:
            attempt = f" (attempt {status.restart_attempt})" if status.restart_attempt else ""
            again = f"Starting the engine again{attempt}."
            if failure.kind is FailureKind.NOT_FOUND:  # a server of the user's: only looked for
                again = f"{failure.detail} Trying again…"
            self.say(failure.title, again, failure.advice)
        else:
            self.say(*_calm_words(status, model))
        self._show_buttons(state, missing=missing, fetchable=fetchable)
        self._set_tone("bad" if failed else "")
        self.show()

    def _show_buttons(self, state: EngineState, *, missing: bool, fetchable: bool) -> None:
        failed = state is EngineState.FAILED
        for button, wanted in (
            (self.start, state is EngineState.STOPPED),
            (self.restart, failed and not missing),
            (self.log, failed and not missing),
            (self.locate, failed and missing),
            (self.fetch, failed and missing and fetchable),
            (self.model, failed),
        ):
            button.setVisible(wanted)
        self._button_row.setVisible(failed or state is EngineState.STOPPED)

    def _set_tone(self, tone: str) -> None:
        for widget in (self, self.title):
            widget.setProperty("tone", tone)
            widget.style().unpolish(widget)
            widget.style().polish(widget)


def _calm_words(status: EngineStatus, model: str | None) -> tuple[str, str, str]:
    name = model or "the model"
    if status.checking:
        once = "This takes a few seconds, once for each model and engine. You can write already."
        return "Checking whether chats can be remembered here…", once, ""
    match status.state:
        case EngineState.STOPPED:
            return "The engine is stopped", "Your chats and their memory are kept.", ""
        case EngineState.STOPPING:
            return "Stopping the engine…", "", ""
        case EngineState.STARTING:
            return "Starting the engine…", "", ""
        case _:
            return f"Loading {name}…", "You can write already; it answers as soon as it is ready.", ""
