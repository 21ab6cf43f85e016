"""Steps of the index's schema that SQL alone cannot take, see schema.py."""

from __future__ import annotations

import sqlite3
from itertools import groupby

_USES = (
    "SELECT save_point_id, block_id, cache, first_row, n_rows, skip, position FROM block_uses"
    " ORDER BY save_point_id, cache < 0, position, cache, first_row"
)


def links_for_uses(db: sqlite3.Connection) -> None:
    """To the sixth format: a save point's uses become a path of links, of which it shares what others begin with."""
    known: dict[tuple[int, ...], int] = {}
    for point_id, uses in groupby(db.execute(_USES).fetchall(), lambda row: row[0]):
        link_id = 0
        for use in uses:
            place = (link_id, *use[1:])
            if place not in known:
                known[place] = len(known) + 1
                db.execute("INSERT INTO links VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (known[place], *place))
            link_id = known[place]
        db.execute("UPDATE save_points SET link_id = ? WHERE id = ?", (link_id, point_id))
