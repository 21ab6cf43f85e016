"""What became of save points that are no longer usable: bad files kept for a look, and why a conversation has none."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

from kvchat.kvstore import budget, disk

REASON_FILE = "reason.json"
_MAX_NOTE_BYTES = 10_000


class SetAside:
    """The folder of bad save points, each with the reason beside it. Bounded by `trim`. Loses races quietly."""

    def __init__(self, folder: Path) -> None:
        self._folder = disk.private_folder(folder)

    def take(self, point: Path, reason: str, when: datetime) -> None:
        """Move the save point's folder here. Where that is impossible it stays, and is found bad again next time."""
        with contextlib.suppress(OSError):
            disk.write_private(point / REASON_FILE, _note(reason, when))
            os.utime(point, (when.timestamp(), when.timestamp()))
        with contextlib.suppress(OSError):
            point.rename(disk.private_folder(self._folder) / point.name)

    def size(self) -> int:
        """Bytes of everything set aside."""
        return sum(disk.tree_size(entry) for entry in disk.listing(self._folder))

    def trim(self, quota: int) -> None:
        """Delete the oldest beyond 3 files or 10 % of the quota."""
        for name in budget.set_aside_plan(self._kept(), quota):
            shutil.rmtree(self._folder / name, ignore_errors=True)

    def delete(self, prefix: str) -> int:
        """Delete what was set aside under ids that begin with `prefix` ("" for all); returns the bytes freed."""
        freed = 0
        for entry in disk.listing(self._folder):
            if entry.name.startswith(prefix):
                freed += disk.tree_size(entry)
                shutil.rmtree(entry, ignore_errors=True)
        return freed

    def _kept(self) -> list[budget.Kept]:
        """Everything here, dated by when it was set aside."""
        kept: list[budget.Kept] = []
        for entry in disk.listing(self._folder):
            with contextlib.suppress(OSError):
                when = datetime.fromtimestamp(entry.stat().st_mtime, UTC)  # set by `take`
                kept.append(budget.Kept(entry.name, disk.tree_size(entry), when))
        return kept


class Notes:
    """One short file for each line of a conversation (see manifest.line_key) whose last save point was lost: why."""

    def __init__(self, folder: Path) -> None:
        self._folder = disk.private_folder(folder)

    def remember(self, line: str, reason: str, when: datetime) -> None:
        """Keep the reason; a full disk loses it, which costs no more than a vaguer receipt."""
        with contextlib.suppress(OSError):
            temporary = disk.private_folder(self._folder) / disk.temporary_name()
            disk.write_private(temporary, _note(reason, when))
            temporary.replace(self._folder / f"{line}.json")

    def recall(self, line: str) -> str | None:
        """The reason kept for this line, None if there is none or it cannot be read."""
        try:
            with (self._folder / f"{line}.json").open("rb") as file:
                facts = json.loads(file.read(_MAX_NOTE_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        reason = facts.get("reason") if isinstance(facts, dict) else None
        return reason if isinstance(reason, str) else None

    def forget(self, prefix: str) -> None:
        """Drop the notes of all lines that begin with `prefix` ("" for all)."""
        for entry in disk.listing(self._folder):
            if entry.name.startswith(prefix):
                with contextlib.suppress(OSError):
                    entry.unlink()


def _note(reason: str, when: datetime) -> bytes:
    """The JSON of a reason."""
    return json.dumps({"reason": reason, "at": when.isoformat()}, indent=1).encode()
