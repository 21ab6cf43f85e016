"""A conversation's current or last turn: status texts, error and streaming reply, updated from events. No Qt code."""

from dataclasses import dataclass

from kvchat.chat import events as chat
from kvchat.chat.turn.receipts import SOURCE_LABELS, UNUSED_MEMORY, receipt_source_label, receipt_verdict, source_label
from kvchat.errors import KvchatError
from kvchat.session import events as session
from kvchat.session.proof import Source, Verdict
from kvchat.text.formatting import READ, REPROCESSED, format_duration, format_percent, format_rate, format_size
from kvchat.text.language import N_, _, format_number, join_list, plural, punctuation
from kvchat.text.reasons import Reason
from kvchat.text.safe_text import safe_prose
from kvchat.ui.attachments.chips import short_name

_RANKS = {"speed": 0, "save": 1, "restore": 2, "ahead": 2}  # default 3: mainly time to first token and faults
# Waiting states: the remark, if any, and the text shown in place of the reply.
_WAITING: dict[type[chat.TurnEvent], tuple[str, str]] = {
    session.WaitingForEngine: (N_("waiting for the engine"), N_("Waiting for the engine…")),
    session.IncreasingContext: (
        N_("restarting the engine with a longer context"),
        N_("Restarting the engine with a longer context…"),
    ),
    chat.WaitingForChat: ("", N_("The model is replying to another chat. This one is next.")),
}
_EARLY_EVENTS = (  # the first of a turn is one of these
    *_WAITING,
    *(session.Restoring, session.Restored, session.RestoreFailed),
    *(chat.Prefilling, chat.ReadAheadProgress, chat.ReadAheadSkipped, chat.FirstToken),
)


@dataclass(frozen=True)
class Remark:
    """Status text. Remarks of low rank are omitted first if space is short.

    `tone` is "" (neutral), "live" (in progress), "good" (confirmed by the engine), "warn" or "bad".
    """

    text: str
    tone: str = ""
    rank: int = 3


class TurnStatus:
    """Status of one turn: its remarks (at most one for each topic), its error and the streaming reply."""

    def __init__(self) -> None:
        self.awaits_output = False  # sent, no token yet
        self.calling = False  # the reply writes a tool call
        self.failure: KvchatError | None = None
        self.resends = False  # the message is sent again when the engine is ready
        self.live_id = self.live_text = self.live_thinking = ""  # the streaming reply; empty when none
        self.live_thinking_ms: float | None = None  # thinking time once it is over
        self._reset()

    def _reset(self) -> None:
        self._remarks: dict[str, Remark] = {}
        self._is_over = False  # a new turn replaces the remarks
        self._restored: session.Restored | None = None
        self._failed: Reason | None = None  # why the planned restore failed
        self.fraction: float | None = None  # of the prompt processed; None when nothing is processed
        self.reading_ahead = False  # the prompt is processed before Send
        self.pending = ""  # text in place of the reply; empty once it has begun

    @property
    def remarks(self) -> tuple[Remark, ...]:
        return tuple(self._remarks.values())

    @property
    def is_silent(self) -> bool:
        return "silence" in self._remarks

    def clear_finished(self) -> None:
        if not (self.awaits_output or self.live_id):
            self._reset()

    def begin(self) -> None:
        """Begin a turn when the user presses Send.

        This clears the last turn, unless the new one has already begun with a restore before Send.
        """
        if self._is_over:
            self._reset()
        self.awaits_output, self.failure, self.resends = True, None, False
        self.pending = _("One moment…")

    def end(self) -> None:
        """End the turn, even if it has no output: the user can stop a reply before its first word."""
        self.awaits_output = False
        self._end_reply()

    def _end_reply(self) -> None:
        self._end_processing()
        self.calling = False
        self._remove("wait", "silence")
        self._is_over = True

    def handle_event(self, event: chat.TurnEvent) -> None:
        if isinstance(event, _EARLY_EVENTS):
            if self._is_over:
                self._reset()
            self._remove("wait")
        elif isinstance(event, chat.ReplyFinished | chat.TurnFailed):
            self._end_reply()
            self.live_id = self.live_text = self.live_thinking = ""
        match event:
            case session.IncreasingContext(is_finished=True):
                pass
            case session.WaitingForEngine() | session.IncreasingContext() | chat.WaitingForChat():
                remark, pending = _WAITING[type(event)]
                self.pending = _(pending)
                if remark:
                    self._add("wait", _(remark), "live")
            case session.Restoring(bytes=count):
                self._restored = self._failed = None
                self._add("restore", _("loading {count}…", count=format_size(count)), "live")
                self.pending = _("Loading {count}…", count=format_size(count))
            case session.Restored(bytes=count, ms=ms):
                self._restored = event
                self._add("restore", _("loaded {count} in {ms}", count=format_size(count), ms=format_duration(ms)))
            case session.RestoreFailed(reason=reason, hollow=hollow):
                self._restored, self._failed = None, None if hollow else reason
                unused = f"{_(REPROCESSED)}{punctuation(': ')}{_(UNUSED_MEMORY)}"
                self._add("restore", unused if hollow else _("not loaded: {reason}", reason=reason.text), "warn")
            case chat.Prefilling(done_tokens=done, total=total):
                self.fraction = done / total if total else None
                amount = {"share": format_percent(self.fraction or 0), "total": format_number(total)}
                self._add("read", _("processing {share} of {total} tokens", **amount), "live")
                self.pending = _("Processing {share} of {total} tokens…", **amount)
            case chat.ReadAheadSkipped(reason=reason):
                self._add("ahead", _("not processed ahead: {reason}", reason=reason.text))
            case chat.ReadAheadProgress():
                self._show_read_ahead(event)
            case chat.FirstToken():
                self._end_processing()
                if (verdict := event.verdict) is not None:
                    source = source_label(verdict, event.cached_tokens, event.prompt_tokens, event.earlier_tokens)
                    self._show_source(verdict, source, event.restore_ms)
                self._add("ttft", _("first token after {ttft_ms}", ttft_ms=format_duration(event.ttft_ms)))
            case chat.Speed(tokens_per_second=speed) if speed:  # 0 until measured
                self._add("speed", format_rate(speed), "live")
            case chat.EngineSilent(seconds=seconds):
                self._remove("silence")
                if seconds:
                    self._remove("speed")
                    self._add("silence", _("no output for {seconds} s", seconds=f"{seconds:.0f}"), "warn")
            case chat.ReplyDelta(message_id=id, text=text, thinking=thinking, thinking_ms=thinking_ms):
                self._end_processing()
                if self.live_id != id:
                    self.live_id, self.live_text, self.live_thinking = id, "", ""
                self.awaits_output = False
                self.live_text += text
                self.live_thinking += thinking
                self.live_thinking_ms = thinking_ms
            case chat.CallsWritten(calls=calls):
                self.calling = True
                self.pending = _("Preparing to call {tool}…", tool=short_name(safe_prose(calls[-1].name)))
            case chat.ReplyFinished(receipt=receipt):
                if receipt is not None:
                    restored_ms = 0.0 if receipt.prefetched else receipt.restore_ms
                    self._show_source(receipt_verdict(receipt), receipt_source_label(receipt), restored_ms)
                if (shown := self._remarks.get("speed")) is not None:
                    exact = receipt.tokens_per_second if receipt else None
                    self._add("speed", format_rate(exact) if exact else shown.text)
            case chat.TurnFailed(error=error):
                self.failure = error
                self._add("end", _("failed"), "bad")
            case session.Saving():
                self._is_over = True
                self._add("save", _("saving…"), "live")
            case session.Saved(bytes=count):
                self._is_over = True
                self._add("save", _("saved {count}", count=format_size(count)))
            case session.SaveSkipped(reason=reason):
                self._is_over = True
                self._add("save", _("not saved: {reason}", reason=reason.text), "warn")

    def _show_read_ahead(self, event: chat.ReadAheadProgress) -> None:
        self.reading_ahead = event.done_tokens < event.total
        self.fraction = event.done_tokens / event.total if self.reading_ahead else None
        if self.reading_ahead:
            what = _("your draft") if event.draft else _("this chat")
            done, total = format_number(event.done_tokens), plural(event.total, "{count} token", "{count} tokens")
            self._add("ahead", _("processing {what}: {done} of {total}", what=what, done=done, total=total), "live")
        elif event.done_tokens:
            self._add(
                "ahead", plural(event.done_tokens, "{count} token processed ahead", "{count} tokens processed ahead")
            )
        else:
            self._remove("ahead")

    def _show_source(self, verdict: Verdict, source: str, restored_ms: float) -> None:
        """Add a first remark that says where the prompt's tokens came from."""
        is_reused = verdict.source is not Source.COLD and source == _(SOURCE_LABELS[verdict.source])
        detail, tone = "", "good" if is_reused else ""
        if verdict.hollow:
            detail, tone = _(UNUSED_MEMORY), "warn"
        elif verdict.source is Source.COLD and self._failed:
            detail, tone = self._failed.text, "warn"
        elif verdict.source in (Source.WARM, Source.DISK) and source != _(READ) and self._restored:
            detail = format_size(self._restored.bytes)
            if restored_ms:
                detail = _("{bytes} in {ms}", bytes=detail, ms=format_duration(restored_ms))
        self._remove("ahead")
        self._remarks = {"restore": Remark(source)} | self._remarks
        self._add("restore", f"{source}{punctuation(': ')}{detail}" if detail else source, tone)

    def _end_processing(self) -> None:
        self._remove("read")
        self.reading_ahead = False
        self.fraction = None
        self.pending = ""

    def _add(self, topic: str, text: str, tone: str = "") -> None:
        self._remarks[topic] = Remark(text, tone, 3 if tone in ("warn", "bad") else _RANKS.get(topic, 3))

    def _remove(self, *topics: str) -> None:
        for topic in topics:
            self._remarks.pop(topic, None)


def waiting_text(title: str, other_turn: TurnStatus) -> str:
    progress = _("generating its reply")
    if other_turn.fraction is not None:
        progress = _("processing {share}", share=format_percent(other_turn.fraction))
    if other_turn.live_text:
        count = len(other_turn.live_text.split())
        progress = join_list((progress, plural(count, "{count} word so far", "{count} words so far")))
    return _("Waiting for “{title}”: {progress}.", title=title, progress=progress)
