"""Chat options and presets for the window. No change invalidates a cache silently."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from kvchat.chat.context import StillAnswering
from kvchat.chat.options import (
    BadOptions,
    ChatOptions,
    Preset,
    check,
    presets,
    store_options,
    store_preset,
)
from kvchat.chat.record.messages import MessageState, Role, new_message
from kvchat.chat.record.tree import copy_to_branch
from kvchat.chat.turn_parts import TurnParts
from kvchat.engine.speaking.errors import EngineRefused
from kvchat.words.language import _


class OptionsService:
    """Chat options. Event-loop thread only; all methods raise KvchatError."""

    def __init__(self, parts: TurnParts, is_answering: Callable[[str], bool]) -> None:
        self._parts = parts
        self._is_answering = is_answering

    async def change(self, conversation_id: str, options: ChatOptions) -> None:
        await self.check(options)
        before = (await self._parts.answer_settings(conversation_id)).options.template
        if options.template != before and await self.begun(conversation_id):
            raise BadOptions(
                _("The model options of a chat cannot be changed after its first message"),
                _("They are part of the beginning of the prompt."),
                _("Start a new chat to use other options."),
            )
        await self._parts.in_database(store_options, conversation_id, options)

    async def begun(self, conversation_id: str) -> bool:
        return any(message.role is not Role.SYSTEM for message in await self._parts.branch(conversation_id))

    async def system_prompt(self, conversation_id: str) -> str:
        branch = await self._parts.branch(conversation_id)
        return branch[0].content if branch and branch[0].role is Role.SYSTEM else ""

    async def change_system_prompt(self, conversation_id: str, text: str) -> bool:
        """Change the system prompt; return True if that made a new branch.

        Existing messages are copied below the new prompt, which the model reads once. The old branch stays in the tree.
        """
        if self._is_answering(conversation_id):
            raise StillAnswering
        parts, branch = self._parts, await self._parts.branch(conversation_id)
        before = branch[0] if branch and branch[0].role is Role.SYSTEM else None
        text = text.strip()
        if text == (before.content if before else ""):
            return False
        documents = before.attachments if before else ()  # prepared for the chat
        said = branch[1:] if before else branch
        if said:
            system = [new_message(conversation_id, Role.SYSTEM, text, attachments=documents)]
            system = system if text or documents else []
            await parts.in_database(copy_to_branch, None, [*system, *said], said[-1].id)
        else:
            if before:
                await parts.worker.run(parts.database.remove_leaf, before)
            if text or documents:
                message = conversation_id, None, Role.SYSTEM, text, MessageState.COMPLETE, documents
                await parts.worker.run(parts.database.append, *message)
        parts.changed(conversation_id)
        return bool(said)

    async def check(self, options: ChatOptions) -> None:
        """Raise BadOptions for invalid options; a ready engine also checks a JSON schema."""
        check(options)
        if not options.sampling.json_schema or not self._parts.host.is_ready():
            return
        try:
            engine = await self._parts.host.ready()
            await engine.engine.check_schema(options.sampling.json_schema)
        except EngineRefused as refusal:
            said = refusal.message.rpartition("JSON schema error at ")[2]
            advice = _("Correct it and try again.")
            raise BadOptions(_("The engine does not support this JSON schema"), said, advice) from None

    async def presets(self) -> list[Preset]:
        return await self._parts.in_database(presets)

    async def store_preset(self, preset: Preset) -> Preset:
        await self.check(preset.options)
        return await self._parts.in_database(store_preset, preset)

    async def duplicate_preset(self, preset: Preset) -> Preset:
        base, taken = _("{name} copy", name=preset.name), {other.name for other in await self.presets()}
        names = (base if n == 1 else f"{base} {n}" for n in itertools.count(1))
        name = next(name for name in names if name not in taken)
        return await self.store_preset(replace(preset, id="", is_default=False, name=name))

    async def delete_preset(self, preset: Preset) -> None:
        await self._parts.worker.run(self._parts.database.write, "DELETE FROM presets WHERE id = ?", (preset.id,))

    async def default_preset(self) -> Preset | None:
        return next((preset for preset in await self.presets() if preset.is_default), None)
