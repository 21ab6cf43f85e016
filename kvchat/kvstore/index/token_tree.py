"""The token tree in the index, which finds the save points that share a prefix with a prompt.

A node is a segment of up to 256 tokens, named by a hash of all tokens up to its end. There is one tree for each
fingerprint and audience.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import groupby
from typing import NamedTuple

import numpy as np
from blake3 import blake3

from kvchat.kvstore.index.schema import SEGMENT_TOKENS, TOKEN_BYTES, CorruptIndex
from kvchat.kvstore.savepoint import Tokens

_ROOT = 0
_HASH_BYTES = 16  # matches are then compared by token ids
_MAX_POINTS_PER_NODE = 20
_FIND_NODE = "SELECT id FROM nodes WHERE tree_id = ? AND name = ?"
_CHILDREN = "SELECT id, packed FROM nodes WHERE parent_id = ? AND tree_id = ?"

_Parent = tuple[int, int]  # node and tree
_Child = tuple[int, int, int]  # node, number of shared tokens, number of tokens


class NodeMatch(NamedTuple):
    node_id: int
    shared: int
    is_whole: bool  # True if the prompt shares all tokens of the node
    n_tokens: int  # tokens from the root to the end of the node


class _Segment(NamedTuple):
    """A segment of 256 tokens. The last segment of a prefix may be shorter."""

    name: bytes  # BLAKE3 of the previous name and these tokens, that is, of the whole prefix
    end: int  # token position after the segment
    packed: bytes  # the token ids, int32 little endian


def _split_into_segments(packed: bytes) -> list[_Segment]:
    segments: list[_Segment] = []
    name = b""
    for start in range(0, len(packed), SEGMENT_TOKENS * TOKEN_BYTES):
        part = packed[start : start + SEGMENT_TOKENS * TOKEN_BYTES]
        name = blake3(name + part).digest(length=_HASH_BYTES)
        segments.append(_Segment(name, (start + len(part)) // TOKEN_BYTES, part))
    return segments


def add_tokens(db: sqlite3.Connection, tree_id: int, tokens: Sequence[int]) -> int:
    node_id = _ROOT
    for segment in _split_into_segments(pack_tokens(tokens)):
        row = db.execute(_FIND_NODE, (tree_id, segment.name)).fetchone()
        if row is None:
            query = "INSERT INTO nodes (tree_id, parent_id, name, n_tokens, packed) VALUES (?, ?, ?, ?, ?) RETURNING id"
            row = db.execute(query, (tree_id, node_id, segment.name, segment.end, segment.packed)).fetchone()
        node_id = row[0]
    return int(node_id)


def load_tokens(db: sqlite3.Connection, node_id: int) -> Tokens:
    """Return the tokens from the root to the end of a node. Raises CorruptIndex if they do not match its name."""
    rows = db.execute(
        """
        WITH RECURSIVE up (id, parent_id, n_tokens, packed, name) AS (
            SELECT id, parent_id, n_tokens, packed, name FROM nodes WHERE id = ?
            UNION ALL SELECT n.id, n.parent_id, n.n_tokens, n.packed, n.name FROM up
                JOIN nodes n ON n.id = up.parent_id AND n.id < up.id
        )
        SELECT packed, name FROM up ORDER BY id
        """,
        (node_id,),
    ).fetchall()
    packed = b"".join(packed for packed, _ in rows)
    if not rows or [segment.name for segment in _split_into_segments(packed)] != [name for _, name in rows]:
        raise CorruptIndex
    tokens: list[int] = np.frombuffer(packed, dtype="<i4").tolist()
    return tuple(tokens)


def delete_unused_nodes(db: sqlite3.Connection, node_id: int) -> None:
    while node_id != _ROOT:
        used = db.execute(
            "SELECT EXISTS (SELECT 1 FROM save_points WHERE node_id = ?1) OR"
            " EXISTS (SELECT 1 FROM nodes WHERE parent_id = ?1)",
            (node_id,),
        ).fetchone()[0]
        row = db.execute("SELECT parent_id FROM nodes WHERE id = ?", (node_id,)).fetchone()
        if used or row is None:
            return
        db.execute("DELETE FROM nodes WHERE id = ?", (node_id,))
        node_id = row[0]


def find_matches(
    db: sqlite3.Connection, trees: Sequence[int], prompt: Sequence[int], *, whole_nodes: bool = False
) -> Iterator[NodeMatch]:
    """Lazily yield the nodes that share a prefix with the prompt, longest match first.

    With `whole_nodes`, skips nodes that match only in part.
    """
    packed = pack_tokens(prompt)
    return merge(
        *(_find_matches_in_tree(db, tree, packed, whole_nodes) for tree in trees), key=lambda match: -match.shared
    )


def _find_matches_in_tree(
    db: sqlite3.Connection, tree_id: int, packed: bytes, whole_nodes: bool
) -> Iterator[NodeMatch]:
    find_children = _prefix_children if whole_nodes else _matching_children
    path = [(_ROOT, 0)]  # nodes of whole segments along the prompt, with their ends
    for segment in _split_into_segments(packed[: len(packed) - len(packed) % (SEGMENT_TOKENS * TOKEN_BYTES)]):
        row = db.execute(_FIND_NODE, (tree_id, segment.name)).fetchone()
        if row is None:
            break
        path.append((row[0], segment.end))
    on_path = {node_id for node_id, _ in path}
    for parent_id, end in reversed(path):
        rest = packed[end * TOKEN_BYTES : (end + SEGMENT_TOKENS) * TOKEN_BYTES]
        for node_id, shared, length in find_children(db, (parent_id, tree_id), rest):
            if node_id not in on_path:
                yield NodeMatch(node_id, end + shared, shared == length, end + length)
        if parent_id != _ROOT:
            yield NodeMatch(parent_id, end, True, end)


def points_at(db: sqlite3.Connection, node_id: int) -> list[int]:
    """Return the ids of up to 20 save points that end at the node, most recently used first."""
    query = "SELECT id FROM save_points WHERE node_id = ? ORDER BY last_used_at DESC LIMIT ?"
    return [row[0] for row in db.execute(query, (node_id, _MAX_POINTS_PER_NODE))]


def find_point_below(
    db: sqlite3.Connection, node_id: int, empty_nodes: set[int], *, absorbed: bool = False
) -> int | None:
    """Return the id of a save point at or below the node, or None.

    With `absorbed`, finds only absorbed ones. `empty_nodes`: as for `find_first_below`.
    """
    query = f"SELECT id FROM save_points WHERE node_id = ? {'AND link_id IS NOT NULL ' * absorbed}LIMIT 1"

    def lookup(node_id: int) -> int | None:
        row = db.execute(query, (node_id,)).fetchone()
        return int(row[0]) if row else None

    return find_first_below(db, node_id, lookup, empty_nodes)


def find_first_below(
    db: sqlite3.Connection, node_id: int, lookup: Callable[[int], int | None], empty_nodes: set[int]
) -> int | None:
    """Call `lookup` for the node and those below it until it returns a save point; return that, or None.

    Nodes in `empty_nodes` are skipped; nodes without a result, at or below them, are added to it. Every leaf has a save
    point, so the first path down usually has a result.
    """
    query = "SELECT id FROM nodes WHERE parent_id = ? AND id > ?"  # ids grow downward: no cycles in a damaged index
    stack: list[tuple[int, Iterator[int]]] = [(_ROOT, iter((node_id,)))]
    while stack:
        above, nodes = stack[-1]
        node_id = next(nodes, _ROOT)
        if node_id == _ROOT:
            empty_nodes.add(above)
            stack.pop()
        elif node_id not in empty_nodes:
            point_id = lookup(node_id)
            if point_id is not None:
                return point_id
            stack.append((node_id, (row[0] for row in db.execute(query, (node_id, node_id)))))
    return None


def count_continuations(db: sqlite3.Connection, nodes: Sequence[int]) -> dict[int, int]:
    """Count the different continuations after each node: 0 at the end of a thread, 2 or more at a branch."""
    if not nodes:
        return {}
    query = (
        "SELECT parent_id, tree_id, packed, id FROM nodes WHERE parent_id IN (SELECT value FROM json_each(?1))"
        " OR parent_id IN (SELECT parent_id FROM nodes WHERE id IN (SELECT value FROM json_each(?1))) ORDER BY 1, 2, 3"
    )
    counts = Counter[int]()
    for (parent_id, _), group in groupby(db.execute(query, (json.dumps(list(nodes)),)), lambda row: row[:2]):
        prefixes: list[tuple[bytes, int]] = []  # stack of siblings; each is a prefix of the next
        for _, _, packed, node_id in group:
            if not isinstance(packed, bytes):
                raise CorruptIndex
            while prefixes and not packed.startswith(prefixes[-1][0]):
                prefixes.pop()
            counts[prefixes[-1][1] if prefixes else parent_id] += 1
            prefixes.append((packed, node_id))
    return {node: counts[node] for node in nodes}


def _matching_children(db: sqlite3.Connection, parent: _Parent, remaining: bytes) -> Iterator[_Child]:
    """Yield the children of a node that share a prefix with `remaining`, longest first."""
    # In byte order the best match is next to `remaining`, so search outwards from there.
    before = db.execute(f"{_CHILDREN} AND packed <= ? ORDER BY packed DESC", (*parent, remaining))
    behind = db.execute(f"{_CHILDREN} AND packed > ? ORDER BY packed", (*parent, remaining))
    sides = [
        ((node, _shared_tokens(packed, remaining), len(packed) // TOKEN_BYTES) for node, packed in side)
        for side in (before, behind)
    ]
    for shared, children in groupby(merge(*sides, key=lambda child: -child[1]), lambda child: child[1]):
        if not shared:
            return
        exact = db.execute(f"{_CHILDREN} AND packed = ?", (*parent, remaining[: shared * TOKEN_BYTES])).fetchone()
        if exact:  # yield it before longer segments
            yield exact[0], shared, shared
        yield from (child for child in children if child[2] > shared)


def _prefix_children(db: sqlite3.Connection, parent: _Parent, remaining: bytes) -> Iterator[_Child]:
    """Yield the children of a node that are prefixes of `remaining`, longest first."""
    # Prefixes sort before `remaining`, and are no longer than the prefix shared with the nearest segment before it.
    while remaining:
        row = db.execute(f"{_CHILDREN} AND packed <= ? ORDER BY packed DESC LIMIT 1", (*parent, remaining)).fetchone()
        if row is None:
            return
        node_id, packed = row
        shared = _shared_tokens(packed, remaining)
        whole = shared * TOKEN_BYTES == len(packed)
        if whole:
            yield node_id, shared, shared
        remaining = remaining[: (shared - whole) * TOKEN_BYTES]


def pack_tokens(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, dtype="<i4").tobytes()


def _shared_tokens(a: bytes, b: bytes) -> int:
    width = min(len(a), len(b))
    if a[:width] == b[:width]:
        return width // TOKEN_BYTES
    different = np.frombuffer(a, "<i4", width // TOKEN_BYTES) != np.frombuffer(b, "<i4", width // TOKEN_BYTES)
    return int(different.argmax())
