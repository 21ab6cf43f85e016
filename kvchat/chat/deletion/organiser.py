"""Order among the chats: folders, the top of the list, the archive, and deletion that can be undone for a while."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvchat.chat.deletion.recently_deleted import RecentlyDeleted
from kvchat.chat.events import ConversationsChanged
from kvchat.chat.turn_parts import TurnParts


class Organiser:
    """Puts chats where the user wants them. Belongs to the event loop's thread; all methods raise StorageFailed."""

    def __init__(self, parts: TurnParts, leave: Callable[[str], None], deleted: RecentlyDeleted) -> None:
        """`leave` ends what goes on in a chat."""
        self._parts, self._leave, self._deleted = parts, leave, deleted

    async def move(self, ids: Sequence[str], folder: str | None) -> None:
        """Put chats into a folder; with None into none."""
        await self._set(ids, "folder", (folder or "").strip() or None)

    async def keep_on_top(self, ids: Sequence[str], on_top: bool) -> None:
        """Keep chats at the top of the list, or no longer."""
        await self._set(ids, "on_top", on_top)

    async def archive(self, ids: Sequence[str], archived: bool) -> None:
        """Put chats away into the archive, or back."""
        await self._set(ids, "archived", archived)

    async def delete(self, ids: Sequence[str]) -> None:
        """Delete chats; `undo_delete` brings them back whole for as long as they are among the recently deleted."""
        for id in ids:
            self._leave(id)
        await self._deleted.hide_chats(ids)

    async def undo_delete(self, ids: Sequence[str]) -> None:
        """Bring deleted chats back, as far as they are not gone for good."""
        await self._deleted.restore_chats(ids)

    async def _set(self, ids: Sequence[str], column: str, value: str | float | None) -> None:
        statement = f"UPDATE conversations SET {column} = ? WHERE id = ?"
        await self._parts.worker.run(self._parts.database.write, statement, *((value, id) for id in ids))
        self._parts.events.publish(ConversationsChanged())
