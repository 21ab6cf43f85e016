"""The store where none can be had: nothing is kept, chatting goes on, and whoever asks hears why."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

from kvchat.errors import KvchatError
from kvchat.kvstore.files.memory_files import NOTHING_STAGED, Staged
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
from kvchat.kvstore.speed import RebuildSpeed
from kvchat.kvstore.store import Bounds, NothingIsKept, StoreRefused, Wanted, always

TITLE = "The memory of chats cannot be kept for now"


class NoStore:
    """Keeps nothing: a SavePointStore. What deletes raises StoreRefused, for what is there may come back."""

    def __init__(self, why: KvchatError) -> None:
        """`why`: what whoever tried to open the store was told."""
        advice = f"{why.advice} You can go on chatting; a chat is read again whenever another one was in between."
        self.problem = StoreRefused(TITLE, f"{why.title} {why.detail}".strip(), advice.strip())
        self._folders: list[Path] = []

    def staging_folder(self) -> Path:
        """A fresh private folder, which an engine wants whether anything is saved or not. Raises OSError."""
        self._folders.append(Path(tempfile.mkdtemp(prefix="kvchat-")))
        return self._folders[-1]

    def staged(self) -> Staged:
        """Nothing, and nothing will be."""
        return NOTHING_STAGED

    def keep_in_memory(self, most: int) -> None:
        """Nothing is kept there."""

    def find(
        self, fingerprint: Fingerprint, prompt: Tokens, *, can_cut: bool, conversation_id: str
    ) -> RestorePlan | Miss:
        """Nothing."""
        return Miss("the memory of chats cannot be kept for now")

    def stage(
        self, plan: RestorePlan, slot_path: Path, *, older_window_rows: int = 0, wanted: Wanted = always
    ) -> StagedFile | Miss:
        """Nothing: no plan was made here."""
        return Miss("the memory of chats cannot be kept for now")

    def unstage(self, staged: StagedFile) -> None:
        """Nothing was staged."""

    def check_room(
        self, size: int, conversation_id: str | None = None, place: Path | None = None, state: State | None = None
    ) -> None:
        """Raises NothingIsKept."""
        raise NothingIsKept(self.problem.title, self.problem.detail, self.problem.advice)

    def forget(self, place: Path) -> None:
        """Delete the file."""
        with contextlib.suppress(OSError):
            place.unlink(missing_ok=True)

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
        """Delete the file. Raises NothingIsKept."""
        self.forget(slot_file)
        raise NothingIsKept(self.problem.title, self.problem.detail, self.problem.advice)

    def absorb_pending(self, wanted: Wanted = always) -> AbsorbReport:
        """Nothing waits."""
        return AbsorbReport(0, 0, ())

    def prepare(self, most: int | None = None) -> None:
        """For nothing."""

    def set_aside(self, save_point: SavePoint, reason: str) -> None:
        """There is none."""

    def usage(self) -> StoreUsage:
        """Nothing that can be told, and why."""
        return StoreUsage((), 0, 0, 0, 0, problem=f"{self.problem.detail} {self.problem.advice}")

    def plan_prune(self, target_bytes: int) -> PrunePlan:
        """Raises StoreRefused."""
        raise self.problem

    def prune(self, plan: PrunePlan) -> int:
        """Raises StoreRefused."""
        raise self.problem

    def set_bounds(self, bounds: Bounds) -> None:
        """They hold from the next start on."""

    def pin(self, conversation_id: str, pinned: bool) -> None:
        """Raises StoreRefused."""
        raise self.problem

    def never_save(self, conversation_id: str, never: bool) -> None:
        """Raises StoreRefused."""
        raise self.problem

    def delete_conversation(self, conversation_id: str) -> int:
        """Raises StoreRefused."""
        raise self.problem

    def delete_messages(self, conversation_id: str, message_ids: Collection[str]) -> int:
        """Raises StoreRefused."""
        raise self.problem

    def unseen(self, by: str) -> Unseen:
        """None that are known of."""
        return Unseen({}, 0)

    def seen(self, by: str, what: Unseen) -> None:
        """Nothing was."""

    def delete_all(self) -> int:
        """Raises StoreRefused."""
        raise self.problem

    def verify(self, progress: Callable[[int, int], None] = lambda done, total: None) -> VerifyReport:
        """Raises StoreRefused."""
        raise self.problem

    def measure_rebuild(self, rounds: int = 5) -> RebuildSpeed | None:
        """Nothing to measure."""
        return None

    def losses(self) -> tuple[Loss, ...]:
        """None that are known of."""
        return ()

    def close(self, wanted: Wanted = always) -> None:
        """Delete the folders that engines had."""
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
