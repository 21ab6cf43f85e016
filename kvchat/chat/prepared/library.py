"""The library: documents that are read once and kept, as the window and the commands ask for them.

They are read into a slot and saved in spare time; if interrupted, from the last save on once more.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from kvchat.chat.prepared import record, sources
from kvchat.chat.prepared.record import Prepared, system_message
from kvchat.chat.prepared.sources import CannotPrepare, Changes, Document, gather
from kvchat.chat.record.messages import Conversation, prompt_content, prompt_messages
from kvchat.chat.turn_parts import TurnParts
from kvchat.engine.speaking.errors import EngineError
from kvchat.engine.speaking.tokenizing import count_until
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import ConversationUsage, Fingerprint, Tokens
from kvchat.session.allocator import Rank
from kvchat.session.events import SaveSkipped, SessionEvent
from kvchat.session.exchange import Exchange, Request
from kvchat.session.host import RESERVE_MOST, RESERVE_SHARE, ReadyEngine
from kvchat.session.lease import NEXT, Lease
from kvchat.session.proof import NOTHING_AHEAD
from kvchat.session.reading import parts_of, read_and_keep
from kvchat.session.restore_cost import LEAST_MEASURED
from kvchat.session.slot import Slot
from kvchat.words.language import _, listed, number
from kvchat.words.reasons import Reason, ReasonCode
from kvchat.words.wording import TimeRange, percent, tokens_short

LETTERS_A_TOKEN = 3.6  # of English and code, roughly, before an engine has counted
SURE_SHARE = 0.5  # of a guessed number of tokens there are at least so many
STEP_MS = 500.0  # a step takes about so long: there are many of them, and small ones take longer in all


@dataclass(frozen=True)
class Read:
    """What reading came to."""

    fingerprint: Fingerprint
    context_size: int
    tokens: int
    ms: float  # an estimate: reading all of it; 0 where nothing was measured


class DocumentReader:
    """Reads one set of documents, once."""

    def __init__(
        self,
        parts: TurnParts,
        owner: str,
        label: Callable[[Fingerprint], str],
        documents: Sequence[Document],
        progress: Callable[[int, int], None],
    ) -> None:
        """`label`: what its save points are called, by what they are read with. `progress`: tokens done and in all."""
        self._parts, self._owner, self._label, self._progress = parts, owner, label, progress
        self._documents = documents
        self._why_not_saved = ""

    async def run(self) -> Read:
        """Until all is read and saved, whatever comes between. May be cancelled at any point. Raises KvchatError."""
        again = False
        while True:
            try:
                if read := await self._parts.slots.run(Rank.DOCUMENTS, self._owner, self._read):
                    return read
            except EngineError as error:
                loss = error.__cause__ or error
                if again or not (isinstance(loss, EngineError) and loss.over_restore):
                    raise
                again = True  # what it died over is set aside

    async def _read(self, slot: Slot, wanted: Callable[[], bool]) -> Read | None:
        exchange = Exchange(self._parts.slots, slot, self._parts.host, self._owner, self._hear)
        messages = prompt_messages([system_message([document.attachment for document in self._documents])])
        async with exchange.losses_explained():
            lease = await exchange.ready(Request(messages))
            boundary = await lease.boundary(messages)
            needed = len(boundary) + lease.engine.reserve(None)
            if needed > lease.engine.limit:
                self._refuse(len(boundary), lease.engine)
            if lease.engine.too_small(needed):
                lease = await exchange.with_room(Request(messages), needed)
            if needed > lease.engine.context_size:
                self._refuse(len(boundary), lease.engine)
            if not (lease.keeps and lease.engine.remembers(len(boundary))):
                problem = self._parts.slots.store.problem
                why = problem.detail if problem else lease.engine.finding.words
                raise CannotPrepare(_("Documents cannot be kept here"), why, "")
            if not await self._to_the_end(lease, boundary, wanted):
                return None
            contents, engine = lease.slot.known(lease.engine), lease.engine
        ahead = contents.ahead if contents else NOTHING_AHEAD
        ms = lease.slots.restore_cost.prefill_ms(len(boundary))
        if ahead.tokens >= LEAST_MEASURED:
            ms = len(boundary) * ahead.ms / ahead.tokens
        return Read(engine.fingerprint, engine.context_size, len(boundary), ms)

    async def _to_the_end(self, lease: Lease, boundary: Tokens, wanted: Callable[[], bool]) -> bool:
        loaded = await lease.load((*boundary, NEXT))

        async def keep(stop: Tokens) -> None:
            await lease.settle(stop)  # where a longer state was restored it holds more
            saved = await lease.save(stop, label=self._label(lease.engine.fingerprint), tell=False)
            if saved is None and self._why_not_saved:
                raise CannotPrepare(_("The documents could not be kept"), self._why_not_saved, "")

        stops = [stop for stop in parts_of(lease, boundary) if len(stop) >= loaded.expected_cached]
        return await read_and_keep(
            lease, stops, loaded, wanted, keep, lambda done: self._progress(done, len(boundary)), STEP_MS
        )

    def _refuse(self, tokens: int, engine: ReadyEngine) -> NoReturn:
        room = engine.limit - engine.reserve(None)
        letters = sum(len(document.text) for document in self._documents)
        fits, so_far = 0, 0
        for document in self._documents:
            so_far += len(document.text)
            fits += so_far * tokens <= room * letters
        amount = _("about {share} of it fit", share=percent(100 * room // tokens / 100))
        if len(self._documents) > 1:
            amount = _(
                "the first {fits} of its {count} files fit, {amount}",
                fits=number(fits),
                count=number(len(self._documents)),
                amount=amount,
            )
        words = _(
            "It has {tokens} tokens and there is room for {room}: {amount}.",
            tokens=number(tokens),
            room=number(room),
            amount=amount,
        )
        advice = _("Choose a part of it, or a larger context size in the settings if model and memory allow it.")
        raise CannotPrepare(_("That is longer than the model can read at once"), words, advice)

    def _hear(self, event: SessionEvent) -> None:
        if isinstance(event, SaveSkipped):
            self._why_not_saved = event.reason.in_a_sentence


@dataclass(frozen=True)
class Estimate:
    """What preparing files would take."""

    files: int
    tokens: int
    time: TimeRange | None  # None: not known
    room: int | None = None  # tokens that the model can read at once, beside a reply; None: not known
    counted: bool = False  # else the tokens are a guess

    @property
    def too_long(self) -> bool:
        """True if it is more than the model can read at once; of a guess, if it is so by far."""
        return self.room is not None and self.tokens * (1.0 if self.counted else SURE_SHARE) > self.room


class TooLongToPrepare(CannotPrepare):
    """Known before anything is read."""

    def __init__(self, estimate: Estimate) -> None:
        words = _(
            "It has about {tokens} tokens and there is room for {room}.",
            tokens=tokens_short(estimate.tokens),
            room=number(estimate.room or 0),
        )
        advice = _("Choose a part of it, or a larger context size in the settings if model and memory allow it.")
        super().__init__(_("That is longer than the model can read at once"), words, advice)


@dataclass(frozen=True)
class Standing:
    """A set, and what there is to say of it now."""

    prepared: Prepared
    bytes: int  # of its blocks on disk, those included that chats share
    changes: Changes  # in its files, since they were read
    why_not: str  # chats on it would have to read it; empty where they need not
    time: TimeRange | None  # an estimate of that; None: not known


@dataclass(frozen=True)
class Ground:
    """What a chat stands on."""

    documents: tuple[str, ...]  # their names
    prepared: Prepared | None  # the set it began on; None: the library has it no more, or never had
    as_read: bool  # whether a chat that began on it now would have the same documents


@dataclass(frozen=True)
class Reading:
    """A set that is being read, or waits until nothing else is done."""

    task: asyncio.Future[Any]
    done: int = 0  # tokens
    total: int = 0  # 0: not counted yet


Forget = Callable[[Mapping[str, set[str]]], Coroutine[Any, Any, None]]


class Library:
    """Belongs to the event loop's thread. Every method raises KvchatError."""

    def __init__(self, parts: TurnParts, forget: Forget, over: Callable[[], object]) -> None:
        """`forget` deletes what is kept of somebody; `over`: called when a slot was used for something else."""
        self._parts, self._forget, self._over = parts, forget, over
        self.reading: dict[str, Reading] = {}  # by id

    async def all(self) -> list[Prepared]:
        return await self._parts.worker.run(record.all_prepared, self._parts.database)

    async def named(self, name: str) -> Prepared:
        found = next((one for one in await self.all() if one.name == name), None)
        if found is None:
            raise CannotPrepare(
                _("There is nothing called “{name}” in the library", name=name),
                "",
                _("`kvchat prepared` lists it."),
            )
        return found

    async def estimate(self, paths: Sequence[Path], now: tuple[Fingerprint, int] | None) -> Estimate:
        """Estimate the cost of preparing these. `now`: the engine's fingerprint and longest context; None: unknown."""
        fingerprint, limit = now or (None, None)
        documents = await asyncio.to_thread(gather, paths)
        message = record.system_message([document.attachment for document in documents])
        text = await asyncio.to_thread(prompt_content, message)  # names and separators are most of it in small files
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
        made = await self._parts.worker.run(record.add, self._parts.database, name, named, documents)
        self._changed()
        return made

    async def read(self, one: Prepared) -> Prepared:
        """Read the files as they are now, what is kept of them not again; the set as it is then.

        It gives way to whatever else is asked for. Cancelled, what was read so far serves the next time. Refused, a set
        that was never read goes.
        """
        if one.id in self.reading:
            raise CannotPrepare(_("“{name}” is being read already", name=one.name), "", "")
        task, refused = asyncio.ensure_future(self._read(one)), False
        self.reading[one.id] = Reading(task)
        self._parts.background.begin(_over(task))
        self._changed()
        try:
            return await task
        except KvchatError as error:
            refused = isinstance(error, CannotPrepare | CannotAttach) and not one.is_read
            raise
        finally:
            task.cancel()
            await asyncio.wait([task])
            del self.reading[one.id]
            if refused:
                await self.remove(one)
            self._over()
            self._changed()

    async def cancel(self, one: Prepared) -> None:
        if (reading := self.reading.get(one.id)) is not None:
            reading.task.cancel()
            await asyncio.wait([reading.task])
        if not one.is_read:
            await self.remove(one)

    def stop(self) -> None:
        for reading in self.reading.values():
            reading.task.cancel()

    async def remove(self, one: Prepared) -> None:
        """Forget a set. Chats that began on it keep its text, and what is kept of them."""
        if (reading := self.reading.get(one.id)) is not None:
            reading.task.cancel()
            await asyncio.wait([reading.task])
        await self._parts.worker.run(record.remove, self._parts.database, one)
        self._changed()
        if self._parts.slots.store.problem is None:
            await asyncio.to_thread(self._parts.slots.store.pin, one.owner, False)
        await self._forget({one.owner: {one.owner}})

    async def begin(self, one: Prepared) -> Conversation:
        made = await self._parts.worker.run(record.begin_chat, self._parts.database, one)
        self._parts.events.publish(ConversationsChanged())
        return made

    def new_chat(self, one: Prepared) -> NewChat:
        return NewChat(lambda database, id: record.begin_chat(database, one, id))

    async def names(self) -> dict[str, str]:
        rows = await self._parts.worker.run(self._parts.database.rows, "SELECT id, name FROM prepared")
        return {record.owner_of(row["id"]): str(row["name"]) for row in rows}

    async def ground_of(self, conversation_id: str) -> Ground | None:
        """The documents that a chat stands on; None without any. One from elsewhere may have the same ones."""
        begun, documents = await self._parts.worker.run(record.begun_on, self._parts.database, conversation_id)
        if not documents:
            return None
        names, hashes = zip(*documents, strict=True)
        known = await self.all()
        same = [one for one in known if tuple(source.hash for source in one.sources) == hashes]
        on = next((one for one in known if one.id == begun), None) or next(iter(same), None)
        return Ground(names, on, on in same)

    async def standings(
        self,
        now: tuple[Fingerprint, int] | None,
        usage: Sequence[ConversationUsage],
        only: Prepared | None = None,
    ) -> list[Standing]:
        """How each of them stands, by name, or `only` that one.

        `now`: what states mean with the engine in use, and its longest context.
        """
        fingerprint, limit = now or (None, None)
        kept = {one.conversation_id: one for one in usage}
        return [
            Standing(
                one,
                kept[one.owner].bytes if one.owner in kept else 0,
                await asyncio.to_thread(sources.changes, list(map(Path, one.paths)), one.sources),
                why_not_ready(one, kept.get(one.owner), fingerprint, limit),
                await self._time(one.tokens, fingerprint or one.fingerprint),
            )
            for one in ([only] if only else await self.all())
        ]

    def time_left(self, one: Prepared) -> TimeRange | None:
        reading = self.reading.get(one.id)
        return self._parts.slots.restore_cost.speed.forecast(reading.total - reading.done) if reading else None

    async def _time(self, tokens: int, fingerprint: Fingerprint | None) -> TimeRange | None:
        """An estimate of reading so many tokens with this engine; None where it cannot be said."""
        return (await self._parts.reading_speed(fingerprint.model)).forecast(tokens) if fingerprint else None

    async def _read(self, one: Prepared) -> Prepared:
        parts = self._parts
        documents = await asyncio.to_thread(gather, list(map(Path, one.paths)), one.sources)
        label = partial(_label, documents)
        if parts.slots.store.problem is None:
            await asyncio.to_thread(parts.slots.store.pin, one.owner, True)
        reader = DocumentReader(parts, one.owner, label, documents, partial(self._progress, one.id))
        read = await reader.run()
        now = replace(
            one,
            sources=tuple(document.source for document in documents),
            label=label(read.fingerprint),
            fingerprint=read.fingerprint,
            model=parts.new_chats_model() or "",
            context_size=read.context_size,
            tokens=read.tokens,
            read_ms=read.ms or one.read_ms,
            created_at=datetime.now(UTC),
        )
        await parts.worker.run(record.finish, parts.database, now, documents)
        if one.label and one.label != now.label:
            await parts.slots.discard_messages(one.owner, [one.label])
        self._parts.background.begin(parts.absorb())
        return now

    def _progress(self, prepared_id: str, done: int, total: int) -> None:
        if prepared_id in self.reading:
            self.reading[prepared_id] = replace(self.reading[prepared_id], done=done, total=total)
            self._parts.events.publish(LibraryChanged(progress=True))

    def _changed(self) -> None:
        self._parts.events.publish(LibraryChanged())


def why_not_ready(one: Prepared, usage: ConversationUsage | None, now: Fingerprint | None, limit: int | None) -> str:
    """Why a chat on it would have to read it first, in words; empty where it need not.

    `now`, `limit`: with what states are made by the engine in use, and its longest context; None where not known.
    """
    if not one.is_read or one.fingerprint is None:
        return _("it was not read to its end")
    differences = one.fingerprint.differences(now) if now else ()
    if differences == (Reason(ReasonCode.MODEL),):
        return _("it was read with another model")
    if limit is not None and one.tokens >= limit:
        return _("it is longer than the context in use ({limit} tokens)", limit=number(limit))
    if differences:
        return _("it was read with another {differences}", differences=listed(one.words for one in differences))
    if usage is None or not usage.save_points:
        return _("its memory was deleted")
    return ""


def _label(documents: Sequence[Document], fingerprint: Fingerprint) -> str:
    digest = blake3(repr(fingerprint).encode())
    for document in documents:
        digest.update(f"{document.source.name}\0{document.source.hash}\0".encode())
    return digest.hexdigest()[:32]


async def _over(task: asyncio.Future[Any]) -> None:
    await asyncio.wait([task])
