"""Chat options and presets for the window. No change invalidates a cache silently."""

import itertools
from dataclasses import replace

from kvchat.chat.options import (
    ChatOptions,
    InvalidOptions,
    Preset,
    options_to_json,
    presets,
    store_preset,
    validate_options,
)
from kvchat.chat.record.database import ConversationGone, Database
from kvchat.chat.record.messages import Role, new_message
from kvchat.chat.record.tree import copy_to_branch
from kvchat.chat.turn_context import TurnContext
from kvchat.engine.api.errors import EngineRefused
from kvchat.text.language import _


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
        """Change the system prompt; return True if that made a new branch.

        Existing messages are copied below the new prompt and processed once. The old branch stays in the tree.
        """
        turn_context = self._turn_context
        turn_context.require_no_reply(conversation_id)
        branch = await turn_context.branch(conversation_id)
        before = branch[0] if branch and branch[0].role is Role.SYSTEM else None
        text = text.strip()
        if text == (before.content if before else ""):
            return False
        documents = before.attachments if before else ()  # prepared for the chat
        system = [new_message(conversation_id, Role.SYSTEM, text, attachments=documents)] if text or documents else []
        messages = branch[1:] if before else branch
        if messages:
            await turn_context.run(copy_to_branch, None, [*system, *messages], messages[-1].id)
        else:
            if before:
                await turn_context.run(Database.remove_leaf, before)
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
