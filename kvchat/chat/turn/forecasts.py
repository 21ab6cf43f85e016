"""Estimated waiting time for the next reply of a chat, or for the reply to a draft. Read-only."""

import asyncio
import contextlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kvchat.chat.context import BYTES_PER_TOKEN, TEMPLATE_TOKENS
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import (
    NEW_CHAT_ID,
    Attachment,
    Receipt,
    Role,
    needs_vision,
    new_message,
    parse_receipt,
    prompt_messages,
)
from kvchat.chat.turn_context import TurnContext
from kvchat.engine.api.client import chat_name
from kvchat.engine.api.errors import EngineError
from kvchat.engine.api.wire import ChatMemory
from kvchat.kvstore.savepoint import SavePointSummary, StoreRefused, Tier
from kvchat.session.host import ReadyEngine
from kvchat.session.proof import Source
from kvchat.session.restore_cost import PrefillSpeed
from kvchat.text.formatting import STILL_LOADED, TimeRange, format_estimate
from kvchat.text.language import N_, _, plural

MIN_SHOWN_S = 1.0  # shorter waits are hidden
_SOURCE_VALUES = frozenset(source.value for source in Source)
_RESTORED_SOURCES = (Source.WARM, Source.DISK)


@dataclass(frozen=True)
class Forecast:
    source: Source  # where the chat's state will come from
    tokens_to_process: int  # to process after Send
    wait: TimeRange | None = None  # for the first token; None: unknown
    has_messages: bool = True

    @property
    def is_noticeable(self) -> bool:
        return self.wait is not None and self.wait.maximum >= MIN_SHOWN_S

    @property
    def chat_text(self) -> str:
        if not self.has_messages:
            return _("no messages yet")
        where = _(_SOURCE_LABELS[self.source])
        if self.wait and self.is_noticeable:
            return _("{where}: replies in {time}", where=where, time=format_estimate(self.wait))
        return f"{where}: {_(_SHORT_WAIT_LABELS[self.source])}" if self.source in _SHORT_WAIT_LABELS else where

    @property
    def message_text(self) -> str:
        """Return text about a draft, like "about 4 s: 2,100 tokens to process"; empty if the wait is unnoticeable."""
        if self.wait is None or not self.is_noticeable:
            return ""
        time = format_estimate(self.wait)
        if self.source in _RESTORED_SOURCES:
            return plural(
                self.tokens_to_process,
                "{time}: loading the chat memory, {count} token to process",
                "{time}: loading the chat memory, {count} tokens to process",
                time=time,
            )
        return plural(
            self.tokens_to_process, "{time}: {count} token to process", "{time}: {count} tokens to process", time=time
        )


_SOURCE_LABELS = {
    Source.AHEAD: STILL_LOADED,
    Source.HOT: STILL_LOADED,
    Source.WARM: N_("remembered, in memory"),
    Source.DISK: N_("remembered, on disk"),
    Source.COLD: N_("must be reprocessed"),
}
_SHORT_WAIT_LABELS = dict.fromkeys(_RESTORED_SOURCES, N_("replies in a moment")) | {
    Source.AHEAD: N_("replies immediately"),
    Source.HOT: N_("replies immediately"),
}


MIN_MESSAGE_TOKENS = 32  # per message, for template and question
MAX_MESSAGES = 256  # messages checked per branch


@dataclass(frozen=True)
class _MessageTokens:
    id: str
    tokens: int  # a guess
    tokens_through: int | None  # tokens up to its end, from its receipt, if any
    receipt: Receipt | None


class Forecasts:
    """Used by the window and `bench`. Event-loop thread only."""

    def __init__(self, turn_context: TurnContext) -> None:
        self._turn_context = turn_context
        self._stored_restore_rate: float | None = None  # ms per restored byte in earlier runs

    async def forecast_chats(self, models: dict[str, str | None]) -> dict[str, Forecast]:
        """Forecast each chat's next reply, in two queries for all; `models`: path of the answering model by chat."""
        turn_context = self._turn_context
        branches = await turn_context.run(_branches, list(models))
        try:
            summaries = await asyncio.to_thread(turn_context.slots.store.inventory.summaries, list(models))
        except StoreRefused:
            summaries = {}
        engines = {model: await self._turn_context.ready_engine(model) for model in set(models.values())}
        memory = await _memory_on_server(engines.values())
        forecasts = {}
        for chat, model in models.items():
            engine, branch = engines[model], branches.get(chat, [])
            last = next((message.receipt.model for message in branch if message.receipt), "")
            speed = await turn_context.prefill_speed(engine.fingerprint.model if engine else last)
            points = [
                point
                for point in summaries.get(chat, ())
                if (point.fingerprint == engine.fingerprint if engine else point.fingerprint.model == last)
            ]
            slot = turn_context.slots.slot_of(chat)
            contents = slot.known_contents(engine) if slot and engine else None
            held_tokens = len(contents.tokens) if contents else None
            forecast = _forecast_chat(branch, points, held_tokens, speed, await self._restore_rate())
            if engine and engine.keeps_memory:
                forecast = _forecast_remote_chat(forecast, branch, memory.get(chat_name(chat)), speed)
            if len(branch) == 1 and branch[0].tokens_through is None:  # no receipt yet: other chats' memory may serve
                forecast = await self.forecast_message(chat, "") or forecast
            forecasts[chat] = forecast
        return forecasts

    async def forecast_message(
        self, conversation_id: str | None, draft: str, attachments: Sequence[Attachment] = ()
    ) -> Forecast | None:
        """Forecast the reply to this message; None without a ready engine, on an engine error, or with images."""
        turn_context = self._turn_context
        try:
            chosen, branch = await turn_context.settings_and_branch(conversation_id)
            owner = conversation_id or NEW_CHAT_ID
            new = new_message(owner, Role.USER, draft, attachments=attachments)
            messages, ready = prompt_messages([*branch, new]), await self._turn_context.ready_engine(chosen.model)
            if ready is None or needs_vision(messages):
                return None
            engine = ready.with_template(chosen.options.template)
            speed = await turn_context.prefill_speed(engine.fingerprint.model)
            if engine.keeps_memory:
                found = await engine.engine.for_chat(owner).forecast(messages)
                left, source = found.total - found.ready, _source(found.source)
                return Forecast(source, left, speed.forecast(left, found.bytes * await self._restore_rate()))
            prompt, end = await engine.engine.stable_prefix_tokens(messages)
            source, held_tokens, size = await turn_context.slots.forecast(owner, prompt, engine)
            left = len(prompt) + end - held_tokens
            return Forecast(source, left, speed.forecast(left, size * await self._restore_rate()))
        except EngineError:
            return None

    async def _restore_rate(self) -> float:
        """Return the restore time in ms per byte, measured in this run or an earlier one, or 0 if unknown."""
        now = self._turn_context.slots.restore_cost.restore_ms_per_byte
        if now is None and self._stored_restore_rate is None:
            self._stored_restore_rate = await self._turn_context.run(Database.restore_ms_per_byte) or 0.0
        return now if now is not None else self._stored_restore_rate or 0.0


async def _memory_on_server(engines: Collection[ReadyEngine | None]) -> dict[str, ChatMemory]:
    """Return the memory that another kvchat keeps, by the chats' names there."""
    server = next((engine for engine in engines if engine and engine.keeps_memory), None)
    with contextlib.suppress(EngineError):
        return {entry.chat: entry for entry in (await server.engine.chat_memory())[1]} if server else {}
    return {}


def _forecast_remote_chat(
    local: Forecast, branch: Sequence[_MessageTokens], memory: ChatMemory | None, speed: PrefillSpeed
) -> Forecast:
    """Correct a forecast without save points by what another kvchat keeps of the chat."""
    if memory is None or not branch:
        return local
    left = max(0, local.tokens_to_process - memory.tokens)
    return Forecast(_source(memory.source), left, speed.forecast(left + MIN_MESSAGE_TOKENS))


def _source(value: str) -> Source:
    return Source(value) if value in _SOURCE_VALUES else Source.COLD


def _forecast_chat(
    branch: Sequence[_MessageTokens],
    points: Collection[SavePointSummary],
    held: int | None,
    speed: PrefillSpeed,
    restore_rate: float,
) -> Forecast:
    if not branch:
        return Forecast(Source.COLD, 0, has_messages=False)
    last = next((n for n, message in enumerate(branch) if message.tokens_through is not None), len(branch))
    total = sum(message.tokens for message in branch[:last]) + (
        branch[last].tokens_through or 0 if last < len(branch) else 0
    )
    source, left, size = Source.COLD, total, 0
    if held is not None:
        source, left = Source.HOT, max(0, total - held)
    else:
        ids = {message.id for message in branch}
        best = max(
            (point for point in points if point.message_id in ids),
            key=lambda point: (point.tokens, point.tier is Tier.WARM),
            default=None,
        )
        if best is not None:
            source, left, size = Source(best.tier.value), max(0, total - best.tokens), best.bytes
    return Forecast(source, left, speed.forecast(left + MIN_MESSAGE_TOKENS, size * restore_rate))


def _branches(database: Database, chats: Sequence[str]) -> dict[str, list[_MessageTokens]]:
    query = """
        WITH RECURSIVE up (chat, id, parent, depth) AS (
            SELECT c.id, m.id, m.parent_id, 0 FROM conversations c JOIN messages m ON m.id = c.leaf_id
            WHERE c.id IN (SELECT value FROM json_each(?))
            UNION ALL
            SELECT chat, m.id, m.parent_id, depth + 1 FROM up JOIN messages m ON m.id = up.parent WHERE depth < ?
        )
        SELECT chat, id, receipt, length(CAST(content AS BLOB)) + coalesce(
            (SELECT sum(length(CAST(text AS BLOB))) FROM attachments WHERE message_id = up.id), 0)
        FROM up JOIN messages USING (id) ORDER BY chat, depth
    """
    branches: dict[str, list[_MessageTokens]] = {}
    for chat, id, receipt_json, size in database.rows(query, (json.dumps(list(chats)), MAX_MESSAGES)):
        receipt = parse_receipt(receipt_json) if receipt_json else None
        tokens = (size or 0) // BYTES_PER_TOKEN + TEMPLATE_TOKENS
        tokens_through = None
        if receipt is not None:  # the next prompt leaves out thinking
            written = receipt.predicted_tokens if receipt.thinking_ms is None else tokens
            tokens_through = receipt.prompt_tokens + written
        branches.setdefault(str(chat), []).append(_MessageTokens(str(id), tokens, tokens_through, receipt))
    return branches
