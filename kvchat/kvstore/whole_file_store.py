"""The store that keeps whole slot files, one for each conversation and kind of engine.

Its folder:
    points/<id>/kv.slot, manifest.json    a save point
    set-aside/<id>/..., reason.json       found bad, kept for a look
    notes/<line>.json                     why a conversation has no save point
    staging/<process>/                    an engine's slot folder
    temporary/<process>/                  on the way in or out; what a dead process left here is deleted
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kvchat.kvstore import budget, disk
from kvchat.kvstore.intake import check_saved, not_written
from kvchat.kvstore.manifest import Manifest, conversation_key, line_key, line_of, new_id, pack_tokens
from kvchat.kvstore.points import SLOT_NAME, Damaged, Entry, Points, raise_if_disk_error, verify
from kvchat.kvstore.savepoint import (
    ConversationUsage,
    Fingerprint,
    Miss,
    SavePoint,
    StagedFile,
    StoreUsage,
    Tokens,
    common_prefix,
)
from kvchat.kvstore.set_aside import Notes, SetAside
from kvchat.kvstore.store import StoreRefused

WORTH_RESTORING = 32  # tokens; any two conversations under one chat template may share this many
NOTHING_SAVED = "nothing saved yet for this conversation"
DELETED_MEANWHILE = "its save point was deleted meanwhile"
PRUNED = "its save point was deleted to stay within the disk quota"


class WholeFileStore:
    """Keeps one slot file for each conversation and kind of engine. See SavePointStore for the contract."""

    def __init__(
        self,
        folder: Path,
        quota_bytes: int,
        free_floor_bytes: int,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        free_bytes: Callable[[], int] | None = None,
    ) -> None:
        """Open the store in `folder`, making it if need be. Raises StoreRefused where the folder cannot be used."""
        self._quota, self._floor = quota_bytes, free_floor_bytes
        self._clock = clock
        self._free_bytes = free_bytes or (lambda: disk.free_bytes(folder))
        self._lock = threading.RLock()
        try:
            disk.private_folder(folder)
            self._points = Points(folder / "points", folder / "temporary")
            self._staging = disk.private_folder(folder / "staging")
            self._set_aside = SetAside(folder / "set-aside")
            self._notes = Notes(folder / "notes")
            self.clean_stale_staging()
        except OSError as error:
            title = "The folder for save points cannot be used."
            advice = "Check that the folder is yours and the disk is not full."
            raise StoreRefused(title, f"{folder}: {error.strerror}.", advice) from error

    def staging_folder(self) -> Path:
        """A fresh private folder on the store's file system, where one engine of this process saves and restores.

        Save under names of your own: never to one that `stage` gave out, which is the store's file itself.
        Raises OSError.
        """
        return disk.private_folder(self._staging / disk.temporary_name())

    def clean_stale_staging(self) -> None:
        """Delete the slot folders of processes that are gone. Raises OSError."""
        disk.remove_stale(self._staging)

    def close(self) -> None:
        """Delete this process's slot folders. Call it when the engines have ended."""
        for folder in self._staging.glob(f"{disk.process_prefix()}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def find(self, conversation_id: str, fingerprint: Fingerprint, prompt: Tokens) -> SavePoint | Miss:
        """The save point that shares the longest prefix with `prompt`, or why there is none.

        A save point may reach beyond the shared prefix: an engine with full attention cuts it back.
        """
        line = line_key(conversation_id, fingerprint)
        try:
            with self._lock:
                mine = [entry for entry in self._entries() if entry.manifest.conversation_id == conversation_id]
                note = self._notes.recall(line)
        except OSError as error:
            return Miss(f"the save points could not be read ({error.strerror})")
        points = [e.manifest.save_point(e.last_used_at) for e in mine if e.manifest.fingerprint == fingerprint]
        if points:
            best = max(points, key=lambda point: (common_prefix(point.tokens, prompt), point.created_at))
            shared = common_prefix(best.tokens, prompt)
            if worth_restoring(shared, best.n_tokens, len(prompt)):
                return best
            return Miss(f"what is saved begins differently ({shared} tokens in common)")
        if note is not None:
            return Miss(note)
        if mine:
            newest = max(mine, key=lambda entry: entry.manifest.created_at)
            return Miss(_saved_otherwise(newest.manifest.fingerprint.differences(fingerprint)))
        return Miss(NOTHING_SAVED)

    def stage(self, save_point: SavePoint, slot_path: Path) -> StagedFile | Miss:
        """Put the slot file into `slot_path` under a random name and verify it there, as the engine will read it."""
        started = time.perf_counter()
        staged = slot_path / f"restore-{secrets.token_hex(8)}.slot"
        try:
            manifest = self._manifest(save_point.id)
            if manifest is None:
                return Miss(self._notes.recall(line_of(save_point.id)) or DELETED_MEANWHILE)
            self._link(save_point.id, staged)
            verify(staged, manifest)
        except Damaged as damage:
            staged.unlink(missing_ok=True)
            return Miss(self._put_aside(save_point.id, str(damage)))
        except OSError as error:
            with contextlib.suppress(OSError):
                staged.unlink()
            if not self._points.path(save_point.id).is_dir():
                return Miss(DELETED_MEANWHILE)
            return Miss(f"its file could not be put into the engine's slot folder ({error.strerror})")
        self._points.touch(save_point.id, self._clock())
        return StagedFile(save_point, staged, 1000 * (time.perf_counter() - started))

    def unstage(self, staged: StagedFile) -> None:
        """Drop the engine's name for the file. One that is held open (Windows) goes when its slot folder does."""
        with contextlib.suppress(OSError):
            staged.path.unlink()

    def check_room(self, expected_bytes: int) -> None:
        """Raise StoreRefused if saving about that much would pass the floor of free disk space or the whole quota."""
        budget.check_room(expected_bytes, expected_bytes, self._free_bytes(), self._quota, self._floor)

    def absorb(
        self,
        slot_file: Path,
        conversation_id: str,
        fingerprint: Fingerprint,
        expected: Tokens,
        expected_size: int | None = None,
    ) -> SavePoint:
        """Check the file the engine has just saved, take it in, and let it replace this line's older save point."""
        try:
            size = check_saved(slot_file, expected, expected_size)
            budget.check_room(size, 0, self._free_bytes(), self._quota, self._floor)
            with self._points.work_folder() as work:
                kept = work / SLOT_NAME
                disk.move(slot_file, kept)
                disk.sync_file(kept)
                point_id, now = new_id(conversation_id, fingerprint), self._clock()
                packed, checksum = pack_tokens(expected), disk.hash_file(kept)
                return self._commit(
                    work,
                    Manifest(point_id, conversation_id, fingerprint, len(expected), packed, size, checksum, now),
                )
        except OSError as error:
            raise not_written(error) from error
        finally:
            with contextlib.suppress(OSError):
                slot_file.unlink(missing_ok=True)

    def set_aside(self, save_point: SavePoint, reason: str) -> None:
        """Take a save point out of use; `find` answers with the reason until a new one is absorbed."""
        self._put_aside(save_point.id, reason)

    def set_bounds(self, quota_bytes: int, free_floor_bytes: int) -> None:
        """Put new bounds into force, and prune to them at once."""
        with self._lock:
            self._quota, self._floor = quota_bytes, free_floor_bytes
            self._prune(protected=None)

    def usage(self) -> StoreUsage:
        """What is kept, by conversation, the largest first."""
        with self._lock:
            entries = self._entries()
        by_conversation: dict[str, list[Entry]] = {}
        for entry in entries:
            by_conversation.setdefault(entry.manifest.conversation_id, []).append(entry)
        conversations = [
            ConversationUsage(name, sum(e.size for e in own), len(own), max(e.last_used_at for e in own))
            for name, own in by_conversation.items()
        ]
        return StoreUsage(
            conversations=tuple(sorted(conversations, key=lambda one: (-one.bytes, one.conversation_id))),
            total_bytes=sum(entry.size for entry in entries),
            set_aside_bytes=self._set_aside.size(),
            quota_bytes=self._quota,
            free_bytes=self._free_bytes(),
            free_floor_bytes=self._floor,
        )

    def delete_conversation(self, conversation_id: str) -> int:
        """Delete all that is kept of a conversation, set aside or not; returns the bytes freed."""
        return self._delete(conversation_key(conversation_id))

    def delete_all(self) -> int:
        """Delete every save point and everything set aside; returns the bytes freed."""
        return self._delete("")

    def _entries(self) -> list[Entry]:
        """What is kept now, other processes' work included; what is found damaged is set aside. Needs the lock."""
        entries, damaged = self._points.scan()
        for point_id, reason in damaged.items():
            self._put_aside(point_id, reason)
        return entries

    def _manifest(self, point_id: str) -> Manifest | None:
        """The manifest of a save point, None when it is gone."""
        with self._lock:
            return next((e.manifest for e in self._entries() if e.manifest.id == point_id), None)

    def _link(self, point_id: str, staged: Path) -> None:
        """Give the slot file its name in the engine's slot folder. Raises Damaged when it is missing, OSError."""
        try:
            disk.link_or_copy(self._points.path(point_id) / SLOT_NAME, staged)
        except FileNotFoundError:
            if staged.parent.is_dir() and self._points.path(point_id).is_dir():
                raise Damaged("its file is missing") from None
            raise
        except OSError as error:
            raise_if_disk_error(error)
            raise

    def _put_aside(self, point_id: str, reason: str) -> str:
        """Take a save point out of use; returns the reason as the user reads it."""
        words, now = f"its save point was set aside: {reason}", self._clock()
        with self._lock:
            self._notes.remember(line_of(point_id), words, now)
            self._set_aside.take(self._points.path(point_id), reason, now)
            self._set_aside.trim(self._quota)
        return words

    def _commit(self, work: Path, manifest: Manifest) -> SavePoint:
        """Make the finished work folder a save point, drop its line's older ones, prune."""
        with self._lock:
            line = line_of(manifest.id)
            older = [e.manifest for e in self._entries() if line_of(e.manifest.id) == line]
            # A clock that was set back must not make the newest look old.
            earliest = max((one.created_at for one in older), default=datetime.min.replace(tzinfo=UTC))
            manifest = replace(manifest, created_at=max(manifest.created_at, earliest + timedelta(microseconds=1)))
            now = self._clock()
            self._points.put(work, manifest, now)
            for one in older:
                self._points.discard(one.id)
            self._notes.forget(line)
            self._prune(protected=manifest.id)
            return manifest.save_point(now)

    def _prune(self, protected: str | None) -> None:
        """Keep to the quota: what is set aside goes first, then the least recently used. Needs the lock."""
        self._set_aside.trim(self._quota)
        entries = self._entries()
        if sum(entry.size for entry in entries) + self._set_aside.size() > self._quota:
            self._set_aside.delete("")
        kept = [budget.Kept(entry.manifest.id, entry.size, entry.last_used_at) for entry in entries]
        for point_id in budget.prune_plan(kept, self._quota, protected):
            self._points.discard(point_id)
            self._notes.remember(line_of(point_id), PRUNED, self._clock())

    def _delete(self, prefix: str) -> int:
        """Delete everything under ids that begin with `prefix`; returns the bytes freed."""
        with self._lock:
            mine = [entry.manifest.id for entry in self._entries() if entry.manifest.id.startswith(prefix)]
            freed = sum(self._points.discard(point_id) for point_id in mine)
            self._notes.forget(prefix)
            return freed + self._set_aside.delete(prefix)


def worth_restoring(shared: int, saved: int, prompt: int) -> bool:
    """Whether a save point of `saved` tokens is worth reading back for `shared` leading tokens of the prompt.

    Fewer than 32 tokens are only worth it where one of the two is itself so short that they are half of it.
    """
    return shared >= WORTH_RESTORING or (shared > 0 and 2 * shared >= min(saved, prompt))


def _saved_otherwise(differences: list[str]) -> str:
    """Why a save point of another kind of engine is of no use."""
    if "model" in differences:
        return "saved with another model"
    return f"saved with other engine settings ({', '.join(differences)})"
