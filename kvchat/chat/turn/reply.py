"""A reply in progress: collects the stream, stores it on disk, measures it."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

from kvchat.chat.events import CallsWritten, EngineSilent, FirstToken, Notice, Prefilling, ReplyDelta, Speed
from kvchat.chat.record.database import Database
from kvchat.chat.record.database_file import StorageFailed
from kvchat.chat.record.messages import Message, MessageState, Receipt
from kvchat.chat.turn_context import TurnContext
from kvchat.engine.api.wire import CallDelta, ChatChunk, Timings
from kvchat.session.proof import NOTHING_LOADED, LoadedState, LoadResult, judge_load
from kvchat.text.language import _
from kvchat.tools.tool import ToolCall

FLUSH_INTERVAL_S = 0.5  # maximum loss in a crash
SILENT_S, SILENT_PREFILL_S = 5.0, 60.0  # minimum silence to report: during the reply, during prefill
SPEED_INTERVAL_S = 0.5  # between speed updates


class EchoFilter:
    """Removes from the stream of a continued reply the text that the reply already has.

    llama.cpp b11434 sends that text in one piece with the first new token, b11549 does not send it (both measured).
    """

    def __init__(self, text: str, thinking: str) -> None:
        self._text, self._thinking = text, thinking
        self._thinking_over = bool(text)  # then any further thinking is the echo

    def strip(self, chunk: ChatChunk) -> ChatChunk:
        """Return the chunk without the echo. Pass each chunk once, in order."""
        if chunk.thinking and self._thinking:
            new = _without_prefix(self._thinking, chunk.thinking)
            self._thinking = ""
            # The template adds its own line break before the end mark of thinking.
            chunk = replace(chunk, thinking=new.strip() if self._thinking_over else new)
        if chunk.text and self._text:
            chunk = replace(chunk, text=_without_prefix(self._text, chunk.text))
            self._text = ""
        return chunk


def _without_prefix(prefix: str, text: str) -> str:
    for beginning in (prefix, prefix.rstrip(), prefix.strip()):
        if beginning and text.startswith(beginning):
            return text[len(beginning) :]
    return text


class ReplyWriter:
    """Writes a streamed reply to the screen at once and to disk twice a second.

    `message` is the starting point: an empty reply, or one to continue.
    """

    def __init__(self, message: Message, sent_at: float, turn_context: TurnContext) -> None:
        self.message = self.original = message
        self._turn_context, self._publish = turn_context, turn_context.events.publish
        self._text, self._thinking = list[str](), list[str]()
        self._calls: dict[int, list[CallDelta]] = {}  # by index: pieces
        self._calls_sent_at = 0.0  # time.perf_counter() of the last CallsWritten
        self._timings: Timings | None = None
        self._ttft_ms: float | None = None
        self._thinking_since: float | None = None  # time.perf_counter() at first token
        self._thinking_ms: float | None = None  # None while thinking or without it
        self._engine_wait_s = 0.0  # waiting for an engine to start, not part of the time to the first token
        self.earlier_tokens = 0  # as in the receipt
        self.queue_wait_s = 0.0  # waiting for another conversation's turn; not in the time to the first token
        self._loaded = NOTHING_LOADED  # how the slot was prepared
        self._awaiting_output = False  # waiting for output of the engine
        self._steps: list[LoadResult] = []  # several if outgrown or crowded out
        self._sent_at = self._last_output_at = sent_at  # time.perf_counter() at Send and at the engine's last output
        self._longest_gap_s, self._is_silent = 0.0, False
        self._unwritten, self._speed_sent_at = False, 0.0

    @property
    def predicted_tokens(self) -> int:
        return sum(step.timings.predicted_n for step in self._steps)

    @property
    def is_empty(self) -> bool:
        return not self._text and not self._thinking and not self._calls

    @property
    def has_text(self) -> bool:
        return bool(self._text or self._thinking)

    def drop_calls(self) -> None:
        self._calls.clear()

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Return the tool calls so far, each with a unique id."""
        calls: list[ToolCall] = []
        for pieces in self._calls.values():
            id, name, arguments = pieces[0].id, pieces[0].name, "".join(piece.arguments for piece in pieces)
            is_known = not id or any(call.id == id for call in calls)
            calls.append(ToolCall(uuid.uuid4().hex if is_known else id, name, arguments))
        return tuple(calls)

    def snapshot(self, state: MessageState, receipt: Receipt | None = None) -> Message:
        content = self.original.content + "".join(self._text)
        thinking = self.original.thinking + "".join(self._thinking)
        calls = self.calls if state is MessageState.COMPLETE else ()  # a cut call cannot run
        return replace(self.original, content=content, thinking=thinking, state=state, receipt=receipt, calls=calls)

    def add_step(self, step: LoadResult | None) -> None:
        self._awaiting_output = False
        self._steps += [step] if step else []

    def on_request_sent(self, loaded: LoadedState | None, engine_wait_s: float) -> None:
        self._awaiting_output, self._engine_wait_s = loaded is not None, engine_wait_s
        self._last_output_at = time.perf_counter()
        if loaded is not None:
            self._loaded, restore = loaded, loaded.restore
            # Subtract this conversation's own restore from the queue wait, or from that for a new engine.
            restore_s, queue_end = (
                restore.ms_since(self._sent_at) / 1000 if restore else 0.0,
                self._sent_at + self.queue_wait_s,
            )
            if restore and restore.finished_at <= queue_end:
                self.queue_wait_s = max(0.0, self.queue_wait_s - restore_s)
            elif restore and restore.finished_at - restore.ms / 1000 < queue_end + engine_wait_s:
                self._engine_wait_s = max(0.0, engine_wait_s - restore_s)

    @contextlib.asynccontextmanager
    async def periodic_flush(self) -> AsyncIterator[None]:
        flusher = asyncio.create_task(self._flush_regularly())
        try:
            yield
        finally:
            flusher.cancel()
            await asyncio.wait([flusher])

    async def finish(self, state: MessageState, receipt: Receipt | None) -> Message:
        self.message = self.snapshot(state, receipt or self.original.receipt)
        await self._turn_context.run(Database.update_reply, self.message)
        return self.message

    def receipt(self, model: str, prefill_rate: float | None) -> Receipt | None:
        """Return the receipt, or None before the first token. `prefill_rate`: ms per token."""
        if self._ttft_ms is None or not self._steps:
            return None
        loaded, timings, verdict = self._steps[0].loaded, self._steps[0].timings, self._steps[0].verdict
        writing_ms = sum(step.timings.predicted_ms for step in self._steps)
        written = replace(timings, predicted_n=self.predicted_tokens, predicted_ms=writing_ms)
        restore, cached, earlier = loaded.restore, timings.cache_n, self.original.receipt
        in_ttft = restore.ms_since(self._sent_at) if restore else 0.0
        is_ahead = restore is not None and restore.finished_at <= self._sent_at
        # Prefill time saved, including the reply's earlier parts. Continuing from the slot saves nothing: stopping
        # lost nothing.
        saved_ms = max(0.0, cached * prefill_rate - in_ttft) if prefill_rate is not None and cached else None
        if earlier is not None:
            saved_ms = (saved_ms or 0.0) + (earlier.saved_ms or 0.0) if restore else earlier.saved_ms
        return Receipt(
            ttft_ms=self._ttft_ms,
            restore_ms=restore.ms if restore and is_ahead else in_ttft,
            prefill_ms=timings.prompt_ms,
            first_token_ms=max(0.0, self._ttft_ms - in_ttft - timings.prompt_ms),
            prompt_tokens=timings.prompt_tokens,
            cached_tokens=cached,
            predicted_tokens=written.predicted_n,
            tokens_per_second=written.tokens_per_second,
            source=verdict.source,
            miss_reason=verdict.miss_reason,
            hollow=verdict.hollow,
            thinking_ms=self._thinking_ms or (earlier.thinking_ms if earlier else None),
            prefetched=is_ahead,
            restored_bytes=restore.bytes if restore else 0,
            read_ahead_tokens=min(loaded.prefilled_ahead.tokens, cached),
            read_ahead_ms=loaded.prefilled_ahead.ms,
            saved_ms=saved_ms,
            engine_wait_ms=1000 * self._engine_wait_s,
            queue_wait_ms=1000 * self.queue_wait_s,
            earlier_tokens=self.earlier_tokens,
            model=model,
        )

    def add_chunk(self, chunk: ChatChunk) -> None:
        conversation, now = self.message.conversation_id, time.perf_counter()
        gap, self._last_output_at = now - self._last_output_at, now
        if self._is_silent:
            self._is_silent = False
            self._publish(EngineSilent(conversation, 0.0))
        elif not self.is_empty:
            self._longest_gap_s = max(self._longest_gap_s, gap)
        self._timings = timings = chunk.timings or self._timings
        if progress := chunk.progress:
            self._publish(Prefilling(conversation, progress.processed, progress.total))
        text, thinking = chunk.text, chunk.thinking
        if not chunk.has_output:
            return
        first, self._unwritten = self.is_empty, True
        if thinking:
            if self._thinking_since is None:
                self._thinking_since = now
            self._thinking.append(thinking)
        if (text or chunk.calls) and self._thinking_since is not None and self._thinking_ms is None:
            self._thinking_ms = 1000 * (now - self._thinking_since)  # the first text ends the thinking
        if text:
            self._text.append(text)
        for delta in chunk.calls:
            self._calls.setdefault(delta.index, []).append(delta)
        if first:
            self._ttft_ms = 1000 * (now - self._sent_at - self._engine_wait_s - self.queue_wait_s)
            cached, prompt = (timings.cache_n, timings.prompt_tokens) if timings else (0, 0)
            verdict = judge_load(self._loaded, cached, prompt) if timings else None
            restored = restore.ms_since(self._sent_at) if (restore := self._loaded.restore) else 0.0
            earlier = self.earlier_tokens
            self._publish(FirstToken(conversation, self._ttft_ms, cached, prompt, verdict, restored, earlier))
            # listeners may not have the beginning
            text, thinking = self.original.content + text, self.original.thinking + thinking
        self._publish(ReplyDelta(conversation, self.message.id, text, thinking, self._thinking_ms))
        if chunk.calls and now - self._calls_sent_at >= SPEED_INTERVAL_S:
            self._calls_sent_at = now
            self._publish(CallsWritten(conversation, self.message.id, self.calls))
        if timings and now - self._speed_sent_at >= SPEED_INTERVAL_S:
            self._speed_sent_at = now
            used = timings.prompt_tokens + timings.predicted_n
            self._publish(Speed(conversation, timings.tokens_per_second, used))

    async def _flush_regularly(self) -> None:
        warned = False
        while True:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            silent, usual = time.perf_counter() - self._last_output_at, 4 * self._longest_gap_s
            if self._awaiting_output and silent >= max(usual, SILENT_PREFILL_S if self.is_empty else SILENT_S):
                self._is_silent = True
                self._publish(EngineSilent(self.message.conversation_id, silent))
            if not self._unwritten:
                continue
            self._unwritten = False
            try:
                await self._turn_context.run(Database.update_reply, self.snapshot(MessageState.STREAMING))
            except StorageFailed as error:
                self._unwritten = True  # retry next round: the other process may be slow
                if not warned:
                    warned = True
                    detail = _("{detail} The reply continues; kvchat keeps trying to save it.", detail=error.detail)
                    self._publish(Notice(error.title, detail))
