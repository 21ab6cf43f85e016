"""What a turn is given to keep its save points in: the block store, or one that keeps nothing where none can be had."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import NoReturn

from kvchat.errors import KvchatError
from kvchat.kvstore.block_store import BlockStore
from kvchat.kvstore.files.memory_files import NOTHING_STAGED, Staged
from kvchat.kvstore.savepoint import AbsorbReport, Kept, Loss, Miss, StoreRefused, StoreUsage, Unseen
from kvchat.words.language import N_, _
from kvchat.words.reasons import Reason, ReasonCode

TITLE = N_("The memory of chats cannot be kept for now")


class NoStore:
    """Keeps nothing: chatting goes on, and whoever asks hears why. What is there may come back, so nothing is deleted.

    Its methods are those of BlockStore.
    """

    def __init__(self, why: KvchatError) -> None:
        """`why`: what whoever tried to open the store was told."""
        advice = _(
            "{advice} You can go on chatting; a chat is read again whenever another one was in between.",
            advice=why.advice,
        )
        self.problem = StoreRefused(_(TITLE), f"{why.title} {why.detail}".strip(), advice.strip())
        self._folders: list[Path] = []

    def staging_folder(self) -> Path:
        """A fresh private folder, which an engine wants whether anything is saved or not. Raises OSError."""
        self._folders.append(Path(tempfile.mkdtemp(prefix="kvchat-")))
        return self._folders[-1]

    def close(self, *_: object) -> None:
        """Delete the folders that engines had."""
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def forget(self, place: Path) -> None:
        """Delete the file."""
        with contextlib.suppress(OSError):
            place.unlink(missing_ok=True)

    def staged(self) -> Staged:
        """Nothing, and nothing will be."""
        return NOTHING_STAGED

    def usage(self) -> StoreUsage:
        """Nothing that can be told, and why."""
        return StoreUsage((), 0, 0, 0, 0, problem=f"{self.problem.detail} {self.problem.advice}")

    def absorb_pending(self, *_: object) -> AbsorbReport:
        """Nothing waits."""
        return AbsorbReport(0, 0, ())

    def unseen(self, _: str) -> Unseen:
        """None that are known of."""
        return Unseen({}, 0)

    def kept(self, _: object) -> dict[str, tuple[Kept, ...]]:
        """Nothing of anything."""
        return {}

    def imported(self) -> set[str]:
        """None."""
        return set()

    def losses(self) -> tuple[Loss, ...]:
        """None that are known of."""
        return ()

    def _miss(self, *_: object, **__: object) -> Miss:
        return Miss(Reason(ReasonCode.NO_STORE))

    def _ignore(self, *_: object, **__: object) -> None:
        """There is nothing to do it with; bounds hold from the next start on."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise self.problem

    find = stage = _miss
    keep_in_memory = warm_up = unstage = set_aside = set_bounds = seen = measure_rebuild = _ignore
    manifest = bring = contents = _refuse
    check_room = occupied = take = plan_prune = prune = pin = never_save = _refuse
    delete_conversation = delete_messages = delete_imported = delete_all = verify = _refuse


SavePointStore = BlockStore | NoStore
