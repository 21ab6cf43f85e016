"""Sizes, losses and unchecked save points in the index. All functions run within the caller's transaction."""

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime

import numpy as np

from kvchat.kvstore.index import points, token_tree
from kvchat.kvstore.index.eviction import BlockNeeds, Candidate, IntArray
from kvchat.kvstore.index.schema import CorruptIndex, to_datetime
from kvchat.kvstore.savepoint import (
    APPS_PATTERN,
    IMPORTED_PREFIX,
    ConversationUsage,
    SavePointLoss,
    UncheckedPoints,
    device_of,
    program_owner,
)
from kvchat.text.reasons import Reason, ReasonCode, parse_reason


def load_totals(db: sqlite3.Connection) -> tuple[int, int, int, int, int]:
    """Return the number of save points, and the bytes of all slot files, of row blocks, written ever and today."""
    query = (
        "SELECT * FROM (SELECT count(*), coalesce(sum(file_size), 0) FROM save_points),"
        " (SELECT coalesce(sum(size * NOT residue), 0) FROM blocks),"
        " (SELECT coalesce(sum(bytes), 0), coalesce(sum(bytes) FILTER (WHERE day = date()), 0) FROM written)"
    )
    points, logical, rows, written, written_today = db.execute(query).fetchone()
    return points, logical, rows, written, written_today


def block_bytes(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT coalesce(sum(disk_bytes), 0) FROM blocks").fetchone()[0])


def imported_conversations(db: sqlite3.Connection) -> set[str]:
    query = "SELECT audience FROM trees t WHERE audience GLOB ? AND EXISTS (SELECT 1 FROM nodes WHERE tree_id = t.id)"
    return {audience.removeprefix(IMPORTED_PREFIX) for (audience,) in db.execute(query, (f"{IMPORTED_PREFIX}*",))}


def conversation_usages(db: sqlite3.Connection) -> tuple[list[ConversationUsage], list[ConversationUsage]]:
    """Return the usage of each conversation, and of each device: that of all its chats, which share blocks."""
    rows = db.execute(
        "SELECT name, count(s.id), coalesce(max(last_used_at), 0),"
        " pinned, never_save, c.id,"
        " coalesce(sum(CASE WHEN link_id IS NULL THEN file_size ELSE 0 END), 0), coalesce(max(n_tokens), 0),"
        " (SELECT facts ->> '$.model' FROM save_points l JOIN fingerprints f ON f.id = l.fingerprint_id"
        " WHERE l.conversation_id = c.id ORDER BY l.n_tokens DESC LIMIT 1)"
        " FROM conversations c LEFT JOIN save_points s ON c.id = s.conversation_id"
        " GROUP BY c.id HAVING count(s.id) > 0 OR pinned OR never_save"
    ).fetchall()
    devices_by_id = {row[5]: name for row in rows if (name := device_of(row[0]))}
    foreign, (sizes, device_sizes) = imported_conversations(db), _block_bytes_by_owner(db, devices_by_id)
    usages: list[ConversationUsage] = []
    devices: dict[str, ConversationUsage] = {}
    for name, count, used_at, pinned, never_save, number, staged, tokens, model in rows:
        held, own = sizes.get(number, (0, 0))
        usage = ConversationUsage(
            conversation_id=name,
            bytes=held + staged,
            save_points=count,
            last_used_at=to_datetime(used_at),
            exclusive_bytes=own + staged,
            shared_bytes=held - own,
            tokens=tokens,
            model=model or "",
            pinned=bool(pinned),
            never_save=bool(never_save),
            imported=name in foreign,
        )
        usages.append(usage)
        if device := devices_by_id.get(number):
            held, own = device_sizes.get(device, (0, 0))
            start = ConversationUsage(program_owner(device), held, 0, usage.last_used_at, own, held - own)
            whole = devices.get(device, start)
            devices[device] = replace(
                whole,
                bytes=whole.bytes + staged,
                save_points=whole.save_points + count,
                last_used_at=max(whole.last_used_at, usage.last_used_at),
                exclusive_bytes=whole.exclusive_bytes + staged,
            )
    usages, totals = (
        sorted(group, key=lambda usage: (-usage.bytes, usage.conversation_id)) for group in (usages, devices.values())
    )
    return usages, totals


def _block_bytes_by_owner(
    db: sqlite3.Connection, devices_by_id: Mapping[int, str]
) -> tuple[dict[int, tuple[int, int]], dict[str, tuple[int, int]]]:
    """Map each conversation's id, and each device, to the disk usage of all its blocks, and of those only it uses.

    `devices_by_id`: devices by id of their conversations.
    """
    points = db.execute(
        "SELECT conversation_id, link_id FROM save_points WHERE link_id IS NOT NULL ORDER BY 1"
    ).fetchall()
    needs = _load_block_needs(db, [link_id for _, link_id in points])
    parents = needs.parents.tolist()
    seen_by = [0] * len(parents)  # for each use, the last conversation found to have it
    uses: list[int] = []
    user_of_each: list[int] = []
    for (conversation, _), use in zip(points, needs.last_uses.tolist(), strict=True):
        while use >= 0 and seen_by[use] != conversation:
            seen_by[use] = conversation
            uses.append(use)
            user_of_each.append(conversation)
            use = parents[use]
    users = np.array(user_of_each, np.int64)
    limit = int(users.max(initial=0)) + 1

    def held_and_own(users: IntArray) -> dict[int, tuple[int, int]]:
        pairs = np.unique(needs.blocks[np.array(uses, np.int64)] * limit + users)
        blocks, holders = np.divmod(pairs, limit)
        sizes = needs.sizes[blocks]
        held = np.bincount(holders, sizes, limit)
        own = np.bincount(holders, sizes * (np.bincount(blocks)[blocks] == 1), limit)
        return {number: (int(held[number]), int(own[number])) for number in np.unique(users).tolist()}

    sizes = held_and_own(users)
    if not devices_by_id:
        return sizes, {}
    first = {program: number for number, program in devices_by_id.items() if number in sizes}  # stands for its device
    stands_for = np.arange(limit)
    for number in sizes.keys() & devices_by_id.keys():
        stands_for[number] = first[devices_by_id[number]]
    device_sizes = held_and_own(stands_for[users])
    return sizes, {program: device_sizes[number] for program, number in first.items()}


def load_candidates(db: sqlite3.Connection, protected_id: int | None) -> tuple[list[Candidate], BlockNeeds]:
    rows = db.execute(
        "SELECT s.id, name, fingerprint_id, prefill_ms, created_at, last_used_at, s.id IS ?, pinned, message_id,"
        " link_id, CASE WHEN name GLOB ? THEN node_id END"
        " FROM save_points s JOIN conversations c ON c.id = s.conversation_id WHERE link_id IS NOT NULL ORDER BY s.id",
        (protected_id, APPS_PATTERN),
    ).fetchall()
    needs = _load_block_needs(db, [row[9] for row in rows])
    counts = token_tree.count_continuations(db, [row[10] for row in rows if row[10] is not None])
    return [Candidate(*row[:9])._replace(continuation_count=counts.get(row[10])) for row in rows], needs


def _load_block_needs(db: sqlite3.Connection, link_ids: Sequence[int]) -> BlockNeeds:
    """Return the blocks that recipes need. `link_ids`: last link of each recipe. Raises CorruptIndex."""
    links, parents, blocks = _load_columns(db, "SELECT id, parent_id, block_id FROM links ORDER BY 1", 3)
    known, sizes = _load_columns(db, "SELECT id, disk_bytes FROM blocks ORDER BY 1", 2)
    is_first = parents == 0
    needs = BlockNeeds(
        _find_indices(links, np.array(link_ids, np.int64)),
        np.where(is_first, -1, _find_indices(links, np.where(is_first, links, parents))),
        _find_indices(known, blocks),
        sizes,
    )
    if (needs.parents >= np.arange(len(links))).any():
        raise CorruptIndex
    return needs


def count_written(db: sqlite3.Connection, byte_count: int) -> None:
    query = "INSERT INTO written VALUES (date(), ?1) ON CONFLICT (day) DO UPDATE SET bytes = bytes + ?1"
    db.execute(query, (byte_count,))


def _find_indices(known: IntArray, values: IntArray) -> IntArray:
    places = np.searchsorted(known, values)
    if (places == len(known)).any() or (known[places] != values).any():
        raise CorruptIndex
    return places


def _load_columns(db: sqlite3.Connection, query: str, count: int) -> list[IntArray]:
    """Return the `count` integer columns of a query. They are fetched as text, three times as fast as tuples."""
    columns = [f"group_concat(c{number})" for number in range(count)]
    names = ", ".join(f"c{number}" for number in range(count))
    row = db.execute(f"WITH t ({names}) AS ({query}) SELECT {', '.join(columns)} FROM t").fetchone()
    return [np.fromstring(text or "", np.int64, sep=",") for text in row]


def discard(db: sqlite3.Connection, point_ids: Sequence[int], reason: Reason, now: datetime, *, notify: bool) -> None:
    """Delete save points and record why; `Restorer.find` returns the reason. With `notify`, tell the user once."""
    for point_id in point_ids:
        db.execute(
            "INSERT INTO losses (save_point_id, conversation, fingerprint_id, reason, lost_at, told)"
            " SELECT save_points.id, name, fingerprint_id, ?, ?, ? FROM save_points"
            " JOIN conversations ON conversations.id = conversation_id WHERE save_points.id = ?",
            (json.dumps(asdict(reason)), now.timestamp(), not notify, point_id),
        )
    points.delete(db, point_ids)


def find_loss(db: sqlite3.Connection, condition: str, *values: object) -> Reason | None:
    """Return the reason of the newest loss that matches an SQL condition."""
    row = db.execute(f"SELECT reason FROM losses WHERE {condition} ORDER BY id DESC LIMIT 1", values).fetchone()
    return _parse_reason(row[0]) if row else None


def take_unreported_losses(db: sqlite3.Connection, *, include_index_loss: bool = False) -> tuple[SavePointLoss, ...]:
    """Return the losses not yet reported to the user, and mark them as reported.

    With `include_index_loss`, also returns the loss of the whole index.
    """
    query = "SELECT conversation, count(*), max(reason) FROM losses WHERE NOT told GROUP BY conversation, reason"
    rows = db.execute(query).fetchall()
    db.execute("UPDATE losses SET told = 1 WHERE NOT told")
    losses = [SavePointLoss(name, points, _parse_reason(reason)) for name, points, reason in rows]
    if include_index_loss and index_lost_at(db) is not None and _read_marker(db, "told") is None:
        _write_marker(db, "told", "")
        losses.append(SavePointLoss("", 0, Reason(ReasonCode.INDEX_LOST)))
    return tuple(losses)


def _parse_reason(stored: str) -> Reason:
    with suppress(ValueError, RecursionError):
        if reason := parse_reason(json.loads(stored)):
            return reason
    return Reason(ReasonCode.SET_ASIDE)


def note_index_loss(db: sqlite3.Connection) -> None:
    _write_marker(db, "lost", str(time.time()))


def index_lost_at(db: sqlite3.Connection) -> datetime | None:
    at = _read_marker(db, "lost")
    return to_datetime(float(at)) if at is not None else None


def find_unchecked(db: sqlite3.Connection, checker: str) -> UncheckedPoints:
    previous, _, last_id = (_read_marker(db, "seen") or "").rpartition(" ")
    last = int(last_id) if previous == checker and checker else 0
    query = (
        "SELECT name, json_group_array(message_id) FILTER (WHERE message_id IS NOT NULL)"
        " FROM save_points s JOIN conversations c ON c.id = s.conversation_id WHERE s.id > ? GROUP BY name"
    )
    messages = {name: frozenset(json.loads(ids)) for name, ids in db.execute(query, (last,))}
    newest = db.execute("SELECT coalesce(max(id), 0) FROM save_points").fetchone()[0]
    return UncheckedPoints(messages, max(last, newest))


def mark_checked(db: sqlite3.Connection, checker: str, checked: UncheckedPoints) -> None:
    _write_marker(db, "seen", f"{checker} {checked.last_id}")


def _read_marker(db: sqlite3.Connection, name: str) -> str | None:
    row = db.execute("SELECT value FROM marks WHERE name = ?", (name,)).fetchone()
    return row[0] if row else None


def _write_marker(db: sqlite3.Connection, name: str, value: str) -> None:
    db.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (name, value))
