"""From a slot file the engine has just saved to a save point: taken at once, absorbed in the background."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from kvchat.kvstore.audience import audience_of, readable_within
from kvchat.kvstore.blocks import header as slotfile
from kvchat.kvstore.blocks.absorb import Absorbed, Earlier, take_apart
from kvchat.kvstore.blocks.block_files import Changed
from kvchat.kvstore.blocks.recipe import Recipe, RecipeError
from kvchat.kvstore.index import points as index_points
from kvchat.kvstore.index import recipes as index_recipes
from kvchat.kvstore.index import token_tree
from kvchat.kvstore.index import usage as index_usage
from kvchat.kvstore.parts import Parts, in_words, not_written
from kvchat.kvstore.savepoint import (
    AbsorbReport,
    CancelCheck,
    Cancelled,
    Fingerprint,
    Grown,
    NotSaved,
    SavePoint,
    State,
    StoreRefused,
    Tokens,
    common_prefix,
)
from kvchat.words.reasons import Reason, ReasonCode
from kvchat.words.wording import size as size_in_words

_LOOK_EVERY_S = 0.05  # for whether somebody still waits for another thread to be done
_TRIES = 3  # another thread may delete a block just when we begin to rely on it


@dataclass(frozen=True)
class Window:
    """A save point whose file an engine can use only with one more row in its sliding windows."""

    point_id: str
    tokens: int  # that the windows reach back


class Saving:
    """Takes files and absorbs them. Safe for threads."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._absorbing = threading.Lock()
        self._taking_windows = threading.Lock()
        self._windows: dict[str, list[Window]] = {}  # taken since `take_windows` was last asked, by conversation
        self._grown: dict[str, Grown] = {}  # of save points that wait

    @in_words(saving=True)
    def check_room(self, size: int, conversation_id: str, place: Path | None, state: State | None) -> None:
        parts, audience = self._parts, audience_of(conversation_id)
        with parts.index.read() as db:
            if index_points.never_save(db, conversation_id):
                raise NotSaved(Reason(ReasonCode.NEVER_SAVED))
            before = _known(db, *state, audience) if state else None
        to_write = _not_kept(size, len(state[1]), before) if state else size  # as blocks
        staged = parts.unabsorbed()
        in_memory = place is not None and parts.staging.expect(place, size, staged)
        to_write += 0 if in_memory else size  # as the engine saves
        if parts.free_bytes() - to_write < parts.bounds.free_floor:
            parts.staging.trim(staged, disk_too=True)
        try:
            parts.check_room(size, to_write, conversation_id)
        except StoreRefused:
            if place is not None:
                parts.staging.forget(place)
            raise

    @in_words(saving=True)
    def take(
        self,
        slot_file: Path,
        new: SavePoint,
        *,
        message_id: str | None,
        expected_size: int | None,
        window: int,
        grown: Grown | None,
    ) -> SavePoint:
        """As `BlockStore.take`; `new` has neither id nor size yet."""
        parts, waiting = self._parts, slot_file
        try:
            size = _check_saved(slot_file, new.tokens, expected_size)
            parts.check_room(size, 0, new.conversation_id)
            waiting = parts.staging.take_in(slot_file)  # not while others wait for the index: it may be a copy
            with parts.index.write() as db:
                if index_points.never_save(db, new.conversation_id):
                    raise NotSaved(Reason(ReasonCode.NEVER_SAVED))
                point = index_points.add_staged(db, replace(new, size=size), message_id)
                parts.staging.keep(point.id, waiting)
                if parts.staging.has_warm(point.id, on_disk=True):
                    index_usage.count_written(db, parts.today(), size)
        except OSError as error:
            raise not_written(error) from error
        finally:
            parts.staging.forget(slot_file)
            with contextlib.suppress(OSError):
                waiting.unlink(missing_ok=True)
        if grown is not None:
            self._grown[point.id] = grown
        if window:
            with self._taking_windows:
                self._windows.setdefault(new.conversation_id, []).append(Window(point.id, window))
        parts.staging.trim(parts.unabsorbed())
        return point

    def take_windows(self) -> tuple[Window, ...]:
        """The newest save point of each conversation whose sliding windows lack a row; told once.

        The others' files need not stay warm: no engine can use them as they are.
        """
        with self._taking_windows:
            taken, self._windows = self._windows, {}
        staged = self._parts.unabsorbed()
        for one in (one for windows in taken.values() for one in windows[:-1]):
            if one.point_id not in staged:
                self._parts.staging.drop(one.point_id)
        return tuple(windows[-1] for windows in taken.values())

    def absorb(self, cancelled: CancelCheck, *, gives_way: bool = False) -> AbsorbReport:
        """Take apart every file that waits, until it is cancelled. `gives_way`: what else is to be done goes first.

        Save points that cannot be kept are lost, with the reason in the report.
        """
        parts = self._parts
        absorbed = written = 0
        refused: list[Reason] = []
        while not self._absorbing.acquire(timeout=_LOOK_EVERY_S):
            if cancelled():
                return AbsorbReport(0, 0, ())
        try:
            for point_id in sorted(parts.unabsorbed(), key=int):
                if cancelled():
                    break
                try:
                    new = self._absorb(point_id, cancelled, gives_way)
                except Cancelled:
                    break
                except (NotSaved, OSError, Changed) as error:
                    if point_id in parts.unabsorbed():  # else it was deleted meanwhile, and its file with it
                        refused.append(_why_refused(error))
                        parts.lose(point_id, refused[-1], tell=False)
                else:
                    absorbed += new is not None
                    written += new or 0
                finally:
                    parts.drop_new()
        finally:
            self._absorbing.release()
        if absorbed:
            parts.staging.trim(parts.unabsorbed())
        return AbsorbReport(absorbed, written, tuple(refused))

    @in_words(saving=True)
    def _absorb(self, point_id: str, cancelled: CancelCheck, gives_way: bool) -> int | None:
        """Absorb one; the bytes written, None if it was deleted meanwhile.

        Raises StoreRefused, OSError, Changed and Cancelled.
        """
        parts = self._parts
        slot_file = parts.staging.warm(point_id)
        with parts.index.read() as db:
            point = index_points.load(db, int(point_id))
            before = _before(db, point, self._grown.get(point_id)) if point else None
        if point is None:
            parts.staging.drop(point_id)
            return None
        if slot_file is None:
            raise Changed("its file was changed before it was absorbed")
        new = _not_kept(point.size, point.n_tokens, before)
        parts.check_room(new, new, point.conversation_id)
        row_map = parts.read_row_map(slot_file)
        written = 0
        for _again in range(_TRIES):
            result = take_apart(slot_file, row_map, before, parts.blocks, cancelled, gives_way=gives_way)
            written += result.written
            with contextlib.suppress(_BlockGone):
                stored = self._commit(point, result, written)
                self._grown.pop(point_id, None)
                return written if stored else None
        raise NotSaved(Reason(ReasonCode.BLOCKS_DELETED))

    def _commit(self, point: SavePoint, result: Absorbed, written: int) -> bool:
        """Record the recipe; False if the save point was deleted meanwhile. Raises _BlockGone."""
        parts = self._parts
        with parts.index.write() as db:
            on_disk: dict[bytes, int] = {}
            for use in result.recipe.uses:
                taken = parts.blocks.claim(use.block, use.size)
                if taken is None:
                    raise _BlockGone
                on_disk[use.block] = taken
            index_usage.count_written(db, parts.today(), written)
            if not index_recipes.store_recipe(db, int(point.id), result.recipe, on_disk):
                return False
            index_points.delete(db, index_points.same_place(db, int(point.id)))
        parts.blocks.settle(on_disk)
        return True


class _BlockGone(Exception):
    """A block of the recipe was deleted since it was written or found."""


def _check_saved(slot_file: Path, expected: Tokens, expected_size: int | None) -> int:
    """The size of a file the engine has just saved. Raises NotSaved unless it is whole and holds `expected`."""
    try:
        size = slot_file.stat().st_size
        tokens = slotfile.read_tokens(slot_file)
    except FileNotFoundError:
        raise NotSaved(Reason(ReasonCode.NO_FILE)) from None
    except slotfile.SlotFileError as error:
        raise NotSaved(Reason(ReasonCode.FILE_BROKEN, {"error": str(error)})) from error
    if expected_size is not None and size != expected_size:
        places = {"written": size_in_words(expected_size), "there": size_in_words(size)}
        raise NotSaved(Reason(ReasonCode.FILE_CUT, places))
    if not len(tokens):
        raise NotSaved(Reason(ReasonCode.NOTHING_HELD))
    if not slotfile.stands_for(tokens, expected):
        shared = common_prefix(tokens.tolist(), expected)
        raise NotSaved(Reason(ReasonCode.OTHERS_HELD, {"tokens": len(tokens), "shared": shared}))
    return size


def _not_kept(size: int, n_tokens: int, before: Earlier | None) -> int:
    return size * (n_tokens - before.shared) // n_tokens if before else size


def _why_refused(error: NotSaved | OSError | Changed) -> Reason:
    if isinstance(error, Changed):
        return Reason(ReasonCode.FILE_CHANGED)
    return (not_written(error) if isinstance(error, OSError) else error).reason


def _before(db: sqlite3.Connection, point: SavePoint, grown: Grown | None) -> Earlier | None:
    """The absorbed save point that the file has grown from, or shares most leading tokens with; None without."""
    if grown is not None:
        origin = index_points.load(db, int(grown.point_id))
        recipe = _recipe(db, int(grown.point_id)) if origin and origin.fingerprint == point.fingerprint else None
        if origin is not None and recipe is not None:
            shared = common_prefix(origin.tokens, point.tokens)
            return Earlier(recipe, shared, min(shared, grown.unchanged))
    return _known(db, point.fingerprint, point.tokens, point.audience)


def _known(db: sqlite3.Connection, fingerprint: Fingerprint, tokens: Tokens, audience: str) -> Earlier | None:
    """The absorbed save point of that audience which shares most leading tokens with these; None without."""
    trees = index_points.trees(db, index_points.fingerprint_id(db, fingerprint), readable_within(audience))
    barren: set[int] = set()
    for place in token_tree.places(db, trees, tokens):
        found = token_tree.below(db, place.node_id, barren, absorbed=True)
        recipe = _recipe(db, found) if found is not None else None
        if recipe is not None:
            return Earlier(recipe, place.shared)
    return None


def _recipe(db: sqlite3.Connection, point_id: int) -> Recipe | None:
    with contextlib.suppress(RecipeError):
        return index_recipes.load_recipe(db, point_id)
    return None
