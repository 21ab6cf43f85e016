"""From a slot file the engine has just saved to a save point: taken at once, absorbed in the background."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from kvchat.kvstore.audience import audience_of, readable_within
from kvchat.kvstore.blocks.absorb import Absorbed, take_apart
from kvchat.kvstore.blocks.block_files import Changed
from kvchat.kvstore.blocks.recipe import Earlier, Recipe, RecipeError
from kvchat.kvstore.index import points as index_points
from kvchat.kvstore.index import recipes as index_recipes
from kvchat.kvstore.index import token_tree
from kvchat.kvstore.index.index import IndexFailed
from kvchat.kvstore.index.points import NewPoint
from kvchat.kvstore.parts import Parts, check_room, check_saved, in_words, not_written
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

_LOOK_EVERY_S = 0.05  # whether somebody still waits for another thread to be done
_TRIES = 3  # another process may delete a block just when we begin to rely on it


@dataclass(frozen=True)
class Window:
    """A save point whose file an engine can use only with one more row in its sliding windows."""

    point_id: str
    tokens: int  # that the windows reach back


class Saving:
    """The block store as far as it takes files and absorbs them. Safe for threads and processes."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._absorbing = threading.Lock()
        self._taking_windows = threading.Lock()
        self._windows: dict[str, list[Window]] = {}  # taken since `_take_windows` was last asked, by conversation
        self._grown: dict[str, Grown] = {}  # of save points that wait

    def check_room(
        self, size: int, conversation_id: str | None = None, place: Path | None = None, state: State | None = None
    ) -> None:
        """Raise NotSaved if a slot file of about that size cannot be kept, or the conversation never is.

        `state` is what it will hold: what the store has of that already is not written again.
        `place` is where the engine is going to save it: in memory or on disk, as there is room. `take` it, or `forget`.
        """
        parts, bounds = self._parts, self._parts.bounds
        with in_words(saving=True), parts.index.read() as db:
            if conversation_id is not None and index_points.never_save(db, conversation_id):
                raise NotSaved(Reason(ReasonCode.NEVER_SAVED))
        staged, audience = self._unabsorbed(), audience_of(conversation_id or "")
        in_memory = place is not None and parts.staging.expect(place, size, staged)
        to_write = self._new(size, state, audience) + (0 if in_memory else size)  # as blocks, and as the engine saves
        if parts.free_bytes() - to_write < bounds.free_floor:
            parts.staging.trim(staged, disk_too=True)
        try:
            check_room(size, to_write, parts.free_bytes(), bounds.of(conversation_id), bounds.free_floor)
        except StoreRefused:
            if place is not None:
                parts.staging.forget(place)
            raise

    def take(
        self,
        slot_file: Path,
        conversation_id: str,
        fingerprint: Fingerprint,
        expected: Tokens,
        expected_size: int | None = None,
        prefill_ms: float = 0.0,
        window: int = 0,
        message_id: str | None = None,
        grown: Grown | None = None,
        audience: str | None = None,
    ) -> SavePoint:
        """Make a file the engine has just saved a save point: quick, and for now in the warm tier alone.

        `expected_size` is what the engine says it wrote (bytes); `prefill_ms` estimates reading these tokens again.
        `window` is what `stage` will be asked for: such a file is made ahead, when this one is absorbed.
        `message_id` names the last message that the tokens hold: the save point goes with that.
        `grown`: the slot is known to have grown from a save point; what is unchanged need not be read again.
        `audience`: who may reuse it, unless that is what the conversation's own states have.
        The file is moved or deleted, whatever happens. Raises NotSaved when it is empty, not whole, holds other
        tokens than `expected`, does not fit the bounds, or the conversation is never to be saved.
        """
        parts, waiting = self._parts, slot_file
        try:
            size = check_saved(slot_file, expected, expected_size)
            check_room(size, 0, parts.free_bytes(), parts.bounds.of(conversation_id), parts.bounds.free_floor)
            audience = audience_of(conversation_id) if audience is None else audience
            new = NewPoint(
                conversation_id, message_id, fingerprint, expected, size, prefill_ms, parts.clock(), audience
            )
            waiting = parts.staging.take_in(slot_file)  # not while others wait for the index: it may be a copy
            with in_words(saving=True), parts.index.write() as db:
                if index_points.never_save(db, conversation_id):
                    raise NotSaved(Reason(ReasonCode.NEVER_SAVED))
                point = index_points.add_staged(db, new, parts.staging.owner)
                parts.staging.keep(point.id, waiting)
                if parts.staging.has_warm(point.id, on_disk=True):
                    index_points.count_written(db, parts.today(), size)
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
                self._windows.setdefault(conversation_id, []).append(Window(point.id, window))
        parts.staging.trim(self._unabsorbed())
        return point

    def forget(self, place: Path) -> None:
        """Nothing is to be left of what was, or was to be, saved at `place`."""
        self._parts.staging.forget(place)

    def _take_windows(self) -> tuple[Window, ...]:
        """The newest save point of each conversation whose sliding windows lack a row; told once.

        The others' files need not stay warm: no engine can use them as they are.
        """
        with self._taking_windows:
            taken, self._windows = self._windows, {}
        staged = self._unabsorbed()
        for one in (one for windows in taken.values() for one in windows[:-1]):
            if one.point_id not in staged:
                self._parts.staging.drop(one.point_id)
        return tuple(windows[-1] for windows in taken.values())

    def _absorb_staged(
        self, cancelled: CancelCheck, *, gives_way: bool = False, patience_s: float | None = None
    ) -> AbsorbReport:
        """Take apart every file that waits, until it is cancelled. `gives_way`: what else is to be done goes first.

        Save points that cannot be kept are lost, with the reason in the report. Where others write, for longer than
        `patience_s`, all wait on.
        """
        absorbed = written = 0
        refused: list[Reason] = []
        while not self._absorbing.acquire(timeout=_LOOK_EVERY_S):
            if cancelled():
                return AbsorbReport(0, 0, ())
        try:
            for point_id in sorted(self._unabsorbed(), key=int):
                if cancelled():
                    break
                try:
                    new = self._absorb(point_id, cancelled, gives_way, patience_s)
                except Cancelled:
                    break
                except (NotSaved, OSError, Changed) as error:
                    if isinstance(error.__cause__, IndexFailed) and error.__cause__.locked:
                        break
                    if point_id in self._unabsorbed():  # else it was deleted meanwhile, and its file with it
                        refused.append(_why_refused(error))
                        self._parts.lose(point_id, refused[-1], tell=False)
                else:
                    absorbed += new is not None
                    written += new or 0
                finally:
                    self._parts.drop_new(patience_s)
        finally:
            self._absorbing.release()
        if absorbed:
            self._parts.staging.trim(self._unabsorbed())
        return AbsorbReport(absorbed, written, tuple(refused))

    def _absorb(self, point_id: str, cancelled: CancelCheck, gives_way: bool, patience_s: float | None) -> int | None:
        """Absorb one; the bytes written, None if it was deleted meanwhile.

        Raises StoreRefused, OSError, Changed and Cancelled.
        """
        parts = self._parts
        slot_file = parts.staging.warm(point_id)
        with in_words(saving=True), parts.index.read() as db:
            point = index_points.load(db, int(point_id))
            before = _before(db, point, self._grown.get(point_id)) if point else None
        if point is None:
            parts.staging.drop(point_id)
            return None
        if slot_file is None:
            raise Changed("its file was changed before it was absorbed")
        self._check_disk(point, before.shared if before else 0)
        row_map = parts.read_row_map(slot_file)
        written = 0
        for _again in range(_TRIES):
            result = take_apart(slot_file, row_map, before, parts.blocks, cancelled, gives_way=gives_way)
            written += result.written
            outcome = self._commit(point, result, written, patience_s)
            if outcome is not _Outcome.BLOCK_GONE:
                self._grown.pop(point_id, None)
                return written if outcome is _Outcome.DONE else None
        raise NotSaved(Reason(ReasonCode.BLOCKS_DELETED))

    def _commit(self, point: SavePoint, result: Absorbed, written: int, patience_s: float | None) -> _Outcome:
        """Record the recipe, unless one of its blocks has gone since."""
        parts = self._parts
        with in_words(saving=True), parts.index.write(patience_s) as db:
            on_disk: dict[bytes, int] = {}
            for use in result.recipe.uses:
                taken = parts.blocks.claim(use.block, use.size)
                if taken is None:
                    return _Outcome.BLOCK_GONE
                on_disk[use.block] = taken
            index_points.count_written(db, parts.today(), written)
            if not index_recipes.store_recipe(db, int(point.id), result.recipe, on_disk):
                return _Outcome.DELETED
            index_points.delete(db, index_points.same_place(db, int(point.id)))
        parts.blocks.settle(on_disk)
        return _Outcome.DONE

    def _new(self, size: int, state: State | None, audience: str) -> int:
        """Of a slot file of that size that is to hold `state`, about how many bytes are not kept yet."""
        if state is None:
            return size
        fingerprint, tokens = state
        with in_words(saving=True), self._parts.index.read() as db:
            before = _known(db, fingerprint, tokens, audience)
        return size * (len(tokens) - before.shared) // len(tokens) if before else size

    def _check_disk(self, point: SavePoint, shared: int) -> None:
        new = point.size * (point.n_tokens - shared) // point.n_tokens
        bounds = self._parts.bounds
        check_room(new, new, self._parts.free_bytes(), bounds.of(point.conversation_id), bounds.free_floor)

    def _unabsorbed(self) -> frozenset[str]:
        with in_words(saving=True):
            return self._parts.unabsorbed()


class _Outcome(Enum):
    """How a commit went."""

    DONE = auto()
    DELETED = auto()
    BLOCK_GONE = auto()


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
        found = token_tree.below(db, place.node_id, token_tree.NOBODY, barren)
        recipe = _recipe(db, found) if found is not None else None
        if recipe is not None:
            return Earlier(recipe, place.shared)
    return None


def _recipe(db: sqlite3.Connection, point_id: int) -> Recipe | None:
    with contextlib.suppress(RecipeError):
        return index_recipes.load_recipe(db, point_id)
    return None
