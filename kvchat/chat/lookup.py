"""Quotes from documents that are too long for the context: each question is stored with the best matching passages.

Such a document stays with its message, in `Attachment.whole`; the model reads a note in its place. Passages are
attachments of the question, word for word, so that the prompt stays the same in later turns and is not reprocessed.
Passages that the branch already quotes are not quoted again.

Passages are ranked by their words and, if an embedding model is installed, also by their meaning. Their vectors are
computed while kvchat is idle, and used when all are ready. 3,500 vectors of MiniLM are 2.7 MB, compared in 3 ms.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvchat.chat.attachments import document_from_text
from kvchat.chat.context import ContextService
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Attachment, Message, Role, new_message, quotable_documents
from kvchat.chat.turn_context import Embedder, TurnContext
from kvchat.errors import KvchatError
from kvchat.session.slot import Priority
from kvchat.text.formatting import one_line
from kvchat.text.language import plural
from kvchat.text.passages import Index, Passage, join_neighbours, merge_rankings, quote_passage
from kvchat.text.search import split_words

MAX_PASSAGES = 5  # per question
CONTEXT_SHARE = 8  # passages of a question get at most 1/n of the context
DEFAULT_TOKENS = 1500  # for passages while the context length is unknown
MIN_WORDS = 4  # a shorter question is searched with the one before it; characters in Chinese and similar scripts
_CANDIDATES = 20  # ranked passages, some of which may be quoted already
_PLACE_TOKENS = 24  # reserved for the place of a passage
_KEPT_INDEXES = 4
RANKED = 20  # by words and by meaning, before both are merged; more would let low ranks in both outvote a first place
MAX_EMBEDDED = 20_000  # passages of a document
EMBEDDED_AT_ONCE = 4  # a question waits for them
QUERY_TIMEOUT_S = 5.0  # after that, the question is answered without vectors
_MAX_QUIET_WAIT_S = 60.0


@dataclass(frozen=True)
class FoundPassage:
    document: Attachment
    passage: Passage

    @property
    def text(self) -> str:
        return self.document.full_text[self.passage.start : self.passage.end]

    @property
    def quote(self) -> str:
        name = one_line(self.document.name).replace("[", "(").replace("]", ")")
        return f"[{name}, {self.passage.place}]\n{self.text}"


class Lookup:
    """Finds passages. Event-loop thread only. Indexes are built in memory when first needed."""

    def __init__(self, turn_context: TurnContext, context: ContextService) -> None:
        self._turn_context, self._context = turn_context, context
        self._indexes: dict[str, Index] = {}  # by hash, the last used last
        self._lock = asyncio.Lock()
        self._to_embed: dict[str, Attachment] = {}  # by hash
        self._embedding: asyncio.Task[None] | None = None

    async def find(self, conversation_id: str, query: str) -> list[str]:
        """Return the passages of a chat's documents that match best, best first, with their places.

        Includes documents that the model has read, because they may have been dropped since. Raises StorageFailed.
        """
        attached = [a for message in await self._turn_context.branch(conversation_id) for a in message.attachments]
        documents = {a.hash: a for a in attached if not (a.data or a.source)}
        return [found.quote for found in await self._rank([*documents.values()], query, MAX_PASSAGES)]

    async def quote(
        self, conversation_id: str | None, question: str, attachments: Sequence[Attachment], edits: Message | None
    ) -> tuple[Attachment, ...]:
        """Return the passages to store with a question, one attachment per document. `edits`: the question it replaces.

        Raises StorageFailed.
        """
        if edits is not None:
            attachments = [attachment for attachment in edits.attachments if not attachment.source]
            branch = await self._turn_context.run(Database.path, edits.parent_id) if edits.parent_id else []
        else:
            branch = await self._turn_context.branch(conversation_id) if conversation_id else []
        documents = quotable_documents([*branch, new_message("", Role.USER, question, attachments=attachments)])
        self._to_embed |= {document.hash: document for document in documents}
        if not documents or not question.strip():
            return ()
        use = await self._context.usage(conversation_id, question, () if edits else attachments)
        tokens = min(use.limit // CONTEXT_SHARE, use.free) if use else DEFAULT_TOKENS
        query = question
        if len(split_words(question).split()) < MIN_WORDS:
            asked = [message.content for message in branch if message.role is Role.USER]
            query = "\n".join((question, *asked[-1:]))
        quoted = [a.text for message in branch for a in message.attachments if a.source]
        chosen: list[FoundPassage] = []
        for found in await self._rank(documents, query, _CANDIDATES):
            if len(chosen) < MAX_PASSAGES and not any(found.text in text for text in quoted):
                size, _exact = await self._context.count_tokens(document_from_text("", found.text))
                if size + _PLACE_TOKENS <= tokens:
                    chosen.append(found)
                    tokens -= size + _PLACE_TOKENS
        groups = ((d, [found.passage for found in chosen if found.document is d]) for d in documents)
        return tuple(_quote(document, passages) for document, passages in groups if passages)

    async def _rank(self, documents: Sequence[Attachment], query: str, count: int) -> list[FoundPassage]:
        ranked: list[list[FoundPassage]] = []
        model, vector = await self._query_vector(documents, query)
        for document in documents:
            async with self._lock:
                index = await self._index(document)
                passages = await asyncio.to_thread(index.rank, query, RANKED)
            if vector:
                passages = merge_rankings(passages, await self._nearest(document, index, model, vector))
            ranked.append([FoundPassage(document, passage) for passage in passages])
        # Scores of different documents cannot be compared, ranks can.
        alternating = itertools.chain.from_iterable(itertools.zip_longest(*ranked))
        return [found for found in alternating if found is not None][:count]

    async def _index(self, document: Attachment) -> Index:
        index = self._indexes.pop(document.hash, None)
        if index is None or index.text != document.full_text:  # the hash is the file's, not the text's
            index = await asyncio.to_thread(Index, document.full_text)
        self._indexes[document.hash] = index
        for hash in list(self._indexes)[:-_KEPT_INDEXES]:
            del self._indexes[hash]
        return index

    async def _query_vector(self, documents: Sequence[Attachment], query: str) -> tuple[str, Sequence[float]]:
        """Return the embedding model's id and the query's vector, or an empty vector if it is not ready in time."""
        query_vectors = "SELECT 1 FROM vectors WHERE document = ? LIMIT 1"
        embedder, run = self._turn_context.embedder, self._turn_context.run
        if embedder and any([await run(Database.rows, query_vectors, (document.hash,)) for document in documents]):
            with contextlib.suppress(KvchatError, TimeoutError):
                async with asyncio.timeout(QUERY_TIMEOUT_S):
                    if model := await embedder.identity():
                        return model, (await embedder.embed([query], is_query=True))[0]
        return "", ()

    async def _nearest(self, document: Attachment, index: Index, model: str, vector: Sequence[float]) -> list[Passage]:
        """Return the passages with the most similar vectors; none unless all passages have vectors."""
        query = "SELECT data FROM vectors WHERE document = ? AND kind = ? ORDER BY first"
        kind = await asyncio.to_thread(_kind, model, index)
        rows = await self._turn_context.run(Database.rows, query, (document.hash, kind))
        if len(rows) * EMBEDDED_AT_ONCE < len(index.passages):
            return []
        order = await asyncio.to_thread(nearest, [row["data"] for row in rows], vector)
        return [index.passages[number] for number in order[:RANKED]]

    def start_embedding(self) -> None:
        """Compute vectors for documents that questions were asked about, while kvchat is idle."""
        if self._to_embed and self._turn_context.embedder and (self._embedding is None or self._embedding.done()):
            self._embedding = asyncio.create_task(self._embed_all(self._turn_context.embedder))

    async def _embed_all(self, embedder: Embedder) -> None:
        with contextlib.suppress(KvchatError):  # words alone are enough
            while self._to_embed and (model := await embedder.identity()):
                await self._embed(embedder, model, self._to_embed.pop(next(iter(self._to_embed))))
        self._to_embed.clear()

    async def _embed(self, embedder: Embedder, model: str, document: Attachment) -> None:
        turn_context = self._turn_context
        async with self._lock:
            index = await self._index(document)
        kind, key = await asyncio.to_thread(_kind, model, index), "document = ?1 AND kind = ?2"
        (row,) = await turn_context.run(
            Database.rows, f"SELECT count(*) AS rows FROM vectors WHERE {key}", (document.hash, kind)
        )
        if len(index.passages) > MAX_EMBEDDED:
            return
        for first in range(row["rows"] * EMBEDDED_AT_ONCE, len(index.passages), EMBEDDED_AT_ONCE):
            await turn_context.slots.wait_until_quiet(Priority.ABSORB, _MAX_QUIET_WAIT_S)
            texts = [index.with_headings(passage) for passage in index.passages[first : first + EMBEDDED_AT_ONCE]]
            data = await asyncio.to_thread(pack_vectors, await embedder.embed(texts))
            statement = "INSERT OR IGNORE INTO vectors SELECT ?1, ?2, ?3, ?4 WHERE EXISTS (SELECT 1 FROM attachments"
            statement += " WHERE hash = ?1 AND whole <> '')"
            if not await turn_context.run(Database.write, statement, (document.hash, kind, first, data)):
                return  # the document was deleted

    def close(self) -> None:
        if self._embedding is not None:
            self._embedding.cancel()


def _kind(model: str, index: Index) -> str:
    return f"{model} {index.digest} {EMBEDDED_AT_ONCE}"


def pack_vectors(vectors: Sequence[Sequence[float]]) -> bytes:
    """Return vectors, scaled to length 1, as float16 bytes. Blocking."""
    import numpy as np  # the window's first frame needs no vectors

    rows = np.asarray(vectors, np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return bytes(np.nan_to_num(rows / np.maximum(lengths, 1e-9)).astype(np.float16).tobytes())


def nearest(rows: Sequence[bytes], vector: Sequence[float]) -> list[int]:
    """Return the indexes of packed vectors, most similar first. Blocking."""
    import numpy as np

    packed = np.frombuffer(b"".join(rows), np.float16)
    if packed.size % len(vector):
        return []
    similarities = packed.reshape(-1, len(vector)).astype(np.float32) @ np.asarray(vector, np.float32)
    return [int(number) for number in np.argsort(-similarities)]


def _quote(document: Attachment, passages: Sequence[Passage]) -> Attachment:
    joined = join_neighbours(document.whole, passages)
    text = "\n\n".join(quote_passage(document.whole, passage) for passage in joined)
    name = plural(len(joined), "{count} passage from {name}", "{count} passages from {name}", name=document.name)
    return replace(document_from_text(name, text), source=document.hash)
