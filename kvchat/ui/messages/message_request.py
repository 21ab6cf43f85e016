"""What the buttons of a message ask for. No Qt."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kvchat.chat.record.messages import Message


class Request(Enum):
    """What is to be done with a message."""

    REGENERATE = "regenerate"  # another reply beside it
    CONTINUE = "continue"  # the reply goes on
    EDIT = "edit"  # other words in its place, on a branch of their own
    DELETE = "delete"
    SWITCH = "switch"  # to the branch beside it that begins with the message `text`


@dataclass(frozen=True)
class MessageRequest:
    """A wish and the message it is about."""

    run: Request
    message: Message
    text: str = ""
