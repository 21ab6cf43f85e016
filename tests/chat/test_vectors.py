"""Vectors of the passages of looked-up documents: made while kvchat is idle, used once complete, deleted with them."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kvchat.chat import lookup
from kvchat.chat.attachments import document_from_text
from kvchat.chat.lookup import EMBEDDED_AT_ONCE
from kvchat.chat.record.database import Database
from kvchat.engine.api.errors import EngineError
from tests.chat.stage import Stage

MEANINGS = (("heron", "grey wader"), ("stork", "baby bringer"), ("crane", "dancing bird"), ("ibis", "thoth"))
BIRDS = [birds[0] for birds in MEANINGS] + [f"bird{number}" for number in range(90)]
BOOK = document_from_text(
    "birds.md", "\n\n".join(f"# The {bird}\n\nThe {bird} lives at lake {bird}." for bird in BIRDS)
)


class Embedder:
    """Knows a few synonyms: one dimension for each."""

    def __init__(self) -> None:
        self.model, self.embedded, self.hold = "model", list[str](), asyncio.Event()
        self.hold.set()
        self.fails_after = 1000
        self.is_asked = False

    async def identity(self) -> str:
        return self.model

    async def embed(self, texts: Sequence[str], *, is_query: bool = False) -> Sequence[Sequence[float]]:
        self.is_asked = is_query
        await self.hold.wait()
        if not is_query:
            self.embedded += texts
            if len(self.embedded) > self.fails_after:
                raise EngineError("The engine is gone")
        lowered = [text.lower() for text in texts]
        return [[0.01, *(sum(word in text for word in words) for words in MEANINGS)] for text in lowered]


@pytest.fixture
def embedder(stage: Stage) -> Embedder:
    stage.service.turn_context.embedder = embedder = Embedder()
    return embedder


async def asked_chat(stage: Stage, question: str = "Where is the crane?") -> str:
    chat = await stage.answered_chat()
    (book,) = await stage.service.context.quote_longest(None, "Hello", (BOOK,))
    await stage.finish(stage.service.send(chat, question, attachments=(book,)))
    return chat


async def embedded(stage: Stage) -> int:
    """Wait until no vectors are computed; return the number of stored batches."""
    if (task := stage.service.lookup._embedding) is not None:
        await asyncio.wait({task})
    return len(await stage.service.turn_context.run(Database.rows, "SELECT 1 FROM vectors"))


async def test_passages_are_found_by_meaning_once_all_have_vectors(stage: Stage, embedder: Embedder) -> None:
    embedder.hold.clear()
    chat = await asked_chat(stage)
    assert await stage.service.lookup.find(chat, "baby bringer") == [], "no word of the document"
    embedder.hold.set()
    batches = await embedded(stage)
    assert batches == -(-len(embedder.embedded) // EMBEDDED_AT_ONCE)
    assert "The stork\n" in "\n".join(embedder.embedded), "with headings"
    assert "lake stork" in (await stage.service.lookup.find(chat, "baby bringer"))[0]
    assert "lake bird7." in (await stage.service.lookup.find(chat, "bird7"))[0], "words count as before"
    embedder.model = "another"
    assert await stage.service.lookup.find(chat, "baby bringer") == [], "its vectors cannot be compared"


async def test_computing_vectors_resumes_after_a_failure_and_ends_with_the_document(
    stage: Stage, embedder: Embedder
) -> None:
    embedder.fails_after = 3 * EMBEDDED_AT_ONCE
    chat = await asked_chat(stage)
    assert await embedded(stage) == 3
    embedder.fails_after, embedder.embedded = 1000, []
    await stage.finish(stage.service.send(chat, "Where is the ibis?"))
    batches = await embedded(stage)
    assert batches == 3 + -(-len(embedder.embedded) // EMBEDDED_AT_ONCE)
    assert not any("heron" in text for text in embedder.embedded), "those were done"
    question = (await stage.messages(chat))[2]
    await stage.service.fork((await stage.messages(chat))[3])
    await stage.service.delete_message(question)
    assert await embedded(stage), "the copy of the chat still has the document"
    other = next(c.id for c in await stage.service.conversations() if c.id != chat)
    await stage.service.delete_message((await stage.messages(other))[2])
    assert await embedded(stage) == 0


async def test_question_does_not_wait_for_a_slow_model(
    stage: Stage, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = await asked_chat(stage)
    assert await embedded(stage)
    monkeypatch.setattr(lookup, "QUERY_TIMEOUT_S", 0.01)
    embedder.hold.clear()
    assert "lake ibis" in (await stage.service.lookup.find(chat, "ibis"))[0]


async def test_no_vectors_are_computed_after_closing(
    stage: Stage, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = await asked_chat(stage)
    assert await embedded(stage)
    embedder.hold.clear()
    monkeypatch.setattr(lookup, "QUERY_TIMEOUT_S", 300.0)
    other = document_from_text("more.md", BOOK.text + "\n\n# The gull\n\nThe gull lives at the sea.")
    (other,) = await stage.service.context.quote_longest(chat, "Hello", (other,))
    asking = stage.service.send(chat, "Where is the gull?", attachments=(other,))
    await stage.until(lambda: embedder.is_asked)
    count = len(embedder.embedded)
    stage.service.close()
    embedder.hold.set()
    await stage.finish(asking)
    await embedded(stage)
    assert len(embedder.embedded) == count, "the engine would start again"


async def test_documents_with_the_same_hash_are_told_apart(stage: Stage) -> None:
    """A file may be extracted differently by a later version, and an imported chat may have any hash."""
    chat = await asked_chat(stage)
    assert "lake crane" in (await stage.service.lookup.find(chat, "crane"))[0]
    other = await stage.answered_chat()
    text = "A preface that moves everything. " * 3 + "\n\n" + BOOK.text
    (book,) = await stage.service.context.quote_longest(other, "", (replace(BOOK, text=text),))
    await stage.finish(stage.service.send(other, "Where is the crane?", attachments=(book,)))
    assert (await stage.service.lookup.find(other, "crane"))[0].endswith(
        "# The crane\n\nThe crane lives at lake crane."
    )
