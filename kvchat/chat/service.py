"""The door to the chat for whoever shows it: the window and `kvchat ask`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from kvchat.chat import opening, tree
from kvchat.chat.context_desk import ContextDesk, StillAnswering
from kvchat.chat.database import Database
from kvchat.chat.drafts import Drafts
from kvchat.chat.events import ConversationsChanged, EventBus, MessagesChanged, Notice, QuestionNotStored, TurnFailed
from kvchat.chat.messages import Attachment, Conversation, Message, MessageState, Role
from kvchat.chat.models import relocate_model, remember_model
from kvchat.chat.opening import Beginning
from kvchat.chat.options_desk import OptionsDesk
from kvchat.chat.organiser import Organiser
from kvchat.chat.presets import Preset, manner_of
from kvchat.chat.prompt import begins_empty, ends_with_reply, prompt_messages
from kvchat.chat.room import EngineRoom
from kvchat.chat.search import Finder
from kvchat.chat.slot import SlotKeeper
from kvchat.chat.tree import Removed
from kvchat.chat.turn import Turn
from kvchat.chat.turn_parts import TurnParts
from kvchat.chat.worker import Worker
from kvchat.engine.interface import EngineError
from kvchat.engine.wire import ENGINE_DEFAULTS, Sampling
from kvchat.errors import KvchatError
from kvchat.kvstore.store import SavePointStore

P = ParamSpec("P")
R = TypeVar("R")

NEW_TITLE = "New chat"


class ChatService:
    """Conversations and turns. All methods belong to the event loop's thread; what they change they tell `events`."""

    def __init__(
        self,
        database: Database,
        worker: Worker,
        store: SavePointStore,
        room: EngineRoom,
        events: EventBus,
        sampling: Callable[[], Sampling] = lambda: ENGINE_DEFAULTS,
        model: Callable[[], str | None] = lambda: None,
        defaults: Callable[[], Sampling] = lambda: ENGINE_DEFAULTS,
    ) -> None:
        """`sampling`: how the settings want replies drawn, `defaults`: how the model in use does.

        `model`: the path of the one that answers in a new chat.
        """
        self.events = events
        self.slot = SlotKeeper(store, events)
        self._database = database
        self._worker = worker
        self._store = store
        self._room = room
        self._sampling, self._defaults = sampling, defaults
        self._model = model
        self._turns: list[Turn] = []  # running or waiting, until their save is over
        self._selected: str | None = None
        self._used_at = time.monotonic()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.drafts = Drafts(database, worker)
        self.context = ContextDesk(self._parts(), self.is_answering)
        self.options = OptionsDesk(self._parts(), self.is_answering)
        self.finder = Finder(database, worker)
        self.organiser = Organiser(database, worker, events, self.leave, self.delete, self._spawn)

    @property
    def busy(self) -> str | None:
        """The conversation whose reply is being made right now, if any."""
        return next((turn.conversation_id for turn in self._turns if turn.answering), None)

    @property
    def idle_s(self) -> float:
        """For how long the engine has not been needed, in seconds."""
        return 0.0 if self._tasks else time.monotonic() - self._used_at

    def is_answering(self, conversation_id: str) -> bool:
        """Whether a reply in this conversation is being made or waits for its turn."""
        return any(turn.conversation_id == conversation_id and not turn.answered for turn in self._turns)

    async def conversations(self) -> list[Conversation]:
        """All conversations, newest first."""
        return await self._worker.run(self._database.conversations)

    async def conversation(self, conversation_id: str) -> Conversation | None:
        """One conversation, or None if there is none of that id."""
        return await self._worker.run(self._database.conversation, conversation_id)

    async def messages(self, conversation_id: str) -> list[Message]:
        """The messages on the conversation's current branch, oldest first, each with its siblings."""
        return await self._worker.run(tree.current_branch, self._database, conversation_id)

    async def new_conversation(self, system: str | None = None) -> Conversation:
        """Make an empty conversation, with a system prompt if given, else with the default preset if there is one."""
        preset = await self.options.default_preset() if system is None else None
        return await self.begin(preset or Preset("", system or ""))

    async def begin(self, preset: Preset) -> Conversation:
        """Make an empty conversation that begins with a preset."""
        made = await self.options.begin(NEW_TITLE, preset)
        self.events.publish(ConversationsChanged())
        return made

    async def rename(self, conversation_id: str, title: str) -> None:
        """Give a conversation the user's own title; an empty one changes nothing."""
        if title.strip():
            await self._worker.run(self._database.rename, conversation_id, title.strip(), by_user=True)
        self.events.publish(ConversationsChanged())

    async def use_model(self, conversation_id: str, model: str) -> None:
        """Have another model answer in a conversation, from its next message on."""
        await self._worker.run(remember_model, self._database, conversation_id, model, replace=True)
        self.events.publish(ConversationsChanged())

    async def relocate_model(self, old: str, new: str) -> None:
        """A model is in another place now, for every conversation that used it."""
        await self._worker.run(relocate_model, self._database, old, new)
        self.events.publish(ConversationsChanged())

    async def delete(self, conversation_id: str) -> None:
        """Delete a conversation for good, its messages and its save points; the organiser's way can be undone."""
        self.leave(conversation_id)
        await self._worker.run(self._database.delete, conversation_id)
        self.events.publish(ConversationsChanged())
        await asyncio.to_thread(self._store.delete_conversation, conversation_id)
        self._spawn(self._forget(conversation_id))  # what a running turn still saves of it goes when the turn is over

    def leave(self, conversation_id: str) -> None:
        """End what goes on in a conversation that is about to go."""
        self.stop(conversation_id)
        self._end_settling(conversation_id)
        if self._selected == conversation_id:
            self._selected = None

    def select(self, conversation_id: str) -> None:
        """The user looks at this conversation now: begin at once to restore its save point, in the background."""
        self._selected = conversation_id
        self._spawn(self._restore_ahead(conversation_id))

    def engine_ready(self) -> None:
        """An engine came up: restore what the user looks at."""
        self._used_at = time.monotonic()
        if self._selected and not self._turns:
            self._spawn(self._restore_ahead(self._selected))

    def send(
        self,
        conversation_id: str,
        text: str,
        sampling: Sampling | None = None,
        *,
        attachments: tuple[Attachment, ...] = (),
        keep: bool = True,
    ) -> asyncio.Future[Message | None]:
        """Store the user's message, then run a turn. The future ends with the reply, or None if there is none.

        Documents that cannot fit are refused before anything is stored.
        With `keep` false the turn is neither settled nor saved afterwards: `bench` measures so.
        """
        turn = self._turn(conversation_id, sampling, keep)
        return self._begin(
            turn, lambda: opening.ask(self._database, conversation_id, text, attachments), text, attachments
        )

    def retry(
        self, conversation_id: str, sampling: Sampling | None = None, *, keep: bool = True
    ) -> asyncio.Future[Message | None]:
        """Answer the last user message again, after a turn that failed or was interrupted."""
        turn = self._turn(conversation_id, sampling, keep)
        return self._begin(turn, lambda: opening.answer_again(self._database, conversation_id))

    def regenerate(self, reply: Message, sampling: Sampling | None = None) -> asyncio.Future[Message | None]:
        """Make another reply beside this one; what followed it stays in the tree, on its branch."""
        turn = self._turn(reply.conversation_id, sampling)
        return self._begin(turn, lambda: opening.regenerate(self._database, reply))

    def go_on(self, reply: Message, sampling: Sampling | None = None) -> asyncio.Future[Message | None]:
        """Continue a reply from where it ended."""
        return self._begin(self._turn(reply.conversation_id, sampling), lambda: opening.go_on(self._database, reply))

    def edit(
        self, question: Message, text: str, sampling: Sampling | None = None, *, keep: bool = True
    ) -> asyncio.Future[Message | None]:
        """Ask something else in a question's place; what followed it stays in the tree, on a branch of its own."""
        turn = self._turn(question.conversation_id, sampling, keep)
        return self._begin(turn, lambda: opening.ask_instead(self._database, question, text), text)

    async def edit_reply(self, reply: Message, text: str) -> Message:
        """Put the user's words in a reply's place, without asking the model; the old one stays on its branch."""
        where = reply.conversation_id, reply.parent_id
        return await self._change(
            reply.conversation_id, self._database.append, *where, Role.ASSISTANT, text, MessageState.COMPLETE
        )

    async def switch(self, conversation_id: str, message_id: str) -> None:
        """Go to the branch that leads through this message, to its newest end."""
        await self._change(conversation_id, tree.switch, self._database, conversation_id, message_id)

    async def delete_message(self, message: Message) -> Removed:
        """Delete a message and all that follows it; what is returned puts them back."""
        return await self._change(message.conversation_id, tree.remove, self._database, message)

    async def put_back(self, removed: Removed) -> None:
        """Undo `delete_message`."""
        await self._change(removed.conversation_id, tree.put_back, self._database, removed)

    def stop(self, conversation_id: str) -> None:
        """Stop the running reply; what has come of it is kept."""
        for turn in self._turns:
            if turn.conversation_id == conversation_id:
                turn.stop()

    def stop_all(self) -> None:
        """Stop every reply, those included that still wait for the slot."""
        for turn in self._turns:
            turn.stop()

    async def idle(self) -> None:
        """Wait until every turn, its save included, and every restore ahead is over."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def rest(self, stop: Callable[[], Awaitable[bool]]) -> None:
        """Stop the engine with everything saved, and between turns: one that comes meanwhile waits, then starts it.

        `stop` answers whether it did.
        """
        async with self.slot.lock:
            await self.slot.absorb()
            if await stop():
                self.slot.forget()

    def close(self) -> None:
        """Stop what is being said and look at nothing any more; `idle` then waits for what is being saved."""
        self._selected = None
        self.stop_all()
        self.organiser.close()
        self.finder.close()

    def _parts(self) -> TurnParts:
        return TurnParts(
            self._database, self._worker, self._room, self.slot, self.events, self._defaults, self._sampling
        )

    def _turn(self, conversation_id: str, sampling: Sampling | None, keep: bool = True) -> Turn:
        return Turn(self._parts(), conversation_id, sampling, keep=keep)

    async def _change(self, conversation_id: str, write: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Change the tree, between replies; then begin to restore what is on the page now. Raises StillAnswering."""
        if self.is_answering(conversation_id):
            raise StillAnswering
        result = await self._worker.run(write, *args, **kwargs)
        self.events.publish(MessagesChanged(conversation_id))
        if self._selected == conversation_id:
            self._spawn(self._restore_ahead(conversation_id))
        return result

    def _begin(
        self,
        turn: Turn,
        begin: Callable[[], Beginning],
        words: str | None = None,
        attachments: tuple[Attachment, ...] = (),
    ) -> asyncio.Future[Message | None]:
        """Begin a turn with what `begin` puts on disk, of which `words` and `attachments` are new."""
        self._turns.append(turn)
        reply: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        self._spawn(self._run(turn, self._stored(turn, begin, words, attachments), reply))
        return reply

    async def _run(
        self,
        turn: Turn,
        stored: Coroutine[Any, Any, Beginning | None],
        reply: asyncio.Future[Message | None],
    ) -> None:
        def done(message: Message | None) -> None:
            if not reply.done():
                reply.set_result(message)

        try:
            turn.beginning = await stored
            if turn.beginning is not None:
                await turn.run(done)
                await self.slot.absorb()
        finally:
            done(None)
            self._turns.remove(turn)

    def _end_settling(self, conversation_id: str) -> None:
        """The next message makes the pending settle step of this conversation pointless."""
        for turn in self._turns:
            if turn.conversation_id == conversation_id and turn.answered:
                turn.supersede()

    async def _stored(
        self, turn: Turn, begin: Callable[[], Beginning], words: str | None, attachments: tuple[Attachment, ...]
    ) -> Beginning | None:
        """The turn's beginning, on disk before anything else happens.

        None where it could not be stored: the words go back to the sender.
        """
        conversation_id = turn.conversation_id
        try:
            if any(t.conversation_id == conversation_id and not t.answered for t in self._turns if t is not turn):
                raise StillAnswering
            self._end_settling(conversation_id)
            if model := self._model():
                await self._worker.run(remember_model, self._database, conversation_id, model, replace=False)
            if attachments:
                await self.context.check_fits(conversation_id, words or "", attachments)
            beginning = await self._worker.run(begin)
        except KvchatError as error:
            if words is None:
                self.events.publish(TurnFailed(conversation_id, error))
            else:
                self.events.publish(QuestionNotStored(conversation_id, words, error, attachments))
            return None
        self.events.publish(ConversationsChanged())
        self.events.publish(MessagesChanged(conversation_id))
        return beginning

    async def _forget(self, conversation_id: str) -> None:
        async with self.slot.lock:
            await self.slot.discard(conversation_id)

    async def _restore_ahead(self, conversation_id: str) -> None:
        """Restore while the user still reads. Any fault only means that the next turn restores or prefills itself."""
        if not self._room.is_ready():
            return
        async with self.slot.lock:
            if self._selected != conversation_id:
                return
            try:
                manner = await self._worker.run(manner_of, self._database, conversation_id)
                if not self._room.is_ready(manner.model):
                    return  # another model is loaded for a message, not for a look
                branch = await self._worker.run(self._database.branch, conversation_id)
                engine = (await self._room.ready(manner.model)).rendering(manner.options.template)
                if ends_with_reply(branch) or begins_empty(branch):
                    boundary = await self.slot.boundary(engine, prompt_messages(branch))
                    await self.slot.load(engine, conversation_id, boundary)
            except EngineError:
                self.slot.forget()
            except KvchatError as error:
                self.events.publish(Notice(error.title, f"{error.detail} {error.advice}".strip()))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A KvchatError was told already; anything else is a bug and goes to the loop's handler at once."""
        self._tasks.discard(task)
        self._used_at = time.monotonic()
        if not task.cancelled() and (error := task.exception()):
            context = {"message": "A turn ended in a bug", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)
