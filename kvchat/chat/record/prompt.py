"""From stored messages to what the engine is asked, and back to the turn boundary. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvchat.chat.record.attachments import pictures_of, prompt_content
from kvchat.chat.record.messages import Message, Role
from kvchat.engine.speaking.wire import ChatMessage

NEW_TITLE = "New chat"
TITLE_LENGTH = 48  # characters


def prompt_messages(branch: Sequence[Message], *, going_on: bool = False) -> list[ChatMessage]:
    """What the chat template is given for these messages; `going_on` if the last one is a reply to be continued.

    Empty replies are left out and neighbouring messages of one role are joined, because many templates refuse
    roles that do not alternate: that happens when a turn failed and the user wrote again.
    """
    joined: list[ChatMessage] = []
    for number, message in enumerate(branch, start=1):
        continued = going_on and number == len(branch)  # perhaps nothing but thinking has come of it
        if not message.content.strip() and message.role is not Role.USER and not continued:
            continue
        role, content, pictures = message.role.value, prompt_content(message), pictures_of(message)
        if joined and (last := joined[-1]).role == role:
            words = "\n\n".join(part for part in (last.content, content) if part)
            joined[-1] = ChatMessage(role, words, last.thinking, last.pictures + pictures)
        else:
            joined.append(ChatMessage(role, content, message.thinking, pictures))
    return joined


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
        return words or "New chat"
    cut = words[:TITLE_LENGTH]
    head, space, _ = cut.rpartition(" ")
    return (head if space and len(head) > TITLE_LENGTH // 2 else cut).rstrip(" ,.;:") + "…"
