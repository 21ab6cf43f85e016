"""The token tree in the index: finds which save points begin as a prompt does, without reading every token list."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvchat.kvstore.chains import SEGMENT, TOKEN_BYTES, Segment, chain, pack_tokens, shared_tokens, unpack_tokens
from kvchat.kvstore.savepoint import Tokens

NOBODY = ""  # an owner without staged save points: only absorbed ones are found
_ROOT = 0
_NAMES_EACH = 500  # SQLite's limit on parameters is 999 in old versions


@dataclass(frozen=True)
class Place:
    """A node of the tree, and how many leading tokens of the prompt its token list shares."""

    node_id: int
    shared: int
    whole: bool  # all the node's tokens are the prompt's


def add_tokens(db: sqlite3.Connection, fingerprint_id: int, tokens: Sequence[int]) -> int:
    """Put a token list into the tree; returns its node. The list must not be empty."""
    segments = chain(tokens)
    known = {name: node_id for node_id, name in _known(db, fingerprint_id, segments)}
    node_id = _ROOT
    for segment in segments:
        parent_id, found = node_id, known.get(segment.name)
        if found is None:
            found = db.execute(
                "INSERT INTO nodes (fingerprint_id, parent_id, name, n_tokens, packed) VALUES (?, ?, ?, ?, ?)",
                (fingerprint_id, parent_id, segment.name, segment.end, segment.packed),
            ).lastrowid
        assert found is not None
        node_id = found
    return node_id


def tokens_of(db: sqlite3.Connection, node_id: int) -> Tokens:
    """The token list a node stands for."""
    rows = db.execute(
        """
        WITH RECURSIVE up (id, parent_id, n_tokens, packed) AS (
            SELECT id, parent_id, n_tokens, packed FROM nodes WHERE id = ?
            UNION ALL SELECT n.id, n.parent_id, n.n_tokens, n.packed FROM up JOIN nodes n ON n.id = up.parent_id
        )
        SELECT packed FROM up ORDER BY n_tokens
        """,
        (node_id,),
    )
    return unpack_tokens(b"".join(packed for (packed,) in rows))


def drop_unused(db: sqlite3.Connection, node_id: int) -> None:
    """Remove a node nothing needs any more, and those above it that were there for it alone."""
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


def places(
    db: sqlite3.Connection, fingerprint_id: int, prompt: Sequence[int], *, beside: bool = False
) -> Iterator[Place]:
    """The nodes that share leading tokens with the prompt, those that share most first.

    `beside` looks at whole segments beside the path, too. They share less than the path does, and count only where
    nothing is kept along it: for a save point just added, whose own nodes are the path.
    """
    path = _path(db, fingerprint_id, prompt)
    packed = pack_tokens(prompt)
    on_path = {node_id for node_id, _ in path}
    ranked = [(-end, False, -node_id) for node_id, end in path if node_id != _ROOT]
    for parent_id, end in path:
        rest = packed[end * TOKEN_BYTES : (end + SEGMENT) * TOKEN_BYTES]
        deepest = parent_id == path[-1][0]
        children = _children(db, fingerprint_id, parent_id, short_only=not deepest and not beside)
        for (node_id, tokens), shared in zip(children, shared_tokens([t for _, t in children], rest), strict=True):
            if shared and node_id not in on_path:
                ranked.append((-end - shared, shared * TOKEN_BYTES != len(tokens), -node_id))
    ranked.sort()  # of thousands beside each other the first will do: places are made as they are asked for
    return (Place(-node_id, -shared, not partly) for shared, partly, node_id in ranked)


def below(db: sqlite3.Connection, node_id: int, owner: str) -> int | None:
    """A save point at the node or beyond it, the nearest; only absorbed ones and those of `owner`. None without."""
    row = db.execute(
        """
        WITH RECURSIVE down (id) AS (
            VALUES (?) UNION ALL SELECT nodes.id FROM down JOIN nodes ON nodes.parent_id = down.id
        )
        SELECT save_points.id FROM down CROSS JOIN save_points ON save_points.node_id = down.id
        WHERE owner IS NULL OR owner = ? LIMIT 1
        """,
        (node_id, owner),
    ).fetchone()
    return int(row[0]) if row else None


def at(db: sqlite3.Connection, node_id: int, owner: str) -> list[int]:
    """The save points exactly at the node, the last used first; only absorbed ones and those of `owner`."""
    query = "SELECT id FROM save_points WHERE node_id = ? AND (owner IS NULL OR owner = ?) ORDER BY last_used_at DESC"
    return [int(row[0]) for row in db.execute(query, (node_id, owner))]


def _path(db: sqlite3.Connection, fingerprint_id: int, prompt: Sequence[int]) -> list[tuple[int, int]]:
    """The nodes of whole segments down the prompt, from the root: id and token position of each."""
    segments = [segment for segment in chain(prompt) if len(segment.packed) == SEGMENT * TOKEN_BYTES]
    known = {name: node_id for node_id, name in _known(db, fingerprint_id, segments)}
    path = [(_ROOT, 0)]
    for segment in segments:
        if segment.name not in known:
            break
        path.append((known[segment.name], segment.end))
    return path


def _known(db: sqlite3.Connection, fingerprint_id: int, segments: Sequence[Segment]) -> Iterator[tuple[int, bytes]]:
    """The nodes of these segments that the tree has."""
    for start in range(0, len(segments), _NAMES_EACH):
        names = [segment.name for segment in segments[start : start + _NAMES_EACH]]
        marks = ",".join("?" * len(names))
        yield from db.execute(
            f"SELECT id, name FROM nodes WHERE fingerprint_id = ? AND name IN ({marks})", (fingerprint_id, *names)
        )


def _children(
    db: sqlite3.Connection, fingerprint_id: int, parent_id: int, *, short_only: bool
) -> list[tuple[int, bytes]]:
    """The segments right after a node; `short_only` leaves out those that are whole."""
    query = "SELECT id, packed FROM nodes WHERE parent_id = ? AND fingerprint_id = ? AND (NOT ? OR length(packed) < ?)"
    return db.execute(query, (parent_id, fingerprint_id, short_only, SEGMENT * TOKEN_BYTES)).fetchall()
