"""Documents that are too long for the context: questions are stored with the passages that match them best.

Such a document stays with its message, in `Attachment.whole`; the model reads a note in its place. Passages are
attachments of the question, word for word, so that the prompt stays the same for later turns and is not reprocessed.
Passages that the branch already quotes are not quoted again.
"""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvchat.chat.attachments import document_from_text
from kvchat.chat.context import ContextService
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Attachment, Message, Role, looked_up_documents, new_message
from kvchat.chat.turn_context import TurnContext
from kvchat.text.formatting import one_line
from kvchat.text.language import plural
from kvchat.text.passages import Index, Passage, join_neighbours, quote_passage
from kvchat.text.search import split_words

MAX_PASSAGES = 5  # per question
CONTEXT_SHARE = 8  # passages of a question get at most 1/n of the context
DEFAULT_TOKENS = 1500  # for passages while the context length is unknown
MIN_WORDS = 4  # of a question that makes sense without the one before it; characters in Chinese and the like
_CANDIDATES = 20  # ranked passages, of which some may be quoted already
_PLACE_TOKENS = 24  # of a passage, for its place
_KEPT_INDEXES = 4


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
    """Finds passages. Event-loop thread only; indexes are made in memory when first needed."""

    def __init__(self, turn_context: TurnContext, context: ContextService) -> None:
        self._turn_context, self._context = turn_context, context
        self._indexes: dict[str, Index] = {}  # by hash, the last used last
        self._lock = asyncio.Lock()

    async def find(self, conversation_id: str, query: str) -> list[str]:
        """Return the passages of a chat's documents that match best, best first, with their places.

        Also of documents that the model has read: they may have been dropped since. Raises StorageFailed.
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
        documents = looked_up_documents([*branch, new_message("", Role.USER, question, attachments=attachments)])
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
        async with self._lock:
            for document in documents:
                if (index := self._indexes.pop(document.hash, None)) is None:
                    index = await asyncio.to_thread(Index, document.full_text)
                self._indexes[document.hash] = index
                passages = await asyncio.to_thread(index.rank, query, count)
                ranked.append([FoundPassage(document, passage) for passage in passages])
            for hash in list(self._indexes)[:-_KEPT_INDEXES]:
                del self._indexes[hash]
        # Scores of different documents cannot be compared, ranks can.
        alternating = itertools.chain.from_iterable(itertools.zip_longest(*ranked))
        return [found for found in alternating if found is not None][:count]


def _quote(document: Attachment, passages: Sequence[Passage]) -> Attachment:
    joined = join_neighbours(document.whole, passages)
    text = "\n\n".join(quote_passage(document.whole, passage) for passage in joined)
    name = plural(len(joined), "{count} passage from {name}", "{count} passages from {name}", name=document.name)
    return replace(document_from_text(name, text), source=document.hash)
