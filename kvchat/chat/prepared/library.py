"""The library of prepared documents: the API for the window and commands."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from blake3 import blake3

from kvchat.chat.attachments import AttachmentError
from kvchat.chat.events import LibraryChanged
from kvchat.chat.options import NewChat
from kvchat.chat.prepared import documents as record
from kvchat.chat.prepared.documents import (
    Document,
    FileChanges,
    PreparationError,
    PreparedSet,
    read_documents,
    system_message,
)
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import prompt_content, prompt_messages
from kvchat.chat.turn_context import TurnContext
from kvchat.engine.api.errors import EngineError
from kvchat.engine.api.wire import ChatMessage
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import ConversationUsage, Fingerprint, Tokens
from kvchat.session.events import SaveSkipped, SessionEvent
from kvchat.session.exchange import Exchange, PromptRequest
from kvchat.session.host import MAX_RESERVE, RESERVE_SHARE, ReadyEngine
from kvchat.session.lease import Lease
from kvchat.session.prefill import prefill_and_save, prefixes_to_save
from kvchat.session.proof import NOTHING_AHEAD
from kvchat.session.restore_cost import MIN_MEASURED_TOKENS
from kvchat.session.slot import Priority, Slot
from kvchat.text.formatting import TimeRange, format_percent, format_tokens
from kvchat.text.language import N_, _, format_number, join_list
from kvchat.text.reasons import Reason, ReasonCode

CHARACTERS_PER_TOKEN = 3.6  # English and code, roughly, until an engine counts
MIN_TOKEN_SHARE = 0.5  # lower bound as a share of the guessed tokens
STEP_MS = 500.0  # target time per step: steps are frequent, but smaller ones cost more in total
_TOO_LONG = N_("Choose a part of it, or a larger context length in the settings if the model and memory allow it.")


@dataclass(frozen=True)
class Estimate:
    files: int
    tokens: int
    time: TimeRange | None  # None: unknown
    available: int | None = None  # tokens that fit into the context beside a reply; None: unknown
    counted: bool = False  # False: estimated tokens

    @property
    def is_too_long(self) -> bool:
        return self.available is not None and self.tokens * (1.0 if self.counted else MIN_TOKEN_SHARE) > self.available


class PreparationTooLong(PreparationError):
    def __init__(self, estimate: Estimate) -> None:
        tokens, room = format_tokens(estimate.tokens), format_number(estimate.available or 0)
        detail = _("It has about {tokens} tokens, but only {room} fit in the context.", tokens=tokens, room=room)
        super().__init__(_("This is too long for the model's context"), detail, _(_TOO_LONG))


@dataclass(frozen=True)
class PreparedStatus:
    prepared: PreparedSet
    bytes: int  # blocks on disk, including those shared with chats
    changes: FileChanges  # in the files, since they were read
    reprocess_reason: str  # why chats must process it again; empty if they need not
    time: TimeRange | None  # estimated time; None: unknown


@dataclass(frozen=True)
class ChatDocuments:
    documents: tuple[str, ...]  # names
    prepared: PreparedSet | None  # the chat's set; None: not in the library
    is_current: bool  # a new chat would get the same documents


@dataclass(frozen=True)
class ProcessingTask:
    task: asyncio.Future[Any]
    done_tokens: int = 0
    total: int = 0  # 0: not counted


PurgeMemory = Callable[[Mapping[str, set[str]]], Coroutine[Any, Any, None]]


class Library:
    """Prepared document sets. Event-loop thread only. All methods raise KvchatError."""

    def __init__(self, turn_context: TurnContext, purge: PurgeMemory) -> None:
        """`purge` deletes an owner's saved states."""
        self._turn_context, self._purge = turn_context, purge
        self.processing: dict[str, ProcessingTask] = {}  # by id

    async def all(self) -> list[PreparedSet]:
        return await self._turn_context.run(record.all_prepared)

    async def find(self, name: str) -> PreparedSet:
        for prepared in await self.all():
            if prepared.name == name:
                return prepared
        title = _("“{name}” is not in the library", name=name)
        raise PreparationError(title, "", _("Run `kvchat prepared` to list the library."))

    async def estimate(self, paths: Sequence[Path], engine_facts: tuple[Fingerprint, int] | None) -> Estimate:
        """Estimate the tokens and time of preparing files.

        `engine_facts`: the engine's fingerprint and maximum context, if known.
        """
        fingerprint, limit = engine_facts or (None, None)
        documents = await asyncio.to_thread(read_documents, paths)
        message = record.system_message([document.attachment for document in documents])
        text = await asyncio.to_thread(prompt_content, message)  # in small files, names and separators dominate
        room = limit - min(MAX_RESERVE, limit // RESERVE_SHARE) if limit else None
        tokens, counted = round(len(text) / CHARACTERS_PER_TOKEN), False
        if room is not None and self._turn_context.host.is_ready():
            with contextlib.suppress(KvchatError):
                engine = (await self._turn_context.host.ready()).engine
                tokens, counted = (await engine.count_tokens_up_to(text, room))[0], True
        return Estimate(len(documents), tokens, await self._time(tokens, fingerprint), room, counted)

    async def add(self, paths: Sequence[Path], name: str) -> PreparedSet:
        documents = await asyncio.to_thread(read_documents, paths)
        prepared = await self._turn_context.run(record.add, name, [str(path.absolute()) for path in paths], documents)
        self._turn_context.publish(LibraryChanged())
        return prepared

    async def process(self, prepared: PreparedSet) -> PreparedSet:
        """Read the files again and process them, reusing saved states. All other work has priority."""
        if prepared.id in self.processing:
            raise PreparationError(_("“{name}” is already being processed", name=prepared.name), "", "")
        task, refused = asyncio.ensure_future(self._run_processing(prepared)), False
        self.processing[prepared.id] = ProcessingTask(task)
        self._turn_context.background.start(asyncio.wait([task]))
        self._turn_context.publish(LibraryChanged())
        try:
            return await task
        except KvchatError as error:
            refused = isinstance(error, PreparationError | AttachmentError) and not prepared.is_read
            raise
        finally:
            task.cancel()
            await asyncio.wait([task])
            del self.processing[prepared.id]
            if refused:
                await self.remove(prepared)
            self._turn_context.on_slot_changed()
            self._turn_context.publish(LibraryChanged())

    async def cancel(self, prepared: PreparedSet) -> None:
        await self._cancel_processing(prepared)
        if not prepared.is_read:
            await self.remove(prepared)

    async def _cancel_processing(self, prepared: PreparedSet) -> None:
        if (processing := self.processing.get(prepared.id)) is not None:
            processing.task.cancel()
            await asyncio.wait([processing.task])

    def stop(self) -> None:
        for processing in self.processing.values():
            processing.task.cancel()

    async def remove(self, prepared: PreparedSet) -> None:
        await self._cancel_processing(prepared)
        await self._turn_context.run(record.remove, prepared)
        self._turn_context.publish(LibraryChanged())
        if self._turn_context.store.problem is None:
            await asyncio.to_thread(self._turn_context.store.inventory.set_pinned, prepared.owner, False)
        with contextlib.suppress(EngineError):  # `purge` also meets it, reports it and retries
            if (server := await self._turn_context.host.memory_server()) is not None:
                await server.keep_chat(prepared.owner, "automatic")
        await self._purge({prepared.owner: {prepared.owner}})

    async def new_chat(self, prepared: PreparedSet) -> NewChat:
        return await self._turn_context.run(record.new_chat, prepared)

    async def names_by_owner(self) -> dict[str, str]:
        rows = await self._turn_context.run(Database.rows, "SELECT id, name FROM prepared")
        return {f"prepared:{row['id']}": str(row["name"]) for row in rows}

    async def chat_documents(self, conversation_id: str) -> ChatDocuments | None:
        """Return the documents a chat started with, or None; imported chats are matched by hash."""
        set_id, documents = await self._turn_context.run(record.chat_documents, conversation_id)
        if not documents:
            return None
        names, hashes = zip(*documents, strict=True)
        prepared_sets = await self.all()
        same = [prepared for prepared in prepared_sets if tuple(source.hash for source in prepared.sources) == hashes]
        prepared = next(iter([*(prepared for prepared in prepared_sets if prepared.id == set_id), *same]), None)
        return ChatDocuments(names, prepared, prepared in same)

    async def statuses(
        self,
        engine_facts: tuple[Fingerprint, int] | None,
        usage: Sequence[ConversationUsage],
        only: PreparedSet | None = None,
    ) -> list[PreparedStatus]:
        """Return the status of each set, or of `only` this one.

        `engine_facts`: the engine's fingerprint and maximum context, if known.
        """
        fingerprint, limit = engine_facts or (None, None)
        usage_by_owner, statuses = {chat.conversation_id: chat for chat in usage}, []
        for prepared in [only] if only else await self.all():
            own, paths = usage_by_owner.get(prepared.owner), list(map(Path, prepared.paths))
            changes = await asyncio.to_thread(record.detect_changes, paths, prepared.sources)
            reason = reprocess_reason(prepared, own, fingerprint, limit)
            time = await self._time(prepared.tokens, fingerprint or prepared.fingerprint)
            statuses.append(PreparedStatus(prepared, own.bytes if own else 0, changes, reason, time))
        return statuses

    def time_left(self, prepared: PreparedSet) -> TimeRange | None:
        processing = self.processing.get(prepared.id)
        return (
            self._turn_context.slots.restore_cost.speed.forecast(processing.total - processing.done_tokens)
            if processing
            else None
        )

    async def _time(self, tokens: int, fingerprint: Fingerprint | None) -> TimeRange | None:
        return (await self._turn_context.prefill_speed(fingerprint.model)).forecast(tokens) if fingerprint else None

    async def _run_processing(self, prepared: PreparedSet) -> PreparedSet:
        turn_context = self._turn_context
        documents = await asyncio.to_thread(read_documents, list(map(Path, prepared.paths)), prepared.sources)
        if turn_context.store.problem is None:
            await asyncio.to_thread(turn_context.store.inventory.set_pinned, prepared.owner, True)
        work, is_retry, now = partial(self._process_documents, prepared, documents), False, None
        while now is None:
            try:
                now = await turn_context.slots.run_background(Priority.DOCUMENTS, prepared.owner, work)
            except EngineError as error:
                loss = error.__cause__ or error
                if is_retry or not (isinstance(loss, EngineError) and loss.restore_fault):
                    raise
                is_retry = True  # the faulty state is set aside
        await turn_context.run(record.finish, now, documents)
        if prepared.label and prepared.label != now.label:
            await turn_context.slots.discard_messages(prepared.owner, [prepared.label])
        turn_context.background.start(turn_context.absorb())
        return now

    async def _process_documents(
        self, prepared: PreparedSet, documents: Sequence[Document], slot: Slot, may_continue: Callable[[], bool]
    ) -> PreparedSet | None:
        """Process the documents and save their states; None if interrupted. Cancellable at any point."""
        turn_context, skipped = self._turn_context, list[Reason]()

        def on_event(event: SessionEvent) -> None:
            if isinstance(event, SaveSkipped):
                skipped.append(event.reason)

        exchange = Exchange(turn_context.slots, slot, turn_context.host, prepared.owner, on_event)
        messages = prompt_messages([system_message([document.attachment for document in documents])])
        async with exchange.explaining_losses():
            lease = await exchange.lease_slot(PromptRequest(messages))
            if lease.engine.keeps_memory:
                return await self._process_on_server(prepared, documents, lease, messages)
            boundary = await lease.turn_boundary(messages)
            tokens = len(boundary)
            needed = tokens + lease.engine.reserve(None)
            if lease.engine.must_grow_for(needed) and needed <= lease.engine.limit:
                lease = await exchange.lease_with_room(PromptRequest(messages), needed)
            if needed > min(lease.engine.limit, lease.engine.context_size):
                _raise_too_long(tokens, lease.engine, documents)
            if not (lease.saving_enabled and lease.engine.can_save(tokens)):
                problem = turn_context.store.problem
                detail = problem.detail if problem else lease.engine.finding.description
                raise PreparationError(_("Documents cannot be prepared"), detail, "")
            label = _label(lease.engine, documents)
            loaded = await lease.load_boundary(boundary)

            async def save(stop: Tokens) -> None:
                await lease.settle(stop)  # a longer restored state holds more
                if await lease.save(stop, label=label, notify=False) is None and skipped:
                    title = _("The prepared documents could not be saved")
                    raise PreparationError(title, skipped[-1].as_sentence, "")

            def progress(done: int) -> None:
                self._show_progress(prepared, done, tokens)

            stops = [stop for stop in prefixes_to_save(lease, boundary) if len(stop) >= loaded.expected_cached]
            if not await prefill_and_save(lease, stops, loaded, may_continue, save, progress, STEP_MS):
                return None
            contents, engine = lease.slot.known_contents(lease.engine), lease.engine
        ahead = contents.prefilled_ahead if contents else NOTHING_AHEAD
        measured = ahead.tokens >= MIN_MEASURED_TOKENS
        ms = tokens * ahead.ms / ahead.tokens if measured else lease.slots.restore_cost.prefill_ms(tokens)
        return self._processed(prepared, documents, engine, tokens, ms)

    async def _process_on_server(
        self, prepared: PreparedSet, documents: Sequence[Document], lease: Lease, messages: Sequence[ChatMessage]
    ) -> PreparedSet | None:
        """Have another kvchat process the documents and keep their state; None if it was interrupted."""
        server, began_at = lease.engine.engine, time.perf_counter()
        await server.keep_chat(prepared.owner, "always")
        ready, total = await server.prepare(messages, partial(self._show_progress, prepared), read=True)
        if total + lease.engine.reserve(None) > lease.engine.context_size:
            _raise_too_long(total, lease.engine, documents)
        if ready < total:
            return None
        return self._processed(prepared, documents, lease.engine, total, 1000 * (time.perf_counter() - began_at))

    def _show_progress(self, prepared: PreparedSet, done: int, total: int) -> None:
        if prepared.id in self.processing:
            self.processing[prepared.id] = replace(self.processing[prepared.id], done_tokens=done, total=total)
            self._turn_context.publish(LibraryChanged(progress_only=True))

    def _processed(
        self, prepared: PreparedSet, documents: Sequence[Document], engine: ReadyEngine, tokens: int, ms: float
    ) -> PreparedSet:
        return replace(
            prepared,
            sources=tuple(document.source for document in documents),
            label=_label(engine, documents),
            fingerprint=engine.fingerprint,
            model=self._turn_context.default_model() or "",
            context_size=engine.context_size,
            tokens=tokens,
            read_ms=ms or prepared.read_ms,
            created_at=datetime.now(UTC),
        )


def _label(engine: ReadyEngine, documents: Sequence[Document]) -> str:
    """Return the label of the state of these documents with this engine."""
    digest = blake3(repr(engine.fingerprint).encode())
    for document in documents:
        digest.update(f"{document.source.name}\0{document.source.hash}\0".encode())
    return digest.hexdigest()[:32]


def _raise_too_long(tokens: int, engine: ReadyEngine, documents: Sequence[Document]) -> NoReturn:
    room = engine.limit - engine.reserve(None)
    ends = list(itertools.accumulate(len(document.text) for document in documents))  # in characters
    amount = _("about {share} of it", share=format_percent(100 * room // tokens / 100))
    if len(ends) > 1:
        fits = format_number(sum(end * tokens <= room * ends[-1] for end in ends))
        count = format_number(len(ends))
        amount = _("the first {fits} of {count} files, {amount}", fits=fits, count=count, amount=amount)
    counts = {"tokens": format_number(tokens), "room": format_number(room), "amount": amount}
    detail = _("It has {tokens} tokens, but only {room} fit in the context: {amount}.", **counts)
    raise PreparationError(_("This is too long for the model's context"), detail, _(_TOO_LONG))


def reprocess_reason(
    prepared: PreparedSet, usage: ConversationUsage | None, engine: Fingerprint | None, limit: int | None
) -> str:
    """Return why the set must be processed again before a chat can start from it, or an empty text.

    `engine`, `limit`: fingerprint and maximum context of the engine, if known.
    """
    if not prepared.is_read or prepared.fingerprint is None:
        return _("it was not fully processed")
    differences = prepared.fingerprint.differences(engine) if engine else ()
    if differences == (Reason(ReasonCode.MODEL),):
        return _("it was processed with another model")
    if limit is not None and prepared.tokens >= limit:
        return _("it is longer than the current context length ({limit} tokens)", limit=format_number(limit))
    if differences:
        names = join_list(difference.text for difference in differences)
        return _("it was processed with a different configuration ({differences})", differences=names)
    if usage is None or not usage.save_points:
        return _("its memory was deleted")
    return ""
