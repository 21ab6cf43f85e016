"""What the model is given of stored messages and what is attached to them. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvchat.chat.record.messages import Attachment, Message, Role
from kvchat.engine.speaking.wire import ChatMessage, Picture
from kvchat.words.language import N_, _

NEW_TITLE = N_("New chat")
TITLE_LENGTH = 48  # characters


def prompt_messages(branch: Sequence[Message], *, going_on: bool = False) -> list[ChatMessage]:
    """What the chat template is given for these messages; `going_on` if the last one is a reply to be continued.

    Empty replies are left out and neighbouring messages of one role are joined, because many templates refuse
    roles that do not alternate: that happens when a turn failed and the user wrote again.
    """
    joined: list[ChatMessage] = []
    for number, message in enumerate(branch, start=1):
        continued = going_on and number == len(branch)  # perhaps nothing but thinking has come of it
        says_nothing = not message.content.strip() and not message.attachments
        if says_nothing and message.role is not Role.USER and not continued:
            continue
        role, content, pictures = message.role.value, prompt_content(message), pictures_of(message)
        if joined and (last := joined[-1]).role == role:
            words = "\n\n".join(part for part in (last.content, content) if part)
            joined[-1] = ChatMessage(role, words, last.thinking, last.pictures + pictures)
        else:
            joined.append(ChatMessage(role, content, message.thinking, pictures))
    return joined


def prompt_content(message: Message) -> str:
    """What the model reads of a message: the documents first.

    Whoever asks something else about the same documents then asks an extension of what was read already.
    """
    documents = [_document(attachment) for attachment in message.attachments if not attachment.data]
    return "\n\n".join(part for part in (*documents, message.content) if part)


def searched_text(message: Message) -> str:
    """What a search looks through of a message: its words, and the documents' names and texts."""
    documents = [part for attachment in message.attachments for part in (attachment.name, attachment.text)]
    return "\n".join(part for part in (message.content, *documents) if part)


def pictures_of(message: Message) -> tuple[Picture, ...]:
    """What the model is shown with a message."""
    return tuple(Picture(attachment.data) for attachment in message.attachments if attachment.data)


def _document(attachment: Attachment) -> str:
    name = attachment.name.replace('"', "'")
    return f'<document name="{name}">\n{attachment.text.strip()}\n</document>'


def needs_vision(messages: Sequence[ChatMessage]) -> bool:
    """Whether the model is shown pictures with these messages."""
    return any(message.pictures for message in messages)


def ends_with_reply(branch: Sequence[Message]) -> bool:
    """Whether the next thing to say is the user's."""
    messages = prompt_messages(branch)
    return bool(messages) and messages[-1].role == Role.ASSISTANT.value


def begins_empty(branch: Sequence[Message]) -> bool:
    """Whether there is a system prompt and nothing else yet."""
    return bool(branch) and all(message.role is Role.SYSTEM for message in branch)


def title_from(text: str) -> str:
    """A conversation's first title: the first words of its first message, on one line."""
    words = re.sub(r"\s+", " ", text).strip()
    if len(words) <= TITLE_LENGTH:
        return words or _(NEW_TITLE)
    cut = words[:TITLE_LENGTH]
    head, space, _rest = cut.rpartition(" ")
    return (head if space and len(head) > TITLE_LENGTH // 2 else cut).rstrip(" ,.;:") + "…"
