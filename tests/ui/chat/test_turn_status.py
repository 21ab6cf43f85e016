"""The status strip's text for each event."""

import pytest

from kvchat.chat.events import (
    FirstToken,
    Prefilling,
    ReplyDelta,
    ReplyFinished,
    Speed,
    TurnEvent,
    TurnFailed,
)
from kvchat.errors import KvchatError
from kvchat.session.events import (
    IncreasingContext,
    Restored,
    RestoreFailed,
    Restoring,
    Saved,
    SaveSkipped,
    Saving,
    WaitingForEngine,
)
from kvchat.session.proof import Source, Verdict
from kvchat.text.reasons import Reason, ReasonCode
from kvchat.ui.chat.turn_status import Remark, TurnStatus
from tests.ui.staged_runtime import a_receipt

FROM_DISK = Verdict(Source.DISK, hollow=False, miss_reason=None)
HOLLOW_RESTORE = Verdict(
    Source.COLD, hollow=True, miss_reason=Reason(ReasonCode.HOLLOW_RESTORE, {"accepted": 5906, "reused": 0})
)
FIRST = Reason(ReasonCode.FIRST_REPLY)
A_RESTORE = (Restoring(136_000_000, 5906), Restored(136_000_000, 5906, 21.4))


def told(*events: TurnEvent) -> TurnStatus:
    status = TurnStatus()
    for event in events:
        status.handle_event(event)
    return status


def words(status: TurnStatus) -> list[str]:
    return [remark.text for remark in status.remarks]


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (WaitingForEngine(), Remark("waiting for the engine", "live")),
        (IncreasingContext(20_000), Remark("restarting the engine with a longer context", "live")),
        (Restoring(136_000_000, 5906), Remark("loading 136 MB…", "live", 2)),
        (RestoreFailed(Reason(ReasonCode.DISK_FULL)), Remark("not loaded: the disk is full", "warn")),
        (Prefilling("c", 1480, 5918), Remark("processing 25% of 5,918 tokens", "live")),
        (Speed("c", 4.26, 6000), Remark("4.3 tokens/s", "live", 0)),
        (Saving(), Remark("saving…", "live", 1)),
        (SaveSkipped(Reason(ReasonCode.DISK_FULL)), Remark("not saved: the disk is full", "warn")),
        (TurnFailed("c", KvchatError("No")), Remark("failed", "bad")),
        (ReplyFinished("c", "m", a_receipt(Source.COLD, miss_reason=FIRST)), Remark("first reply", "", 2)),
        (Speed("c", 0.0, 6000), None),  # not measured
    ],
)
def test_each_event_in_words(event: TurnEvent, expected: Remark | None) -> None:
    assert told(event).remarks == ((expected,) if expected else ())


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (FirstToken("c", 310, 5906, 5918, FROM_DISK, 21.4), Remark("remembered: 136 MB in 21 ms", "good", 2)),
        (FirstToken("c", 9000, 5906, 15918, FROM_DISK, 21.4), Remark("partly remembered: 136 MB in 21 ms", "", 2)),
        (FirstToken("c", 100, 2990, 3000, FROM_DISK), Remark("remembered: 136 MB", "good", 2)),
        (
            FirstToken("c", 34_600, 12, 5918, HOLLOW_RESTORE),
            Remark("reprocessed: the loaded memory was not used", "warn"),
        ),
    ],
)
def test_the_first_token_proves_what_of_the_restore_was_used(first: FirstToken, expected: Remark) -> None:
    status = told(*A_RESTORE)
    assert status.remarks[0].tone == ""
    assert "remembered" not in status.remarks[0].text
    status.handle_event(first)
    assert status.remarks[0] == expected


def test_at_the_end_the_strip_has_the_receipt_s_figures() -> None:
    receipt = a_receipt(tokens_per_second=6.7, restore_ms=2080.0, prefetched=True)
    status = told(
        *(Restoring(136_000_000, 5906), Restored(136_000_000, 5906, 2080.0)),
        *(FirstToken("c", 1050, 5906, 5918, FROM_DISK), Speed("c", 5.3, 6000)),
        *(ReplyFinished("c", "m", receipt), Saved(137_000_000, 6100, 16)),
    )
    assert words(status) == ["remembered: 136 MB", "first token after 1.05 s", "6.7 tokens/s", "saved 137 MB"]


def test_a_whole_turn_and_then_the_next() -> None:
    status = told(IncreasingContext(20_000))
    assert status.pending == "Restarting the engine with a longer context…"
    for event in (IncreasingContext(20_000, is_finished=True), *A_RESTORE, Prefilling("c", 2959, 5918)):
        status.handle_event(event)
    assert words(status) == ["loaded 136 MB in 21 ms", "processing 50% of 5,918 tokens"]
    assert (status.fraction, status.pending) == (0.5, "Processing 50% of 5,918 tokens…")
    status.handle_event(FirstToken("c", 310, 5906, 5918, FROM_DISK, 21.4))
    assert (status.fraction, status.pending) == (None, "")
    for event in (ReplyDelta("c", "m", "x", ""), Speed("c", 41.3, 6000), ReplyFinished("c", "m", None), Saving()):
        status.handle_event(event)
    status.handle_event(Saved(137_000_000, 6100, 310))
    assert words(status) == ["remembered: 136 MB in 21 ms", "first token after 0.31 s", "41 tokens/s", "saved 137 MB"]
    assert all(remark.tone != "live" for remark in status.remarks)
    status.handle_event(Prefilling("c", 1, 10))
    assert words(status) == ["processing 10% of 10 tokens"]


def test_a_restore_that_ran_ahead_is_still_told_after_send() -> None:
    status = told(*A_RESTORE)
    status.begin()
    assert words(status) == ["loaded 136 MB in 21 ms"]
    assert status.pending == "One moment…"
    status.handle_event(Saved(137_000_000, 6100, 310))
    status.begin()
    assert words(status) == [], "the turn before is forgotten"
