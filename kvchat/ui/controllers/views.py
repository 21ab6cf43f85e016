"""Code that the controllers share: the widgets they use, the display of a turn, and their base class."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from PySide6.QtCore import QObject, QTimer

from kvchat.chat.events import Event
from kvchat.chat.record.messages import Role
from kvchat.engine.api.connection import EngineStatus
from kvchat.errors import KvchatError
from kvchat.runtime import Runtime
from kvchat.session.exchange import PromptTooLong
from kvchat.text.language import _
from kvchat.ui.base.tasks import ErrorHandler, TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.chat.cards import ContextCard, EngineCard
from kvchat.ui.chat.chat_page import DocumentsLine, Header
from kvchat.ui.chat.composer import Composer
from kvchat.ui.chat.status_strip import ContextMeter, StatusStrip
from kvchat.ui.chat.turn_status import TurnStatus
from kvchat.ui.dialogs.panel import Notices
from kvchat.ui.models.first_start import FirstStart
from kvchat.ui.sidebar.sidebar import Sidebar
from kvchat.ui.transcript.call_card import tool_label
from kvchat.ui.transcript.find import FindBar
from kvchat.ui.transcript.transcript import Transcript


class Views(Protocol):
    look: Look
    runner: TaskRunner
    notices: Notices
    sidebar: Sidebar
    header: Header
    documents: DocumentsLine
    find_bar: FindBar
    transcript: Transcript
    engine_card: EngineCard
    context_card: ContextCard
    composer: Composer
    context_meter: ContextMeter
    status_strip: StatusStrip
    first_start: FirstStart


@dataclass
class ChatPresenter:
    runtime: Runtime
    transcript: Transcript
    composer: Composer
    current_chat: Callable[[], str | None]  # id of the visible chat
    turn: Callable[[], TurnStatus]
    has_cards: bool  # engine and context cards already report some failures

    @property
    def is_answering(self) -> bool:
        chat = self.current_chat()
        return chat is not None and self.runtime.chat.is_answering(chat)

    def show_turn(self, waiting: str = "") -> None:
        turn, messages, running = self.turn(), self.transcript.messages, self.is_answering
        self.composer.set_busy(running)
        chat = self.current_chat()
        calls = self.runtime.chat.turns.tool_calls.pending_in(chat) if chat is not None else []
        question = next((call for call in calls if call.is_waiting), None)
        pending = (waiting or turn.pending) if turn.awaits_output or turn.calling else ""
        if running_call := next((call for call in calls if not call.is_waiting), None):
            pending = _("Calling {tool}…", tool=tool_label(running_call.tool.name, running_call.tool.source))
        self.transcript.show_pending("" if question else pending, is_waiting=bool(waiting))
        self.transcript.show_question(question)
        too_long = self.has_cards and isinstance(turn.failure, PromptTooLong)
        reported = too_long or (self.has_cards and is_engine_failure(turn.failure, self.runtime.engine.status))
        self.transcript.show_failure(None if reported else turn.failure, self.runtime.model.name_for_conversation(None))
        last = messages[-1] if messages else None
        unanswered = last is not None and (last.role is not Role.ASSISTANT or bool(last.calls)) and not running
        status = self.runtime.engine.status
        self.transcript.show_unanswered(
            unanswered and not too_long and (reported or turn.failure is None),
            is_away=status.is_away,
            resends=turn.resends,
        )

    def show_live(self) -> None:
        if (turn := self.turn()).live_id:
            self.transcript.show_live_reply(turn.live_id, turn.live_text, turn.live_thinking, turn.live_thinking_ms)

    async def reload(self, chat_id: str, *, force: bool = False) -> bool:
        """Reload and show the messages; with `force`, scroll to the end. Return False if the chat is no longer open."""
        messages = await self.runtime.chat.messages(chat_id)
        if chat_id != self.current_chat():
            return False
        (self.transcript.show_conversation if force else self.transcript.update_messages)(messages)
        self.show_live()
        return True


def is_engine_failure(failure: KvchatError | None, status: EngineStatus) -> bool:
    return failure is not None and status.failure is not None and status.failure.title == failure.title


class Controller(QObject):
    def __init__(self, runtime: Runtime, views: Views, parent: QObject) -> None:
        super().__init__(parent)
        self._runtime, self._views, self._runner = runtime, views, views.runner
        self._closed = False
        self._unsubscribe = runtime.events.subscribe(self._handle_event)

    def close(self) -> None:
        if not self._closed:
            self._unsubscribe()
        self._closed = True
        for timer in self.findChildren(QTimer):
            timer.stop()

    def _handle_event(self, event: Event) -> None:
        pass

    def _timer(
        self, ms: int, run: Callable[[], Coroutine[Any, Any, Any]], on_error: ErrorHandler | None = None
    ) -> QTimer:
        """Return a single-shot timer that runs a coroutine. A KvchatError goes to `on_error`, if given."""
        timer = QTimer(self, singleShot=True, interval=ms)
        timer.timeout.connect(lambda: self._closed or self._runner.start(run(), on_error))
        return timer
