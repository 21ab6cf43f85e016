"""Audiences: who may reuse a save point's KV state.

Rows serve every prompt that begins with their tokens, so whoever may reuse them learns that somebody's prompt began
so, and gets answers based on what they really contain. Each save point therefore belongs to one audience, and the
token tree is kept per audience: what must not be reused cannot be found. The same holds for an engine's slot.

A program's system prompt is for everybody once two programs have sent all of it in this run of kvchat, each with
its own key: names that anybody may take do not count, nor do the user's chats. So a program learns nothing by what
it sends itself. Only someone with two programs' keys can learn that a third sent the same whole system prompt.
"""

from __future__ import annotations

from kvchat.kvstore.savepoint import PROGRAM

CHATS = "chats"  # the user's own chats, in the window and on the command line
SHARED = "shared"  # prepared documents, usable by all
NOBODY = "nobody"  # for a slot that several requests may have used or a restore is filling
IMPORTED = "imported/"  # audience prefix of imported chat memory
_PREPARED = "prepared:"  # owner prefix of prepared documents


def audience_of(owner: str) -> str:
    """Return who may reuse an owner's save points. Owners are chats, programs and prepared documents."""
    if owner.startswith(PROGRAM):
        return owner
    return SHARED if owner.startswith(_PREPARED) else CHATS


def imported(conversation_id: str) -> str:
    """Return the audience of memory imported with a chat: that chat alone, as it cannot be verified."""
    return IMPORTED + conversation_id


def is_imported(audience: str | None) -> bool:
    return audience is not None and audience.startswith(IMPORTED)


def readable_by(owner: str) -> tuple[str, ...]:
    own = audience_of(owner)
    return (own, SHARED, imported(owner)) if own == CHATS else tuple(dict.fromkeys((own, SHARED)))


def readable_within(audience: str) -> tuple[str, ...]:
    """Return the audiences whose states this one may include."""
    if is_imported(audience):
        return (audience, CHATS, SHARED)
    return tuple(dict.fromkeys((audience, SHARED)))
