"""Restoring ahead: what the user looks at is restored while the user still reads."""

from __future__ import annotations

from kvchat.chat.events import Notice
from kvchat.chat.record.prompt import begins_empty, ends_with_reply, prompt_messages
from kvchat.chat.turn_parts import TurnParts
from kvchat.engine.speaking.errors import EngineError
from kvchat.errors import KvchatError
from kvchat.session.session import Request
from kvchat.system.concurrency import Background, Interruption


class Prefetch:
    """Under the slot's lock, in the background. Only the last selection counts: it ends what was begun for another."""

    def __init__(self, parts: TurnParts, background: Background) -> None:
        self._parts, self._background = parts, background
        self._selected: str | None = None
        self._loading: str | None = None  # what is being restored right now
        self._work = Interruption()

    def select(self, conversation_id: str | None) -> None:
        """The user looks at this conversation now, or at none."""
        self._selected = conversation_id
        self.give_way(conversation_id)
        self.begin()

    def give_way(self, conversation_id: str | None) -> None:
        """Somebody waits for the slot, for this conversation: restoring another one ahead ends now."""
        if self._loading not in (None, conversation_id):
            self._work.interrupt()

    def leave(self, conversation_id: str) -> None:
        """A conversation is about to go."""
        if self._selected == conversation_id:
            self._selected = None

    def changed(self, conversation_id: str) -> None:
        """There is something else in a conversation now."""
        if self._selected == conversation_id:
            self.begin()

    def begin(self) -> None:
        """Begin to restore what the user looks at, if it is anything."""
        if self._selected:
            self._background.begin(self._restore(self._selected))

    async def _restore(self, conversation_id: str) -> None:
        """Any fault only means that the next turn restores or prefills itself."""
        parts = self._parts
        if not parts.host.is_ready():
            return
        async with parts.slot.lock:
            if self._selected != conversation_id:
                return
            self._loading = conversation_id
            try:
                await self._work.run(self._load(conversation_id))
            except EngineError:
                parts.slot.forget()
            except KvchatError as error:
                parts.events.publish(Notice(error.title, f"{error.detail} {error.advice}".strip()))
            finally:
                self._loading = None

    async def _load(self, conversation_id: str) -> None:
        parts = self._parts
        chosen = await parts.answer_settings(conversation_id)
        branch = await parts.branch(conversation_id)
        messages = prompt_messages(branch)
        request = Request(messages, model=chosen.model, template=chosen.options.template)
        if not parts.host.is_ready(request.model, sees=request.sees):
            return  # another model, or a projector, is loaded for a message, not for a look
        if ends_with_reply(branch) or begins_empty(branch):
            lease = await parts.session(conversation_id).ready(request)
            boundary = await lease.boundary(messages)
            if len(boundary) < lease.engine.context_size:  # else room is made for it when it is answered
                await lease.load_boundary(boundary)
