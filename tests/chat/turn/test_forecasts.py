"""What a chat's next reply will wait for, as it is told before: beside what the reply's receipt says then."""

from __future__ import annotations

import pytest

from kvchat.chat.record.messages import MessageState, Role
from kvchat.chat.turn.forecasts import Forecast
from kvchat.session.proof import Source
from kvchat.text.formatting import TimeRange
from tests.chat.stage import Stage

STORY = "A long story of the river and the garden. " * 20


async def told(stage: Stage, *chats: str) -> list[Forecast]:
    forecasts = await stage.service.forecasts.forecast_chats(dict.fromkeys(chats))
    return [forecasts[chat] for chat in chats]


async def test_forecast_source_of_each_chat(stage: Stage) -> None:
    empty, cold, first, second = [await stage.chat() for _ in range(4)]
    await stage.runtime._worker.run(
        stage.database.append, cold, None, Role.USER, STORY.swapcase(), MessageState.COMPLETE
    )
    assert [one.source for one in await told(stage, first, cold)] == [Source.COLD, Source.COLD]
    await stage.answered(first, STORY)
    await stage.answered(second, STORY)
    forecasts = await told(stage, empty, cold, first, second)
    assert [one.has_messages for one in forecasts] == [False, True, True, True]
    assert [one.source for one in forecasts[1:]] == [Source.COLD, Source.WARM, Source.HOT]
    assert forecasts[1].tokens_to_read > 200 > 20 > max(one.tokens_to_read for one in forecasts[2:])
    stage.store.restorer.keep_in_memory(0)
    assert [one.source for one in await told(stage, first)] == [Source.DISK]
    stage.store.inventory.delete_all()
    assert [one.source for one in await told(stage, first, second)] == [Source.COLD, Source.HOT]
    await stage.runtime.stop_engine()
    assert [one.source for one in await told(stage, second)] == [Source.COLD]


async def test_forecast_of_a_branch_with_an_unsaved_end(stage: Stage) -> None:
    chat, other = await stage.chat(), await stage.chat()
    await stage.answered(chat)
    before = len(stage.save_points()[-1].tokens)
    await stage.ask(chat, STORY, keep=False)
    await stage.answered(other)
    (forecast,) = await told(stage, chat)
    assert forecast.source in (Source.WARM, Source.DISK)
    receipt = await stage.answered(chat, "Go on.")
    assert receipt.cached_tokens == before
    assert forecast.tokens_to_read == pytest.approx(receipt.prompt_tokens - before, rel=0.3)


async def test_message_forecast_matches_the_receipt(stage: Stage) -> None:
    chat, other = await stage.chat(), await stage.chat()
    forecasts = stage.service.forecasts
    assert await forecasts.forecast_message(chat, "Hello?") is None  # no engine is ready
    await stage.answered(chat, STORY)
    for text, source in (("And then?", Source.HOT), (f"{STORY} And now?", Source.WARM)):
        if source is not Source.HOT:
            await stage.answered(other)
        forecast = await forecasts.forecast_message(chat, text)
        receipt = await stage.answered(chat, text)
        assert forecast.source is receipt.source is source
        assert forecast.tokens_to_read == pytest.approx(
            receipt.prompt_tokens - receipt.cached_tokens, abs=16
        )  # how the reply begins
    new = await forecasts.forecast_message(None, STORY.swapcase())
    assert (new.source, new.tokens_to_read > 200) == (Source.COLD, True)


async def test_forecast_excludes_tokens_read_ahead(stage: Stage) -> None:
    chat = await stage.answered_chat()
    before = await stage.service.forecasts.forecast_message(chat, STORY)
    stage.service.select(chat)
    stage.service.prepare(chat, STORY)
    await stage.idle()
    after = await stage.service.forecasts.forecast_message(chat, STORY)
    assert after.tokens_to_read < 30 < 200 < before.tokens_to_read


def after(least: float, most: float | None = None) -> TimeRange:
    return TimeRange(least, most or least)


def test_forecast_texts() -> None:
    assert Forecast(Source.HOT, 0, after(0.4)).message_text == ""
    assert Forecast(Source.HOT, 0, after(0.4)).chat_text == "still loaded: replies immediately"
    assert Forecast(Source.COLD, 2100).chat_text == "must be reprocessed"
    cold = Forecast(Source.COLD, 2100, after(4.2))
    assert cold.chat_text == "must be reprocessed: replies in about 4 s"
    assert cold.message_text == "about 4 s: 2,100 tokens to process"
    assert Forecast(Source.DISK, 12, after(1.6)).message_text == (
        "about 2 s: loading the chat memory, 12 tokens to process"
    )
    assert Forecast(Source.WARM, 0, after(0.2)).chat_text == "remembered, in memory: replies in a moment"
    assert Forecast(Source.COLD, 0, has_messages=False).chat_text == "no messages yet"
    varied = Forecast(Source.COLD, 2100, after(59, 170))
    assert (varied.chat_text, varied.message_text) == (
        "must be reprocessed: replies in 1 to 3 min",
        "1 to 3 min: 2,100 tokens to process",
    )
