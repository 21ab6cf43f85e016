"""Documents too long for the context: offered, kept with the chat, quoted with each question and kept in the prompt."""

import json
from dataclasses import replace

from kvchat.chat.attachments import document_from_text
from kvchat.chat.context import PASSAGES_NOTE
from kvchat.chat.events import ReadAheadProgress
from kvchat.chat.lookup import CONTEXT_SHARE, MAX_PASSAGES
from kvchat.chat.record.messages import Attachment
from tests.chat.sky import chat_with_tools, results
from tests.chat.stage import Stage

BIRDS = ("heron", "stork", "crane", "ibis", "egret", "bittern", "flamingo", *(f"bird{n}" for n in range(60)))
BOOK = document_from_text(
    "birds.md", "\n\n".join(f"# The {bird}\n\nThe {bird} eats what lake {bird}mere offers." for bird in BIRDS)
)


async def looked_up(stage: Stage) -> Attachment:
    (book,) = await stage.service.context.quote_longest(None, "Hello", (BOOK,))
    return book


def quotes_of(attachments: tuple[Attachment, ...]) -> list[Attachment]:
    return [attachment for attachment in attachments if attachment.source]


async def test_only_documents_that_do_not_fit_are_looked_up_in(stage: Stage) -> None:
    await stage.answered_chat()
    short = document_from_text("short.txt", "The river is called Rhône.")
    fitted = await stage.service.context.quote_longest(None, "Hello", (short, BOOK))
    assert fitted == (short, replace(BOOK, text=PASSAGES_NOTE, whole=BOOK.text))
    use = await stage.service.context.usage(None, "Hello", fitted)
    assert use is not None
    assert use.free >= 0


async def test_each_question_keeps_its_passages(stage: Stage) -> None:
    chat = await stage.answered_chat()
    book = await looked_up(stage)
    await stage.finish(stage.service.send(chat, "What does the stork eat at its lake?", attachments=(book,)))
    first = stage.requests("/v1/chat/completions")[-1]["messages"]
    await stage.finish(stage.service.send(chat, "And where does the flamingo live, if anywhere?"))
    second = stage.requests("/v1/chat/completions")[-1]["messages"]
    assert second[: len(first)] == first, "the prompt stays word for word the same"
    assert "[The stork, lines" in first[-1]["content"]
    assert first[-1]["content"].index("storkmere") < first[-1]["content"].index("What does")
    assert first[-1]["content"].count("mere offers") <= MAX_PASSAGES
    assert "flamingomere" in second[-1]["content"]

    questions = [message for message in await stage.messages(chat) if message.attachments]
    assert questions[0].attachments[0] == book
    for question in questions:
        (quotes,) = quotes_of(question.attachments)
        assert quotes.source == book.hash
        assert "from birds.md" in quotes.name
        assert len(quotes.text.encode()) <= 4096 // CONTEXT_SHARE, "this engine's tokens are bytes"


async def test_passages_are_quoted_once_and_follow_an_edit(stage: Stage) -> None:
    chat = await stage.answered_chat()
    await stage.finish(stage.service.send(chat, "Where is storkmere?", attachments=(await looked_up(stage),)))
    await stage.finish(stage.service.send(chat, "Where is storkmere again?"))
    questions = [message for message in await stage.messages(chat) if message.attachments]
    assert sum("lake storkmere" in q.text for message in questions for q in quotes_of(message.attachments)) == 1
    await stage.finish(stage.service.edit(questions[0], "Where is ibismere?"))
    edited = next(message for message in await stage.messages(chat) if message.attachments)
    assert [bool(attachment.whole) for attachment in edited.attachments] == [True, False]
    assert "ibismere" in edited.attachments[1].text


async def test_short_question_is_looked_up_with_the_one_before(stage: Stage) -> None:
    chat = await stage.answered_chat()
    await stage.finish(
        stage.service.send(chat, "Where is the lake of the stork?", attachments=(await looked_up(stage),))
    )
    await stage.finish(stage.service.send(chat, "And why?"))
    question = (await stage.messages(chat))[-2]
    assert question.content == "And why?"
    assert quotes_of(question.attachments)


async def test_draft_is_not_processed_ahead_without_its_passages(stage: Stage) -> None:
    chat = await stage.answered_chat()
    await stage.finish(stage.service.send(chat, "Where is ibismere?", attachments=(await looked_up(stage),)))
    await stage.show(chat)
    stage.service.prepare(chat, "And where is the lake of the flamingo? " * 20)
    await stage.idle()
    assert not [event for event in stage.of(ReadAheadProgress) if event.draft]


async def test_document_stays_when_its_message_is_dropped(stage: Stage) -> None:
    chat = await stage.answered_chat()
    await stage.answered(chat, "And then?")
    await stage.finish(stage.service.send(chat, "Where is ibismere?", attachments=(await looked_up(stage),)))
    await stage.answered(chat, "word " * 300)
    await stage.service.context.drop_middle(chat)
    assert not any("ibismere?" in message.content for message in await stage.messages(chat))
    assert "storkmere" in (await stage.service.lookup.find(chat, "storkmere"))[0]


async def test_lookup_finds_passages_of_the_chat_in_every_script(stage: Stage) -> None:
    chat = await stage.answered_chat()
    text = "第一章\n\n" + "湖很大。" * 900 + "\n\n青鹭住在松树上。\n\n" + "河很长。" * 900
    (lakes,) = await stage.service.context.quote_longest(None, "", (document_from_text("湖.txt", text),))
    await stage.finish(stage.service.send(chat, "青鹭住在哪里？", attachments=(lakes, await looked_up(stage))))
    found = await stage.service.lookup.find(chat, "青鹭住在哪里")
    assert "青鹭住在松树上" in found[0]
    assert len(found) <= MAX_PASSAGES
    assert await stage.service.lookup.find(await stage.chat(), "青鹭") == []


async def test_model_looks_up_in_the_documents_of_its_chat_only(stage: Stage) -> None:
    other = await stage.answered_chat()
    await stage.finish(stage.service.send(other, "Where is ibismere?", attachments=(await looked_up(stage),)))
    chat = await chat_with_tools(stage, tools=("kvchat/search_documents",))
    short = document_from_text("rivers [old].md", "# The Rhône\n\nThe Rhône and the ibis meet at Lyon.")
    await stage.finish(stage.service.send(chat, "What flows here?", attachments=(short,)))
    calls = [[{"name": "search_documents", "arguments": json.dumps({"query": query})}] for query in ("ibis", "owl")]
    stage.fake.set(FAKE_CALLS=json.dumps([[], *calls]))
    await stage.finish(stage.service.send(chat, "Where is the ibis?"))
    found, nothing = await results(stage, chat)
    assert found == f"[rivers (old).md, The Rhône, lines 1-3]\n{short.text}"
    assert nothing == "No document in this chat has a matching passage."


async def test_looked_up_document_survives_a_restart_search_and_a_draft(stage: Stage) -> None:
    chat = await stage.answered_chat()
    book = await looked_up(stage)
    await stage.finish(stage.service.send(chat, "Where is ibismere?", attachments=(book,)))
    stage.database.store_drafts({}, {chat: (book,)})
    await stage.restart()
    assert stage.database.draft_attachments() == {chat: (book,)}
    assert (await stage.messages(chat))[2].attachments[0] == book
    hits = await stage.service.finder.find("bitternmere")
    assert [hit.conversation_id for hit in hits.chats] == [chat]
    assert "bitternmere" in hits.chats[0].excerpt
    assert len(await stage.service.lookup.find(chat, "bitternmere")) == 1
    await stage.service.fork((await stage.messages(chat))[3])
    copied = next(c.id for c in await stage.service.conversations() if c.id != chat)
    assert (await stage.messages(copied))[2].attachments[0] == book
