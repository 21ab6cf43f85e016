"""Text parsed as in the transcript."""

from datetime import UTC, datetime

from kvchat.chat.record.messages import Message, MessageState, Role
from kvchat.ui.base.theme import LIGHT
from kvchat.ui.rendering.markdown import Block, Markdown, Prose, WideBlock
from kvchat.ui.rendering.markdown_stream import parse_blocks

MARKDOWN = Markdown(LIGHT)


def blocks(text: str) -> list[Block]:
    return parse_blocks(MARKDOWN, text)


def prose(text: str) -> str:
    """Return the HTML of a text without code."""
    read = blocks(text)
    assert all(isinstance(block, Prose | WideBlock) for block in read)
    return "".join(block.html for block in read if isinstance(block, Prose | WideBlock))


def a_message(id: str, role: Role, content: str, state: MessageState = MessageState.COMPLETE) -> Message:
    return Message(id, "c", None, role, content, "", state, datetime(2026, 11, 20, tzinfo=UTC))
