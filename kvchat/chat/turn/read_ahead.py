"""Preparation of the next message: restores and processes ahead while the user types.

Only for the chat on screen. Its save point is restored, and missing parts are processed and saved. The draft is
processed except for its last tokens; its state is never saved.
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from kvchat.chat.events import Notice, ReadAheadProgress, ReadAheadSkipped
from kvchat.chat.record.messages import (
    NEW_CHAT_ID,
    Attachment,
    Message,
    Role,
    ends_with_reply,
    needs_vision,
    new_message,
    prompt_messages,
    quotable_documents,
)
from kvchat.chat.turn_context import TurnContext
from kvchat.engine.api.errors import EngineError
from kvchat.engine.api.wire import ChatMessage
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import Tokens, common_prefix
from kvchat.session.exchange import PromptRequest
from kvchat.session.lease import Lease
from kvchat.session.prefill import SaveCallback, prefill_and_save, save_nothing
from kvchat.session.proof import LoadedState
from kvchat.session.restore_cost import MIN_GAIN
from kvchat.session.slot import Priority, Slot
from kvchat.text.reasons import Reason, ReasonCode

TYPING_PAUSE_S = 0.6  # delay after the last draft change
PASTE_CHARACTERS = 400  # more at once were pasted
DWELL_S = 1.0  # time on a chat before it is processed if nothing can be restored
_CHECK_S = 0.03  # between two checks whether work on another computer is still wanted
UNSTABLE_TOKENS = 8  # at a draft's end; typing may change them


@dataclass(frozen=True)
class _Target:
    conversation_id: str  # NEW_CHAT_ID: a new chat
    draft: str = ""
    attachments: tuple[Attachment, ...] = ()

    @property
    def message(self) -> Message:
        return new_message(self.conversation_id, Role.USER, self.draft, attachments=self.attachments)


@dataclass(frozen=True)
class _PrefillJob:
    target: _Target
    may_continue: Callable[[], bool]
    lease: Lease
    boundary: Tokens


class ReadAhead:
    """Reads ahead in the background while idle. Event-loop thread only."""

    def __init__(self, turn_context: TurnContext) -> None:
        self._turn_context = turn_context
        self._target: _Target | None = None
        self._stopped: str | None = None  # chat for which the user stopped reading ahead
        self._wakeup = asyncio.Event()  # there may be work
        self._running = False
        self._timer: asyncio.TimerHandle | None = None
        self._failed_saves: dict[str, int] = {}  # boundary lengths for which saving failed, by chat
        self._reported_reason: Reason | None = None  # last reported reason

    def select(self, conversation_id: str | None) -> None:
        self._stopped = None
        if conversation_id is None:
            self._target = None
        elif self._target is None or self._target.conversation_id != conversation_id:
            self._target = _Target(conversation_id)
        self.start()

    def set_draft(self, conversation_id: str, draft: str, attachments: tuple[Attachment, ...]) -> None:
        """Process a draft when typing pauses, or at once after a paste."""
        target, before = _Target(conversation_id, draft, attachments), self._target
        if before is None or conversation_id != before.conversation_id:
            if not draft and not attachments:
                return  # an empty page keeps the prepared state
            before = _Target(conversation_id)
        if target == before:
            return
        self._target = target
        self._forget_timer()
        if len(draft) >= len(before.draft) + PASTE_CHARACTERS or attachments != before.attachments:
            self.start()
        else:
            self._timer = asyncio.get_running_loop().call_later(TYPING_PAUSE_S, self.start)

    def deselect(self, conversation_id: str) -> None:
        if self._target and self._target.conversation_id == conversation_id:
            self.select(None)

    def stop(self, conversation_id: str) -> None:
        self._stopped = conversation_id
        self._turn_context.slots.stop_background()

    def start(self) -> None:
        self._forget_timer()
        self._wakeup.set()
        self._turn_context.slots.stop_background(
            Priority.PREPARE, except_owner=self._target.conversation_id if self._target else None
        )
        if self._target and not self._running:
            self._running = True
            self._turn_context.background.start(self._run())

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _run(self) -> None:
        slots = self._turn_context.slots
        try:
            while self._wakeup.is_set() and (target := self._target):
                self._wakeup.clear()
                owner = target.conversation_id
                for read in (False, True):
                    if read and not await self._should_read(target):
                        break
                    work = functools.partial(self._prepare, owner, read)
                    if await slots.run_background(Priority.PREPARE, owner, work, concurrent=not read) is None:
                        self._wakeup.set()  # interrupted by other work
                        break
        except KvchatError as error:
            self._turn_context.publish(Notice(error.title, error.explanation))
        finally:
            self._running = False

    async def _should_read(self, target: _Target) -> bool:
        if reason := await asyncio.to_thread(self._turn_context.read_ahead_off_reason):  # battery check may be slow
            if reason != self._reported_reason and (target.attachments or len(target.draft) >= PASTE_CHARACTERS):
                self._reported_reason = reason
                self._turn_context.publish(ReadAheadSkipped(target.conversation_id, reason))
            return False
        if self._stopped == target.conversation_id:
            return False
        if not target.draft and not target.attachments:  # a user who types will stay in this chat
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wakeup.wait(), DWELL_S)
        return not self._wakeup.is_set()

    async def _prepare(self, owner: str, read: bool, slot: Slot, may_continue: Callable[[], bool]) -> bool:
        turn_context, target = self._turn_context, self._target
        if target is None or target.conversation_id != owner:
            return False
        chosen, branch = await turn_context.settings_and_branch(None if owner == NEW_CHAT_ID else owner)
        messages = prompt_messages(branch)
        if not turn_context.host.is_ready(chosen.model, needs_vision=needs_vision(messages)):
            return False  # only sending a message loads another model or projector
        if not ends_with_reply(branch) and any(message.role is not Role.SYSTEM for message in branch):
            return False
        request = PromptRequest(messages, model=chosen.model, template=chosen.options.template)
        try:
            lease = await turn_context.exchange(slot, owner).lease_slot(request)
            if lease.engine.keeps_memory:
                work = self._prepare_on_server(lease, messages, branch, target, read=read)
                return await _run_while(may_continue, work)  # it may wait there for long, and the turn for it
            boundary = await lease.turn_boundary(messages)
            if len(boundary) >= lease.engine.context_size:
                return False  # the next answer makes room for it
            new = prompt_messages([*branch, target.message])
            # Passages will be quoted before the draft, so what it would be processed as cannot be used.
            is_lookup = bool(quotable_documents([*branch, target.message]))
            draft = () if needs_vision(new) or is_lookup else await _stable_prefix(target, lease, boundary, new)
            loaded = await lease.load_boundary(draft or boundary)
            if not read or needs_vision(new) or not may_continue():
                return True
            job = _PrefillJob(target, may_continue, lease, boundary)
            return await self._process_branch(job, branch[-1].id if branch else "", draft, loaded)
        except EngineError:
            slot.forget()
            return False

    async def _prepare_on_server(
        self, lease: Lease, messages: list[ChatMessage], branch: list[Message], target: _Target, *, read: bool
    ) -> bool:
        """Have another kvchat prepare the branch and, if it can be read ahead, the draft."""
        start = reached = 0
        is_shown = False

        def publish(done: int, total: int) -> None:
            nonlocal start, reached, is_shown
            start, reached = start or done, done
            if read and done < total and total - start >= MIN_GAIN:  # it does not process fewer
                is_shown = True
                self._turn_context.publish(ReadAheadProgress(owner, done - start, total - start, is_draft))

        owner, new, is_draft = target.conversation_id, prompt_messages([*branch, target.message]), False
        prepare = lease.engine.engine.prepare
        try:
            ready, total = await prepare(messages, publish, read=read)
            if ready < total or not read or not target.draft.strip() or needs_vision(new):
                return True
            if not quotable_documents([*branch, target.message]):
                start, is_draft = 0, True
                await prepare(new, publish, read=True)
            return True
        finally:
            if is_shown:
                self._turn_context.publish(ReadAheadProgress(owner, reached - start, reached - start, is_draft))

    async def _process_branch(self, job: _PrefillJob, label: str, draft: Tokens, loaded: LoadedState) -> bool:
        """Process the branch and save it under `label`, the id of its last message; then process the draft."""
        lease, boundary = job.lease, job.boundary
        missing = len(boundary) - loaded.expected_cached
        stopped_short = loaded.prefilled_ahead.tokens and loaded.expected_cached == len(boundary)  # without being saved
        # A save that failed at this length is not repeated and reported again.
        can_save = lease.saving_enabled and lease.engine.can_save(len(boundary))
        unsaved = stopped_short and can_save and not self._has_failed(job) and not await lease.is_saved(boundary)
        if label and (missing >= MIN_GAIN or unsaved):

            async def save(stop: Tokens) -> None:
                if can_save and not self._has_failed(job) and not await lease.is_saved(stop):
                    await lease.settle(stop)
                    if await lease.save(stop, label=label, notify=stop == boundary) is None:
                        self._failed_saves[lease.owner] = len(boundary)

            if not await self._process_tokens(job, boundary, loaded, save, is_draft=False):
                return False
            self._turn_context.background.start(self._turn_context.absorb())
            loaded = await lease.load_boundary(draft or boundary)
        if len(draft) - loaded.expected_cached < MIN_GAIN:
            return True
        if not lease.engine.can_cut:  # discarding the draft must not cost more than reading it saves
            cost = await lease.restore_ms(boundary)
            gain = lease.slots.restore_cost.prefill_ms(len(draft) - len(boundary))
            if cost is None or cost > gain:
                reason = Reason(ReasonCode.COSTS_MORE)
                self._turn_context.publish(ReadAheadSkipped(job.target.conversation_id, reason))
                return False
        return await self._process_tokens(job, draft, loaded, is_draft=True)

    def _has_failed(self, job: _PrefillJob) -> bool:
        return self._failed_saves.get(job.lease.owner) == len(job.boundary)

    async def _process_tokens(
        self,
        job: _PrefillJob,
        tokens: Tokens,
        loaded: LoadedState,
        save: SaveCallback = save_nothing,
        *,
        is_draft: bool,
    ) -> bool:
        end = len(tokens)
        start = reached = min(loaded.expected_cached, end)

        def publish(done: int, total: int) -> None:
            self._turn_context.publish(ReadAheadProgress(job.target.conversation_id, done, total, is_draft))

        def on_progress(done: int) -> None:
            nonlocal reached
            reached = done
            if done < end:
                publish(done - start, end - start)

        on_progress(start)
        try:
            return await prefill_and_save(job.lease, [tokens], loaded, job.may_continue, save, on_progress)
        finally:
            publish(reached - start, reached - start)


async def _run_while(may_continue: Callable[[], bool], work: Coroutine[Any, Any, bool]) -> bool:
    task = asyncio.ensure_future(work)
    try:
        while not task.done() and may_continue():
            await asyncio.wait({task}, timeout=_CHECK_S)
        return task.done() and await task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _stable_prefix(target: _Target, lease: Lease, boundary: Tokens, messages: list[ChatMessage]) -> Tokens:
    """Return the turn boundary plus the draft without its last tokens; empty if the draft is missing or short.

    `messages`: the branch with the draft.
    """
    engine = lease.engine
    if not target.draft.strip() and not target.attachments:
        return ()
    if engine.surely_exceeds_limit(len(target.draft) + sum(len(item.text) for item in target.attachments)):
        return ()
    tokens, _end = await engine.engine.stable_prefix_tokens(messages)
    stable = tokens[: max(len(boundary), len(tokens) - UNSTABLE_TOKENS)]
    if common_prefix(stable, boundary) < len(boundary) or len(stable) >= engine.context_size:
        return ()
    return stable
