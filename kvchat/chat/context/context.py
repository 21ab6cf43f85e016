"""How full a conversation's context is, and which messages stay when the middle goes. Pure values and functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.chat.input.pictures import TOKENS_GUESSED
from kvchat.chat.record.messages import Message, Role
from kvchat.chat.record.prompt import pictures_of, prompt_content
from kvchat.errors import KvchatError
from kvchat.words.language import _, number, sentences

BYTES_PER_TOKEN = 4  # roughly, until an engine counts
TEMPLATE_TOKENS = 8  # what a chat template puts around one message, roughly


class NothingToDrop(KvchatError):
    """What must stay does not fit either."""

    def __init__(self) -> None:
        super().__init__(
            _("There is no middle to leave out"),
            _("The beginning and the last message take the whole context already."),
            _("Choose a larger context size, or send less at once."),
        )


class DocumentsTooLong(KvchatError):
    """What is attached does not fit beside the conversation."""

    def __init__(self, names: Sequence[str], use: ContextUse) -> None:
        title = _("“{name}” does not fit the model's context", name=names[0])
        if len(names) > 1:
            title = _("The {count} attached files do not fit the model's context", count=len(names))
        taken = _("{used} are used by the chat already.", used=number(use.used)) if use.used else ""
        there = _(
            "This message has {waiting} tokens and the context holds {limit}.",
            waiting=number(use.waiting),
            limit=number(use.limit),
        )
        super().__init__(
            title,
            sentences(there, taken),
            _("Attach the part that matters, or choose a larger context size in the settings."),
        )


class NoRoomForPart(KvchatError):
    """Not even the beginning of a document fits."""

    def __init__(self, name: str) -> None:
        super().__init__(
            _("No part of “{name}” fits", name=name),
            _("The chat takes nearly the whole context already."),
            _("Keep only the newest part of the chat, choose a larger context, or begin a new chat."),
        )


@dataclass(frozen=True)
class ContextUse:
    """What fills the context of one conversation, in tokens."""

    used: int  # the conversation so far
    waiting: int  # what is being written, and what is attached to it
    reserve: int  # kept for the reply
    limit: int
    estimated: bool = False  # what waits was not counted to its end: it cannot fit

    @property
    def free(self) -> int:
        """What is left; negative where the next reply may not fit."""
        return self.limit - self.used - self.waiting - self.reserve

    @property
    def over(self) -> bool:
        """Whether the next message would be refused."""
        return self.used + self.waiting >= self.limit

    @property
    def tight(self) -> bool:
        """Whether something has to be decided before the next message."""
        return self.free < 0


@dataclass(frozen=True)
class Split:
    """A branch in three parts. What stays warm, what may go, and what is being talked about."""

    opening: tuple[Message, ...]
    middle: tuple[Message, ...]
    recent: tuple[Message, ...]


def beginning_of(text: str, share: float) -> str:
    """So much of a text at most (0 to 1), to the end of a line where one is near; always shorter than the text."""
    cut = text[: min(int(len(text) * share), len(text) - 1)]
    line = cut.rfind("\n")
    return cut[:line] if line > len(cut) * 0.8 else cut


def tokens_guessed(branch: Sequence[Message]) -> int:
    """How many tokens a branch has, without an engine to count: by its last receipt, and by the bytes after that."""
    counted = next((i for i in range(len(branch) - 1, -1, -1) if branch[i].receipt), -1)
    receipt = branch[counted].receipt if counted >= 0 else None
    known = receipt.prompt_tokens + receipt.predicted_tokens if receipt else 0
    return known + sum(
        len(prompt_content(message).encode()) // BYTES_PER_TOKEN
        + TEMPLATE_TOKENS
        + TOKENS_GUESSED * len(pictures_of(message))
        for message in branch[counted + 1 :]
    )


def split_branch(branch: Sequence[Message], sizes: Sequence[int], budget: int) -> Split:
    """Keep the opening and as many of the last turns as have `budget` tokens, the last one in any case.

    The opening is the system prompt and, where it brings documents, the first turn. `sizes` are the messages' tokens.
    Raises NothingToDrop if no turn is left between the two.
    """
    starts = [i for i, message in enumerate(branch) if message.role is Role.USER]
    if not starts:
        raise NothingToDrop
    opening = starts[1] if branch[starts[0]].attachments and len(starts) > 1 else starts[0]
    cut, spent = starts[-1], sum(sizes[starts[-1] :])
    for start in reversed(starts[:-1]):
        spent += sum(sizes[start:cut])
        if spent > budget:
            break
        cut = start
    if cut <= opening:
        raise NothingToDrop
    return Split(tuple(branch[:opening]), tuple(branch[opening:cut]), tuple(branch[cut:]))
