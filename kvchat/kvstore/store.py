"""The store's small interface: what a turn needs of whatever keeps its save points.

Every method is synchronous and may block on disk: call them off the event loop (asyncio.to_thread). All are safe to
call from several threads and from several processes that share one store folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import Fingerprint, Miss, SavePoint, StagedFile, StoreUsage, Tokens


class StoreRefused(KvchatError):
    """Nothing was kept, for a reason the user is told: disk nearly full, quota too small, not this chat's tokens."""


class SavePointStore(Protocol):
    """Keeps KV states by conversation and gives back, verified, the one that leaves the least to prefill."""

    def find(self, conversation_id: str, fingerprint: Fingerprint, prompt: Tokens) -> SavePoint | Miss:
        """The save point whose tokens share the longest prefix with `prompt`, or why there is none."""
        ...

    def stage(self, save_point: SavePoint, slot_path: Path) -> StagedFile | Miss:
        """Verify the save point and put its slot file into the engine's slot folder.

        A file that is missing, truncated, foreign or whose hash differs is set aside and answered with a Miss.
        """
        ...

    def unstage(self, staged: StagedFile) -> None:
        """The engine is done with the staged file."""
        ...

    def check_room(self, expected_bytes: int) -> None:
        """Raise StoreRefused if saving about that much would leave less free disk space than the floor."""
        ...

    def absorb(
        self,
        slot_file: Path,
        conversation_id: str,
        fingerprint: Fingerprint,
        expected: Tokens,
        expected_size: int | None = None,
    ) -> SavePoint:
        """Take a file the engine has just saved into the store, and make it this conversation's save point.

        `expected_size` is what the engine says it wrote (bytes): a cut state cannot be seen in the file itself.
        The file is moved or deleted, whatever happens. Raises StoreRefused when it is empty, not whole, holds other
        tokens than `expected`, or does not fit the floor or the quota. Prunes least recently used save points of
        other conversations when the quota is exceeded.
        """
        ...

    def set_aside(self, save_point: SavePoint, reason: str) -> None:
        """Take a save point out of use, because the engine refused it or its restore proved hollow."""
        ...

    def usage(self) -> StoreUsage:
        """What is kept, by conversation."""
        ...

    def delete_conversation(self, conversation_id: str) -> int:
        """Delete everything kept for a conversation; returns the bytes freed."""
        ...

    def delete_all(self) -> int:
        """Delete every save point and everything set aside; returns the bytes freed."""
        ...
