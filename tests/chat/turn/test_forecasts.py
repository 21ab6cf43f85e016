"""Forecasts of waiting times, compared with the receipts of the replies."""

import pytest

from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import MessageState, Role
from kvchat.chat.turn.forecasts import Forecast
from kvchat.session.proof import Source
from kvchat.text.formatting import TimeRange
from tests.chat.stage import Stage
from tests.systems import WARM

STORY = "A long story of the river and the garden. " * 20


async def forecast(stage: Stage, *chats: str) -> list[Forecast]:
    forecasts = await stage.service.forecasts.forecast_chats(dict.fromkeys(chats))
    return [forecasts[chat] for chat in chats]


async def sources(stage: Stage, *chats: str) -> list[Source]:
    return [forecast.source for forecast in await forecast(stage, *chats)]


async def test_forecast_source_of_each_chat(stage: Stage) -> None:
    empty, cold, first, second = [await stage.chat() for _ in range(4)]
    text, complete = STORY.swapcase(), MessageState.COMPLETE
    await stage.service.turn_context.run(Database.append, cold, None, Role.USER, text, complete)
    assert await sources(stage, first, cold) == [Source.COLD, Source.COLD]
    await stage.answered(first, STORY)
    await stage.answered(second, STORY)
    forecasts = await forecast(stage, empty, cold, first, second)
    assert [forecast.has_messages for forecast in forecasts] == [False, True, True, True]
    assert [forecasts[1].source, forecasts[3].source] == [Source.COLD, Source.HOT]
    assert forecasts[2].source in WARM
    assert forecasts[1].tokens_to_process > 200 > 20 > max(forecast.tokens_to_process for forecast in forecasts[2:])
    stage.store.restorer.limit_memory(0)
    assert await sources(stage, first) == [Source.DISK]
    stage.store.inventory.delete_all()
    assert await sources(stage, first, second) == [Source.COLD, Source.HOT]
    await stage.runtime.stop_engine()
    assert await sources(stage, second) == [Source.COLD]


async def test_forecast_of_a_branch_with_an_unsaved_end(stage: Stage) -> None:
    chat = await stage.answered_chat()
    saved = len(stage.save_points()[-1].tokens)
    await stage.ask(chat, STORY, keep=False)
    await stage.answered_chat()
    (expected,) = await forecast(stage, chat)
    assert expected.source in (Source.WARM, Source.DISK)
    receipt = await stage.answered(chat, "Go on.")
    assert receipt.cached_tokens == saved
    assert expected.tokens_to_process == pytest.approx(receipt.prompt_tokens - saved, rel=0.3)


async def test_message_forecast_matches_the_receipt(stage: Stage) -> None:
    chat, forecasts = await stage.chat(), stage.service.forecasts
    assert await forecasts.forecast_message(chat, "Hello?") is None  # no engine is ready
    await stage.answered(chat, STORY)
    for text, possible in (("And then?", (Source.HOT,)), (f"{STORY} And now?", WARM)):
        if possible is WARM:
            await stage.answered_chat()
        expected = await forecasts.forecast_message(chat, text)
        receipt = await stage.answered(chat, text)
        assert {expected.source, receipt.source} <= {*possible}
        read = receipt.prompt_tokens - receipt.cached_tokens
        assert expected.tokens_to_process == pytest.approx(read, abs=16)  # the reply's beginning
    new = await forecasts.forecast_message(None, STORY.swapcase())
    assert (new.source, new.tokens_to_process > 200) == (Source.COLD, True)


def seconds(least: float, most: float | None = None) -> TimeRange:
    return TimeRange(least, most or least)


@pytest.mark.parametrize(
    ("forecast", "chat_text", "message_text"),
    [
        (Forecast(Source.HOT, 0, seconds(0.4)), "still loaded: replies immediately", ""),
        (
            Forecast(Source.DISK, 12, seconds(1.6)),
            "remembered, on disk: replies in about 2 s",
            "about 2 s: loading the chat memory, 12 tokens to process",
        ),
    ],
)
def test_forecast_texts(forecast: Forecast, chat_text: str, message_text: str) -> None:
    assert (forecast.chat_text, forecast.message_text) == (chat_text, message_text)
