"""Saving: turns slot files saved by the engine into save points, and absorbs them into the store later."""

import contextlib
import sqlite3
import threading
from pathlib import Path

from kvchat.kvstore.blocks import parser
from kvchat.kvstore.blocks.absorb import PreviousSave, split_slot_file
from kvchat.kvstore.blocks.block_files import FileChanged
from kvchat.kvstore.index import points, token_tree, usage
from kvchat.kvstore.index.index import not_saved_error, saving_errors
from kvchat.kvstore.inventory import Inventory
from kvchat.kvstore.savepoint import (
    AbsorbReport,
    CancelCheck,
    Cancelled,
    Fingerprint,
    NotSaved,
    Predecessor,
    SavePoint,
    StoreRefused,
    Tokens,
    audience_of,
    common_prefix,
    shareable_audiences,
)
from kvchat.text.formatting import format_size
from kvchat.text.reasons import Reason, ReasonCode

_CHECK_INTERVAL_S = 0.05  # cancellation poll while another thread absorbs
_MAX_ATTEMPTS = 3  # another thread may delete a block before the recipe refers to it


class Saver:
    def __init__(self, inventory: Inventory) -> None:
        self._inventory, self._index = inventory, inventory.index
        self._staging, self._blocks = inventory.staging, inventory.blocks
        self._absorbing = threading.Lock()
        # Save point and window, by conversation, of the newest file that lacks a row for a sliding window.
        self.windows: dict[str, tuple[str, int]] = {}
        self._predecessors: dict[str, Predecessor] = {}  # by unabsorbed save point

    @saving_errors()
    def prepare_save(
        self, size: int, conversation_id: str, path: Path, fingerprint: Fingerprint, tokens: Tokens
    ) -> None:
        """Prepare for a save of about `size` bytes. Raises NotSaved if there is no room or saving is off.

        `path`: the file that the engine will save; call `add` or `Staging.discard_saved` for it afterwards.
        `tokens`: tokens of the slot; a prefix already in the store needs no room.
        """
        with self._index.read() as db:
            if points.is_never_saved(db, conversation_id):
                raise NotSaved(Reason(ReasonCode.NEVER_SAVED))
            before = _find_known(db, fingerprint, tokens, audience_of(conversation_id))
        to_write = _new_bytes(size, len(tokens), before)  # as blocks
        if not self._staging.redirect_to_memory(path, size):
            to_write += size  # the engine's file
        try:
            if self._inventory.free_bytes() - to_write < self._inventory.bounds.free_floor:
                self._staging.trim(include_disk=True)
            self._inventory.require_room(size, to_write, conversation_id)
        except NotSaved:
            self._staging.discard_saved(path)
            raise

    @saving_errors()
    def add(
        self,
        slot_file: Path,
        conversation_id: str,
        fingerprint: Fingerprint,
        expected: Tokens,
        expected_size: int | None = None,
        prefill_ms: float = 0.0,
        window: int = 0,
        message_id: str | None = None,
        predecessor: Predecessor | None = None,
        audience: str | None = None,
    ) -> SavePoint:
        """Turn a file just saved by the engine into a warm save point, to be absorbed later.

        `expected_size`: bytes reported by the engine. `prefill_ms`: estimated time to process the tokens again.
        `window`: as for `Restorer.stage`; the file with the added row is built after this one is absorbed.
        `message_id`: last message in the tokens; deleting the message deletes the save point.
        `predecessor`: the save point that the slot continues from; its unchanged rows are not read again.
        `audience`: audience of the save point, by default the conversation's.
        The file is always moved or deleted. Raises NotSaved if it is empty or incomplete, its tokens are not
        `expected`, it exceeds the bounds, or saving is off for the conversation.
        """
        staged, point = slot_file, None
        audience = audience_of(conversation_id) if audience is None else audience
        try:
            size = _check_saved(slot_file, expected, expected_size)
            self._inventory.require_room(size, 0, conversation_id)
            new = SavePoint("", conversation_id, fingerprint, expected, size, prefill_ms, audience)
            staged = self._staging.claim_saved(slot_file)  # outside the index lock: it may be a slow copy
            with self._index.write() as db:
                if points.is_never_saved(db, conversation_id):
                    raise NotSaved(Reason(ReasonCode.NEVER_SAVED))
                point = points.add_staged(db, new, message_id, self._inventory.clock())
                self._staging.add_warm(point.id, staged)
                if not self._staging.is_in_memory(staged):
                    usage.count_written(db, size)
        except BaseException as error:
            if point is not None:
                self._staging.drop(point.id)
            if isinstance(error, OSError):
                raise not_saved_error(error) from error
            raise
        finally:
            self._staging.discard_saved(slot_file)
            with contextlib.suppress(OSError):
                staged.unlink(missing_ok=True)
        if predecessor is not None:
            self._predecessors[point.id] = predecessor
        if window:
            self.windows[conversation_id] = point.id, window
        self._staging.trim()
        return point

    def absorb(self, cancelled: CancelCheck, *, low_priority: bool = False) -> AbsorbReport:
        """Absorb the staged files, that is, split them into blocks, until cancelled.

        With `low_priority`, runs at the lowest CPU priority. Save points that cannot be stored are deleted; the report
        gives the reasons.
        """
        absorbed = 0
        refused: list[Reason] = []
        while not self._absorbing.acquire(timeout=_CHECK_INTERVAL_S):
            if cancelled():
                return AbsorbReport(0, ())
        try:
            for point_id in sorted(self._inventory.unabsorbed_points(), key=int):
                if cancelled():
                    break
                try:
                    absorbed += self._absorb(point_id, cancelled, low_priority)
                except Cancelled:
                    break
                except (NotSaved, OSError, FileChanged) as error:
                    if point_id in self._inventory.unabsorbed_points():  # else it was deleted meanwhile with its file
                        if isinstance(error, OSError):
                            error = not_saved_error(error)
                        refused.append(error.reason if isinstance(error, NotSaved) else Reason(ReasonCode.FILE_CHANGED))
                        self._inventory.delete_unusable(point_id, refused[-1])
                finally:
                    with contextlib.suppress(StoreRefused):  # retried next time
                        self._inventory.delete_unindexed(list(self._blocks.new_block_sizes))
        finally:
            self._absorbing.release()
        if absorbed:
            self._staging.trim()
        return AbsorbReport(absorbed, tuple(refused))

    @saving_errors()
    def _absorb(self, point_id: str, cancelled: CancelCheck, low_priority: bool) -> bool:
        """Absorb a save point; False if it was deleted meanwhile. Raises NotSaved, OSError, FileChanged, Cancelled."""
        slot_file = self._staging.find_warm(point_id)
        with self._index.read() as db:
            point = points.load(db, int(point_id))
            if point is None:
                self._staging.drop(point_id)
                return False
            before: PreviousSave | None = None
            if predecessor := self._predecessors.get(point_id):
                origin = points.load(db, int(predecessor.point_id))
                recipe = points.find_recipe(db, int(predecessor.point_id))
                if origin is not None and recipe is not None and origin.fingerprint == point.fingerprint:
                    shared = common_prefix(origin.tokens, point.tokens)
                    before = PreviousSave(recipe, shared, min(shared, predecessor.unchanged_tokens))
            before = before or _find_known(db, point.fingerprint, point.tokens, point.audience)
        if slot_file is None:
            raise FileChanged("the file changed before it was absorbed")
        new = _new_bytes(point.size, point.n_tokens, before)
        self._inventory.require_room(new, new, point.conversation_id)
        total = 0
        for _attempt in range(_MAX_ATTEMPTS):
            recipe, written = split_slot_file(slot_file, before, self._blocks, cancelled, low_priority=low_priority)
            total += written
            with self._index.write() as db:
                on_disk = self._blocks.disk_usages(recipe.block_sizes)
                if on_disk is None:
                    continue  # a block was deleted after it was written or found
                usage.count_written(db, total)
                stored = points.store_recipe(db, int(point_id), recipe, on_disk)
            self._predecessors.pop(point_id, None)
            if stored:
                self._blocks.forget_new_blocks(on_disk)
                self._staging.mark_absorbed(point_id)
                if self.windows.get(point.conversation_id, (point_id,))[0] != point_id:
                    self._staging.drop(point_id)  # no engine can use it without the row
            return stored
        raise NotSaved(Reason(ReasonCode.BLOCKS_DELETED))


def _check_saved(slot_file: Path, expected: Tokens, expected_size: int | None) -> int:
    """Return a saved file's size. Raises NotSaved unless the file is complete and has the expected tokens."""
    try:
        size = slot_file.stat().st_size
        tokens = parser.read_tokens(slot_file)
    except FileNotFoundError:
        raise NotSaved(Reason(ReasonCode.NO_FILE)) from None
    except parser.SlotFileError as error:
        raise NotSaved(Reason(ReasonCode.FILE_BROKEN, {"error": str(error)})) from error
    if expected_size is not None and size != expected_size:
        places = {"written": format_size(expected_size), "there": format_size(size)}
        raise NotSaved(Reason(ReasonCode.FILE_CUT, places))
    if not len(tokens):
        raise NotSaved(Reason(ReasonCode.NOTHING_HELD))
    if not parser.matches_tokens(tokens, expected):
        shared = common_prefix(tokens.tolist(), expected)
        raise NotSaved(Reason(ReasonCode.OTHERS_HELD, {"tokens": len(tokens), "shared": shared}))
    return size


def _new_bytes(size: int, n_tokens: int, previous: PreviousSave | None) -> int:
    return size * (n_tokens - previous.shared_tokens) // n_tokens if previous else size


def _find_known(db: sqlite3.Connection, fingerprint: Fingerprint, tokens: Tokens, audience: str) -> PreviousSave | None:
    trees = points.find_trees(db, points.find_fingerprint(db, fingerprint), shareable_audiences(audience))
    empty_nodes: set[int] = set()
    for match in token_tree.find_matches(db, trees, tokens):
        point_id = token_tree.find_point_below(db, match.node_id, empty_nodes, absorbed=True)
        if point_id is not None and (recipe := points.find_recipe(db, point_id)):
            return PreviousSave(recipe, match.shared)
    return None
