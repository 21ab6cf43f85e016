"""Estimated waiting time for the next reply of a chat, or for the reply to a draft. Read-only."""

from __future__ import annotations

import asyncio
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
from kvchat.chat.turn_parts import TurnParts
from kvchat.engine.speaking.errors import EngineError
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import Kept, StoreRefused, Tier
from kvchat.session.host import ReadyEngine
from kvchat.session.proof import LEAST_SHARE, SOURCES, Source
from kvchat.session.restore_cost import ReadingSpeed
from kvchat.session.slot import plan
from kvchat.words.language import N_, _, several
from kvchat.words.wording import STILL_LOADED, TimeRange, roughly

NOTICEABLE_S = 1.0  # shorter waits are hidden
_RESTORED = (Source.WARM, Source.DISK)


@dataclass(frozen=True)
class Forecast:
    source: Source  # where the chat's state will come from
    to_read: int  # tokens after Send
    wait: TimeRange | None = None  # for the first token; None: unknown
    begun: bool = True  # chat has messages

    @property
    def noticeable(self) -> bool:
        return self.wait is not None and self.wait.most >= NOTICEABLE_S

    @property
    def of_chat(self) -> str:
        if not self.begun:
            return _("no messages yet")
        where = _(_WHERE[self.source])
        if self.wait and self.noticeable:
            return _("{where}: replies in {time}", where=where, time=roughly(self.wait))
        return f"{where}: {_(_OTHERWISE[self.source])}" if self.source in _OTHERWISE else where

    @property
    def of_message(self) -> str:
        """Text for a draft: "about 4 s: 2,100 tokens to read"; empty if the wait is unnoticeable."""
        if self.wait is None or not self.noticeable:
            return ""
        time = roughly(self.wait)
        if self.source in _RESTORED:
            return several(
                self.to_read,
                "{time}: loading the chat memory, {count} token to process",
                "{time}: loading the chat memory, {count} tokens to process",
                time=time,
            )
        return several(self.to_read, "{time}: {count} token to process", "{time}: {count} tokens to process", time=time)


_WHERE = {
    Source.AHEAD: STILL_LOADED,
    Source.HOT: STILL_LOADED,
    Source.WARM: N_("remembered, in memory"),
    Source.DISK: N_("remembered, on disk"),
    Source.COLD: N_("must be reprocessed"),
}
_OTHERWISE = dict.fromkeys(_RESTORED, N_("replies in a moment")) | {
    Source.AHEAD: N_("replies immediately"),
    Source.HOT: N_("replies immediately"),
}


SHORT_MESSAGE = 32  # minimum tokens of a message
MOST_MESSAGES = 256  # messages checked per branch


@dataclass(frozen=True)
class _Said:
    id: str
    tokens: int  # a guess
    upto: int | None  # tokens up to its end, from its receipt, if any
    receipt: Receipt | None


class Forecasts:
    """Used by the window and `bench`. Event-loop thread only."""

    def __init__(self, parts: TurnParts) -> None:
        self._parts = parts
        self._recalled: float | None = None  # ms per restored byte in earlier runs

    async def of_chats(self, models: dict[str, str | None]) -> dict[str, Forecast]:
        """Forecast each chat's next reply, in two queries for all; `models`: path of the answering model by chat."""
        parts = self._parts
        branches = await parts.in_database(_branches, list(models))
        try:
            kept = await asyncio.to_thread(parts.slots.store.inventory.kept, list(models))
        except StoreRefused:
            kept = {}
        engines = {model: await self._engine(model) for model in set(models.values())}
        forecasts = {}
        for chat, model in models.items():
            engine, branch = engines[model], branches.get(chat, [])
            last = next((said.receipt.model for said in branch if said.receipt), "")
            speed = await parts.reading_speed(engine.fingerprint.model if engine else last)
            fits = [
                point
                for point in kept.get(chat, ())
                if (point.fingerprint == engine.fingerprint if engine else point.fingerprint.model == last)
            ]
            slot = parts.slots.of(chat)
            contents = slot.known(engine) if slot and engine else None
            held = len(contents.tokens) if contents else None
            forecast = _of_chat(branch, fits, held, speed, await self._restore_rate())
            if len(branch) == 1 and branch[0].upto is None:  # others may share its beginning
                forecast = await self.of_message(chat, "") or forecast
            forecasts[chat] = forecast
        return forecasts

    async def of_message(
        self, conversation_id: str | None, draft: str, attachments: Sequence[Attachment] = ()
    ) -> Forecast | None:
        """Forecast the reply to this message if sent now; None without a ready engine or with pictures."""
        parts = self._parts
        try:
            chosen, branch = await parts.beginning(conversation_id)
            owner = conversation_id or NEW_CHAT_ID
            new = new_message(owner, Role.USER, draft, attachments=attachments)
            messages, ready = prompt_messages([*branch, new]), await self._engine(chosen.model)
            if ready is None or needs_vision(messages):
                return None
            engine = ready.rendering(chosen.options.template)
            prompt, end = await engine.engine.growing_tokens(messages)
            contents, _ = parts.slots.best(owner, prompt, engine)
            best = await plan(parts.slots.store, engine, owner, contents, prompt, parts.slots.restore_cost.worth)
            source, size = Source.HOT if best.had >= LEAST_SHARE * len(prompt) else Source.COLD, 0
            if best.restore is not None:
                source, size = SOURCES[best.restore.tier], best.restore.bytes
            left = len(prompt) + end - best.had
            speed = await parts.reading_speed(engine.fingerprint.model)
            return Forecast(source, left, speed.forecast(left, size * await self._restore_rate()))
        except EngineError:
            return None

    async def _engine(self, model: str | None) -> ReadyEngine | None:
        if not self._parts.host.is_ready(model):
            return None
        try:
            return await self._parts.host.ready(model)
        except KvchatError:
            return None

    async def _restore_rate(self) -> float:
        """Return the measured ms per byte of this run or an earlier one, or 0."""
        now = self._parts.slots.restore_cost.restore_ms_per_byte
        if now is None and self._recalled is None:
            self._recalled = await self._parts.worker.run(self._parts.database.restore_ms_per_byte) or 0.0
        return now if now is not None else self._recalled or 0.0


def _of_chat(
    branch: Sequence[_Said], kept: Collection[Kept], held: int | None, speed: ReadingSpeed, restore_rate: float
) -> Forecast:
    if not branch:
        return Forecast(Source.COLD, 0, begun=False)
    last = next((n for n, said in enumerate(branch) if said.upto is not None), len(branch))
    whole = sum(said.tokens for said in branch[:last]) + (branch[last].upto or 0 if last < len(branch) else 0)
    source, left, size = Source.COLD, whole, 0
    if held is not None:
        source, left = Source.HOT, max(0, whole - held)
    else:
        here = {said.id for said in branch}
        best = max(
            (point for point in kept if point.message_id in here),
            key=lambda point: (point.tokens, point.tier is Tier.WARM),
            default=None,
        )
        if best is not None:
            source, left, size = SOURCES[best.tier], max(0, whole - best.tokens), best.bytes
    return Forecast(source, left, speed.forecast(left + SHORT_MESSAGE, size * restore_rate))


def _branches(database: Database, chats: Sequence[str]) -> dict[str, list[_Said]]:
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
    branches: dict[str, list[_Said]] = {}
    for chat, id, told, size in database.rows(query, (json.dumps(list(chats)), MOST_MESSAGES)):
        receipt, tokens = parse_receipt(told) if told else None, (size or 0) // BYTES_PER_TOKEN + TEMPLATE_TOKENS
        upto = None
        if receipt is not None:  # the next prompt leaves out thinking
            upto = receipt.prompt_tokens + (receipt.predicted_tokens if receipt.thinking_ms is None else tokens)
        branches.setdefault(str(chat), []).append(_Said(str(id), tokens, upto, receipt))
    return branches
