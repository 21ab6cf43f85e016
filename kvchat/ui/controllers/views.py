"""The parts of the window that show what goes on, and what is shown in several of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.chat.record.messages import Conversation, Message, Role
from kvchat.engine.speaking.status import EngineStatus
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import ConversationUsage
from kvchat.runtime import Runtime
from kvchat.session.session import PromptTooLong
from kvchat.ui.chat.cards import EngineCard
from kvchat.ui.chat.composer import Composer
from kvchat.ui.chat.header import Header
from kvchat.ui.chat.status_strip import StatusStrip
from kvchat.ui.controllers.talk import Talk
from kvchat.ui.dialogs.notices import Notices
from kvchat.ui.sidebar.sidebar import Sidebar
from kvchat.ui.transcript.transcript import Transcript


@dataclass(frozen=True)
class Views:
    """They decide nothing: whoever has them says what is to be shown."""

    sidebar: Sidebar
    header: Header
    transcript: Transcript
    composer: Composer
    strip: StatusStrip
    engine_card: EngineCard
    notices: Notices

    def show_engine(self, runtime: Runtime, conversation: Conversation | None) -> None:
        """Engine, model and context, wherever they are shown; the model is the one that answers in a conversation."""
        engine, model = runtime.engine, runtime.model
        self.engine_card.show_status(
            engine.status, model.name, missing=model.is_missing, fetchable=model.repository is not None
        )
        self.strip.show_engine(engine.status.state, model.name)
        self.show_model(runtime, conversation)
        self.strip.show_context(engine.context_size, engine.context_reason)

    def show_model(self, runtime: Runtime, conversation: Conversation | None) -> None:
        """The model that answers in a conversation."""
        self.header.show_model(runtime.model.name_in(conversation))

    def show_kept(self, conversation_id: str | None, title: str, usage: ConversationUsage | None) -> None:
        """The conversation's title, and what is wished for its save points."""
        self.header.show_conversation(
            title,
            exists=conversation_id is not None,
            pinned=usage is not None and usage.pinned,
            never_save=usage is not None and usage.never_save,
        )

    def show_turn(
        self, runtime: Runtime, talk: Talk, messages: Sequence[Message], *, running: bool, waiting: str = ""
    ) -> None:
        """A conversation's turn, wherever it is shown; `waiting` says for which other one it waits."""
        self.composer.set_busy(running)
        self.strip.show_turn(talk.story.pieces, talk.story.fraction, silent=talk.story.silent)
        self.transcript.show_pending((waiting or talk.story.pending) if talk.awaiting else "", waits=bool(waiting))
        too_long = isinstance(talk.failure, PromptTooLong)  # the context's card says so, and what can be done
        told = too_long or _told_by_engine(talk.failure, runtime.engine.status)
        self.transcript.show_failure(None if told else talk.failure, runtime.model.name)
        unanswered = bool(messages) and messages[-1].role is Role.USER and not running
        self.transcript.show_unanswered(unanswered and not too_long and (told or talk.failure is None))

    def show_live(self, talk: Talk) -> None:
        """The reply that is coming, as far as it has come."""
        self.transcript.set_live(talk.live_id, talk.live_text, talk.live_thinking, talk.live_thinking_ms)


def _told_by_engine(failure: KvchatError | None, status: EngineStatus) -> bool:
    """Whether the engine's card says the same already: one card is enough."""
    return failure is not None and status.failure is not None and status.failure.title == failure.title
