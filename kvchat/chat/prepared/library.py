"""The library of prepared documents: the API for the window and commands."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from blake3 import blake3

from kvchat.chat.attachments import CannotAttach
from kvchat.chat.events import ConversationsChanged, LibraryChanged
from kvchat.chat.options import NewChat
from kvchat.chat.prepared import documents as record
from kvchat.chat.prepared.documents import CannotPrepare, Changes, Document, Prepared, gather, system_message
from kvchat.chat.record.messages import Conversation, prompt_content, prompt_messages
from kvchat.chat.turn_parts import TurnParts
from kvchat.engine.speaking.client import count_until
from kvchat.engine.speaking.errors import EngineError
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import ConversationUsage, Fingerprint, Tokens
from kvchat.session.allocator import Rank
from kvchat.session.events import SaveSkipped, SessionEvent
from kvchat.session.exchange import Exchange, Request
from kvchat.session.host import RESERVE_MOST, RESERVE_SHARE, ReadyEngine
from kvchat.session.lease import NEXT
from kvchat.session.proof import NOTHING_AHEAD
from kvchat.session.reading import parts_of, read_and_keep
from kvchat.session.restore_cost import LEAST_MEASURED
from kvchat.session.slot import Slot
from kvchat.words.language import N_, _, listed, number
from kvchat.words.reasons import Reason, ReasonCode
from kvchat.words.wording import TimeRange, percent, tokens_short

LETTERS_A_TOKEN = 3.6  # English and code, roughly, until an engine counts
SURE_SHARE = 0.5  # lower bound as a share of the guessed tokens
STEP_MS = 500.0  # target time per step: steps are frequent, but smaller ones cost more in total
_TOO_LONG = N_("Choose a part of it, or a larger context length in the settings if the model and memory allow it.")


@dataclass(frozen=True)
class Estimate:
    files: int
    tokens: int
    time: TimeRange | None  # None: unknown
    room: int | None = None  # tokens the model can read at once, beside a reply; None: unknown
    counted: bool = False  # False: estimated tokens

    @property
    def too_long(self) -> bool:
        return self.room is not None and self.tokens * (1.0 if self.counted else SURE_SHARE) > self.room


class TooLongToPrepare(CannotPrepare):
    def __init__(self, estimate: Estimate) -> None:
        tokens, room = tokens_short(estimate.tokens), number(estimate.room or 0)
        words = _("It has about {tokens} tokens, but only {room} fit in the context.", tokens=tokens, room=room)
        super().__init__(_("This is too long for the model's context"), words, _(_TOO_LONG))


@dataclass(frozen=True)
class Standing:
    prepared: Prepared
    bytes: int  # blocks on disk, including those shared with chats
    changes: Changes  # in the files, since they were read
    why_not: str  # why chats must reread it; empty if they need not
    time: TimeRange | None  # estimated time; None: unknown


@dataclass(frozen=True)
class Ground:
    documents: tuple[str, ...]  # names
    prepared: Prepared | None  # the chat's set; None: not in the library
    as_read: bool  # a new chat would get the same documents


@dataclass(frozen=True)
class Reading:
    task: asyncio.Future[Any]
    done: int = 0  # tokens
    total: int = 0  # 0: not counted


Forget = Callable[[Mapping[str, set[str]]], Coroutine[Any, Any, None]]


class Library:
    """Event-loop thread only. All methods raise KvchatError."""

    def __init__(self, parts: TurnParts, forget: Forget, over: Callable[[], object]) -> None:
        """`forget` deletes an owner's saved state; `over`: called after a slot was used for something else."""
        self._parts, self._forget, self._over = parts, forget, over
        self.reading: dict[str, Reading] = {}  # by id

    async def all(self) -> list[Prepared]:
        return await self._parts.in_database(record.all_prepared)

    async def named(self, name: str) -> Prepared:
        found = next((prepared for prepared in await self.all() if prepared.name == name), None)
        if found is None:
            title = _("“{name}” is not in the library", name=name)
            raise CannotPrepare(title, "", _("Run `kvchat prepared` to list the library."))
        return found

    async def estimate(self, paths: Sequence[Path], now: tuple[Fingerprint, int] | None) -> Estimate:
        """Estimate the cost of preparing files. `now`: the engine's fingerprint and maximum context, if known."""
        fingerprint, limit = now or (None, None)
        documents = await asyncio.to_thread(gather, paths)
        message = record.system_message([document.attachment for document in documents])
        text = await asyncio.to_thread(prompt_content, message)  # in small files, names and separators dominate
        room = limit - min(RESERVE_MOST, limit // RESERVE_SHARE) if limit else None
        tokens, counted = round(len(text) / LETTERS_A_TOKEN), False
        if room is not None and self._parts.host.is_ready():
            with contextlib.suppress(KvchatError):
                engine = (await self._parts.host.ready()).engine
                tokens, counted = (await count_until(engine.count_tokens, text, room))[0], True
        return Estimate(len(documents), tokens, await self._time(tokens, fingerprint), room, counted)

    async def add(self, paths: Sequence[Path], name: str) -> Prepared:
        documents = await asyncio.to_thread(gather, paths)
        named = [str(path.absolute()) for path in paths]
        made = await self._parts.in_database(record.add, name, named, documents)
        self._changed()
        return made

    async def read(self, prepared: Prepared) -> Prepared:
        """Read the files as they are now, reusing saved state. Gives way to all other work."""
        if prepared.id in self.reading:
            raise CannotPrepare(_("“{name}” is already being processed", name=prepared.name), "", "")
        task, refused = asyncio.ensure_future(self._read(prepared)), False
        self.reading[prepared.id] = Reading(task)
        self._parts.background.begin(asyncio.wait([task]))
        self._changed()
        try:
            return await task
        except KvchatError as error:
            refused = isinstance(error, CannotPrepare | CannotAttach) and not prepared.is_read
            raise
        finally:
            task.cancel()
            await asyncio.wait([task])
            del self.reading[prepared.id]
            if refused:
                await self.remove(prepared)
            self._over()
            self._changed()

    async def cancel(self, prepared: Prepared) -> None:
        await self._stop_reading(prepared)
        if not prepared.is_read:
            await self.remove(prepared)

    async def _stop_reading(self, prepared: Prepared) -> None:
        if (reading := self.reading.get(prepared.id)) is not None:
            reading.task.cancel()
            await asyncio.wait([reading.task])

    def stop(self) -> None:
        for reading in self.reading.values():
            reading.task.cancel()

    async def remove(self, prepared: Prepared) -> None:
        await self._stop_reading(prepared)
        await self._parts.in_database(record.remove, prepared)
        self._changed()
        if self._parts.slots.store.problem is None:
            await asyncio.to_thread(self._parts.slots.store.inventory.pin, prepared.owner, False)
        await self._forget({prepared.owner: {prepared.owner}})

    async def begin(self, prepared: Prepared) -> Conversation:
        made = await self._parts.in_database(record.begin_chat, prepared)
        self._parts.events.publish(ConversationsChanged())
        return made

    def new_chat(self, prepared: Prepared) -> NewChat:
        return NewChat(lambda database, id: record.begin_chat(database, prepared, id))

    async def names(self) -> dict[str, str]:
        rows = await self._parts.worker.run(self._parts.database.rows, "SELECT id, name FROM prepared")
        return {f"prepared:{row['id']}": str(row["name"]) for row in rows}

    async def ground_of(self, conversation_id: str) -> Ground | None:
        """Return the documents a chat started with, or None; imported chats are matched by hash."""
        begun, documents = await self._parts.in_database(record.begun_on, conversation_id)
        if not documents:
            return None
        names, hashes = zip(*documents, strict=True)
        known = await self.all()
        same = [prepared for prepared in known if tuple(source.hash for source in prepared.sources) == hashes]
        on = next((prepared for prepared in known if prepared.id == begun), None) or next(iter(same), None)
        return Ground(names, on, on in same)

    async def standings(
        self,
        now: tuple[Fingerprint, int] | None,
        usage: Sequence[ConversationUsage],
        only: Prepared | None = None,
    ) -> list[Standing]:
        """Return the state of each set, or of `only` one. `now`: the engine's fingerprint and maximum context."""
        fingerprint, limit = now or (None, None)
        kept = {chat.conversation_id: chat for chat in usage}
        return [
            Standing(
                prepared,
                kept[prepared.owner].bytes if prepared.owner in kept else 0,
                await asyncio.to_thread(record.changes, list(map(Path, prepared.paths)), prepared.sources),
                why_not_ready(prepared, kept.get(prepared.owner), fingerprint, limit),
                await self._time(prepared.tokens, fingerprint or prepared.fingerprint),
            )
            for prepared in ([only] if only else await self.all())
        ]

    def time_left(self, prepared: Prepared) -> TimeRange | None:
        reading = self.reading.get(prepared.id)
        return self._parts.slots.restore_cost.speed.forecast(reading.total - reading.done) if reading else None

    async def _time(self, tokens: int, fingerprint: Fingerprint | None) -> TimeRange | None:
        return (await self._parts.reading_speed(fingerprint.model)).forecast(tokens) if fingerprint else None

    async def _read(self, prepared: Prepared) -> Prepared:
        parts = self._parts
        documents = await asyncio.to_thread(gather, list(map(Path, prepared.paths)), prepared.sources)
        if parts.slots.store.problem is None:
            await asyncio.to_thread(parts.slots.store.inventory.pin, prepared.owner, True)
        work, again, now = partial(self._read_documents, prepared, documents), False, None
        while now is None:
            try:
                now = await parts.slots.run(Rank.DOCUMENTS, prepared.owner, work)
            except EngineError as error:
                loss = error.__cause__ or error
                if again or not (isinstance(loss, EngineError) and loss.over_restore):
                    raise
                again = True  # the faulty state is set aside
        await parts.in_database(record.finish, now, documents)
        if prepared.label and prepared.label != now.label:
            await parts.slots.discard_messages(prepared.owner, [prepared.label])
        parts.background.begin(parts.absorb())
        return now

    async def _read_documents(
        self, prepared: Prepared, documents: Sequence[Document], slot: Slot, wanted: Callable[[], bool]
    ) -> Prepared | None:
        """Process the documents and save their states; None if interrupted. Cancellable at any point."""
        parts, skipped = self._parts, list[Reason]()

        def hear(event: SessionEvent) -> None:
            if isinstance(event, SaveSkipped):
                skipped.append(event.reason)

        exchange = Exchange(parts.slots, slot, parts.host, prepared.owner, hear)
        messages = prompt_messages([system_message([document.attachment for document in documents])])
        async with exchange.losses_explained():
            lease = await exchange.ready(Request(messages))
            boundary = await lease.boundary(messages)
            tokens = len(boundary)
            needed = tokens + lease.engine.reserve(None)
            if lease.engine.too_small(needed) and needed <= lease.engine.limit:
                lease = await exchange.with_room(Request(messages), needed)
            if needed > min(lease.engine.limit, lease.engine.context_size):
                _refuse(tokens, lease.engine, documents)
            if not (lease.keeps and lease.engine.remembers(tokens)):
                problem = parts.slots.store.problem
                why = problem.detail if problem else lease.engine.finding.words
                raise CannotPrepare(_("Prepared documents cannot be saved on this computer"), why, "")
            digest = blake3(repr(lease.engine.fingerprint).encode())
            for document in documents:
                digest.update(f"{document.source.name}\0{document.source.hash}\0".encode())
            label = digest.hexdigest()[:32]
            loaded = await lease.load((*boundary, NEXT))

            async def keep(stop: Tokens) -> None:
                await lease.settle(stop)  # a longer restored state holds more
                if await lease.save(stop, label=label, tell=False) is None and skipped:
                    title = _("The prepared documents could not be saved")
                    raise CannotPrepare(title, skipped[-1].in_a_sentence, "")

            def progress(done: int) -> None:
                if prepared.id in self.reading:
                    self.reading[prepared.id] = replace(self.reading[prepared.id], done=done, total=tokens)
                    parts.events.publish(LibraryChanged(progress=True))

            stops = [stop for stop in parts_of(lease, boundary) if len(stop) >= loaded.expected_cached]
            if not await read_and_keep(lease, stops, loaded, wanted, keep, progress, STEP_MS):
                return None
            contents, engine = lease.slot.known(lease.engine), lease.engine
        ahead = contents.ahead if contents else NOTHING_AHEAD
        measured = ahead.tokens >= LEAST_MEASURED
        ms = tokens * ahead.ms / ahead.tokens if measured else lease.slots.restore_cost.prefill_ms(tokens)
        return replace(
            prepared,
            sources=tuple(document.source for document in documents),
            label=label,
            fingerprint=engine.fingerprint,
            model=parts.new_chats_model() or "",
            context_size=engine.context_size,
            tokens=tokens,
            read_ms=ms or prepared.read_ms,
            created_at=datetime.now(UTC),
        )

    def _changed(self) -> None:
        self._parts.events.publish(LibraryChanged())


def _refuse(tokens: int, engine: ReadyEngine, documents: Sequence[Document]) -> NoReturn:
    room = engine.limit - engine.reserve(None)
    letters = list(itertools.accumulate(len(document.text) for document in documents))
    fits = sum(so_far * tokens <= room * letters[-1] for so_far in letters)
    amount = _("about {share} of it fits", share=percent(100 * room // tokens / 100))
    if len(letters) > 1:
        places = {"fits": number(fits), "count": number(len(letters)), "amount": amount}
        amount = _("the first {fits} of its {count} files fit, {amount}", **places)
    places = {"tokens": number(tokens), "room": number(room), "amount": amount}
    words = _("It has {tokens} tokens, but only {room} fit in the context: {amount}.", **places)
    raise CannotPrepare(_("This is too long for the model's context"), words, _(_TOO_LONG))


def why_not_ready(
    prepared: Prepared, usage: ConversationUsage | None, now: Fingerprint | None, limit: int | None
) -> str:
    """Return why a chat on it would have to read it first, or "". `now`, `limit`: the engine's."""
    if not prepared.is_read or prepared.fingerprint is None:
        return _("it was not fully processed")
    differences = prepared.fingerprint.differences(now) if now else ()
    if differences == (Reason(ReasonCode.MODEL),):
        return _("it was processed with another model")
    if limit is not None and prepared.tokens >= limit:
        return _("it is longer than the current context length ({limit} tokens)", limit=number(limit))
    if differences:
        words = listed(difference.words for difference in differences)
        return _("it was processed with another {differences}", differences=words)
    if usage is None or not usage.save_points:
        return _("its memory was deleted")
    return ""
