"""Execution of a reply's tool calls: validate, ask for permission, run, store the results.

A call runs only if the user allows it (`ToolCalls.ask`), or if the tool's definition is still the one that the chat
froze and the permission mode or an earlier grant allows it. Texts of models and results never grant permission. No slot
is held meanwhile.
"""

import asyncio
import contextlib
import itertools
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from kvchat.chat.events import CallsChanged, MessagesChanged, Notice
from kvchat.chat.options import PermissionMode
from kvchat.chat.record import tree
from kvchat.chat.record.database import ConversationGone, Database
from kvchat.chat.record.messages import (
    Attachment,
    Message,
    MessageState,
    Role,
    new_message,
    open_calls,
    pair_results,
    parse_arguments,
    tool_column,
)
from kvchat.chat.turn.turn import TurnStart
from kvchat.chat.turn_context import TurnContext
from kvchat.errors import KvchatError
from kvchat.system.concurrency import shielded
from kvchat.text.language import _
from kvchat.tools.tool import (
    Tool,
    ToolCall,
    ToolResult,
    ToolSet,
    calling_chat,
    checkable_schema,
    freeze,
    is_selected,
    thaw,
)

STOPPED_RESULT = "The user stopped this call."
DENIED_RESULT = "The user did not allow this call."


class Decision(Enum):
    ONCE = "once"
    CHAT = "chat"  # this tool, in this chat
    ALWAYS = "always"  # this tool, in all chats
    DENY = "deny"


@dataclass(frozen=True)
class Answer:
    decision: Decision
    arguments: str | None = None  # as edited by the user
    note: str = ""  # for the model, with DENY


@dataclass(frozen=True)
class PendingCall:
    """A call that is waiting for permission or running."""

    conversation_id: str
    message_id: str  # the reply with the call
    call: ToolCall
    tool: Tool
    is_waiting: bool  # for permission
    key: str = field(default_factory=lambda: uuid.uuid4().hex)  # identifies the question: calls may have equal ids


@dataclass(frozen=True)
class Grant:
    source: str
    name: str
    digest: str
    conversation_id: str  # empty: all chats
    granted_at: float  # seconds since 1970


def validation_error(tool: Tool, arguments: dict[str, Any] | None) -> str:
    """Return why the arguments do not match the tool's schema, as a text for the model; empty if they match."""
    if arguments is None:
        return "The arguments are not a JSON object."
    import jsonschema  # slow to import, and only calls need it

    try:
        jsonschema.validate(arguments, checkable_schema(tool.schema))
    except jsonschema.ValidationError as error:
        place = "".join(f"[{part!r}]" for part in error.absolute_path)
        return f"{place}: {error.message}"[:1000] if place else error.message[:1000]
    except Exception:  # the schema is invalid; the server checks the arguments itself
        return ""
    return ""


def _branch_with(database: Database, result: Message) -> tuple[list[Message], int]:
    """Return the branch of a result and the result's place. Show the branch if another was chosen meanwhile."""
    chat = result.conversation_id
    if result.id not in {message.id for message in database.branch(chat)}:
        tree.switch(database, chat, result.id)
    branch = database.branch(chat)
    return branch, [message.id for message in branch].index(result.id)


def store_edited_result(database: Database, result: Message, text: str) -> TurnStart:
    """Store an edited tool result in a new branch, with copies of the results that follow it."""
    with database.transaction():
        branch, place = _branch_with(database, result)
        others = itertools.takewhile(lambda message: message.role is Role.TOOL, branch[place + 1 :])
        last = database.append_message(replace(result, content=text, state=MessageState.EDITED))
        for message in others:
            last = database.append_message(replace(message, parent_id=last.id))
    return TurnStart(last.id)


def store_edited_call(database: Database, result: Message, arguments: str) -> TurnStart:
    """Store a reply in a new branch, with other arguments for the call of this result and the results of the others."""
    with database.transaction():
        branch, place = _branch_with(database, result)
        start = next((at for at in range(place, -1, -1) if branch[at].role is Role.ASSISTANT), None)
        if start is None:
            raise ConversationGone
        reply = branch[start]
        results = list(itertools.takewhile(lambda message: message.role is Role.TOOL, branch[start + 1 :]))
        paired, _others = pair_results(reply.calls, results)
        calls = tuple(
            replace(call, arguments=arguments) if answer and answer.id == result.id else call
            for call, answer in zip(reply.calls, paired, strict=True)
        )
        stored = last = database.append_message(replace(reply, calls=calls, state=MessageState.EDITED))
        for other in results:
            if other.id != result.id:
                last = database.append_message(replace(other, parent_id=last.id))
    return TurnStart(last.id, calls_of=stored)


class ToolCalls:
    """Executes calls, and asks the user for permission. Event-loop thread only."""

    def __init__(self, turn_context: TurnContext) -> None:
        self._turn_context = turn_context
        self._questions: dict[str, asyncio.Future[Answer]] = {}
        self.pending: dict[str, PendingCall] = {}  # by key
        self.is_closing = False  # kvchat is quitting: open calls can be executed later

    async def run(self, reply: Message, *, is_stored: bool = False) -> tuple[Message, bool]:
        """Execute a reply's calls in order and store the results below it.

        `is_stored`: the reply was loaded from the database. Its calls may come from a file, or may have run before
        kvchat ended, so the user is asked about each. Returns the last result, and True if every call was invalid. If
        cancelled, stores that the rest was stopped.
        """
        branch, calls = await self._unanswered(reply)
        last, invalid = branch[-1], 0
        tools = thaw(branch[0].tools) if branch[0].role is Role.SYSTEM else ToolSet()
        try:
            for call in calls:
                last, is_invalid = await self._execute(last, reply, call, tools, is_stored)
                invalid += is_invalid
        except asyncio.CancelledError:
            if not self.is_closing:
                with contextlib.suppress(KvchatError):  # the chat was deleted
                    await shielded(self._store_stopped(reply))
            raise
        return last, invalid == len(reply.calls)

    async def _unanswered(self, reply: Message) -> tuple[list[Message], list[ToolCall]]:
        """Return the branch to the last result of a reply, and the calls without a result. Raises ConversationGone."""
        branch = await self._turn_context.branch(reply.conversation_id)
        end = next((place for place, message in enumerate(branch, start=1) if message.id == reply.id), 0)
        if not end:
            raise ConversationGone
        branch = branch[:end] + list(itertools.takewhile(lambda message: message.role is Role.TOOL, branch[end:]))
        return branch, open_calls(branch)[1]

    async def freeze_selected(self, conversation_id: str, selected: Collection[str]) -> None:
        """Freeze the selected tools for a chat that has no reply yet. Report sources that cannot list their tools."""
        turn_context = self._turn_context
        branch = await turn_context.branch(conversation_id)
        replies = "SELECT 1 FROM messages WHERE conversation_id = ? AND role = 'assistant' LIMIT 1"
        is_new = not await turn_context.run(Database.rows, replies, (conversation_id,))
        if not (is_new and branch and branch[0].role is Role.SYSTEM and not branch[0].tools):
            return
        offered, errors = await turn_context.toolbox.tools(selected)
        tools = [tool for tool in offered if is_selected(tool, selected)]
        for error in errors:
            turn_context.publish(Notice(error.title, error.explanation, conversation_id))
        column = tool_column(replace(branch[0], tools=freeze(tools)))
        await turn_context.run(Database.write, "UPDATE messages SET tool = ? WHERE id = ?", (column, branch[0].id))

    async def _execute(
        self, parent: Message, reply: Message, call: ToolCall, tools: ToolSet, is_stored: bool
    ) -> tuple[Message, bool]:
        tool, arguments = tools.by_alias(call.name), parse_arguments(call.arguments)
        if tool is None:
            names = ", ".join(tool.alias for tool in tools.tools)
            error = f"There is no tool named {call.name}. Available: {names or 'none'}."
            return await self._store(parent, call, ToolResult(error, is_error=True)), True
        if error := validation_error(tool, arguments):
            return await self._store(parent, call, ToolResult(f"Invalid arguments: {error}", is_error=True)), True
        try:
            current = await self._turn_context.toolbox.find(tool)
        except KvchatError as failure:
            return await self._store(parent, call, ToolResult(str(failure), is_error=True)), False
        mode = (await self._turn_context.answer_settings(reply.conversation_id)).options.permission
        is_changed, tool = current.digest != tool.digest, current
        if is_stored or is_changed or not await self._is_granted(tool, reply.conversation_id, mode):
            answer = await self.ask(reply, call, tool)
            if answer.arguments is not None and answer.arguments != call.arguments:
                call = replace(call, arguments=answer.arguments)
                arguments = parse_arguments(call.arguments)
            if answer.decision is Decision.DENY:
                text = " ".join(part for part in (DENIED_RESULT, answer.note.strip()) if part)
                return await self._store(parent, call, ToolResult(text, is_error=True)), False
            if error := validation_error(tool, arguments):
                return await self._store(parent, call, ToolResult(f"Invalid arguments: {error}", is_error=True)), False
        began_at = time.perf_counter()  # on Windows, finer than monotonic()
        running = PendingCall(reply.conversation_id, reply.id, call, tool, False)
        self._show(running)
        calling_chat.set(reply.conversation_id)
        try:
            result = await self._turn_context.toolbox.call(tool, arguments or {})
        except KvchatError as failure:
            result = ToolResult(str(failure), is_error=True)
        finally:
            self._hide(running)
        return await self._store(parent, call, result, 1000 * (time.perf_counter() - began_at)), False

    async def ask(self, reply: Message, call: ToolCall, tool: Tool) -> Answer:
        """Wait for the user's answer, and store the grant, if any."""
        pending = PendingCall(reply.conversation_id, reply.id, call, tool, True)
        question = self._questions[pending.key] = asyncio.get_running_loop().create_future()
        self._show(pending)
        try:
            answer: Answer = await question
        finally:
            self._questions.pop(pending.key, None)
            self._hide(pending)
        if answer.decision in (Decision.CHAT, Decision.ALWAYS):
            chat = reply.conversation_id if answer.decision is Decision.CHAT else ""
            statement = "INSERT OR REPLACE INTO tool_grants VALUES (?, ?, ?, ?, ?)"
            values = tool.digest, tool.source, tool.name, chat, time.time()
            await self._turn_context.run(Database.write, statement, values)
        return answer

    def answer(self, key: str, answer: Answer) -> None:
        """Answer the question about a call (`PendingCall.key`); ignored if the call is no longer waiting."""
        question = self._questions.get(key)
        if question is not None and not question.done():
            question.set_result(answer)

    def pending_in(self, conversation_id: str) -> list[PendingCall]:
        return [call for call in self.pending.values() if call.conversation_id == conversation_id]

    async def grants(self) -> list[Grant]:
        rows = await self._turn_context.run(Database.rows, "SELECT * FROM tool_grants ORDER BY granted_at DESC")
        return [
            Grant(row["source"], row["name"], row["digest"], row["conversation_id"], row["granted_at"]) for row in rows
        ]

    async def revoke(self, grants: Sequence[Grant]) -> None:
        statement = "DELETE FROM tool_grants WHERE digest = ? AND conversation_id = ?"
        values = [(grant.digest, grant.conversation_id) for grant in grants]
        await self._turn_context.run(Database.write, statement, *values)

    async def _is_granted(self, tool: Tool, conversation_id: str, mode: PermissionMode) -> bool:
        if mode is PermissionMode.ALL or (mode is PermissionMode.READ_ONLY and tool.read_only):
            return True
        query = "SELECT 1 FROM tool_grants WHERE digest = ? AND conversation_id IN ('', ?)"
        return bool(await self._turn_context.run(Database.rows, query, (tool.digest, conversation_id)))

    async def _store(self, parent: Message, call: ToolCall, result: ToolResult, ms: float | None = None) -> Message:
        prepare, text = self._turn_context.prepare_picture, result.text
        pictures: list[Attachment] = []
        for number, data in enumerate(result.pictures, 1):
            try:
                pictures.append(await asyncio.to_thread(prepare, f"{call.name} {number}.png", data))
            except KvchatError:
                text = "\n\n".join(filter(None, (text, _("[an image is damaged]"))))
        stored = await self._append(
            parent,
            call,
            text,
            MessageState.FAILED if result.is_error else MessageState.COMPLETE,
            tool_ms=ms,
            attachments=tuple(pictures),
            links=result.links,
            is_unseen=bool(pictures),
        )
        if pictures and await self._sees_pictures(parent.conversation_id):
            stored = replace(stored, is_unseen=False)
            await self._turn_context.run(Database.update_reply, stored)
            self._turn_context.publish(MessagesChanged(parent.conversation_id))
        return stored

    async def _sees_pictures(self, conversation_id: str) -> bool:
        """Return True if the model sees pictures. Loads its vision file, which may belong to another model."""
        turn_context, host = self._turn_context, self._turn_context.host
        model = (await turn_context.answer_settings(conversation_id)).model
        try:
            await host.check_vision(model)
        except KvchatError:
            return False
        try:
            if not host.is_ready(model, needs_vision=True):
                async with turn_context.slots.exclusive():
                    await host.ready(model, needs_vision=True)
        except KvchatError as error:
            title = _("The model answers without the images: its vision file (mmproj) cannot be used")
            turn_context.publish(Notice(title, f"{error.title}. {error.explanation}", conversation_id))
            return False
        return True

    async def _store_stopped(self, reply: Message) -> None:
        """Store that the calls without a result were stopped. The last result may have been stored meanwhile."""
        branch, calls = await self._unanswered(reply)
        parent = branch[-1]
        for call in calls:
            parent = await self._append(parent, call, STOPPED_RESULT, MessageState.STOPPED)

    async def _append(self, parent: Message, call: ToolCall, text: str, state: MessageState, **fields: Any) -> Message:
        new = new_message(parent.conversation_id, Role.TOOL, text, parent_id=parent.id, state=state)
        stored = await self._turn_context.run(Database.append_message, replace(new, calls=(call,), **fields))
        self._turn_context.publish(MessagesChanged(parent.conversation_id))
        return stored

    def _show(self, pending: PendingCall) -> None:
        self.pending[pending.key] = pending
        self._turn_context.publish(CallsChanged(pending.conversation_id))

    def _hide(self, pending: PendingCall) -> None:
        if self.pending.pop(pending.key, None) is not None:
            self._turn_context.publish(CallsChanged(pending.conversation_id))
