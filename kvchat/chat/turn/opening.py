"""What is put on disk before a turn: the user's words, or where the branch forks. Each returns the turn's beginning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.chat.options import NewChat
from kvchat.chat.record.database import Database, is_alive, this_process
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
    last: bool = False  # a new question after all that was said; see `stand_last`


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
    return Beginning(question.id, last=True)


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


def stand_last(database: Database, question_id: str, *, answered_now: bool) -> bool:
    """Move a question that had to wait behind what another process said meanwhile; whether it had to be moved.

    With `answered_now` it is the waiting question that goes first: it stands before those of others that wait, too.
    Where the user has gone to another branch it stays where it is. Raises StorageFailed.
    """
    query = "SELECT id, parent_id, role, writer FROM messages WHERE conversation_id = ?"
    with database.transaction() as db:
        where = "SELECT id, leaf_id FROM conversations WHERE id = (SELECT conversation_id FROM messages WHERE id = ?)"
        chat = db.execute(where, (question_id,)).fetchone()
        if chat is None or (chat["leaf_id"] == question_id and not answered_now):
            return False
        rows = {row["id"]: row for row in db.execute(query, (chat["id"],))}
        if question_id not in rows:  # an index of a damaged file does not know it
            return False
        answered = {row["parent_id"] for row in rows.values() if row["role"] == Role.ASSISTANT.value}

        def waits(id: str | None) -> bool:
            row = rows.get(id or "")
            return row is not None and row["role"] == Role.USER.value and id not in answered and _others(row["writer"])

        def before_waiting(id: str | None) -> str | None:
            passed: set[str | None] = set()
            while waits(id) and id not in passed:
                passed.add(id)
                id = rows[id or ""]["parent_id"]
            return id

        shown, at = set(), chat["leaf_id"]
        while at in rows and at not in shown:
            shown.add(at)
            at = rows[at]["parent_id"]
        base = before_waiting(rows[question_id]["parent_id"])
        if question_id in shown:
            wanted = base if answered_now else rows[question_id]["parent_id"]
        elif base is None or base in shown:
            wanted = before_waiting(chat["leaf_id"]) if answered_now else chat["leaf_id"]
        else:
            return False
        if (wanted, question_id) == (rows[question_id]["parent_id"], chat["leaf_id"]):
            return False
        if question_id in shown and not answered_now:
            return False
        db.execute("UPDATE messages SET parent_id = ? WHERE id = ?", (wanted, question_id))
        db.execute("UPDATE conversations SET leaf_id = ? WHERE id = ?", (question_id, chat["id"]))
        return True


def _others(writer: str | None) -> bool:
    return writer != this_process() and is_alive(writer)


def _last_question(database: Database, path: list[Message]) -> Beginning:
    """The leaf becomes the last question of this path; what followed it stays in the tree."""
    questions = [message for message in path if message.role is Role.USER]
    if not questions:
        raise NothingToAnswer
    database.set_leaf(questions[-1].conversation_id, questions[-1].id)
    return Beginning(questions[-1].id)
