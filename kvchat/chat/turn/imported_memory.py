"""Memory imported with a chat: tested before its next message relies on it, later replaced.

**Testing** restores it and proves that the engine uses it. **Verifying** processes the chat with the user's own
model and deletes the imported memory. States cannot be compared: recomputed rows differ in rounding.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kvchat.chat.events import ConversationsChanged, ReadAheadProgress
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import ends_with_reply, needs_vision, prompt_messages
from kvchat.chat.turn_context import TurnContext
from kvchat.engine.api.errors import EngineError
from kvchat.engine.api.wire import ChatMessage
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import CHATS_AUDIENCE, Fingerprint, StoreRefused, Tokens, imported_audience, is_imported
from kvchat.session.exchange import PromptRequest, PromptTooLong
from kvchat.session.lease import Lease
from kvchat.session.prefill import prefill_and_save, prefixes_to_save
from kvchat.session.slot import Priority, Slot
from kvchat.text.language import _, join_sentences
from kvchat.text.reasons import Reason, ReasonCode

PROBE_TOKENS = 4  # tokens appended to the restored state, as in the self-test
MAX_SPARE_MS = 600_000.0  # longer verifications run only on request


@dataclass(frozen=True)
class ImportTestResult:
    tokens: int = 0  # history tokens restored
    total: int = 0  # tokens in the history
    reason: Reason | None = None  # why nothing was restored or tried
    is_pending: bool = False  # not tried: no engine is ready yet


class VerificationError(KvchatError):
    def __init__(self, reason: str) -> None:
        super().__init__(
            _("The memory of this chat could not be verified"), reason, _("The memory stays marked as imported.")
        )


class MemoryVerifier:
    """Tests and verifies imported memory, chat by chat. Event-loop thread only."""

    def __init__(self, turn_context: TurnContext) -> None:
        self._turn_context = turn_context
        self._postponed: set[str] = set()  # chats not retried when idle
        self._in_progress: set[str] = set()  # chats being verified

    async def test(self, conversation_id: str, fingerprint: Fingerprint, start_engine: bool) -> ImportTestResult:
        """Test the chat's imported memory in a slot, then erase the slot."""
        turn_context = self._turn_context
        chosen, branch = await turn_context.settings_and_branch(conversation_id)
        messages = prompt_messages(branch)
        request = PromptRequest(messages, model=chosen.model, template=chosen.options.template)
        if not start_engine and not turn_context.host.is_ready(chosen.model, needs_vision=needs_vision(messages)):
            return ImportTestResult(is_pending=True)

        async def test(slot: Slot, _may_continue: Callable[[], bool]) -> ImportTestResult:
            lease: Lease | None = None
            try:
                lease = await turn_context.exchange(slot, conversation_id).lease_slot(request)
                return await _test_memory(lease, messages, fingerprint)
            except KvchatError as error:
                if isinstance(error, EngineError) and error.restore_fault:
                    return ImportTestResult(reason=error.restore_fault)
                message = join_sentences(error.title, error.detail).rstrip(".。")
                return ImportTestResult(reason=Reason(ReasonCode.ERROR, {"message": message}), is_pending=True)
            finally:
                if lease is not None:
                    await _erase_slot(lease)

        result = await turn_context.slots.run_background(Priority.TEST_IMPORT, conversation_id, test, wait=start_engine)
        return result or ImportTestResult(is_pending=True)

    async def verify(self, conversation_id: str) -> bool:
        """Process the chat when idle, then delete its imported memory; False if the chat was deleted meanwhile."""
        try:
            while not await self._run(conversation_id, math.inf):
                if conversation_id not in self._in_progress:
                    return False
        except KvchatError:
            if conversation_id in self._in_progress:
                raise
            return False
        await self._replace(conversation_id)
        return True

    def cancel(self, conversation_id: str) -> None:
        self._in_progress.discard(conversation_id)

    async def verify_when_idle(self) -> None:
        """Verify one chat with the loaded model; an interrupted attempt continues next time."""
        turn_context = self._turn_context
        if await asyncio.to_thread(turn_context.read_ahead_off_reason):
            return
        try:
            waiting = await asyncio.to_thread(turn_context.store.inventory.imported_conversations)
        except StoreRefused:
            return
        for conversation_id in sorted(waiting - self._postponed):
            try:
                if await turn_context.run(Database.conversation, conversation_id) is None:  # deleted
                    continue
                chosen, branch = await turn_context.settings_and_branch(conversation_id)
                if not turn_context.host.is_ready(chosen.model, needs_vision=needs_vision(prompt_messages(branch))):
                    continue
                if await self._run(conversation_id, MAX_SPARE_MS):
                    await self._replace(conversation_id)
            except KvchatError:  # not a user request
                self._postponed.add(conversation_id)
            return

    async def _run(self, conversation_id: str, max_ms: float) -> bool | None:
        """Return True if the whole chat was processed. Raises VerificationError if that takes over `max_ms`."""
        is_requested = math.isinf(max_ms)
        self._in_progress.add(conversation_id)
        priority = Priority.DOCUMENTS if is_requested else Priority.VERIFY
        work = partial(self._process_chat, conversation_id, max_ms)
        return await self._turn_context.slots.run_background(priority, conversation_id, work, wait=is_requested)

    async def _replace(self, conversation_id: str) -> None:
        turn_context, slots = self._turn_context, self._turn_context.slots
        await turn_context.absorb()
        for slot in slots.all_slots:
            if slot.audience == imported_audience(conversation_id) and not slot.claimed_tokens:
                slot.forget()  # erased before its next use
        await slots.writer.run(turn_context.store.inventory.delete_imported, conversation_id)
        turn_context.publish(ConversationsChanged())
        turn_context.on_slot_changed()

    async def _process_chat(
        self, conversation_id: str, max_ms: float, slot: Slot, should_continue: Callable[[], bool]
    ) -> bool:
        """Process and save the chat from the end of its verified part on; False if interrupted."""
        turn_context = self._turn_context
        chosen, branch = await turn_context.settings_and_branch(conversation_id)
        if not ends_with_reply(branch):
            raise VerificationError(_("The last message has no reply yet."))
        request = PromptRequest(prompt_messages(branch), model=chosen.model, template=chosen.options.template)
        exchange, restore_cost = turn_context.exchange(slot, conversation_id), turn_context.slots.restore_cost
        async with exchange.explaining_losses():
            lease = await exchange.lease_slot(request)
            boundary = await lease.turn_boundary(request.messages)
            total = len(boundary)
            needed = total + lease.engine.reserve(None)
            if lease.engine.must_grow_for(needed) and math.isinf(max_ms):
                lease = await exchange.lease_with_room(request, needed)
            if total >= lease.engine.context_size:
                raise PromptTooLong(total, lease.engine.limit)
            if not lease.saving_enabled:
                raise VerificationError(_("Chat memory cannot be saved with this engine and model."))
            loaded = await lease.load(boundary, reader=CHATS_AUDIENCE)
            done, saved = loaded.expected_cached, False

            def may_continue() -> bool:
                if restore_cost.prefill_ms(total - done) > max_ms:
                    raise VerificationError("")
                return should_continue() and conversation_id in self._in_progress

            async def keep(stop: Tokens) -> None:
                nonlocal saved
                await lease.settle(stop)
                point = await lease.save(stop, label=branch[-1].id, notify=False)
                saved = point is not None and stop == boundary and not is_imported(point.audience)

            def on_progress(tokens: int) -> None:
                nonlocal done
                done = tokens
                turn_context.publish(ReadAheadProgress(conversation_id, done, total, draft=False))

            try:
                stops = [stop for stop in prefixes_to_save(lease, boundary) if len(stop) >= done]
                read = await prefill_and_save(lease, stops, loaded, may_continue, keep, on_progress)
            finally:
                turn_context.publish(ReadAheadProgress(conversation_id, total, total, draft=False))
        if read and not saved:
            raise VerificationError(_("The reprocessed chat memory could not be saved."))
        return read


async def _test_memory(lease: Lease, messages: list[ChatMessage], fingerprint: Fingerprint) -> ImportTestResult:
    if differences := fingerprint.differences(lease.engine.fingerprint):
        return ImportTestResult(reason=Reason(ReasonCode.OTHER_ENGINE, {"differences": differences}))
    await _erase_slot(lease)
    boundary = await lease.turn_boundary(messages)
    if len(boundary) + PROBE_TOKENS >= lease.engine.context_size:
        counts = {"tokens": len(boundary), "context_size": lease.engine.context_size}
        return ImportTestResult(reason=Reason(ReasonCode.LONGER_THAN_CONTEXT, counts))
    loaded = await lease.load_boundary(boundary)
    if loaded.restore is None:
        return ImportTestResult(reason=loaded.miss_reason or Reason(ReasonCode.NOT_WORTH_IT))
    probe = (await lease.engine.engine.prompt_tokens([ChatMessage("user", "A")]))[:PROBE_TOKENS]
    read = await lease.prefill((*boundary, *probe))
    verdict = await lease.prove(loaded, read.cache_n, read.prompt_tokens)
    if verdict.hollow:
        return ImportTestResult(reason=verdict.miss_reason)
    return ImportTestResult(read.cache_n, len(boundary))


async def _erase_slot(lease: Lease) -> None:
    lease.slot.forget()
    with contextlib.suppress(EngineError):  # a dead engine has no state
        await lease.engine.engine.erase_slot()
    lease.slot.mark_empty()
