"""The door to the chat for whoever shows it: the window and `kvchat ask`."""

from __future__ import annotations

import asyncio

from kvchat.chat.events import EventBus
from kvchat.chat.messages import Conversation, Message
from kvchat.engine.wire import Sampling


class ChatService:
    """Conversations and turns. All methods belong to the event loop's thread; what they change they tell `events`."""

    events: EventBus

    @property
    def busy(self) -> str | None:
        """The conversation whose reply is being made right now, if any."""
        raise NotImplementedError

    async def conversations(self) -> list[Conversation]:
        """All conversations, newest first."""
        raise NotImplementedError

    async def messages(self, conversation_id: str) -> list[Message]:
        """The messages on the conversation's current branch, oldest first."""
        raise NotImplementedError

    async def new_conversation(self, system: str | None = None) -> Conversation:
        """Make an empty conversation, with a system prompt if given."""
        raise NotImplementedError

    async def rename(self, conversation_id: str, title: str) -> None:
        """Give a conversation the user's own title."""
        raise NotImplementedError

    async def delete(self, conversation_id: str) -> None:
        """Delete a conversation, its messages and its save points. A running turn in it is stopped first."""
        raise NotImplementedError

    def select(self, conversation_id: str) -> None:
        """The user looks at this conversation now: begin at once to restore its save point, in the background."""
        raise NotImplementedError

    def send(self, conversation_id: str, text: str, sampling: Sampling = Sampling()) -> asyncio.Task[Message | None]:
        """Store the user's message, then run a turn. The task ends with the reply, or None if there is none."""
        raise NotImplementedError

    def retry(self, conversation_id: str, sampling: Sampling = Sampling()) -> asyncio.Task[Message | None]:
        """Answer the last user message again, after a turn that failed or was interrupted."""
        raise NotImplementedError

    def stop(self, conversation_id: str) -> None:
        """Stop the running reply; what has come of it is kept."""
        raise NotImplementedError
