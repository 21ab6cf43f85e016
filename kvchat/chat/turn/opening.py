"""What is put on disk before a turn: the user's words, or where the branch forks. Each returns the turn's beginning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.chat.options import NewChat
from kvchat.chat.record.database import Database
from kvchat.chat.record.drafts import Draft, store_drafts
from kvchat.chat.record.messages import Attachment, Message, MessageState, Role
from kvchat.chat.record.prompt import title_from
from kvchat.errors import KvchatError
from kvchat.words.language import _


class NothingToAnswer(KvchatError):
    """There is no user message to answer."""

    def __init__(self) -> None:
        super().__init__(_("There is nothing to answer yet"), "", _("Write a message first."))


@dataclass(frozen=True)
class Beginning:
    """What a turn answers."""

    question_id: str
    unfinished: Message | None = None  # the reply to go on with; None: a new one is made


def ask(
    database: Database,
    conversation_id: str,
    text: str,
    attachments: Sequence[Attachment] = (),
    new: NewChat | None = None,
    drafts: Sequence[Draft] = (),
) -> Beginning:
    """The user's next message. The first one names the conversation.

    `drafts`: what is left of those that the words come from. Killed at any moment, the words are in one place.
    """
    with database.transaction():
        if new is not None and database.conversation(conversation_id) is None:
            new.make(database, conversation_id)
        first = not any(message.role is Role.USER for message in database.branch(conversation_id))
        question = database.append_question(conversation_id, text, attachments)
        if first:
            database.rename(conversation_id, title_from(text or attachments[0].name), by_user=False)
        texts = {draft.conversation_id: draft.text for draft in drafts}
        store_drafts(database, texts, {draft.conversation_id: draft.attachments for draft in drafts})
    return Beginning(question.id)


def ask_instead(database: Database, question: Message, text: str) -> Beginning:
    """Another question in this one's place; the old one and what followed stay on a branch of their own.

    Its documents stay: what the model read of them is still good.
    """
    where, complete = (question.conversation_id, question.parent_id), MessageState.COMPLETE
    made = database.append(*where, Role.USER, text, complete, question.attachments)
    return Beginning(made.id)


def answer_again(database: Database, conversation_id: str) -> Beginning:
    """The branch's last question once more. Raises NothingToAnswer."""
    return _last_question(database, database.branch(conversation_id))


def regenerate(database: Database, reply: Message) -> Beginning:
    """Another reply beside this one. Raises NothingToAnswer if no question leads to it."""
    return _last_question(database, database.path(reply.id))


def go_on(database: Database, reply: Message) -> Beginning:
    """The same reply, from its end on."""
    question = _last_question(database, database.path(reply.id))
    database.set_leaf(reply.conversation_id, reply.id)
    return Beginning(question.question_id, unfinished=reply)


def _last_question(database: Database, path: list[Message]) -> Beginning:
    """The leaf becomes the last question of this path; what followed it stays in the tree."""
    questions = [message for message in path if message.role is Role.USER]
    if not questions:
        raise NothingToAnswer
    database.set_leaf(questions[-1].conversation_id, questions[-1].id)
    return Beginning(questions[-1].id)
