"""The index's schema as numbered steps, see kvchat.system.migrations.

Token lists are kept as a tree of segments (see token_tree), so that what many share is kept, and compared, once.
Recipes are paths in a tree of links, so that the uses of blocks which many turns share are kept once as well.
Triggers keep the sums that the disk panel shows: counting 100,000 blocks takes longer than it may take to open.
Times are seconds since 1970.
"""

from __future__ import annotations

import sqlite3
from itertools import groupby

from kvchat.system.migrations import Step

SEGMENT, TOKEN_BYTES = 256, 4  # most tokens of a node in the tree, and bytes of each

# Counts everything anew out of recipes and blocks: where the sums are right, only reading is done.
RECOUNT = """
    CREATE TEMP TABLE holding AS
        WITH RECURSIVE up (link_id, conversation_id) AS (
            SELECT link_id, conversation_id FROM save_points WHERE link_id IS NOT NULL
            UNION SELECT parent_id, conversation_id FROM up JOIN links ON id = link_id WHERE parent_id <> 0
        ), begun AS (
            SELECT link_id, conversation_id FROM save_points WHERE link_id IS NOT NULL
            UNION ALL SELECT parent_id, conversation_id FROM up JOIN links ON id = link_id WHERE parent_id <> 0
        )
        SELECT link_id, conversation_id, count(*) AS n FROM begun GROUP BY 1, 2;
    DELETE FROM held WHERE (link_id, conversation_id, n) NOT IN (SELECT * FROM temp.holding);
    INSERT INTO held SELECT * FROM temp.holding EXCEPT SELECT link_id, conversation_id, n FROM held;
    DROP TABLE temp.holding;
    DELETE FROM links WHERE id NOT IN (SELECT link_id FROM held);
    DELETE FROM holdings WHERE (block_id, conversation_id) NOT IN
        (SELECT block_id, conversation_id FROM held JOIN links ON id = link_id);
    INSERT OR REPLACE INTO holdings
        SELECT block_id, conversation_id, count(*) FROM held JOIN links ON id = link_id GROUP BY 1, 2
        EXCEPT SELECT block_id, conversation_id, uses FROM holdings;
    UPDATE blocks SET holders = (SELECT count(*) FROM holdings WHERE block_id = blocks.id)
        WHERE holders <> (SELECT count(*) FROM holdings WHERE block_id = blocks.id);
    UPDATE conversations SET held_bytes = 0, exclusive_bytes = 0;
    UPDATE conversations SET held_bytes = held, exclusive_bytes = own FROM (
        SELECT conversation_id, sum(disk_bytes) AS held, sum(disk_bytes * (holders = 1)) AS own
        FROM holdings JOIN blocks ON id = block_id GROUP BY 1
    ) WHERE conversation_id = conversations.id;
    UPDATE sums SET (row_bytes, disk_bytes) =
        (SELECT coalesce(sum(size * NOT residue), 0), coalesce(sum(disk_bytes), 0) FROM blocks);
    UPDATE sums SET (points, logical_bytes) = (SELECT count(*), coalesce(sum(file_size), 0) FROM save_points);
    UPDATE sums SET written = (SELECT coalesce(sum(bytes), 0) FROM written)
"""

_USES = (
    "SELECT save_point_id, block_id, cache, first_row, n_rows, skip, position FROM block_uses"
    " ORDER BY save_point_id, cache < 0, position, cache, first_row"
)


def _links_for_uses(db: sqlite3.Connection) -> None:
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


MIGRATIONS: tuple[Step, ...] = (
    # 1: save points, their recipes, the token tree, what was lost, and what was written
    """
    CREATE TABLE fingerprints (id INTEGER PRIMARY KEY, facts TEXT NOT NULL UNIQUE);
    CREATE TABLE nodes (
        id INTEGER PRIMARY KEY,
        fingerprint_id INTEGER NOT NULL REFERENCES fingerprints (id),
        parent_id INTEGER NOT NULL,  -- 0 for the first segment
        name BLOB NOT NULL,
        n_tokens INTEGER NOT NULL,  -- up to the end of the segment
        packed BLOB NOT NULL,
        UNIQUE (fingerprint_id, name)
    );
    CREATE INDEX nodes_of_parent ON nodes (parent_id, fingerprint_id);
    CREATE TABLE conversations (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        pinned INTEGER NOT NULL DEFAULT 0,
        never_save INTEGER NOT NULL DEFAULT 0,
        saved_ms REAL NOT NULL DEFAULT 0  -- prefill that restores have spared it
    );
    CREATE TABLE save_points (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        conversation_id INTEGER NOT NULL REFERENCES conversations (id),
        fingerprint_id INTEGER NOT NULL REFERENCES fingerprints (id),
        node_id INTEGER NOT NULL REFERENCES nodes (id),
        n_tokens INTEGER NOT NULL,
        owner TEXT,  -- the process whose staging folder alone holds the file, NULL once it is absorbed
        file_size INTEGER NOT NULL,
        file_hash BLOB,
        row_map BLOB,
        seal BLOB,
        prefill_ms REAL NOT NULL,
        created_at REAL NOT NULL,
        last_used_at REAL NOT NULL,
        uses INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX save_points_of_conversation ON save_points (conversation_id, fingerprint_id);
    CREATE INDEX save_points_of_node ON save_points (node_id);
    CREATE INDEX save_points_of_owner ON save_points (owner) WHERE owner IS NOT NULL;
    CREATE TABLE blocks (
        id INTEGER PRIMARY KEY,
        name BLOB NOT NULL UNIQUE,
        size INTEGER NOT NULL,
        residue INTEGER NOT NULL
    );
    CREATE TABLE block_uses (
        save_point_id INTEGER NOT NULL REFERENCES save_points (id),
        number INTEGER NOT NULL,
        block_id INTEGER NOT NULL REFERENCES blocks (id),
        cache INTEGER NOT NULL,
        first_row INTEGER NOT NULL,
        n_rows INTEGER NOT NULL,
        skip INTEGER NOT NULL,
        position INTEGER NOT NULL,
        PRIMARY KEY (save_point_id, number)
    ) WITHOUT ROWID;
    CREATE INDEX block_uses_of_block ON block_uses (block_id, save_point_id);
    CREATE TABLE losses (
        id INTEGER PRIMARY KEY,
        save_point_id INTEGER NOT NULL,
        conversation TEXT NOT NULL,
        fingerprint_id INTEGER NOT NULL,
        reason TEXT NOT NULL,
        block BLOB,  -- the bad block that was set aside, if it was one
        lost_at REAL NOT NULL,
        told INTEGER NOT NULL
    );
    CREATE INDEX losses_of_conversation ON losses (conversation, fingerprint_id);
    CREATE TABLE written (day TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID
    """,
    # 2: what blocks take on disk, who holds them, and sums (counted by 7); of unknown layout all blocks count as rows
    """
    ALTER TABLE blocks ADD COLUMN disk_bytes INTEGER NOT NULL DEFAULT 0;  -- as the file system allots them
    ALTER TABLE blocks ADD COLUMN holders INTEGER NOT NULL DEFAULT 0;  -- conversations
    ALTER TABLE conversations ADD COLUMN held_bytes INTEGER NOT NULL DEFAULT 0;  -- of its blocks, on disk
    ALTER TABLE conversations ADD COLUMN exclusive_bytes INTEGER NOT NULL DEFAULT 0;  -- of those nobody else holds
    CREATE TABLE holdings (
        block_id INTEGER NOT NULL REFERENCES blocks (id),
        conversation_id INTEGER NOT NULL REFERENCES conversations (id),
        uses INTEGER NOT NULL,
        PRIMARY KEY (block_id, conversation_id)
    ) WITHOUT ROWID;
    CREATE TABLE sums (row_bytes INTEGER NOT NULL, disk_bytes INTEGER NOT NULL);  -- over all blocks; one row
    INSERT INTO sums VALUES (0, 0);
    UPDATE blocks SET disk_bytes = (size + 4095) / 4096 * 4096;  -- until the next verify looks
    UPDATE blocks SET residue = 0 WHERE id IN (SELECT block_id FROM block_uses WHERE save_point_id IN
        (SELECT save_point_id FROM block_uses GROUP BY save_point_id HAVING max(cache) < 0));
    CREATE TRIGGER block_added AFTER INSERT ON blocks BEGIN
        UPDATE sums SET row_bytes = row_bytes + NEW.size * NOT NEW.residue, disk_bytes = disk_bytes + NEW.disk_bytes;
    END;
    CREATE TRIGGER block_removed AFTER DELETE ON blocks BEGIN
        UPDATE sums SET row_bytes = row_bytes - OLD.size * NOT OLD.residue, disk_bytes = disk_bytes - OLD.disk_bytes;
    END;
    CREATE TRIGGER use_added AFTER INSERT ON block_uses BEGIN
        INSERT INTO holdings SELECT NEW.block_id, conversation_id, 1 FROM save_points WHERE id = NEW.save_point_id
            ON CONFLICT DO UPDATE SET uses = uses + 1;
    END;
    CREATE TRIGGER use_removed AFTER DELETE ON block_uses BEGIN
        UPDATE holdings SET uses = uses - 1 WHERE block_id = OLD.block_id
            AND conversation_id = (SELECT conversation_id FROM save_points WHERE id = OLD.save_point_id);
        DELETE FROM holdings WHERE block_id = OLD.block_id AND uses = 0
            AND conversation_id = (SELECT conversation_id FROM save_points WHERE id = OLD.save_point_id);
    END;
    CREATE TRIGGER holding_added AFTER INSERT ON holdings BEGIN
        UPDATE blocks SET holders = holders + 1 WHERE id = NEW.block_id;
        UPDATE conversations SET held_bytes = held_bytes + disk_bytes, exclusive_bytes = exclusive_bytes
            + disk_bytes * (holders = 1) FROM blocks WHERE blocks.id = NEW.block_id
            AND conversations.id = NEW.conversation_id;
        UPDATE conversations SET exclusive_bytes = exclusive_bytes - disk_bytes FROM blocks
            WHERE blocks.id = NEW.block_id AND holders = 2 AND conversations.id = (SELECT conversation_id FROM holdings
                WHERE block_id = NEW.block_id AND conversation_id <> NEW.conversation_id LIMIT 1);
    END;
    CREATE TRIGGER holding_removed AFTER DELETE ON holdings BEGIN
        UPDATE blocks SET holders = holders - 1 WHERE id = OLD.block_id;
        UPDATE conversations SET held_bytes = held_bytes - disk_bytes, exclusive_bytes = exclusive_bytes
            - disk_bytes * (holders = 0) FROM blocks WHERE blocks.id = OLD.block_id
            AND conversations.id = OLD.conversation_id;
        UPDATE conversations SET exclusive_bytes = exclusive_bytes + disk_bytes FROM blocks
            WHERE blocks.id = OLD.block_id AND holders = 1 AND conversations.id = (SELECT conversation_id FROM holdings
                WHERE block_id = OLD.block_id LIMIT 1);
    END
    """,
    # 3: which message a save point ends in, so that it goes with that; NULL: kept by an older version
    """
    ALTER TABLE save_points ADD COLUMN message_id TEXT
    """,
    # 4: a second, fast hash of each block, which proves at a restore that it is what it was; NULL: not computed yet
    """
    ALTER TABLE blocks ADD COLUMN xxh3 BLOB
    """,
    # 5: recipes as paths in a tree; children of a node in order; sums, and what is to be found without a scan
    """
    CREATE TABLE links (
        id INTEGER PRIMARY KEY,  -- larger than the parent's
        parent_id INTEGER NOT NULL,  -- the use before this one, 0 for the first
        block_id INTEGER NOT NULL REFERENCES blocks (id),
        cache INTEGER NOT NULL,
        first_row INTEGER NOT NULL,
        n_rows INTEGER NOT NULL,
        skip INTEGER NOT NULL,
        position INTEGER NOT NULL
    );
    CREATE INDEX links_of_parent ON links (parent_id, block_id);
    CREATE INDEX links_of_block ON links (block_id);
    CREATE TABLE held (  -- the links on the paths of each conversation's save points
        link_id INTEGER NOT NULL REFERENCES links (id),
        conversation_id INTEGER NOT NULL REFERENCES conversations (id),
        n INTEGER NOT NULL,  -- links that follow and are held by it, and save points of it that end here
        PRIMARY KEY (link_id, conversation_id)
    ) WITHOUT ROWID;
    CREATE TABLE marks (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    ALTER TABLE save_points ADD COLUMN link_id INTEGER;  -- the last use of its recipe
    ALTER TABLE sums ADD COLUMN points INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sums ADD COLUMN logical_bytes INTEGER NOT NULL DEFAULT 0;  -- of all slot files
    ALTER TABLE sums ADD COLUMN written INTEGER NOT NULL DEFAULT 0;  -- bytes, ever
    CREATE INDEX save_points_of_link ON save_points (link_id) WHERE link_id IS NOT NULL;
    CREATE INDEX blocks_unused ON blocks (id) WHERE holders = 0;
    DROP INDEX save_points_of_node;
    CREATE INDEX save_points_of_node ON save_points (node_id, last_used_at);
    DROP INDEX nodes_of_parent;
    CREATE INDEX nodes_of_parent ON nodes (parent_id, fingerprint_id, packed);
    DROP TRIGGER use_added;
    DROP TRIGGER use_removed
    """,
    # 6: the uses there were become paths
    _links_for_uses,
    # 7: from here on the sums follow by themselves again
    f"""
    DROP TABLE block_uses;
    {RECOUNT};
    CREATE TRIGGER held_added AFTER INSERT ON held BEGIN
        INSERT INTO holdings SELECT block_id, NEW.conversation_id, 1 FROM links WHERE id = NEW.link_id
            ON CONFLICT DO UPDATE SET uses = uses + 1;
    END;
    CREATE TRIGGER held_removed AFTER DELETE ON held BEGIN
        UPDATE holdings SET uses = uses - 1 WHERE conversation_id = OLD.conversation_id
            AND block_id = (SELECT block_id FROM links WHERE id = OLD.link_id);
        DELETE FROM holdings WHERE uses = 0 AND conversation_id = OLD.conversation_id
            AND block_id = (SELECT block_id FROM links WHERE id = OLD.link_id);
    END;
    CREATE TRIGGER point_added AFTER INSERT ON save_points BEGIN
        UPDATE sums SET points = points + 1, logical_bytes = logical_bytes + NEW.file_size;
    END;
    CREATE TRIGGER point_resized AFTER UPDATE OF file_size ON save_points BEGIN
        UPDATE sums SET logical_bytes = logical_bytes + NEW.file_size - OLD.file_size;
    END;
    CREATE TRIGGER point_removed AFTER DELETE ON save_points BEGIN
        UPDATE sums SET points = points - 1, logical_bytes = logical_bytes - OLD.file_size;
    END;
    CREATE TRIGGER day_added AFTER INSERT ON written BEGIN
        UPDATE sums SET written = written + NEW.bytes;
    END;
    CREATE TRIGGER day_raised AFTER UPDATE OF bytes ON written BEGIN
        UPDATE sums SET written = written + NEW.bytes - OLD.bytes;
    END
    """,
    # 8: what was not used for long, and what was used last
    """
    CREATE INDEX save_points_by_use ON save_points (last_used_at)
    """,
    # 9: a token tree for each audience (see kvchat.kvstore.audience): what others may not reuse is not found
    """
    CREATE TABLE trees (
        id INTEGER PRIMARY KEY,
        fingerprint_id INTEGER NOT NULL REFERENCES fingerprints (id),
        audience TEXT NOT NULL,
        UNIQUE (fingerprint_id, audience)
    );
    CREATE TEMP TABLE placed AS SELECT s.id AS point_id, node_id, fingerprint_id, CASE
        WHEN name GLOB 'program/*' THEN name WHEN name GLOB 'prepared:*' THEN 'shared' ELSE 'chats' END AS audience
        FROM save_points s JOIN conversations c ON c.id = conversation_id;
    INSERT INTO trees (fingerprint_id, audience) SELECT DISTINCT fingerprint_id, audience FROM temp.placed;
    CREATE TEMP TABLE wanted AS
        WITH RECURSIVE up (tree_id, node_id) AS (
            SELECT t.id, node_id FROM temp.placed JOIN trees t USING (fingerprint_id, audience)
            UNION SELECT tree_id, parent_id FROM up JOIN nodes ON id = node_id WHERE parent_id <> 0
        )
        SELECT tree_id, node_id, row_number() OVER (ORDER BY node_id, tree_id) AS new_id FROM up;
    CREATE INDEX temp.wanted_nodes ON wanted (node_id, tree_id);
    CREATE TEMP TABLE segments AS SELECT new_id, w.tree_id, parent_id, name, n_tokens, packed
        FROM temp.wanted w JOIN nodes n ON n.id = w.node_id;
    UPDATE save_points SET node_id = new_id FROM temp.placed p JOIN trees t USING (fingerprint_id, audience)
        JOIN temp.wanted w ON w.node_id = p.node_id AND w.tree_id = t.id WHERE p.point_id = save_points.id;
    DROP TABLE nodes;
    CREATE TABLE nodes (
        id INTEGER PRIMARY KEY,
        tree_id INTEGER NOT NULL REFERENCES trees (id),
        parent_id INTEGER NOT NULL,  -- 0 for the first segment
        name BLOB NOT NULL,
        n_tokens INTEGER NOT NULL,  -- up to the end of the segment
        packed BLOB NOT NULL,
        UNIQUE (tree_id, name)
    );
    INSERT INTO nodes SELECT s.new_id, s.tree_id, coalesce(w.new_id, 0), name, n_tokens, packed FROM temp.segments s
        LEFT JOIN temp.wanted w ON w.node_id = parent_id AND w.tree_id = s.tree_id;
    CREATE INDEX nodes_of_parent ON nodes (parent_id, tree_id, packed);
    DROP TABLE temp.placed;
    DROP TABLE temp.wanted;
    DROP TABLE temp.segments
    """,
)
