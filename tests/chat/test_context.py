"""Documents attached to a message: stored with it, placed before it, kept by edits and shorter branches."""

import pytest

from kvchat.chat.attachments import document_from_text
from kvchat.chat.context import TEMPLATE_TOKENS, DocumentsTooLong
from kvchat.chat.events import QuestionNotStored, TurnFailed
from kvchat.chat.record.messages import Role, prompt_content
from kvchat.engine.api.client import COUNT_CHUNK_CHARS
from kvchat.engine.api.wire import Sampling
from kvchat.errors import KvchatError
from kvchat.session.exchange import PromptTooLong
from tests.chat.stage import Stage

RIVER = document_from_text("river “notes”.md", "The river is called Rhône.\n")
LONG = document_from_text("long.txt", "word " * 2000)


async def test_document_precedes_its_question_also_after_an_edit(stage: Stage) -> None:
    chat, service = await stage.chat(), stage.service
    await stage.finish(service.send(chat, "What is it called?", Sampling(), attachments=(RIVER,)))
    question = (await stage.messages(chat))[0]
    assert (question.attachments, question.content) == ((RIVER,), "What is it called?")
    messages = stage.requests("/v1/chat/completions")[-1]["messages"]
    assert messages[-1]["content"] == prompt_content(question)
    assert messages[-1]["content"].index("Rhône") < messages[-1]["content"].index("What is it")

    await stage.finish(service.edit(question, "Who named it?"))
    edited = (await stage.messages(chat))[0]
    assert (edited.content, edited.attachments) == ("Who named it?", (RIVER,))

    removed = await service.delete_message(edited)
    await service.restore_messages(removed)
    assert (await stage.messages(chat))[0].attachments == (RIVER,)


async def test_document_that_cannot_fit_is_returned(stage: Stage) -> None:
    chat, service = await stage.chat(), stage.service
    await stage.answered(chat)
    assert await service.send(chat, "Sum it up.", attachments=(LONG,)) is None
    refused = stage.of(QuestionNotStored)[-1]
    assert isinstance(refused.error, DocumentsTooLong)
    assert "“long.txt” does not fit" in refused.error.title
    assert (refused.text, refused.attachments) == ("Sum it up.", (LONG,))
    assert len(await stage.messages(chat)) == 2
    assert (await service.context.count_tokens(RIVER)) == (len(RIVER.text.encode()), True)


async def test_usage_forecast_and_receipt_count_the_same_tokens(stage: Stage) -> None:
    chat, service = await stage.chat(), stage.service
    await stage.answered(chat)
    for here, text, files in ((chat, "And then?", ()), (chat, "Sum it up.", (RIVER,)), (None, "Hello? " * 90, ())):
        use = await service.context.usage(here, text, files)
        forecast = await service.forecasts.forecast_message(here, text, files)
        reply = await stage.finish(service.send(here or await stage.chat(), text, attachments=files))
        read = reply.receipt.prompt_tokens - reply.receipt.cached_tokens
        assert forecast.tokens_to_process == read
        if here:  # a role is named before the message or after it
            assert abs(use.pending - read) <= TEMPLATE_TOKENS
        else:
            assert use.pending == reply.receipt.prompt_tokens


async def test_counting_stops_when_text_cannot_fit(stage: Stage) -> None:
    chat, service = await stage.chat(), stage.service
    await stage.answered(chat)
    huge = document_from_text("huge.txt", "some words in lines\n" * 200_000)
    before = len(stage.requests("/tokenize"))
    use = await service.context.usage(chat, "Sum it up.", (huge,))
    assert use.is_over_limit
    assert use.estimated
    assert abs(use.pending - len(huge.text)) < len(huge.text) // 10, "this engine's tokens are bytes"
    assert await service.context.count_tokens(huge) == (use.pending - len("Sum it up.") - 2 * TEMPLATE_TOKENS, False)
    bodies = stage.requests("/tokenize")[before:]
    assert max(len(str(body["content"])) for body in bodies) <= COUNT_CHUNK_CHARS
    assert len([body for body in bodies if "some words" in str(body["content"])]) == 1
    assert await service.send(chat, "Sum it up.", attachments=(huge,)) is None
    assert isinstance(stage.of(QuestionNotStored)[-1].error, DocumentsTooLong)
    service.select(chat)
    service.prepare(chat, "Sum it up.", (huge,))
    await stage.idle()
    assert max((len(str(body)) for body in stage.requests("/apply-template")), default=0) < COUNT_CHUNK_CHARS


async def test_message_that_cannot_fit_is_refused_without_counting(stage: Stage) -> None:
    chat = await stage.chat()
    assert await stage.service.send(chat, "some words in lines\n" * 200_000) is None
    assert isinstance(stage.of(TurnFailed)[-1].error, PromptTooLong)
    assert [message.role for message in await stage.messages(chat)] == [Role.USER]
    assert max((len(str(body)) for body in stage.requests("/apply-template")), default=0) < COUNT_CHUNK_CHARS


async def test_document_is_truncated_to_fit(stage: Stage) -> None:
    chat, service = await stage.chat(), stage.service
    await stage.answered(chat)
    whole, part = await service.context.truncate_longest(chat, "Sum it up.", (RIVER, LONG))
    assert whole == RIVER
    assert part.name == "Beginning of long.txt"
    assert LONG.text.startswith(part.text)
    use = await service.context.usage(chat, "Sum it up.", (whole, part))
    assert 0 <= use.free < 300
    assert await service.send(chat, "Sum it up.", attachments=(whole, part)) is not None
    with pytest.raises(KvchatError, match="No part of"):
        await service.context.truncate_longest(chat, "word " * 2000, (LONG,))
