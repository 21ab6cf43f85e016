"""Export of save points from one store and import into another. Each block is checked against its name, a hash."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from blake3 import blake3

from kvchat.kvstore import disk
from kvchat.kvstore.blocks.block_files import BlockFiles
from kvchat.kvstore.blocks.recipe import (
    RESIDUE,
    RESIDUE_CHUNK_BYTES,
    BlockUse,
    Recipe,
    RecipeError,
    check_complete,
    row_map_from_json,
    row_map_to_json,
)
from kvchat.kvstore.index import points, usage
from kvchat.kvstore.index.index import check_store, not_saved_error, open_read_only, saving_errors
from kvchat.kvstore.inventory import Inventory
from kvchat.kvstore.savepoint import (
    Fingerprint,
    NotSaved,
    SavePoint,
    StoreRefused,
    Tokens,
    common_prefix,
    imported_audience,
)
from kvchat.text.language import N_, _
from kvchat.text.reasons import Reason, ReasonCode

FORMAT, VERSION = "kvchat-memory", 1
_MAX_NUMBER = 1 << 50
_MAX_TOKEN = 1 << 31
_BLOCK_NAME_BYTES = 32
_MAX_POINTS = 100  # the newest of a conversation; older ones matter only for states that cannot be cut
_PIECE_BYTES = 1 << 20
_MEMORY_CHANGED = (
    N_("Part of this chat’s memory was deleted or damaged in the meantime."),
    "",
    N_("Try again, or export the chat without its memory."),
)

BlockStream = Iterator[tuple[bytes, Iterable[bytes]]]  # block name, and in pieces its content of the manifest's size


class BadMemory(ValueError):
    """An exported memory that cannot be imported; the message gives the reason."""


@dataclass(frozen=True)
class ManifestPoint:
    tokens: Tokens
    message_id: str | None  # last message in the tokens
    prefill_ms: float  # estimated processing time on the source machine
    recipe: Recipe


@dataclass(frozen=True)
class Manifest:
    """The exported save points of one conversation and fingerprint, oldest first."""

    fingerprint: Fingerprint
    points: tuple[ManifestPoint, ...]

    @cached_property
    def block_sizes(self) -> dict[bytes, int]:
        return {name: size for point in self.points for name, size in point.recipe.block_sizes.items()}

    @property
    def bytes(self) -> int:
        return sum(self.block_sizes.values())

    @property
    def n_tokens(self) -> int:
        return max(len(point.tokens) for point in self.points)


def manifest_to_json(manifest: Manifest) -> dict[str, Any]:
    numbers = {name: number for number, name in enumerate(manifest.block_sizes)}
    carried, before = [], Tokens()
    for point in manifest.points:
        shared, recipe = common_prefix(before, point.tokens), point.recipe
        carried.append(
            {
                "shared": shared,
                "tokens": point.tokens[shared:],
                "message_id": point.message_id,
                "prefill_ms": point.prefill_ms,
                "file_size": recipe.file_size,
                "row_map": row_map_to_json(recipe.row_map),
                "uses": [[numbers[u.block], u.cache, u.row, u.rows, u.skip, u.position] for u in recipe.uses],
            }
        )
        before = point.tokens
    blocks = [[name.hex(), size] for name, size in manifest.block_sizes.items()]
    fingerprint = asdict(manifest.fingerprint)
    return {"format": FORMAT, "version": VERSION, "fingerprint": fingerprint, "blocks": blocks, "points": carried}


def manifest_from_json(data: Any) -> Manifest:
    """Parse and check an untrusted manifest. Raises BadMemory."""
    try:
        if data["format"] != FORMAT or data["version"] != VERSION:
            raise BadMemory(_("it was created by a newer version of kvchat"))
        blocks = [(bytes.fromhex(name), _checked_number(size)) for name, size in data["blocks"]]
        if any(len(name) != _BLOCK_NAME_BYTES for name, _ in blocks):
            raise BadMemory(_("a block has an invalid name"))
        carried: list[ManifestPoint] = []
        for entry in data["points"]:
            carried.append(_parse_point(entry, blocks, carried[-1].tokens if carried else ()))
        try:
            manifest = Manifest(Fingerprint(**data["fingerprint"]), tuple(carried))
        except TypeError:
            raise BadMemory(_("its engine details are invalid")) from None
    except BadMemory:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecipeError) as error:
        raise BadMemory(_("its manifest is invalid")) from error
    if not carried or manifest.block_sizes != dict(blocks):
        raise BadMemory(_("its manifest does not match its contents"))
    return manifest


def _parse_point(entry: Any, blocks: Sequence[tuple[bytes, int]], before: Tokens) -> ManifestPoint:
    """Parse one save point of a manifest; `before` are the tokens of the save point before it.

    Raises BadMemory, RecipeError, and the built-in errors that `manifest_from_json` catches.
    """
    shared, message_id = _checked_number(entry["shared"]), entry["message_id"]
    tokens = (*before[:shared], *(_checked_number(token, -_MAX_TOKEN, _MAX_TOKEN) for token in entry["tokens"]))
    if shared > len(before) or not tokens or not isinstance(message_id, str | None):
        raise BadMemory(_("a save point is invalid"))
    uses = []
    for number, cache, *place in entry["uses"]:
        row, rows, skip, position = map(_checked_number, place)
        if cache == RESIDUE and rows > RESIDUE_CHUNK_BYTES:
            raise BadMemory(_("a block is too large when unpacked"))
        uses.append(
            BlockUse(*blocks[_checked_number(number)], _checked_number(cache, RESIDUE), row, rows, skip, position)
        )
    recipe = Recipe(_checked_number(entry["file_size"], 1), row_map_from_json(entry["row_map"]), tuple(uses))
    check_complete(recipe)
    prefill_ms = entry["prefill_ms"]
    if type(prefill_ms) not in (int, float) or not isfinite(prefill_ms) or not 0 <= prefill_ms < _MAX_NUMBER:
        raise BadMemory(_("a number in its manifest is out of range"))
    return ManifestPoint(tokens, message_id, float(prefill_ms), recipe)


def _checked_number(value: Any, minimum: int = 0, limit: int = _MAX_NUMBER) -> int:
    if type(value) is not int or not minimum <= value < limit:
        raise BadMemory(_("a number in its manifest is out of range"))
    return value


def stored_manifest(folder: Path, conversation_id: str) -> Manifest | None:
    """Return a manifest of a conversation's absorbed save points, or None if there are none.

    Leaves out save points whose fingerprint differs from the newest one's. Never writes, as another process may own the
    folder. Raises KvchatError.
    """
    index = folder / disk.INDEX
    if not index.exists():
        return None
    check_store(folder)
    carried: list[ManifestPoint] = []
    with open_read_only(index) as db:
        query = (
            "SELECT s.id, message_id FROM save_points s JOIN conversations c ON c.id = s.conversation_id"
            " WHERE name = ? AND link_id IS NOT NULL ORDER BY s.id"
        )
        messages = dict(db.execute(query, (conversation_id,)).fetchall())
        newest = points.load(db, max(messages)) if messages else None
        for point_id, message_id in [*messages.items()][-_MAX_POINTS:]:
            point, recipe = points.load(db, point_id), points.find_recipe(db, point_id)
            if newest and point and recipe and point.fingerprint == newest.fingerprint:
                before = carried[-1].tokens if carried else ()
                shared = common_prefix(before, point.tokens)  # reuse the same int objects
                tokens = before[:shared] + point.tokens[shared:]
                carried.append(ManifestPoint(tokens, message_id, point.prefill_ms, recipe))
    return Manifest(newest.fingerprint, tuple(carried)) if newest and carried else None


def read_blocks(folder: Path, manifest: Manifest) -> BlockStream:
    """Yield the manifest's blocks from the store in `folder`. Reading a damaged block raises StoreRefused."""
    blocks = BlockFiles(folder / disk.BLOCKS)

    def read(name: bytes, size: int) -> Iterator[bytes]:
        digest = blake3()
        try:
            with blocks.path(name).open("rb", buffering=0) as file:
                while piece := file.read(_PIECE_BYTES):
                    size -= len(piece)
                    digest.update(piece)
                    yield piece
        except OSError as error:
            raise StoreRefused(*_MEMORY_CHANGED) from error
        if size or digest.digest() != name:
            raise StoreRefused(*_MEMORY_CHANGED)

    for name, size in manifest.block_sizes.items():
        yield name, read(name, size)


def import_memory(inventory: Inventory, conversation_id: str, manifest: Manifest, stream: BlockStream) -> int:
    """Import save points for one conversation, all or none; return the number of new bytes.

    The contents of existing blocks are not read. Raises BadMemory if `stream` does not match the manifest, StoreRefused
    if saving is off for the conversation or there is no room, and any error of `stream`.
    """
    # A separate record of new blocks: another thread's cleanup must not delete them.
    files = BlockFiles(inventory.blocks.folder, sync=inventory.blocks.sync)
    new = sum(size for name, size in manifest.block_sizes.items() if files.disk_usage(name, size) is None)
    inventory.require_room(max(point.recipe.file_size for point in manifest.points), 0)
    inventory.require_room(new, new)
    try:
        xxh3 = _store_blocks(files, manifest, stream)
        written = sum(manifest.block_sizes[name] for name in xxh3)
        newest = _add_save_points(inventory, conversation_id, manifest, files, xxh3, written)
    except OSError as error:
        raise not_saved_error(error) from error
    finally:
        with contextlib.suppress(StoreRefused):
            inventory.delete_unindexed(list(files.new_block_sizes))
    inventory.enforce_bounds(protected_id=newest)
    return written


def _store_blocks(files: BlockFiles, manifest: Manifest, stream: BlockStream) -> dict[bytes, bytes]:
    """Write the blocks that the store lacks; return their XXH3 hashes by name."""
    missing, xxh3 = dict(manifest.block_sizes), {}
    for name, content in stream:
        size = missing.pop(name, None)
        if size is None:
            raise BadMemory(_("it contains a duplicate or unused block"))
        if files.disk_usage(name, size) is not None:
            continue
        written = files.write(content)
        if written.name != name or written.size != size:
            files.discard(written)
            raise BadMemory(_("part of it is damaged"))
        files.commit(written)
        xxh3[name] = written.xxh3
    if missing:
        raise BadMemory(_("part of it is missing"))
    return xxh3


@saving_errors()
def _add_save_points(
    inventory: Inventory,
    conversation_id: str,
    manifest: Manifest,
    files: BlockFiles,
    xxh3: dict[bytes, bytes],
    written: int,
) -> int:
    """Add the save points to the index; return the id of the newest."""
    audience = imported_audience(conversation_id)
    with inventory.index.write() as db:
        if points.is_never_saved(db, conversation_id):
            raise NotSaved(Reason(ReasonCode.NEVER_SAVED))
        on_disk = files.disk_usages(manifest.block_sizes)
        if on_disk is None:
            raise StoreRefused(*_MEMORY_CHANGED)
        usage.count_written(db, written)
        for point in manifest.points:
            uses = tuple(replace(use, xxh3=xxh3.get(use.block, b"")) for use in point.recipe.uses)
            state = conversation_id, manifest.fingerprint, point.tokens, point.recipe.file_size
            new = SavePoint("", *state, point.prefill_ms, audience)
            newest = int(points.add_staged(db, new, point.message_id, inventory.clock()).id)
            points.store_recipe(db, newest, replace(point.recipe, uses=uses), on_disk)
    files.forget_new_blocks(on_disk)
    return newest
