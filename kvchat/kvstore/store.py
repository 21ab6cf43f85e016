"""The store's small interface: what a turn needs of whatever keeps its save points.

Every method is synchronous and may block on disk: call them off the event loop (asyncio.to_thread). All are safe to
call from several threads and from several processes that share one store folder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvchat.errors import KvchatError
from kvchat.kvstore.files.memory_files import Staged
from kvchat.kvstore.savepoint import (
    AbsorbReport,
    Fingerprint,
    Grown,
    Loss,
    Miss,
    PrunePlan,
    RestorePlan,
    SavePoint,
    StagedFile,
    State,
    StoreUsage,
    Tokens,
    Unseen,
    VerifyReport,
)


@dataclass(frozen=True)
class Bounds:
    """How much the store may take."""

    quota: int  # bytes on disk
    free_floor: int  # bytes of the disk that must stay free
    max_age_days: float | None = None  # since the last use


Wanted = Callable[[], bool]  # asked again and again, from any thread, by slow work: once false, the work ends early


class NotWanted(Exception):
    """Slow work was ended because nobody waits for it any more. Nothing is left half done."""


def always() -> bool:
    """Wanted to its end."""
    return True


class StoreRefused(KvchatError):
    """Nothing was kept, for a reason the user is told: disk nearly full, quota too small, not this chat's tokens."""


class NothingIsKept(StoreRefused):
    """There is no store to keep anything in, which the user was told when that turned out."""


class SavePointStore(Protocol):
    """Keeps KV states, every row of them once, and gives back what leaves the least of a prompt to prefill."""

    def staging_folder(self) -> Path:
        """A fresh private folder where one engine of this process saves and restores.

        Save under names of your own: never to one that `stage` gave out, which may be the store's file itself.
        Raises OSError.
        """
        ...

    def staged(self) -> Staged:
        """What of its files in memory can go at once for a model, and how much could lie there. Raises StoreRefused."""
        ...

    def keep_in_memory(self, most: int) -> None:
        """Have so many bytes in memory at most, until told otherwise; what is warm beyond that goes at once.

        What waits to be absorbed stays. Raises StoreRefused.
        """
        ...

    def find(
        self, fingerprint: Fingerprint, prompt: Tokens, *, can_cut: bool, conversation_id: str
    ) -> RestorePlan | Miss:
        """The plan that leaves the least of the prompt to prefill, from any conversation, or why there is none.

        Without `can_cut` only save points all of whose tokens begin the prompt count. `conversation_id` is for the
        words of a Miss.
        """
        ...

    def stage(
        self, plan: RestorePlan, slot_path: Path, *, older_window_rows: int = 0, wanted: Wanted = always
    ) -> StagedFile | Miss:
        """Put the plan's slot file, verified, into the engine's slot folder.

        A plan for a part is composed for exactly that where the layout allows, else given whole for the engine to cut
        back: StagedFile.n_tokens says how many tokens it holds. `older_window_rows`: how many rows older than a
        sliding window to add where the store has them; such an engine refuses the file as it was saved.
        A bad block is set aside with every save point that needs it, and answered with a Miss. Raises NotWanted, soon
        after `wanted` turns false and without leaving a file.
        """
        ...

    def unstage(self, staged: StagedFile) -> None:
        """The engine is done with the staged file."""
        ...

    def check_room(
        self, size: int, conversation_id: str | None = None, place: Path | None = None, state: State | None = None
    ) -> None:
        """Raise StoreRefused if a slot file of about that size cannot be kept, or the conversation never is.

        `state` is what it will hold: what the store has of that already is not written again.
        `place` is where the engine is going to save it: in memory or on disk, as there is room. `take` it, or `forget`.
        """
        ...

    def forget(self, place: Path) -> None:
        """Nothing is to be left of what was, or was to be, saved at `place`."""
        ...

    def take(
        self,
        slot_file: Path,
        conversation_id: str,
        fingerprint: Fingerprint,
        expected: Tokens,
        expected_size: int | None = None,
        prefill_ms: float = 0.0,
        older_window_rows: int = 0,
        message_id: str | None = None,
        grown: Grown | None = None,
    ) -> SavePoint:
        """Make a file the engine has just saved a save point: quick, and for now in the warm tier alone.

        `expected_size` is what the engine says it wrote (bytes); `prefill_ms` estimates reading these tokens again.
        `older_window_rows` is what `stage` will be asked for: such a file is made ahead, when this one is absorbed.
        `message_id` names the last message that the tokens hold: the save point goes with that.
        `grown`: the slot is known to have grown from a save point; what is unchanged need not be read again.
        The file is moved or deleted, whatever happens. Raises StoreRefused when it is empty, not whole, holds other
        tokens than `expected`, does not fit the bounds, or the conversation is never to be saved.
        """
        ...

    def absorb_pending(self, wanted: Wanted = always) -> AbsorbReport:
        """Take apart the files that wait, and keep to the bounds. Slow: for a background thread, after each `take`.

        When it is no longer `wanted` it ends soon, between two blocks; what is not absorbed then waits on.
        """
        ...

    def set_aside(self, save_point: SavePoint, reason: str) -> None:
        """Take a save point out of use, because the engine refused it or its restore proved hollow."""
        ...

    def usage(self) -> StoreUsage:
        """What is kept, by conversation, the largest first."""
        ...

    def plan_prune(self, target_bytes: int) -> PrunePlan:
        """What pruning to a size would remove, and what re-reading it would cost. Removes nothing."""
        ...

    def prune(self, plan: PrunePlan) -> int:
        """Carry a plan out; returns the bytes freed."""
        ...

    def set_bounds(self, bounds: Bounds) -> None:
        """Put new bounds into force, and prune to them at once."""
        ...

    def pin(self, conversation_id: str, pinned: bool) -> None:
        """Never prune a conversation, or allow it again."""
        ...

    def never_save(self, conversation_id: str, never: bool) -> None:
        """Never save a conversation, or allow it again. What is saved of it stays until it is deleted."""
        ...

    def delete_conversation(self, conversation_id: str) -> int:
        """Delete everything kept for a conversation; returns the bytes freed."""
        ...

    def delete_messages(self, conversation_id: str, message_ids: Collection[str]) -> int:
        """Delete what is kept of these messages of a conversation; returns the bytes freed.

        Of save points that do not tell what they hold, none of the conversation is left.
        """
        ...

    def unseen(self, by: str) -> Unseen:
        """What has been kept since `seen` was last told by the same; everything after it was told by another."""
        ...

    def seen(self, by: str, what: Unseen) -> None:
        """All of that has been looked at."""
        ...

    def delete_all(self) -> int:
        """Delete every save point and everything set aside; returns the bytes freed."""
        ...

    def verify(self, progress: Callable[[int, int], None] = ...) -> VerifyReport:
        """Hash every block and set aside what is bad. `progress` is told the bytes done and in all."""
        ...

    def losses(self) -> tuple[Loss, ...]:
        """What turned out bad since this was last asked: tell the user once."""
        ...

    def close(self, wanted: Wanted = always) -> None:
        """Absorb what waits, as long as that is wanted, and delete this process's staging folder.

        For when the engines have ended. What was not absorbed is not kept.
        """
        ...
