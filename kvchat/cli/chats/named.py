"""The chat that a command names, by its id or the beginning of it."""

from __future__ import annotations

from collections.abc import Sequence

from kvchat.chat.record.messages import Conversation
from kvchat.errors import KvchatError
from kvchat.words.language import _, mark
from kvchat.words.safe_text import calm
from kvchat.words.wording import one_line

SHOWN = 8  # letters of an id: enough to name a chat by
_MOST_CANDIDATES = 10


class NoSuchChat(KvchatError):
    """No chat has that id, or several begin with it."""


def named_chat(known: Sequence[Conversation], name: str) -> Conversation:
    """Return the chat with that id, or the only one whose id begins with it. Raises NoSuchChat."""
    found = [one for one in known if one.id == name] or [one for one in known if name and one.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    advice = _("`kvchat chats` lists them; write more of its id.")
    if not found:
        raise NoSuchChat(_("There is no chat {name}", name=name), "", advice)
    shown = [f"{one.id[: max(SHOWN, len(name) + 4)]}  {one_line(calm(one.title))}" for one in found[:_MOST_CANDIDATES]]
    more = [mark("…")] if len(found) > len(shown) else []
    raise NoSuchChat(_("Several chats begin with {name}", name=name), "\n".join([*shown, *more]), advice)
