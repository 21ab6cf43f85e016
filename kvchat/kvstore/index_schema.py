"""The index's schema as numbered steps, see kvchat.migrations.

Token lists are kept as a tree of segments (see chains), so that what many share is kept, and compared, once.
Times are seconds since 1970.
"""

from __future__ import annotations

MIGRATIONS: tuple[str, ...] = (
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
)
