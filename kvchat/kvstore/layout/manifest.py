"""What a chat's memory consists of when it leaves the store: plain values, and their form in JSON.

Tokens and blocks stand there once: those of a save point that the one before it has are told by their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import isfinite
from typing import Any

from kvchat.kvstore.layout.layout import CacheRows, Region, RowMap, Run
from kvchat.kvstore.layout.recipe import RESIDUE, RESIDUE_CHUNK, BlockUse, Recipe, RecipeError, check_whole
from kvchat.kvstore.savepoint import Fingerprint, Tokens, common_prefix
from kvchat.words.language import _

FORMAT, VERSION = "kvchat-memory", 1
_MOST = 1 << 50  # of any number in it
_MOST_TOKEN = 1 << 31
_BLOCK_NAME = 32  # bytes


class BadMemory(ValueError):
    """It is no memory that a store could take in, and why, in words."""


@dataclass(frozen=True)
class CarriedPoint:
    """A save point without its blocks."""

    tokens: Tokens
    message_id: str | None  # the last message that they hold
    prefill_ms: float  # estimate: how long reading them takes where it was saved
    recipe: Recipe


@dataclass(frozen=True)
class Manifest:
    """Save points of one conversation under one fingerprint, the oldest first, and the blocks they need."""

    fingerprint: Fingerprint
    points: tuple[CarriedPoint, ...]

    @cached_property
    def blocks(self) -> dict[bytes, int]:
        """Bytes of each block, by its name, in the order of their first use."""
        return {use.block: use.size for point in self.points for use in point.recipe.uses}

    @property
    def bytes(self) -> int:
        """Of all blocks."""
        return sum(self.blocks.values())

    @property
    def n_tokens(self) -> int:
        """Of the longest save point."""
        return max(len(point.tokens) for point in self.points)


def to_json(manifest: Manifest) -> dict[str, Any]:
    """The manifest as values for JSON."""
    numbers = {name: number for number, name in enumerate(manifest.blocks)}
    points, before = [], Tokens()
    for point in manifest.points:
        shared, recipe = common_prefix(before, point.tokens), point.recipe
        points.append(
            {
                "shared": shared,
                "tokens": point.tokens[shared:],
                "message_id": point.message_id,
                "prefill_ms": point.prefill_ms,
                "file_size": recipe.file_size,
                "caches": [
                    [[[r.offset, r.row_size] for r in one.regions], [[r.row, r.position, r.rows] for r in one.runs]]
                    for one in recipe.row_map.caches
                ],
                "breaks": recipe.row_map.breaks,
                "uses": [[numbers[u.block], u.cache, u.row, u.rows, u.skip, u.position] for u in recipe.uses],
            }
        )
        before = point.tokens
    blocks = [[name.hex(), size] for name, size in manifest.blocks.items()]
    fingerprint = asdict(manifest.fingerprint)
    return {"format": FORMAT, "version": VERSION, "fingerprint": fingerprint, "blocks": blocks, "points": points}


def from_json(data: Any) -> Manifest:
    """The manifest in values that anybody may have written. Raises BadMemory."""
    try:
        if data["format"] != FORMAT or data["version"] != VERSION:
            raise BadMemory(_("it was written by a newer kvchat"))
        blocks = [(bytes.fromhex(name), _number(size)) for name, size in data["blocks"]]
        if any(len(name) != _BLOCK_NAME for name, _ in blocks):
            raise BadMemory(_("a block has no proper name"))
        points: list[CarriedPoint] = []
        for entry in data["points"]:
            points.append(_point(entry, blocks, points[-1].tokens if points else ()))
        manifest = Manifest(_fingerprint(data["fingerprint"]), tuple(points))
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError, RecipeError) as error:
        raise BadMemory(_("its description is not one")) from error
    except BadMemory:
        raise
    except ValueError as error:
        raise BadMemory(_("its description is not one")) from error
    if not points or manifest.blocks != dict(blocks):
        raise BadMemory(_("its description does not fit what it holds"))
    return manifest


def _point(entry: Any, blocks: Sequence[tuple[bytes, int]], before: Tokens) -> CarriedPoint:
    """Raises what values that are none do, and RecipeError."""
    shared, message_id = _number(entry["shared"]), entry["message_id"]
    tokens = (*before[:shared], *(_number(one, -_MOST_TOKEN, _MOST_TOKEN) for one in entry["tokens"]))
    if shared > len(before) or not tokens or not isinstance(message_id, str | None):
        raise BadMemory(_("a save point is of no tokens"))
    caches = tuple(
        CacheRows(tuple(Region(*_numbers(one, 2)) for one in regions), tuple(Run(*_numbers(one, 3)) for one in runs))
        for regions, runs in entry["caches"]
    )
    uses = []
    for number, cache, *place in entry["uses"]:
        row, rows, skip, position = _numbers(place, 4)
        if cache == RESIDUE and rows > RESIDUE_CHUNK:
            raise BadMemory(_("a block unpacks to more than a block can hold"))
        uses.append(BlockUse(*blocks[_number(number)], _number(cache, RESIDUE), row, rows, skip, position))
    row_map = RowMap(caches, tuple(_number(one) for one in entry["breaks"]))
    recipe = Recipe(_number(entry["file_size"], 1), row_map, tuple(uses))
    check_whole(recipe)
    return CarriedPoint(tokens, message_id, _duration(entry["prefill_ms"]), recipe)


def _fingerprint(facts: Any) -> Fingerprint:
    fingerprint = Fingerprint(**facts)
    if not all(type(value) is (int if name == "streams" else str) for name, value in asdict(fingerprint).items()):
        raise BadMemory(_("it does not say what it was made with"))
    return fingerprint


def _numbers(values: Sequence[Any], count: int) -> list[int]:
    if len(values) != count:
        raise BadMemory(_("its description is not one"))
    return [_number(value) for value in values]


def _number(value: Any, least: int = 0, most: int = _MOST) -> int:
    if type(value) is not int or not least <= value < most:
        raise BadMemory(_("a number in its description cannot be true"))
    return value


def _duration(value: Any) -> float:
    if type(value) not in (int, float) or not isfinite(value) or not 0 <= value < _MOST:
        raise BadMemory(_("a number in its description cannot be true"))
    return float(value)
