"""The prompt made from messages."""

from collections.abc import Sequence

from kvchat.chat.record.messages import Message, Role
from kvchat.engine.api.wire import ChatMessage, Picture


def prompt_messages(branch: Sequence[Message], *, continues_reply: bool = False) -> list[ChatMessage]:
    """Build the chat template's input; `continues_reply`: the last message is a reply to continue."""
    joined: list[ChatMessage] = []
    for number, message in enumerate(branch, start=1):
        continued = continues_reply and number == len(branch)  # the reply may contain only thinking
        says_nothing = not message.content.strip() and not message.attachments
        if says_nothing and message.role is not Role.USER and not continued:
            continue
        role, content, pictures = message.role.value, prompt_content(message), pictures_of(message)
        if joined and (last := joined[-1]).role == role:
            text = "\n\n".join(part for part in (last.content, content) if part)
            joined[-1] = ChatMessage(role, text, last.thinking, last.pictures + pictures)
        else:
            joined.append(ChatMessage(role, content, message.thinking, pictures))
    return joined


def prompt_content(message: Message) -> str:
    """Return a message as the model reads it: documents first, so that other questions share the prefix."""
    documents = []
    for attachment in message.attachments:
        if not attachment.data:
            name = attachment.name.replace('"', "'")
            documents.append(f'<document name="{name}">\n{attachment.text.strip()}\n</document>')
    return "\n\n".join(part for part in (*documents, message.content) if part)


def pictures_of(message: Message) -> tuple[Picture, ...]:
    return tuple(Picture(attachment.data) for attachment in message.attachments if attachment.data)


def needs_vision(messages: Sequence[ChatMessage]) -> bool:
    return any(message.pictures for message in messages)


def ends_with_reply(branch: Sequence[Message]) -> bool:
    messages = prompt_messages(branch)
    return bool(messages) and messages[-1].role == Role.ASSISTANT.value
