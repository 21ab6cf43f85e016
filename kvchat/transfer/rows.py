"""Conversations as rows: the content of kvchat's JSON exports and the result of the import parsers."""

import base64
import json
import re
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import IO, Any

from kvchat.chat.attachments import AttachmentError, picture_attachment
from kvchat.chat.record.database import Database
from kvchat.chat.record.database_file import insert_rows
from kvchat.chat.record.messages import (
    MAX_TIMESTAMP,
    MessageState,
    Receipt,
    Role,
    as_text,
    attachment_from_row,
    parse_receipt,
    parse_state,
    role_from_row,
)
from kvchat.session.proof import Source
from kvchat.text.language import N_, _, format_number

Row = dict[str, Any]
RequiredTypes = Mapping[str, type | tuple[type, ...]]  # types of required values

# Specific to one machine and time: meaningless in a file.
_LOCAL_COLUMNS = {"writer", "conversation_id", "model", "deleted_at", "deleted_s", "deleted_seen", "title_due", "used"}
_LOCAL_COLUMNS |= {"written", "place"}
# An imported chat is listed by its time: it counts as used when the newest chat that is not newer was used.
_FIND_USED_BEFORE = "SELECT used FROM conversations WHERE updated_at <= ? ORDER BY used DESC LIMIT 1"
_NUMBER = (int, float)
_CONVERSATION_TYPES: RequiredTypes = {"id": str, "title": str, "created_at": _NUMBER, "updated_at": _NUMBER}
_MESSAGE_TYPES: RequiredTypes = {"id": str, "role": str, "content": str, "state": str, "created_at": _NUMBER}
_ATTACHMENT_TYPES: RequiredTypes = {"name": str, "size": int, "hash": str, "text": str}
MAX_MESSAGES = 100_000  # per conversation
MAX_TEXT = 64_000_000  # characters of a message or attachment: no attached file has more
MAX_TITLE = 1000  # characters; longer titles are cut
_MAX_INTEGER = 2**63 - 1  # SQLite's limit
_OWN_ID = re.compile("[0-9a-f]{32}")
_NAMESPACE = uuid.UUID("0c2f5c2e-6a0b-4a7e-8a53-9b7f1d2f4c11")  # the same file always gives the same ids
_ROLES = frozenset(role.value for role in Role)
_STATES = frozenset(state.value for state in MessageState)
_SOURCES = frozenset(source.value for source in Source)


class BadConversation(ValueError):
    """The conversation cannot be imported; the message gives the reason."""


def conversation_rows(database: Database, conversation_ids: Sequence[str] | None = None) -> Iterator[Row]:
    """Yield conversations (default: all, newest first) as rows with their messages. Raises StorageFailed."""
    if conversation_ids is None:
        conversation_ids = [conversation.id for conversation in database.conversations()]
    for conversation_id in conversation_ids:
        with database.snapshot() as db:
            row = db.execute("SELECT * FROM conversations WHERE id = ?", (conversation_id,)).fetchone()
            query = "SELECT * FROM messages WHERE conversation_id = ? ORDER BY place"
            messages = db.execute(query, (conversation_id,)).fetchall()
            attached = _attachments_by_message(db, conversation_id)
        if row is not None:
            exported = [_message_row(message) | attached.get(message["id"], {}) for message in messages]
            yield _exported_values(row) | {"messages": exported}


def store_rows(database: Database, conversation: Row) -> bool:
    """Check and store a conversation. Return False if its id exists already.

    Raises BadConversation and StorageFailed.
    """
    messages = conversation.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise BadConversation(_("it has no list of messages"))
    if len(messages) > MAX_MESSAGES:
        raise BadConversation(_("it has more than {most_messages} messages", most_messages=format_number(MAX_MESSAGES)))
    checked = _checked_values(
        {k: v for k, v in conversation.items() if k != "messages"}, _CONVERSATION_TYPES, _("the chat")
    )
    checked["title"] = checked["title"][:MAX_TITLE]
    checked["options"] = without_permission(as_text(checked.get("options")))
    messages = [_checked_message(message, place) for place, message in enumerate(messages, 1)]
    _check_tree(checked.get("leaf_id"), messages)
    try:
        with database.transaction() as db:
            if db.execute("SELECT 1 FROM conversations WHERE id = ?", (checked["id"],)).fetchone():
                return False
            db.execute("PRAGMA defer_foreign_keys = ON")  # a message may precede the one it answers
            used = db.execute(_FIND_USED_BEFORE, (checked["updated_at"],)).fetchone() or (0,)
            insert_rows(db, "conversations", [checked | {"used": used[0]}])
            insert_rows(db, "messages", [message | {"conversation_id": checked["id"]} for message in messages])
            attachments = [
                attachment | {"message_id": message["id"], "position": position}
                for message in messages
                for position, attachment in enumerate(message["attachments"])
            ]
            insert_rows(db, "attachments", attachments)
    except sqlite3.IntegrityError as error:
        raise BadConversation(_("some of its messages already exist in another chat")) from error
    return True


def replace_foreign_ids(conversation: Row) -> Row:
    """Replace all ids that are not in kvchat's format.

    Such an id could contain control characters, or refer to the memory of a program (`program/…`).
    """

    def own_id(id: Any) -> Any:
        if not isinstance(id, str) or _OWN_ID.fullmatch(id):
            return id  # `store_rows` rejects ids that are not text
        return uuid.uuid5(_NAMESPACE, without_surrogates(f"{conversation.get('id')}:{id}")).hex

    def with_own_ids(row: Row) -> Row:
        return row | {name: own_id(row[name]) for name in ("id", "parent_id", "leaf_id") if name in row}

    row, messages = with_own_ids(conversation), conversation.get("messages")
    if isinstance(messages, list):
        row["messages"] = [with_own_ids(message) if isinstance(message, dict) else message for message in messages]
    return row


def undo_import(database: Database, conversation_id: str) -> None:
    answered_here = "SELECT 1 FROM messages WHERE conversation_id = ? AND writer IS NOT NULL LIMIT 1"
    if not database.rows(answered_here, (conversation_id,)):
        database.delete(conversation_id)


def _attachments_by_message(db: sqlite3.Connection, conversation_id: str) -> dict[str, Row]:
    query = (
        "SELECT attachments.* FROM attachments JOIN messages ON messages.id = message_id"
        " WHERE conversation_id = ? ORDER BY position"
    )
    attachments: dict[str, Row] = {}
    for row in db.execute(query, (conversation_id,)):
        entry = {
            name: value
            for name, value in _exported_values(row).items()
            if name not in ("message_id", "position", "data")
        }
        if attachment_from_row(row).data:
            entry["data"] = base64.b64encode(row["data"]).decode()
        attachments.setdefault(row["message_id"], {"attachments": []})["attachments"].append(entry)
    return attachments


def _exported_values(row: sqlite3.Row) -> Row:
    values = {name: row[name] for name in row.keys() if name not in _LOCAL_COLUMNS}  # noqa: SIM118 - a Row is no mapping
    return {
        name: as_text(value) if isinstance(value, bytes) and name != "data" else value for name, value in values.items()
    }


def _message_row(row: sqlite3.Row) -> Row:
    message = _exported_values(row)
    message |= {name: as_text(message[name]) for name in ("id", "content", "thinking")}
    message |= {"role": role_from_row(row).value, "state": parse_state(row["state"]).value}
    if message["receipt"]:  # drop a damaged receipt
        message["receipt"] = json.loads(message["receipt"]) if parse_receipt(message["receipt"]) else None
    if message["state"] == MessageState.STREAMING.value:  # it cannot be finished after an import
        message["state"] = MessageState.INTERRUPTED.value
    return message


def _checked_message(message: Row, number: int) -> Row:
    receipt, attachments = message.get("receipt"), message.get("attachments", [])
    what = _("message {number}", number=number)
    plain = {k: v for k, v in message.items() if k not in ("receipt", "attachments")}
    clean = _checked_values(plain, _MESSAGE_TYPES, what)
    if not isinstance(attachments, list) or not all(isinstance(attachment, dict) for attachment in attachments):
        raise BadConversation(_("the attachments of {what} are not a list", what=what))
    attached = _("an attachment of {what}", what=what)
    clean["attachments"] = [_checked_attachment(entry, attached) for entry in attachments]
    if clean["role"] not in _ROLES:
        raise BadConversation(_("{what} has the unknown role “{role}”", what=what, role=clean["role"]))
    if clean["state"] not in _STATES or clean["state"] == MessageState.STREAMING.value:
        raise BadConversation(_("{what} has the unknown state “{state}”", what=what, state=clean["state"]))
    if receipt is not None:
        try:
            if receipt["source"] not in _SOURCES:
                raise ValueError
            Receipt(**{field.name: receipt[field.name] for field in fields(Receipt) if field.name in receipt})
            clean["receipt"] = json.dumps(receipt, allow_nan=False)
        except (KeyError, TypeError, ValueError) as error:
            raise BadConversation(_("the statistics of {what} are invalid", what=what)) from error
    return clean


def _checked_attachment(attachment: Row, description: str) -> Row:
    """Check an attachment's row; an image must be one that the user could attach."""
    clean = _checked_values(attachment, _ATTACHMENT_TYPES, description)
    if "data" in clean:
        try:
            picture = picture_attachment(clean["name"], base64.b64decode(clean["data"], validate=True))
        except (TypeError, ValueError, AttachmentError) as error:
            raise BadConversation(_("{what} is not a valid image", what=description)) from error
        clean |= {"data": picture.data, "size": picture.size, "hash": picture.hash, "text": ""}
    return clean


def _checked_values(values: Row, required: RequiredTypes, description: str) -> Row:
    for name, types in required.items():
        if not isinstance(values.get(name), types) or isinstance(values[name], bool):
            raise BadConversation(_("{what} has no valid “{name}”", what=description, name=name))
        if name.endswith("_at") and not 0 <= values[name] <= MAX_TIMESTAMP:
            raise BadConversation(_("{what} has an out-of-range time in “{name}”", what=description, name=name))
    clean = {}
    for name, value in values.items():
        if name in _LOCAL_COLUMNS:
            continue
        if not isinstance(value, str | int | float | None) or (isinstance(value, int) and abs(value) > _MAX_INTEGER):
            raise BadConversation(_("{what} has an unexpected value in “{name}”", what=description, name=name))
        if isinstance(value, str) and len(value) > MAX_TEXT and name != "data":
            too_long = N_("{what} has more than {longest_text} characters in “{name}”")
            raise BadConversation(_(too_long, what=description, longest_text=format_number(MAX_TEXT), name=name))
        clean[name] = without_surrogates(value) if isinstance(value, str) else value
    return clean


def without_permission(options: str) -> str:
    """Return a chat's options without permission to call tools, which no file may grant."""
    try:
        parts = json.loads(options or "{}")
        return json.dumps({name: part for name, part in parts.items() if name != "permission"}) if parts else ""
    except (ValueError, AttributeError, RecursionError):
        return ""


def without_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can hold but no file can."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _check_tree(leaf_id: Any, messages: Sequence[Row]) -> None:
    """Raise BadConversation unless the messages form trees and `leaf_id` is None or one of them."""
    parents = {message["id"]: message.get("parent_id") for message in messages}
    if len(parents) < len(messages):
        raise BadConversation(_("two of its messages have the same id"))
    if leaf_id is not None and leaf_id not in parents:
        raise BadConversation(_("its last message is missing"))
    rooted: set[str] = set()
    for start in parents:
        path, at = set(), start
        while at is not None and at not in rooted:
            if at in path:
                raise BadConversation(_("its messages form a loop"))
            if at not in parents:
                raise BadConversation(_("one of its messages follows a missing message"))
            path.add(at)
            at = parents[at]
        rooted |= path


FORMAT = "kvchat-conversations"
VERSION = 1


def write_json(conversations: Iterable[Row], file: IO[str]) -> int:
    file.write(f'{{"format": "{FORMAT}", "version": {VERSION}, "conversations": [')
    count = 0
    for count, conversation in enumerate(conversations, 1):
        file.write(",\n" if count > 1 else "\n")
        json.dump(conversation, file, ensure_ascii=False, indent=1)
    file.write("\n]}\n")
    return count
