"""The chat API for front ends: the window and `kvchat ask`."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Concatenate, Literal, ParamSpec, TypeVar

from kvchat.chat.context import ContextService
from kvchat.chat.deletion import RecentlyDeleted
from kvchat.chat.events import ConversationsChanged, MessagesChanged
from kvchat.chat.lookup import Lookup
from kvchat.chat.options import (
    ChatOptions,
    InvalidOptions,
    NewChat,
    Preset,
    chat_from_preset,
    options_to_json,
    presets,
    store_chat,
    store_preset,
    validate_options,
)
from kvchat.chat.prepared.library import Library
from kvchat.chat.record import tree
from kvchat.chat.record.database import ConversationGone, Database, Draft
from kvchat.chat.record.messages import NEW_CHAT_ID, Attachment, Conversation, Message, MessageState, Role, new_message
from kvchat.chat.record.tree import RemovedMessages, copy_to_branch
from kvchat.chat.search import ChatSearch
from kvchat.chat.turn import tool_calls, turns
from kvchat.chat.turn.forecasts import Forecasts
from kvchat.chat.turn.imported_memory import MemoryVerifier
from kvchat.chat.turn.read_ahead import ReadAhead
from kvchat.chat.turn.titles import TitleGenerator
from kvchat.chat.turn.tool_choice import ToolChoice
from kvchat.chat.turn.turn import Turn, TurnStart
from kvchat.chat.turn.turns import Turns, select_question
from kvchat.chat.turn_context import TurnContext
from kvchat.engine.api.errors import EngineRefused
from kvchat.engine.api.wire import Sampling
from kvchat.system.concurrency import BackgroundTasks
from kvchat.text.language import _
from kvchat.tools.tool import Tool, ToolSet, freeze, thaw

P = ParamSpec("P")
R = TypeVar("R")


class OptionsService:
    """Chat options. Event-loop thread only; all methods raise KvchatError."""

    def __init__(self, turn_context: TurnContext) -> None:
        self._turn_context = turn_context

    async def change(self, conversation_id: str, options: ChatOptions) -> None:
        await self.validate(options)
        before = (await self._turn_context.answer_settings(conversation_id)).options.template
        if options.template != before and await self.has_messages(conversation_id):
            raise InvalidOptions(
                _("The model options of a chat cannot be changed after its first message"),
                _("They are part of the beginning of the prompt."),
                _("Start a new chat to use other options."),
            )
        values = options_to_json(options), conversation_id
        if not await self._turn_context.run(
            Database.write, "UPDATE conversations SET options = ? WHERE id = ?", values
        ):
            raise ConversationGone

    async def has_messages(self, conversation_id: str) -> bool:
        return any(message.role is not Role.SYSTEM for message in await self._turn_context.branch(conversation_id))

    async def system_prompt(self, conversation_id: str) -> str:
        branch = await self._turn_context.branch(conversation_id)
        return branch[0].content if branch and branch[0].role is Role.SYSTEM else ""

    async def change_system_prompt(self, conversation_id: str, text: str) -> bool:
        """Change the system prompt; return True if that made a new branch (see `_change_root`)."""
        return await self._change_root(conversation_id, text=text.strip())

    async def change_tools(self, conversation_id: str, tools: Collection[Tool]) -> bool:
        """Change the chat's tools; return True if that made a new branch (see `_change_root`)."""
        return await self._change_root(conversation_id, tools=freeze(tools))

    async def tools(self, conversation_id: str) -> ToolSet:
        """Return the tools frozen for the visible branch."""
        branch = await self._turn_context.branch(conversation_id)
        return thaw(branch[0].tools) if branch and branch[0].role is Role.SYSTEM else ToolSet()

    async def _change_root(self, conversation_id: str, text: str | None = None, tools: str | None = None) -> bool:
        """Change the start of the prompt; return True if that made a new branch.

        Existing messages are copied below the new root and processed once. The old branch stays in the tree.
        """
        turn_context = self._turn_context
        turn_context.require_no_reply(conversation_id)
        branch = await turn_context.branch(conversation_id)
        before = branch[0] if branch and branch[0].role is Role.SYSTEM else None
        unchanged = before or new_message(conversation_id, Role.SYSTEM, "")
        text, tools = unchanged.content if text is None else text, unchanged.tools if tools is None else tools
        if (text, tools) == (unchanged.content, unchanged.tools):
            return False
        documents = unchanged.attachments  # prepared for the chat
        root = replace(new_message(conversation_id, Role.SYSTEM, text, attachments=documents), tools=tools)
        system = [root] if text or documents or tools else []
        messages = branch[1:] if before else branch
        if messages:
            await turn_context.run(copy_to_branch, None, [*system, *messages], messages[-1].id)
        else:
            if before:
                await turn_context.run(Database.remove_empty_reply, before)
            for message in system:
                await turn_context.run(Database.append_message, message)
        turn_context.publish_changes(conversation_id)
        return bool(messages)

    async def validate(self, options: ChatOptions) -> None:
        """Raise InvalidOptions for invalid options; a ready engine also checks a JSON schema."""
        validate_options(options)
        if not options.sampling.json_schema or not self._turn_context.host.is_ready():
            return
        try:
            await (await self._turn_context.host.ready()).engine.check_schema(options.sampling.json_schema)
        except EngineRefused as refusal:
            detail = refusal.message.rpartition("JSON schema error at ")[2]
            title, advice = _("The engine does not support this JSON schema"), _("Correct it and try again.")
            raise InvalidOptions(title, detail, advice) from None

    async def presets(self) -> list[Preset]:
        return await self._turn_context.run(presets)

    async def default_preset(self) -> Preset | None:
        return next((preset for preset in await self.presets() if preset.is_default), None)

    async def store_preset(self, preset: Preset) -> Preset:
        await self.validate(preset.options)
        return await self._turn_context.run(store_preset, preset)

    async def duplicate_preset(self, preset: Preset) -> Preset:
        base, taken = _("{name} copy", name=preset.name), {other.name for other in await self.presets()}
        names = itertools.chain([base], (f"{base} {n}" for n in itertools.count(2)))
        name = next(name for name in names if name not in taken)
        return await self.store_preset(replace(preset, id="", is_default=False, name=name))

    async def delete_preset(self, preset: Preset) -> None:
        await self._turn_context.run(Database.write, "DELETE FROM presets WHERE id = ?", (preset.id,))


class ChatService:
    """Conversations and turns. Event-loop thread only; changes are published to `events`."""

    def __init__(self, turn_context: TurnContext) -> None:
        self.turn_context, self.events, self.slots = turn_context, turn_context.events, turn_context.slots
        self.title_generator = TitleGenerator(turn_context)
        turn_context.background = self._background = BackgroundTasks(self.title_generator.on_busy_changed)
        self.forecasts, self.read_ahead = Forecasts(turn_context), ReadAhead(turn_context)
        self.finder = ChatSearch(turn_context)
        turn_context.is_answering, turn_context.on_slot_changed = self.is_answering, self.read_ahead.start
        self.context = ContextService(turn_context)
        self.options = OptionsService(turn_context)
        self.lookup = Lookup(turn_context, self.context)
        self.tool_choice = ToolChoice(turn_context)
        self.turns = Turns(turn_context, self.context, self.lookup)
        self.recently_deleted = RecentlyDeleted(turn_context, self.finder, self._stop_work)
        self.library = Library(turn_context, self.recently_deleted.purge)
        self.memory_verifier = MemoryVerifier(turn_context)

    @property
    def answering_chats(self) -> tuple[str, ...]:
        return self.turns.answering_chats

    @property
    def idle_s(self) -> float:
        return self._background.idle_s

    def is_answering(self, conversation_id: str) -> bool:
        return self.turns.is_answering(conversation_id)

    async def conversations(self) -> list[Conversation]:
        return await self.turn_context.run(Database.conversations)

    async def conversation(self, conversation_id: str) -> Conversation | None:
        return await self.turn_context.run(Database.conversation, conversation_id)

    async def seconds_saved(self) -> dict[str, float]:
        return await self.turn_context.run(Database.seconds_saved)

    async def messages(self, conversation_id: str) -> list[Message]:
        branch = await self.turn_context.run(tree.current_branch, conversation_id)
        unsaved = self.turn_context.unsaved_replies
        return [replace(unsaved[m.id], siblings=m.siblings) if m.id in unsaved else m for m in branch]

    async def new_conversation(self, system: str | None = None) -> Conversation:
        return await self.create(await self.new_chat(system))

    async def new_chat(self, system: str | None = None) -> NewChat:
        """Return a chat with this system prompt or, without one, with the default preset."""
        preset = await self.options.default_preset() if system is None else None
        return chat_from_preset(preset or Preset("", system or ""))

    async def create(self, new: NewChat) -> Conversation:
        conversation = await self.turn_context.run(store_chat, new)
        self.events.publish(ConversationsChanged())
        return conversation

    async def rename(self, conversation_id: str, title: str) -> None:
        if title.strip():
            await self.turn_context.run(Database.rename, conversation_id, title.strip(), by_user=True)
        self.events.publish(ConversationsChanged())

    async def use_model(self, conversation_id: str, model: str) -> None:
        await self._write("UPDATE conversations SET model = ? WHERE id = ?", (model, conversation_id))

    async def relocate_model(self, old_path: str, new_path: str) -> None:
        await self._write("UPDATE conversations SET model = ? WHERE model = ?", (new_path, old_path))

    async def arrange(
        self, ids: Sequence[str], column: Literal["folder", "on_top", "archived"], value: str | bool | None
    ) -> None:
        await self._write(f"UPDATE conversations SET {column} = ? WHERE id = ?", *((value, id) for id in ids))

    async def _write(self, statement: str, *values: Sequence[object]) -> None:
        await self.turn_context.run(Database.write, statement, *values)
        self.events.publish(ConversationsChanged())

    def select(self, conversation_id: str) -> None:
        self.read_ahead.select(conversation_id)

    def prepare(self, conversation_id: str | None, draft: str, attachments: tuple[Attachment, ...] = ()) -> None:
        self.read_ahead.set_draft(conversation_id or NEW_CHAT_ID, draft, attachments)

    def on_engine_ready(self) -> None:
        self._background.mark_used()
        if not self.turns.has_turns:
            self.read_ahead.start()

    def send(
        self,
        conversation_id: str,
        text: str,
        sampling: Sampling | None = None,
        *,
        attachments: tuple[Attachment, ...] = (),
        save: bool = True,
        new: NewChat | None = None,
        drafts: Sequence[Draft] = (),
        on_start: Callable[[], None] | None = None,
    ) -> asyncio.Future[Message | None]:
        """Store the user's message, then run a turn. The future's result is the reply, or None.

        Documents that cannot fit are refused before anything is stored. `new`: the chat to create with the message;
        `drafts`: the drafts to keep afterwards. Message, chat and drafts are stored together or not at all. With `save`
        False, for measurements, the turn is neither settled nor saved. `on_start` is called when the turn begins; only
        a turn with `on_start` may wait for a reply in the same chat.
        """

        def store(database: Database) -> TurnStart:
            attached = (*attachments, *turn.quotes)
            return turns.store_question(database, conversation_id, text, attached, new, drafts)

        turn = Turn(
            self.turn_context,
            conversation_id,
            store,
            sampling,
            should_save=save,
            text=text,
            attachments=attachments,
            creates_chat=new is not None,
            on_start=on_start,
        )
        return self.turns.start(turn)

    def retry(
        self, conversation_id: str, sampling: Sampling | None = None, *, save: bool = True
    ) -> asyncio.Future[Message | None]:
        store = partial(select_question, conversation_id=conversation_id)
        return self.turns.start(Turn(self.turn_context, conversation_id, store, sampling, should_save=save))

    def regenerate(self, reply: Message, sampling: Sampling | None = None) -> asyncio.Future[Message | None]:
        store = partial(select_question, conversation_id=reply.conversation_id, reply=reply)
        return self.turns.start(Turn(self.turn_context, reply.conversation_id, store, sampling))

    def continue_reply(self, reply: Message, sampling: Sampling | None = None) -> asyncio.Future[Message | None]:
        store = partial(select_question, conversation_id=reply.conversation_id, reply=reply, continues=True)
        return self.turns.start(Turn(self.turn_context, reply.conversation_id, store, sampling))

    def edit(self, question: Message, text: str, sampling: Sampling | None = None) -> asyncio.Future[Message | None]:
        kept = [attachment for attachment in question.attachments if not attachment.source]

        def store(database: Database) -> TurnStart:
            attached = (*kept, *turn.quotes)
            edited = replace(question, content=text, state=MessageState.COMPLETE, attachments=attached)
            return TurnStart(database.append_message(edited).id)

        turn = Turn(self.turn_context, question.conversation_id, store, sampling, text=text, edits=question)
        return self.turns.start(turn)

    async def edit_reply(self, reply: Message, text: str) -> Message:
        """Replace a reply with the user's text without asking the model; the old one stays on its branch."""
        id, edited = reply.conversation_id, MessageState.EDITED
        return await self._change_tree(id, Database.append, id, reply.parent_id, Role.ASSISTANT, text, edited)

    def edit_call(self, result: Message, arguments: str) -> asyncio.Future[Message | None]:
        """Execute the call of a result again with other arguments, in a new branch, and let the model continue."""
        store = partial(tool_calls.store_edited_call, result=result, arguments=arguments)
        return self.turns.start(Turn(self.turn_context, result.conversation_id, store))

    def edit_result(self, result: Message, text: str) -> asyncio.Future[Message | None]:
        """Replace a tool's result with the user's text in a new branch, and continue the turn."""
        store = partial(tool_calls.store_edited_result, result=result, text=text)
        return self.turns.start(Turn(self.turn_context, result.conversation_id, store))

    async def fork(self, reply: Message) -> str:
        conversation_id = await self.turn_context.run(tree.fork, reply)
        self.events.publish(ConversationsChanged())
        return conversation_id

    async def switch(self, conversation_id: str, message_id: str) -> None:
        await self._change_tree(conversation_id, tree.switch, conversation_id, message_id)

    async def delete_message(self, message: Message) -> RemovedMessages:
        removed = await self._change_tree(message.conversation_id, tree.remove, message)
        self.recently_deleted.add([removed.id])
        return removed

    async def restore_messages(self, removed: RemovedMessages) -> None:
        await self.recently_deleted.restore_messages(removed.conversation_id, removed.id)
        self.read_ahead.start()

    async def _change_tree(
        self, conversation_id: str, change: Callable[Concatenate[Database, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Change the message tree if no reply is running, then prepare the visible branch. Raises ReplyInProgress."""
        self.turn_context.require_no_reply(conversation_id)
        result = await self.turn_context.run(change, *args, **kwargs)
        self.events.publish(MessagesChanged(conversation_id))
        self.read_ahead.start()
        return result

    def stop(self, conversation_id: str) -> None:
        self.turns.stop(conversation_id)

    def _stop_work(self, conversation_id: str) -> None:
        self.stop(conversation_id)
        self.turns.end_settling(conversation_id)
        self.read_ahead.deselect(conversation_id)
        self.memory_verifier.cancel(conversation_id)

    def stop_all(self) -> None:
        self.turns.stop()
        self.library.stop()
        self.slots.stop_background()

    async def wait_until_idle(self) -> None:
        await self._background.wait_until_idle()
        await self.title_generator.wait_until_idle()

    async def save_and_stop(self, stop: Callable[[], Awaitable[bool]]) -> None:
        """Save everything and stop the engine between turns. `stop` returns True if it stopped the engine."""
        async with self.slots.exclusive():
            await self.turn_context.absorb(timeout_s=0.0)
            if await stop():
                self.slots.forget()

    def close(self) -> None:
        """Stop replies and read-ahead; `wait_until_idle` then waits for saving to finish."""
        self.read_ahead.select(None)
        self.turns.tool_calls.is_closing = True
        self.title_generator.close()
        self.stop_all()
        self.recently_deleted.close()
        self.lookup.close()
        self.finder.close()
