"""Reading documents into the slot and saving them, in spare time; if interrupted, from the last save on once more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from kvchat.chat.prepared.record import system_message
from kvchat.chat.prepared.sources import CannotPrepare, Document
from kvchat.chat.record.prompt import prompt_messages
from kvchat.chat.turn_parts import TurnParts
from kvchat.engine.speaking.errors import EngineError
from kvchat.kvstore.savepoint import Fingerprint, Tokens
from kvchat.session.allocator import Rank
from kvchat.session.events import SaveSkipped, SessionEvent
from kvchat.session.exchange import Exchange, Request
from kvchat.session.host import ReadyEngine
from kvchat.session.lease import NEXT, Lease
from kvchat.session.proof import NOTHING_AHEAD
from kvchat.session.reading import parts_of, read_and_keep
from kvchat.session.restore_cost import LEAST_MEASURED
from kvchat.session.slot import Slot
from kvchat.words.language import _, number
from kvchat.words.wording import percent

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
        """None if it was not `wanted` to the end."""
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
        """Read and save on from what there is of it; whether it came to the end."""
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
        """Raises CannotPrepare: it is too long, and so much fits."""
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
