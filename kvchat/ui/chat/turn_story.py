"""Status texts for a conversation's current turn: events in, text out. No Qt."""

from __future__ import annotations

from dataclasses import dataclass

from kvchat.chat import events as chat
from kvchat.chat.turn.receipts import SOURCE_LABELS, UNUSED_MEMORY, receipt_source_label, receipt_verdict, source_label
from kvchat.session import events as session
from kvchat.session.proof import Source, Verdict
from kvchat.text.formatting import READ, READ_AGAIN, format_duration, format_percent, format_rate, format_size
from kvchat.text.language import N_, _, format_number, plural, punctuation
from kvchat.text.reasons import Reason

_RANKS = {"speed": 0, "save": 1, "restore": 2, "ahead": 2}  # default 3: mainly time to first token and faults
# Waiting states: the remark, if any, and the text shown in place of the reply.
_WAITING: dict[type[chat.TurnEvent], tuple[str, str]] = {
    session.WaitingForEngine: (N_("waiting for the engine"), N_("Waiting for the engine…")),
    session.MakingRoom: (
        N_("restarting the engine with a longer context"),
        N_("Restarting the engine with a longer context…"),
    ),
    chat.WaitingForChat: ("", N_("The model is replying to another chat. This one is next.")),
}


@dataclass(frozen=True)
class Remark:
    """Remark. `tone` is "" (quiet), "live", "good" (proved), "warn" or "bad"; low ranks are dropped first."""

    text: str
    tone: str = ""
    rank: int = 3


class TurnStory:
    """Remarks about one turn, in order; a later one on the same matter replaces the earlier."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._remarks: dict[str, Remark] = {}
        self._over = False
        self._restored: session.Restored | None = None
        self._failed: Reason | None = None  # why the planned restore failed
        self.fraction: float | None = None  # of the prompt processed; None when nothing is processed
        self.reading_ahead = False  # the prompt is processed before Send
        self.pending = ""  # text in place of the reply; empty once it has begun

    @property
    def remarks(self) -> tuple[Remark, ...]:
        return tuple(self._remarks.values())

    @property
    def silent(self) -> bool:
        return "silence" in self._remarks

    def begin(self) -> None:
        """Begin a turn when the user presses Send: clear the last turn, but keep a restore that ran ahead."""
        if self._over:
            self._forget()
        self.pending = _("One moment…")

    def end(self) -> None:
        self._reading_ended()
        self._remarks.pop("wait", None)
        self._remarks.pop("silence", None)
        self._over = True

    def handle_event(self, event: chat.TurnEvent) -> None:
        match event:
            case session.MakingRoom(done=True):
                self._remarks.pop("wait", None)
            case session.WaitingForEngine() | session.MakingRoom() | chat.WaitingForChat():
                self._fresh()
                remark, self.pending = _WAITING[type(event)]
                self.pending = _(self.pending)
                if remark:
                    self._say("wait", _(remark), "live")
            case session.Restoring() | session.Restored() | session.RestoreFailed():
                self._tell_restore(event)
            case chat.Prefilling(done=done, total=total):
                self._fresh()
                self._remarks.pop("wait", None)
                self.fraction = done / total if total else None
                share = format_percent(self.fraction or 0)
                self._say(
                    "read", _("processing {share} of {total} tokens", share=share, total=format_number(total)), "live"
                )
                self.pending = _("Processing {share} of {total} tokens…", share=share, total=format_number(total))
            case chat.ReadAheadProgress() | chat.ReadAheadSkipped():
                self._tell_ahead(event)
            case chat.FirstToken():
                self._fresh()
                self._reading_ended()
                if (verdict := event.verdict) is not None:
                    where = source_label(verdict, event.cached_tokens, event.prompt_tokens, event.earlier_tokens)
                    self._say_where(verdict, where, event.restore_ms)
                self._say("ttft", _("first token after {ttft_ms}", ttft_ms=format_duration(event.ttft_ms)))
            case chat.Speed(tokens_per_second=speed) if speed:  # 0 until measured
                self._say("speed", format_rate(speed), "live")
            case chat.EngineSilent(seconds=seconds):
                self._remarks.pop("silence", None)
                if seconds:
                    self._remarks.pop("speed", None)
                    self._say("silence", _("no output for {seconds} s", seconds=f"{seconds:.0f}"), "warn")
            case chat.ReplyDelta():
                self._reading_ended()
            case chat.ReplyFinished() | chat.TurnFailed():
                self._tell_end(event)
            case session.Saving() | session.Saved() | session.SaveSkipped():
                self._tell_save(event)

    def _tell_restore(self, event: session.Restoring | session.Restored | session.RestoreFailed) -> None:
        self._fresh()
        self._remarks.pop("wait", None)
        match event:
            case session.Restoring(bytes=count):
                self._restored = self._failed = None
                self._say("restore", _("loading {count}…", count=format_size(count)), "live")
                self.pending = _("Loading {count}…", count=format_size(count))
            case session.Restored(bytes=count, ms=ms):
                self._restored = event
                self._say("restore", _("loaded {count} in {ms}", count=format_size(count), ms=format_duration(ms)))
            case session.RestoreFailed(reason=reason, hollow=hollow):
                self._restored, self._failed = None, None if hollow else reason
                unused = f"{_(READ_AGAIN)}{punctuation(': ')}{_(UNUSED_MEMORY)}"
                words = unused if hollow else _("not loaded: {reason}", reason=reason.text)
                self._say("restore", words, "warn")

    def _tell_ahead(self, event: chat.ReadAheadProgress | chat.ReadAheadSkipped) -> None:
        self._fresh()
        if isinstance(event, chat.ReadAheadSkipped):
            self._say("ahead", _("not processed ahead: {reason}", reason=event.reason.text))
            return
        self.reading_ahead = event.done < event.total
        self.fraction = event.done / event.total if self.reading_ahead else None
        if self.reading_ahead:
            what = _("your draft") if event.draft else _("this chat")
            done, total = format_number(event.done), plural(event.total, "{count} token", "{count} tokens")
            self._say("ahead", _("processing {what}: {done} of {total}", what=what, done=done, total=total), "live")
        elif event.done:
            self._say("ahead", plural(event.done, "{count} token processed ahead", "{count} tokens processed ahead"))
        else:
            self._remarks.pop("ahead", None)

    def _tell_end(self, event: chat.ReplyFinished | chat.TurnFailed) -> None:
        self.end()
        if isinstance(event, chat.TurnFailed):
            self._say("end", _("failed"), "bad")
        else:
            if (receipt := event.receipt) is not None:
                restored_ms = 0.0 if receipt.prefetched else receipt.restore_ms
                self._say_where(receipt_verdict(receipt), receipt_source_label(receipt), restored_ms)
            if (speed := self._remarks.get("speed")) is not None:
                exact = receipt.tokens_per_second if receipt else None
                self._say("speed", format_rate(exact) if exact else speed.text)
        self._restored = self._failed = None

    def _say_where(self, verdict: Verdict, where: str, restored_ms: float) -> None:
        is_reused = verdict.source is not Source.COLD and where == _(SOURCE_LABELS[verdict.source])
        more, tone = "", "good" if is_reused else ""
        if verdict.hollow:
            more, tone = _(UNUSED_MEMORY), "warn"
        elif verdict.source is Source.COLD and self._failed:
            more, tone = self._failed.text, "warn"
        elif verdict.source in (Source.WARM, Source.DISK) and where != _(READ) and self._restored:
            more = format_size(self._restored.bytes)
            if restored_ms:
                more = _("{bytes} in {ms}", bytes=more, ms=format_duration(restored_ms))
        self._remarks.pop("ahead", None)
        self._remarks = {"restore": Remark(where)} | self._remarks
        self._say("restore", f"{where}{punctuation(': ')}{more}" if more else where, tone)

    def _tell_save(self, event: session.Saving | session.Saved | session.SaveSkipped) -> None:
        self._over = True
        match event:
            case session.Saving():
                self._say("save", _("saving…"), "live")
            case session.Saved(bytes=count):
                self._say("save", _("saved {count}", count=format_size(count)))
            case session.SaveSkipped(reason=reason):
                self._say("save", _("not saved: {reason}", reason=reason.text), "warn")

    def _reading_ended(self) -> None:
        self._remarks.pop("read", None)
        self.reading_ahead = False
        self.fraction = None
        self.pending = ""

    def _say(self, matter: str, text: str, tone: str = "") -> None:
        self._remarks[matter] = Remark(text, tone, 3 if tone in ("warn", "bad") else _RANKS.get(matter, 3))

    def _fresh(self) -> None:
        if self._over:
            self._forget()


def waiting_words(title: str, other: TurnStory, reply: str) -> str:
    far = _("generating its reply")
    if other.fraction is not None:
        far = _("processing {share}", share=format_percent(other.fraction))
    if reply:
        words = len(reply.split())
        far = plural(words, "{far}, {count} word so far", "{far}, {count} words so far", far=far)
    return _("Waiting for “{title}”: {far}.", title=title, far=far)
