"""What the window remembers of a conversation while it runs. No Qt."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvchat.chat.events import ReplyDelta, ReplyFinished, TurnEvent, TurnFailed
from kvchat.errors import KvchatError
from kvchat.ui.chat.turn_story import TurnStory


@dataclass
class Talk:
    """One conversation's turn, the one that runs in it or ran last."""

    story: TurnStory = field(default_factory=TurnStory)
    awaiting: bool = False  # sent, and no token yet
    failure: KvchatError | None = None
    live_id: str = ""  # of the reply that is coming; empty when none is
    live_text: str = ""
    live_thinking: str = ""
    live_thinking_ms: float | None = None  # how long it took, once it is over

    @property
    def is_over(self) -> bool:
        """Whether nothing of it goes on."""
        return not self.awaiting and not self.live_id

    def begin(self) -> None:
        """A message was sent."""
        self.awaiting, self.failure = True, None
        self.story.begin()

    def end(self) -> None:
        """Nothing more comes, even if nothing came: a reply can be stopped before its first word."""
        self.awaiting = False
        self.story.end()

    def hear(self, event: TurnEvent) -> None:
        """Take one event of the turn in."""
        self.story.tell(event)
        match event:
            case ReplyDelta():
                self._grow(event)
            case ReplyFinished():
                self._forget_live()
            case TurnFailed(error=error):
                self._forget_live()
                self.failure = error

    def _grow(self, event: ReplyDelta) -> None:
        if self.live_id != event.message_id:
            self.live_id, self.live_text, self.live_thinking = event.message_id, "", ""
        self.awaiting = False
        self.live_text += event.text
        self.live_thinking += event.thinking
        self.live_thinking_ms = event.thinking_ms

    def _forget_live(self) -> None:
        self.live_id = self.live_text = self.live_thinking = ""
