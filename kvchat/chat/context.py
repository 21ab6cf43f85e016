"""Context use of a conversation, and ways to reduce it: drop the middle, or summarize it.

Both copy the messages to keep into a new branch (`chat/record/tree.py`) that shares the opening, which is not
reprocessed; the old branch stays. Counting uses only the engine's tokenizer.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

from kvchat.chat.attachments import ESTIMATED_PICTURE_TOKENS, document_from_text
from kvchat.chat.options import AnswerSettings
from kvchat.chat.record.database import ORDER_BY_LAST_USED, Database
from kvchat.chat.record.messages import (
    NEW_CHAT_ID,
    Attachment,
    Message,
    Role,
    needs_vision,
    new_message,
    pictures_of,
    prompt_content,
    prompt_messages,
    quotable_documents,
)
from kvchat.chat.record.tree import copy_to_branch
from kvchat.chat.turn_context import TurnContext
from kvchat.engine.api.wire import ChatMessage, Picture, Sampling
from kvchat.errors import KvchatError
from kvchat.session.exchange import Exchange, PromptRequest
from kvchat.session.host import MAX_RESERVE, ReadyEngine
from kvchat.session.slot import Priority, Slot
from kvchat.text.language import N_, _, format_number, join_sentences

SUMMARY_REQUEST = "Please summarize our conversation so far in enough detail to continue from the summary alone."
TRUNCATED_NAME = N_("Beginning of {name}")  # a truncated document
MIN_PART_TOKENS = 64  # a shorter part is useless
PASSAGES_NOTE = (  # the model reads it in place of the document
    "This document is too long to quote in full. Passages that may answer a question are quoted before it, each below"
    " its place in brackets. Name the place when you use a passage."
)
RECENT_CHATS = 3  # chats likely to be continued: the context starts large enough for each
RECENT_SHARE_DIVISORS = (2, 4, 8, 0)  # the last turns get 1/n of the context's tokens; 0: the last turn alone
BYTES_PER_TOKEN = 4  # rough, until an engine counts
TEMPLATE_TOKENS = 8  # rough template overhead per message


class NothingToDrop(KvchatError):
    def __init__(self) -> None:
        super().__init__(
            _("There are no older messages to drop or summarize"),
            _("The beginning of the chat and the last message already fill the context."),
            _("Choose a larger context length in the settings, or send a shorter message."),
        )


class DocumentsTooLong(KvchatError):
    def __init__(self, names: Sequence[str], use: ContextUsage) -> None:
        title = _("“{name}” does not fit in the model's context", name=names[0])
        if len(names) > 1:
            title = _("The {count} attached files do not fit in the model's context", count=len(names))
        waiting, limit = format_number(use.pending), format_number(use.limit)
        needed = _("This message has {waiting} tokens; the context length is {limit}.", waiting=waiting, limit=limit)
        used = _("The chat already uses {used}.", used=format_number(use.used)) if use.used else ""
        advice = _("Attach only the relevant part, or choose a larger context length in the settings.")
        super().__init__(title, join_sentences(needed, used), advice)


@dataclass(frozen=True)
class ContextUsage:
    used: int  # the conversation so far
    pending: int  # the draft and its attachments
    reserve: int  # for the reply
    limit: int
    estimated: bool = False  # counting stopped early: `pending` cannot fit

    @property
    def free(self) -> int:
        return self.limit - self.used - self.pending - self.reserve

    @property
    def is_over_limit(self) -> bool:
        return self.used + self.pending >= self.limit

    @property
    def is_tight(self) -> bool:
        return self.free < 0


@dataclass(frozen=True)
class BranchSplit:
    opening: tuple[Message, ...]
    middle: tuple[Message, ...]
    recent: tuple[Message, ...]


def split_branch(branch: Sequence[Message], sizes: Sequence[int], budget: int) -> BranchSplit:
    """Split a branch into its opening, the middle, and as many recent turns as fit in `budget` tokens (at least one).

    The opening is the system prompt and, if documents are attached to it, the first turn. `sizes`: tokens per message.
    Raises NothingToDrop if no turn is left between the two.
    """
    starts = [i for i, message in enumerate(branch) if message.role is Role.USER]
    if not starts:
        raise NothingToDrop
    opening = starts[1] if branch[starts[0]].attachments and len(starts) > 1 else starts[0]
    cut = starts[-1]
    for start in reversed(starts[:-1]):
        if sum(sizes[start:]) > budget:
            break
        cut = start
    if cut <= opening:
        raise NothingToDrop
    return BranchSplit(tuple(branch[:opening]), tuple(branch[opening:cut]), tuple(branch[cut:]))


def _extra_tokens(message: Message) -> int:
    return TEMPLATE_TOKENS + ESTIMATED_PICTURE_TOKENS * len(pictures_of(message))


def _estimate_tokens(branch: Sequence[Message]) -> int:
    """Estimate a branch's tokens without an engine: from its last receipt and the size of the text after it."""
    tokens = 0
    for message in branch:
        tokens += len(prompt_content(message).encode()) // BYTES_PER_TOKEN + _extra_tokens(message)
        if message.receipt:
            tokens = message.receipt.prompt_tokens + message.receipt.predicted_tokens
    return tokens


_TokenCount = tuple[int, bool]  # tokens of a text; True if counted completely


@dataclass(frozen=True)
class _Reduction:
    slot: Slot
    engine: ReadyEngine
    chosen: AnswerSettings
    sampling: Sampling
    branch: list[Message]
    sizes: list[int]  # rough tokens per message
    reserve: int

    async def fits(self, messages: Sequence[ChatMessage]) -> bool:
        return len(await self.engine.engine.prompt_tokens(messages)) + self.reserve <= self.engine.limit


class ContextService:
    def __init__(self, turn_context: TurnContext) -> None:
        self._turn_context = turn_context
        self._branch_count: tuple[object, int] | None = None  # the last counted branch and its tokens
        self._document_counts: dict[tuple[str, str, bool], _TokenCount] = {}  # by model, file hash, and if looked up

    async def usage(
        self, conversation_id: str | None, draft: str = "", attachments: Sequence[Attachment] = ()
    ) -> ContextUsage | None:
        """Return how full the context is with this draft and its attachments, or None while no engine is ready."""
        chosen, branch = await self._turn_context.settings_and_branch(conversation_id)
        if not self._turn_context.host.is_ready(chosen.model):
            return None
        engine = (await self._turn_context.host.ready(chosen.model)).with_template(chosen.options.template)
        used = await self._count_branch(engine, branch) if conversation_id else 0
        counts = []
        if draft.strip() or attachments:
            counts.append(await engine.engine.count_tokens_up_to(draft, engine.limit))
        counts += [await self._count_document(engine, attachment) for attachment in attachments]
        waiting, exact = sum(tokens + TEMPLATE_TOKENS for tokens, _ in counts), all(exact for _, exact in counts)
        new = prompt_messages([*branch, new_message("", Role.USER, draft, attachments=attachments)])
        if counts and exact and used + waiting < engine.limit and not needs_vision(new):
            ids, end = await engine.engine.stable_prefix_tokens(new)
            waiting = max(len(ids) + end - used, 0)
        reserve = engine.reserve(self._turn_context.merge_sampling(None, chosen.options).max_tokens)
        if engine.must_grow_for(tokens := used + waiting + reserve):
            owner = conversation_id or ""

            async def enlarge(slot: Slot, _may_continue: Callable[[], bool]) -> None:
                await self._turn_context.exchange(slot, owner).lease_with_room(
                    PromptRequest((), model=chosen.model), tokens
                )

            async def enlarge_when_idle() -> None:  # restarts the engine with room for the unsent draft
                with contextlib.suppress(KvchatError):  # the next request reports it
                    slots = self._turn_context.slots
                    await slots.run_background(Priority.ENLARGE_CONTEXT, owner, enlarge, wait=False)

            self._turn_context.background.start(enlarge_when_idle())
        return ContextUsage(used, waiting, reserve, engine.limit, not exact)

    async def count_tokens(self, attachment: Attachment) -> _TokenCount:
        """Return an attachment's token count and True or, if no engine is ready, an estimate and False."""
        if self._turn_context.host.is_ready(needs_vision=bool(attachment.data)):
            return await self._count_document(await self._turn_context.host.ready(), attachment)
        estimate = len(attachment.text.encode()) // BYTES_PER_TOKEN
        return ESTIMATED_PICTURE_TOKENS if attachment.data else estimate, False

    async def check_fits(self, conversation_id: str | None, draft: str, attachments: Sequence[Attachment]) -> None:
        """Raise DocumentsTooLong if the documents cannot fit, or KvchatError if the model cannot read the images."""
        if any(attachment.data for attachment in attachments) and not await self.check_vision(conversation_id):
            attachments = [attachment for attachment in attachments if not attachment.data]  # not countable yet
        use = await self.usage(conversation_id, draft, attachments)
        if use is not None and use.is_over_limit:
            raise DocumentsTooLong([attachment.name for attachment in attachments], use)

    async def truncate_longest(
        self, conversation_id: str | None, draft: str, attachments: Sequence[Attachment]
    ) -> tuple[Attachment, ...]:
        """Truncate the longest attached text so that all fits with room for a reply. Raises KvchatError."""
        sizes = [0 if item.data or item.whole else (await self.count_tokens(item))[0] for item in attachments]
        place = sizes.index(max(sizes))
        whole, part = attachments[place], attachments[place]
        use = await self.usage(conversation_id, draft, attachments)
        while use is not None and use.free < 0:
            tokens, _exact = await self.count_tokens(part)
            room = tokens + use.free - TEMPLATE_TOKENS
            if room < MIN_PART_TOKENS:
                raise KvchatError(
                    _("No part of “{name}” fits", name=whole.name),
                    _("The chat already fills nearly the whole context."),
                    _("Drop older messages, choose a larger context length, or start a new chat."),
                )
            beginning = part.text[: min(int(len(part.text) * room / tokens), len(part.text) - 1)]
            line = beginning.rfind("\n")
            beginning = beginning[:line] if line > len(beginning) * 0.8 else beginning
            part = document_from_text(_(TRUNCATED_NAME, name=whole.name), beginning)
            attachments = [*attachments[:place], part, *attachments[place + 1 :]]
            use = await self.usage(conversation_id, draft, attachments)
        return tuple(attachments)

    async def quote_longest(
        self, conversation_id: str | None, draft: str, attachments: Sequence[Attachment], *, start_engine: bool = False
    ) -> tuple[Attachment, ...]:
        """Mark the longest texts to be quoted in passages (kvchat.chat.lookup), until everything fits.

        Without a ready engine nothing changes. `start_engine` starts it first and may raise KvchatError.
        """
        if start_engine:
            turn_context, owner = self._turn_context, conversation_id or NEW_CHAT_ID
            chosen, _branch = await turn_context.settings_and_branch(conversation_id)
            needed = _estimate_tokens([new_message("", Role.USER, draft, attachments=attachments)]) + MAX_RESERVE
            async with turn_context.slots.acquire(owner) as slot:  # until all is counted, so that the model stays
                ready = await turn_context.ready_engine(chosen.model)
                if ready is None or ready.must_grow_for(needed):
                    exchange = turn_context.exchange(slot, owner)
                    await exchange.lease_slot(PromptRequest((), model=chosen.model), needed)
                return await self.quote_longest(conversation_id, draft, attachments)
        use = await self.usage(conversation_id, draft, attachments)
        while use is not None and use.free < 0:
            texts = [item for item in attachments if not item.data and not item.whole]
            if not texts:
                break
            longest = max(texts, key=lambda item: len(item.text))
            quotable = replace(longest, text=PASSAGES_NOTE, whole=longest.text)
            attachments = [quotable if item is longest else item for item in attachments]
            use = await self.usage(conversation_id, draft, attachments)
        return tuple(attachments)

    async def check_vision(self, conversation_id: str | None) -> bool:
        """Raise KvchatError if the model does not support images; return True if a ready engine can count them."""
        chosen = await self._turn_context.answer_settings(conversation_id) if conversation_id else AnswerSettings()
        await self._turn_context.host.check_vision(chosen.model)
        return self._turn_context.host.is_ready(chosen.model, needs_vision=True)

    async def drop_middle(self, conversation_id: str) -> int:
        """Continue in a branch without the middle; return the number of messages dropped. Raises KvchatError."""
        async with self._reduction(conversation_id) as reduction:
            for share in RECENT_SHARE_DIVISORS:
                split = split_branch(reduction.branch, reduction.sizes, reduction.engine.limit // share if share else 0)
                if await reduction.fits(prompt_messages([*split.opening, *split.recent])):
                    return await self._replace_middle(split, ())
        raise NothingToDrop

    async def summarise(self, conversation_id: str) -> int:
        """Continue in a branch with the model's summary of the middle; return the number of messages it replaces.

        The request follows the opening and the middle, which are loaded or saved, so only its own tokens are processed.
        """
        async with self._reduction(conversation_id) as reduction:
            split = split_branch(reduction.branch, reduction.sizes, reduction.engine.limit // 4)
            request_message = new_message(conversation_id, Role.USER, SUMMARY_REQUEST)
            while True:  # shorten the middle until it fits with the summary
                messages = prompt_messages([*split.opening, *split.middle, request_message])
                if await reduction.fits(messages):
                    break
                last = max(i for i, message in enumerate(split.middle) if message.role is Role.USER)
                if not last:
                    raise NothingToDrop
                split = BranchSplit(split.opening, split.middle[:last], split.middle[last:] + split.recent)
            plain = replace(reduction.sampling, max_tokens=reduction.reserve, stop=None, json_schema=None, grammar=None)
            chunks: list[str] = []
            exchange = self._turn_context.exchange(reduction.slot, conversation_id)
            request = PromptRequest(messages, lambda: plain, reduction.chosen.model, reduction.chosen.options.template)
            async with exchange.explaining_losses():
                await exchange.answer(request, lambda chunk: chunks.append(chunk.text))
            if not (summary := "".join(chunks).strip()):
                raise KvchatError(
                    _("The model did not write a summary"), "", _("Try again, or drop older messages instead.")
                )
            reply = new_message(conversation_id, Role.ASSISTANT, summary)
            return await self._replace_middle(split, [request_message, reply])

    async def tokens_needed(self, model: str | None) -> int:
        """Estimate the tokens of the longest recent chat with `model`, including its next reply."""
        query = "SELECT id FROM conversations WHERE deleted_at IS NULL AND ifnull(model, ?1) IS ?1"
        query = f"{query} {ORDER_BY_LAST_USED} LIMIT ?2"
        try:
            chats = await self._turn_context.run(Database.rows, query, (model, RECENT_CHATS))
            branches = [await self._turn_context.branch(chat["id"]) for chat in chats]
        except KvchatError:
            return 0
        return max(map(_estimate_tokens, branches), default=0) + MAX_RESERVE

    @contextlib.asynccontextmanager
    async def _reduction(self, conversation_id: str) -> AsyncIterator[_Reduction]:
        turn_context = self._turn_context
        try:
            async with turn_context.slots.acquire(conversation_id) as slot:  # the chat may use another model
                turn_context.require_no_reply(conversation_id)
                chosen, branch = await turn_context.settings_and_branch(conversation_id)
                exchange = Exchange(turn_context.slots, slot, turn_context.host, conversation_id)
                request = PromptRequest(prompt_messages(branch), model=chosen.model, template=chosen.options.template)
                engine = (await exchange.lease_slot(request)).engine
                count = engine.engine.count_tokens
                sizes = [await count(prompt_content(message)) + _extra_tokens(message) for message in branch]
                sampling = turn_context.merge_sampling(None, chosen.options)
                reserve = engine.reserve(sampling.max_tokens)
                yield _Reduction(slot, engine, chosen, sampling, branch, sizes, reserve)
        finally:
            turn_context.on_slot_changed()  # also if the attempt failed

    async def _count_document(self, engine: ReadyEngine, attachment: Attachment) -> _TokenCount:
        if attachment.data and not engine.has_vision:
            return ESTIMATED_PICTURE_TOKENS, True
        key = (engine.fingerprint.model, attachment.hash, bool(attachment.whole))
        token_count = self._document_counts.get(key)
        if token_count is None or (not token_count[1] and token_count[0] <= engine.limit):
            if attachment.data:  # tokens the picture adds
                count, picture = engine.engine.prompt_tokens, Picture(attachment.data)
                with_picture = len(await count([ChatMessage("user", "?", pictures=(picture,))]))
                token_count = with_picture - len(await count([ChatMessage("user", "?")])), True
            else:
                token_count = await engine.engine.count_tokens_up_to(attachment.text, engine.limit)
            self._document_counts[key] = token_count
        return token_count

    async def _count_branch(self, engine: ReadyEngine, branch: Sequence[Message]) -> int:
        messages = prompt_messages(branch)
        if not messages:
            return 0
        key, guess = (engine.generation, tuple(messages)), 0
        if self._branch_count is None or self._branch_count[0] != key:
            if not engine.has_vision:
                guess = ESTIMATED_PICTURE_TOKENS * sum(len(message.pictures) for message in messages)
                messages = [replace(message, pictures=()) for message in messages]
            self._branch_count = key, len(await engine.engine.prompt_tokens(messages)) + guess
        return self._branch_count[1]

    async def _replace_middle(self, split: BranchSplit, summary: Sequence[Message]) -> int:
        parent_id = split.opening[-1].id if split.opening else None
        first, *later = split.recent
        if documents := quotable_documents(split.middle):  # questions can still quote them
            first = replace(first, attachments=(*documents, *first.attachments))
        copies = [*summary, first, *later]
        await self._turn_context.run(copy_to_branch, parent_id, copies, split.recent[-1].id)
        self._turn_context.publish_changes(split.recent[0].conversation_id)
        return len(split.middle)
