"""From a prompt to a verified slot file: find the best save point, and put its file into the engine's folder."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from kvchat.kvstore import disk
from kvchat.kvstore.audience import readable_by
from kvchat.kvstore.blocks import header as slotfile
from kvchat.kvstore.blocks.plan import CannotCompose, Plan, cut, size_of, whole, with_masked_rows
from kvchat.kvstore.blocks.rebuild import Unusable, compose, stored_layout
from kvchat.kvstore.blocks.recipe import Recipe, RecipeError
from kvchat.kvstore.index import points as index_points
from kvchat.kvstore.index import recipes as index_recipes
from kvchat.kvstore.index import token_tree
from kvchat.kvstore.index import usage as index_usage
from kvchat.kvstore.index.index import IndexFailed, IndexLost
from kvchat.kvstore.index.schema import CorruptIndex
from kvchat.kvstore.parts import Parts
from kvchat.kvstore.savepoint import (
    CancelCheck,
    Cancelled,
    Fingerprint,
    Miss,
    RestorePlan,
    SavePoint,
    StagedFile,
    Tier,
    Tokens,
    never,
    program_of,
)
from kvchat.kvstore.saving import Window
from kvchat.words.reasons import Reason, ReasonCode

MOST_PLACES = 500  # looked at for a plan; beyond them all share too little, or wait in other processes
WORTH_RESTORING = 32  # tokens; any two conversations under one chat template may share this many


class Restoring:
    """Finds save points and gives their files. Safe for threads."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def find(
        self, fingerprint: Fingerprint, prompt: Tokens, *, can_cut: bool, conversation_id: str
    ) -> RestorePlan | Miss:
        try:
            with self._parts.index.read() as db:
                kind = index_points.fingerprint_id(db, fingerprint)
                trees = index_points.trees(db, kind, readable_by(conversation_id))
                if plan := self._best(db, trees, prompt, can_cut=can_cut):
                    return plan
                return Miss(_why_nothing(db, conversation_id, fingerprint, kind, prompt))
        except (IndexLost, IndexFailed) as error:
            return Miss(_unreadable(error))

    def stage(
        self, plan: RestorePlan, slot_path: Path, *, window: int = 0, cancelled: CancelCheck = never
    ) -> StagedFile | Miss:
        target = slot_path / f"{disk.name_for_engine()}.slot"
        try:
            if cancelled():
                raise Cancelled
            n_tokens, tier = self._put(plan, target, window, cancelled)
            _prove(target, plan.save_point.tokens[:n_tokens])
            self._parts.used[int(plan.save_point.id)] = self._parts.clock()
        except (_Gone, Unusable, RecipeError, IndexLost, IndexFailed, OSError) as error:
            self._parts.staging.unstage(target, engine_done=True)
            return Miss(self._why_not(plan, error))
        return StagedFile(plan.save_point, target, n_tokens, tier)

    def complete_window(self, window: Window, cancelled: CancelCheck) -> None:
        """Make the file that a restore of a sliding-window model needs, and keep that warm. For a background thread.

        Where there is damage nothing is done: the restore that meets it deals with it. Raises IndexLost, IndexFailed.
        """
        if not self._parts.staging.in_memory:
            return
        with contextlib.suppress(Unusable, RecipeError, OSError, Cancelled):
            with self._parts.index.read() as db:
                point = index_points.load(db, int(window.point_id))
                recipe = index_recipes.load_recipe(db, int(window.point_id))
            if point is not None and recipe is not None:
                self._make_whole(point, recipe, window.tokens, None, cancelled)

    def _best(
        self, db: sqlite3.Connection, trees: Sequence[int], prompt: Tokens, *, can_cut: bool
    ) -> RestorePlan | None:
        """The plan that leaves the least to prefill. What is not worth it by its own length is not even loaded."""
        look = token_tree.places if can_cut else token_tree.whole_places
        barren: set[int] = set()
        for place in islice(look(db, trees, prompt), MOST_PLACES):
            if worth_restoring(place.shared, place.n_tokens, len(prompt)):
                point = self._point_at(db, place, len(prompt), barren, can_cut=can_cut)
                if point and point.tokens[: place.shared] != prompt[: place.shared]:
                    raise CorruptIndex
                if point and worth_restoring(place.shared, point.n_tokens, len(prompt)):
                    return self._plan(point, place.shared)
        return None

    def _point_at(
        self, db: sqlite3.Connection, place: token_tree.Place, prompt: int, barren: set[int], *, can_cut: bool
    ) -> SavePoint | None:
        """A save point for a place in the token tree: exactly there, else beyond it if it can be cut back.

        A state that cannot be cut must leave the engine a token to evaluate.
        """
        ids = token_tree.at(db, place.node_id) if place.whole and (can_cut or place.shared < prompt) else []
        ids.sort(key=lambda one: self._parts.staging.warm(str(one)) is None)
        beyond = token_tree.below(db, place.node_id, barren) if can_cut and not ids else None
        chosen = ids[0] if ids else beyond
        return index_points.load(db, chosen) if chosen is not None else None

    def _plan(self, point: SavePoint, shared: int) -> RestorePlan:
        warm = self._parts.staging.warm(point.id) is not None and 2 * shared >= point.n_tokens
        size = point.size if warm else point.size * shared // point.n_tokens
        return RestorePlan(point, shared, Tier.WARM if warm else Tier.DISK, size)

    def _put(self, plan: RestorePlan, target: Path, window: int, cancelled: CancelCheck) -> tuple[int, Tier]:
        """Make the file at `target`; returns how many tokens it holds and where it came from."""
        parts, point, n_tokens = self._parts, plan.save_point, plan.tokens_used
        if (plan.tier is Tier.WARM or plan.whole) and parts.staging.give(point.id, window, target):
            return point.n_tokens, Tier.WARM
        with parts.index.read() as db:
            recipe = index_recipes.load_recipe(db, int(point.id))
        if recipe is None:
            if parts.staging.give(point.id, 0, target):  # not absorbed yet: the engine itself cuts it back
                return point.n_tokens, Tier.WARM
            raise _Gone
        if not plan.whole:
            with contextlib.suppress(CannotCompose):
                pieces = cut(stored_layout(recipe, parts.blocks), n_tokens)
                parts.staging.hand(self._composed(pieces, recipe, target, cancelled), target)
                return n_tokens, Tier.DISK
        self._make_whole(point, recipe, window, target, cancelled)  # what cannot be cut here the engine itself cuts
        return point.n_tokens, Tier.DISK

    def _make_whole(
        self, point: SavePoint, recipe: Recipe, window: int, target: Path | None, cancelled: CancelCheck
    ) -> None:
        """The file, with the row its windows lack, at `target` if somebody waits; warm if it can be."""
        parts = self._parts
        plan = whole(recipe.file_size)
        if window:
            with contextlib.suppress(CannotCompose):  # as short as its windows, or of unknown layout
                plan = with_masked_rows(stored_layout(recipe, parts.blocks), window)
        file = self._composed(plan, recipe, target, cancelled)
        if target is not None:
            parts.staging.hand(file, target)
        if file != target:
            parts.staging.keep(point.id, file, window, waits=False)
            parts.staging.trim(parts.unabsorbed())

    def _composed(self, plan: Plan, recipe: Recipe, target: Path | None, cancelled: CancelCheck) -> Path:
        """The planned file. If memory cannot hold it after all, the disk may. Raises as `compose` does."""
        parts, gives_way = self._parts, target is None
        file = parts.staging.blank(size_of(plan), target, parts.unabsorbed())
        try:
            compose(plan, recipe, parts.blocks, file, cancelled, gives_way=gives_way)
        except OSError:
            if not parts.staging.is_in_memory(file):
                raise
            file = parts.staging.blank_on_disk()
            compose(plan, recipe, parts.blocks, file, cancelled, gives_way=gives_way)
        return file

    def _why_not(self, plan: RestorePlan, error: Exception) -> Reason:
        parts, point_id = self._parts, plan.save_point.id
        if isinstance(error, OSError):
            return Reason(ReasonCode.NOT_STAGED, {"error": str(error.strerror)})
        if isinstance(error, IndexLost | IndexFailed):
            return _unreadable(error)
        try:
            with parts.index.read() as db:
                there = index_points.load(db, int(point_id)) is not None
            if there and isinstance(error, Unusable) and error.bad:
                parts.put_aside(error.bad)
            elif there and not isinstance(error, _Gone):
                parts.lose(point_id, Reason(ReasonCode.ERROR, {"message": str(error)}), tell=True)
            with parts.index.read() as db:
                reason = index_usage.loss_of(db, int(point_id))
        except (IndexLost, IndexFailed) as second:
            return Reason(ReasonCode.NOT_READABLE, {"error": str(second)})
        if reason is None and there and not isinstance(error, _Gone):
            return Reason(ReasonCode.PART_DAMAGED, {"error": str(error)})
        return reason or Reason(ReasonCode.DELETED_MEANWHILE)


def _unreadable(error: IndexLost | IndexFailed) -> Reason:
    if isinstance(error, IndexLost):
        return Reason(ReasonCode.INDEX_LOST)
    return Reason(ReasonCode.NOT_READABLE, {"error": str(error)})


def _prove(slot_file: Path, tokens: Tokens) -> None:
    """That the file stands for these tokens: the index may have it for something else. Raises RecipeError."""
    with contextlib.suppress(slotfile.SlotFileError):
        if slotfile.stands_for(slotfile.read_tokens(slot_file), tokens):
            return
    raise RecipeError("it holds something else")


class _Gone(Exception):
    """The save point was deleted since it was found."""


def worth_restoring(shared: int, saved: int, prompt: int) -> bool:
    """True if a save point of `saved` tokens is worth reading back for `shared` leading tokens of the prompt.

    Fewer than 32 tokens are only worth it where one of the two is itself so short that they are half of it.
    """
    return shared >= WORTH_RESTORING or (shared > 0 and 2 * shared >= min(saved, prompt))


def _why_nothing(
    db: sqlite3.Connection, conversation_id: str, fingerprint: Fingerprint, kind: int | None, prompt: Tokens
) -> Reason:
    """Why no save point can be used: of a chat, or of one of a program's many."""
    program = bool(program_of(conversation_id))
    note = index_usage.newest_loss(db, conversation_id, kind)
    if note is not None:
        return note
    others = index_points.fingerprints_of(db, conversation_id)
    if fingerprint in others and kind is not None:
        trees = index_points.trees(db, kind, readable_by(conversation_id))
        nearest = next(token_tree.places(db, trees, prompt), None)
        shared = nearest.shared if nearest else 0
        if shared >= WORTH_RESTORING:
            return Reason(ReasonCode.GOES_ON_OTHERWISE if program else ReasonCode.CANNOT_GO_BACK)
        if program:
            return Reason(ReasonCode.NOTHING_ALIKE)
        return Reason(ReasonCode.BEGINS_DIFFERENTLY, {"shared": shared})
    if others:
        differences = others[-1].differences(fingerprint)
        if differences == (Reason(ReasonCode.MODEL),):
            return Reason(ReasonCode.OTHER_MODEL)
        return Reason(ReasonCode.OTHER_SETTINGS, {"settings": differences})
    nothing = Reason(ReasonCode.NOTHING_ALIKE if program else ReasonCode.NOTHING_SAVED)
    if lost_at := index_usage.index_lost_at(db):
        return Reason(ReasonCode.INDEX_LOST_ON, {"reason": nothing, "day": f"{lost_at:%Y-%m-%d}"})
    return nothing
