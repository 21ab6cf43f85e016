"""Restoring: finds the best save point for a prompt and places its slot file in the engine's slot folder."""

import contextlib
import sqlite3
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from kvchat.kvstore import disk
from kvchat.kvstore.blocks import parser, positioned
from kvchat.kvstore.blocks.layout import CannotCompose, Plan, Span, cut, with_masked_rows
from kvchat.kvstore.blocks.rebuild import RebuildFailed, compose, stored_layout
from kvchat.kvstore.blocks.recipe import Recipe, RecipeError
from kvchat.kvstore.index import points, token_tree, usage
from kvchat.kvstore.index.index import IndexFailed, IndexLost
from kvchat.kvstore.index.schema import CorruptIndex, parse_fingerprint
from kvchat.kvstore.inventory import Inventory
from kvchat.kvstore.savepoint import (
    CancelCheck,
    Cancelled,
    Fingerprint,
    RestoreMiss,
    RestorePlan,
    SavePoint,
    StagedFile,
    StoreRefused,
    Tier,
    Tokens,
    never_cancelled,
    program_of,
    readable_audiences,
)
from kvchat.kvstore.saver import Saver
from kvchat.text.reasons import Reason, ReasonCode

_RECENT_COUNT = 16  # save points used last, to predict the next size
_MAX_MATCHES = 500  # tree nodes examined per plan
MIN_RESTORED_TOKENS = 32  # tokens; any two chats with one chat template may share this many


class _PointDeleted(Exception):
    """The save point was deleted after the restore was planned."""


class Restorer:
    def __init__(self, inventory: Inventory, saver: Saver) -> None:
        self._inventory, self._index, self._saver = inventory, inventory.index, saver
        self._staging, self._blocks = inventory.staging, inventory.blocks
        self._has_staged = False  # a restore was staged, or the likely first one prepared
        self._built_ahead = ""  # the latter's save point, until it is restored
        self._closed = False
        self._background = ThreadPoolExecutor(1, "memory", positioned.lower_priority)

    def close(self) -> None:
        """Stop preparing files and wait for the background thread to become idle."""
        self._closed = True
        self.preallocate_file().result()

    def find(
        self, fingerprint: Fingerprint, prompt: Tokens, *, can_cut: bool, conversation_id: str
    ) -> RestorePlan | RestoreMiss:
        """Return the plan that leaves the fewest tokens of the prompt to prefill, or the reason that there is none.

        Considers all save points that `conversation_id` may reuse. Unless the engine can cut a state (`can_cut`),
        the whole save point must be a prefix of the prompt.
        """
        try:
            with self._index.read() as db:
                fingerprint_id = points.find_fingerprint(db, fingerprint)
                trees = points.find_trees(db, fingerprint_id, readable_audiences(conversation_id))
                if plan := self._find_best_plan(db, trees, prompt, can_cut=can_cut):
                    return plan
                return RestoreMiss(_miss_reason(db, conversation_id, fingerprint, fingerprint_id, trees, prompt))
        except (IndexLost, IndexFailed) as error:
            return RestoreMiss(_unreadable_reason(error))
        except StoreRefused:
            return RestoreMiss(Reason(ReasonCode.NO_STORE))

    def stage(
        self, plan: RestorePlan, slot_path: Path, *, window: int = 0, cancelled: CancelCheck = never_cancelled
    ) -> StagedFile | RestoreMiss:
        """Place the plan's slot file in the engine's slot folder.

        For a partial plan the file is cut to the planned length if the layout allows; otherwise the engine must cut
        the whole file. StagedFile.n_tokens is the number of tokens in the file. `window`: sliding window in tokens of
        a model that needs the row added by `with_masked_rows`, else 0; an unabsorbed file is absorbed first.
        On a bad block, deletes it and the save points that need it, and returns a RestoreMiss. Raises Cancelled,
        leaving no file, soon after `cancelled` returns True.
        """
        self._has_staged = True
        point, target = plan.save_point, slot_path / f"{disk.engine_file_name()}.slot"
        try:
            if window and self._staging.is_unabsorbed(point.id):
                self._saver.absorb(cancelled)
            if cancelled():
                raise Cancelled
            n_tokens, tier = self._create_slot_file(plan, target, window, cancelled)
            with contextlib.suppress(parser.SlotFileError):
                if parser.matches_tokens(parser.read_tokens(target), point.tokens[:n_tokens]):
                    self._inventory.restored_at[int(point.id)] = self._inventory.clock()
                    return StagedFile(point, target, n_tokens, tier)
            raise RecipeError("it contains other tokens")
        except (_PointDeleted, RebuildFailed, RecipeError, IndexLost, IndexFailed, OSError) as error:
            self._staging.unstage(target, engine_done=True)
            return RestoreMiss(self._failure_reason(point.id, error))
        except StoreRefused as refused:
            return RestoreMiss(Reason(ReasonCode.NOT_READABLE, {"error": refused.detail}))

    def unstage(self, staged: StagedFile, *, engine_done: bool = True) -> None:
        """Remove a staged file. Pass `engine_done=False` if the engine may still be reading it."""
        self._staging.unstage(staged.path, engine_done=engine_done)
        self.preallocate_file()

    def limit_memory(self, max_bytes: int, fingerprint: Fingerprint | None = None, window: int = 0) -> None:
        """Limit the slot files kept in RAM. Files not yet absorbed stay even above the limit.

        `fingerprint`: of the engine about to start. The likely first restore is prepared while it loads its model.
        """
        self._staging.trim(max_bytes=max_bytes)
        if fingerprint and not self._has_staged:
            self._background.submit(self._build_ahead, fingerprint, window)
        else:
            self.preallocate_file()

    def preallocate_file(self) -> Future[None]:
        """Preallocate a file in the background for the next restore, as large as the largest recent save point."""
        return self._background.submit(self._preallocate_file)

    def _preallocate_file(self) -> None:
        with contextlib.suppress(StoreRefused, OSError):
            if not self._closed:
                with self._index.read() as db:
                    recent = "SELECT file_size FROM save_points ORDER BY last_used_at DESC LIMIT ?"
                    sizes = points.fetch_integers(db, recent, _RECENT_COUNT)
                self._staging.preallocate(max(sizes, default=0), lambda: self._closed)

    def find_newest(self, fingerprint: Fingerprint, window: int) -> RestorePlan | None:
        """Return the plan to restore the newest save point, if its file is in memory with the row for `window`."""
        with contextlib.suppress(StoreRefused):
            point = self._newest(fingerprint)
            if point and self._staging.find_warm(point.id, window):
                return RestorePlan(point, point.n_tokens, Tier.WARM, point.size)
        return None

    def _newest(self, fingerprint: Fingerprint) -> SavePoint | None:
        with self._index.read() as db:
            newest = "SELECT id FROM save_points WHERE fingerprint_id = ? ORDER BY id DESC LIMIT 1"
            ids = points.fetch_integers(db, newest, points.find_fingerprint(db, fingerprint))
            return points.load(db, ids[0]) if ids else None

    def _build_ahead(self, fingerprint: Fingerprint, window: int) -> None:
        with contextlib.suppress(StoreRefused, OSError):
            point = self._newest(fingerprint)
            if point and self._staging.find_warm(point.id) is None and self._staging.has_room(point.size):
                self._built_ahead = point.id
                self.build_warm_file(point.id, window, lambda: self._has_staged or self._closed)
            else:
                self._preallocate_file()
            self._has_staged = True

    def build_warm_file(self, point_id: str, window: int, cancelled: CancelCheck) -> None:
        """Build a save point's slot file in RAM and keep it warm, with the row that a sliding window needs.

        Ignores damage. Raises IndexLost and IndexFailed.
        """
        if not self._staging.in_memory:
            return
        with contextlib.suppress(RebuildFailed, RecipeError, OSError, Cancelled):
            with self._index.read() as db:
                point = points.load(db, int(point_id))
                recipe = points.load_recipe(db, int(point_id))
            if point is not None and recipe is not None:
                self._rebuild(point, recipe, window, None, cancelled)

    def _find_best_plan(
        self, db: sqlite3.Connection, trees: Sequence[int], prompt: Tokens, *, can_cut: bool
    ) -> RestorePlan | None:
        empty_nodes: set[int] = set()
        for match in islice(token_tree.find_matches(db, trees, prompt, whole_nodes=not can_cut), _MAX_MATCHES):
            shared = match.shared
            if not is_worth_restoring(shared, match.n_tokens, len(prompt)):
                continue
            # A state that cannot be cut must leave the engine a token to evaluate.
            is_usable = match.is_whole and (can_cut or shared < len(prompt))
            ids = token_tree.points_at(db, match.node_id) if is_usable else []
            chosen = min(ids, key=lambda id: self._staging.find_warm(str(id)) is None, default=None)
            if can_cut and chosen is None:
                chosen = token_tree.find_point_below(db, match.node_id, empty_nodes)
            point = points.load(db, chosen) if chosen is not None else None
            if point and point.tokens[:shared] != prompt[:shared]:
                raise CorruptIndex
            if point and is_worth_restoring(shared, point.n_tokens, len(prompt)):
                is_warm = self._staging.find_warm(point.id) is not None and 2 * shared >= point.n_tokens
                size = point.size if is_warm else point.size * shared // point.n_tokens
                return RestorePlan(point, shared, Tier.WARM if is_warm else Tier.DISK, size)
        return None

    def _create_slot_file(
        self, plan: RestorePlan, target: Path, window: int, cancelled: CancelCheck
    ) -> tuple[int, Tier]:
        """Create the slot file at `target`; return its token count and source tier."""
        point, n_tokens = plan.save_point, plan.tokens_used
        tier = Tier.WARM
        if point.id == self._built_ahead:
            tier, self._built_ahead = Tier.DISK, ""
        if (plan.tier is Tier.WARM or plan.is_whole) and self._staging.link_warm(point.id, window, target):
            return point.n_tokens, tier
        with self._index.read() as db:
            recipe = points.load_recipe(db, int(point.id))
        if recipe is None:
            if self._staging.link_warm(point.id, 0, target):  # not absorbed yet: the engine truncates it
                return point.n_tokens, Tier.WARM
            raise _PointDeleted
        if not plan.is_whole:
            with contextlib.suppress(CannotCompose):
                pieces = cut(stored_layout(recipe, self._blocks), n_tokens)
                self._staging.link(self._compose_file(pieces, recipe, target, cancelled), target)
                return n_tokens, Tier.DISK
        self._rebuild(point, recipe, window, target, cancelled)  # the engine cuts what kvchat cannot
        return point.n_tokens, Tier.DISK

    def _rebuild(
        self, point: SavePoint, recipe: Recipe, window: int, target: Path | None, cancelled: CancelCheck
    ) -> None:
        """Compose the whole slot file, link it to `target` if given, and keep it warm."""
        plan: Plan = (Span(0, recipe.file_size),)
        if window:
            with contextlib.suppress(CannotCompose):  # the chat is within the window, or its layout is unknown
                plan = with_masked_rows(stored_layout(recipe, self._blocks), window)
        file = self._compose_file(plan, recipe, target, cancelled)
        if target is not None:
            self._staging.link(file, target)
        if file != target:
            self._staging.add_warm(point.id, file, window, absorbed=True)
            self._staging.trim()

    def _compose_file(self, plan: Plan, recipe: Recipe, target: Path | None, cancelled: CancelCheck) -> Path:
        """Compose the planned file in RAM, or on disk if RAM runs out. Raises what `compose` raises."""
        file = self._staging.allocate(sum(map(len, plan)), target)
        try:
            compose(plan, recipe, self._blocks, file, cancelled, low_priority=target is None)
        except OSError:
            if not self._staging.is_in_memory(file):
                raise
            file = self._staging.new_path_on_disk()
            compose(plan, recipe, self._blocks, file, cancelled, low_priority=target is None)
        return file

    def _failure_reason(self, point_id: str, error: Exception) -> Reason:
        """Delete damaged blocks or save points; return the reason that the restore failed."""
        if isinstance(error, OSError):
            return Reason(ReasonCode.NOT_STAGED, {"error": str(error.strerror)})
        if isinstance(error, IndexLost | IndexFailed):
            return _unreadable_reason(error)
        try:
            with self._index.read() as db:
                exists = points.load(db, int(point_id)) is not None
            if exists and isinstance(error, RebuildFailed) and error.bad_blocks:
                self._inventory.delete_bad_blocks(error.bad_blocks)
            elif exists and not isinstance(error, _PointDeleted):
                cause = Reason(ReasonCode.ERROR, {"message": str(error)})
                self._inventory.delete_unusable(point_id, cause, notify=True)
            with self._index.read() as db:
                reason = usage.find_loss(db, "save_point_id = ?", int(point_id))
        except (IndexLost, IndexFailed) as second:
            return Reason(ReasonCode.NOT_READABLE, {"error": second.detail})
        if reason is None and exists and not isinstance(error, _PointDeleted):
            return Reason(ReasonCode.PART_DAMAGED, {"error": str(error)})
        return reason or Reason(ReasonCode.DELETED_MEANWHILE)


def _unreadable_reason(error: IndexLost | IndexFailed) -> Reason:
    if isinstance(error, IndexLost):
        return Reason(ReasonCode.INDEX_LOST)
    return Reason(ReasonCode.NOT_READABLE, {"error": error.error})


def is_worth_restoring(shared: int, saved: int, prompt: int) -> bool:
    """True if `shared` tokens reach MIN_RESTORED_TOKENS, or half of the prompt or of the save point."""
    return shared >= MIN_RESTORED_TOKENS or (shared > 0 and 2 * shared >= min(saved, prompt))


def _miss_reason(
    db: sqlite3.Connection,
    conversation_id: str,
    fingerprint: Fingerprint,
    fingerprint_id: int | None,
    trees: Sequence[int],
    prompt: Tokens,
) -> Reason:
    is_program = bool(program_of(conversation_id))
    loss = usage.find_loss(db, "conversation = ? AND fingerprint_id = ?", conversation_id, fingerprint_id)
    if loss is not None:
        return loss
    query = (
        "SELECT facts FROM save_points s JOIN conversations c ON c.id = s.conversation_id JOIN fingerprints f"
        " ON f.id = s.fingerprint_id WHERE c.name = ? GROUP BY f.id ORDER BY max(s.created_at)"
    )
    others = [parse_fingerprint(facts) for (facts,) in db.execute(query, (conversation_id,))]
    if fingerprint in others:
        nearest = next(token_tree.find_matches(db, trees, prompt), None)
        shared = nearest.shared if nearest else 0
        if shared >= MIN_RESTORED_TOKENS:
            return Reason(ReasonCode.GOES_ON_OTHERWISE if is_program else ReasonCode.CANNOT_GO_BACK)
        if is_program:
            return Reason(ReasonCode.NOTHING_ALIKE)
        return Reason(ReasonCode.BEGINS_DIFFERENTLY, {"shared": shared})
    if others:
        differences = others[-1].differences(fingerprint)
        if differences == (Reason(ReasonCode.MODEL),):
            return Reason(ReasonCode.OTHER_MODEL)
        return Reason(ReasonCode.OTHER_SETTINGS, {"settings": differences})
    nothing = Reason(ReasonCode.NOTHING_ALIKE if is_program else ReasonCode.NOTHING_SAVED)
    if lost_at := usage.index_lost_at(db):
        return Reason(ReasonCode.INDEX_LOST_ON, {"reason": nothing, "day": f"{lost_at:%Y-%m-%d}"})
    return nothing
