"""The status strip during a reply and the receipt after it give the same verdict."""

import pytest

from kvchat.chat.events import FirstToken, ReplyFinished
from kvchat.chat.record.messages import Receipt
from kvchat.chat.turn.receipts import receipt_line
from kvchat.session.events import RestoreFailed, Saved
from kvchat.session.proof import Source
from kvchat.text.reasons import Reason, ReasonCode
from kvchat.ui.chat.turn_status import TurnStatus
from tests.chat.stage import QUESTION, Stage

OTHER = "Something quite different about a violin, a lamp and a clock."
SYSTEM = "You are a gardener who knows every river, every garden and every tree in this country by its name. " * 3


def remarks_and_receipt(stage: Stage, chat: str) -> tuple[str, str, str]:
    """Return the strip at the last reply's first token, the strip at its end, and the receipt."""
    status, live, receipt = TurnStatus(), "", None
    for event in stage.events:
        if getattr(event, "conversation_id", None) != chat:
            continue
        if isinstance(event, RestoreFailed) and event.hollow:
            continue  # published between the last token and the receipt, with the same text
        status.handle_event(event)  # type: ignore[arg-type]
        if isinstance(event, FirstToken):
            live = _first_remark(status)
        elif isinstance(event, ReplyFinished):
            receipt, end = event.receipt, _first_remark(status)
    assert isinstance(receipt, Receipt)
    return live, end, receipt_line(receipt).partition(" · ")[2].partition(" · ")[0]


def _first_remark(status: TurnStatus) -> str:
    return status.remarks[0].text


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("first", "first reply"),
        ("first, another loaded", "first reply"),
        ("first, shared", "still loaded"),
        ("hot", "still loaded"),
        ("back", "remembered"),
        ("ahead", "remembered"),
        ("longer", "processed"),
        ("regenerated", "still loaded"),
    ],
)
async def test_strip_and_receipt_agree(stage: Stage, case: str, text: str) -> None:
    system = SYSTEM if "shared" in case else None
    chat = await stage.chat(system)
    if case == "first, another loaded":
        await stage.ask(await stage.chat(), OTHER)
    elif case == "first, shared":
        await stage.ask(await stage.chat(system), OTHER)
    elif not case.startswith("first"):
        await stage.ask(chat)
    if case in ("back", "ahead"):
        await stage.ask(await stage.chat(), OTHER)
    if case == "ahead":
        await stage.show(chat)
    if case == "regenerated":
        reply = (await stage.messages(chat))[-1]
        await stage.finish(stage.service.regenerate(reply))
    else:
        await stage.answered(chat, "Many words are new here. " * 100 if case == "longer" else "Go on, please.")
    live, end, receipt = remarks_and_receipt(stage, chat)
    assert (live, receipt) == (end, text)
    assert live.partition(":")[0] == text


@pytest.mark.parametrize(
    ("switches", "text", "reason"),
    [
        (
            {"FAKE_HOLLOW_RESTORE": 1},
            "reprocessed: the loaded memory was not used",
            ReasonCode.HOLLOW_RESTORE,
        ),
        ({"FAKE_REFUSE_RESTORE": 1}, "reprocessed: the engine rejected its memory", ReasonCode.REFUSED),
        (
            {"FAKE_DIE_DURING": "restore"},
            "reprocessed: the engine crashed while loading its memory",
            ReasonCode.DIED_OVER_RESTORE,
        ),
    ],
)
async def test_failed_restore_falls_back_to_prefill_and_strip_and_receipt_agree(
    stage: Stage, switches: dict[str, object], text: str, reason: ReasonCode
) -> None:
    chat = await stage.answered_chat()
    stage.fake.set(**switches)
    await stage.restart()
    receipt = await stage.answered(chat, f"And then? {QUESTION}")
    assert (receipt.source, receipt.hollow) == (Source.COLD, reason is ReasonCode.HOLLOW_RESTORE)
    told = stage.of(RestoreFailed)[0].reason
    assert receipt.miss_reason in (told, Reason(ReasonCode.SET_ASIDE, {"reason": told}))  # as the engine started
    assert told.code is reason
    assert stage.of(Saved), "the new state must be saved again"
    live, end, line = remarks_and_receipt(stage, chat)
    assert live == end
    assert live.startswith(text)
    assert live.partition(":")[0] == line.partition(":")[0]
