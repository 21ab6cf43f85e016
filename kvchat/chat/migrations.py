"""The conversations' schema as numbered steps, see kvchat.migrations."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from kvchat import migrations

MIGRATIONS: tuple[str, ...] = (
    # 1: conversations, and messages as a tree
    """
    CREATE TABLE conversations (
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL,
        title_by_user INTEGER NOT NULL DEFAULT 0,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        leaf_id TEXT
    );
    CREATE INDEX conversations_by_update ON conversations (updated_at DESC);
    CREATE TABLE messages (
        id TEXT PRIMARY KEY,
        conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        parent_id TEXT REFERENCES messages (id) ON DELETE CASCADE,
        role TEXT NOT NULL,
        content TEXT NOT NULL,
        thinking TEXT NOT NULL DEFAULT '',
        state TEXT NOT NULL,
        created_at REAL NOT NULL,
        receipt TEXT,
        writer TEXT  -- the process that is streaming this reply, as pid:start time
    );
    CREATE INDEX messages_of_conversation ON messages (conversation_id, created_at);
    CREATE INDEX messages_of_parent ON messages (parent_id);
    """,
    # 2: which system prompts are shared is asked before first replies
    """
    CREATE INDEX system_prompts ON messages (id) WHERE role = 'system'
    """,
    # 3: what was found out about restoring, see kvchat.chat.findings
    """
    CREATE TABLE restore_findings (
        fingerprint TEXT NOT NULL,  -- JSON
        build TEXT NOT NULL,
        strategy TEXT NOT NULL,
        proved INTEGER NOT NULL,
        reason TEXT NOT NULL,
        hollow INTEGER NOT NULL,
        found_at REAL NOT NULL,
        PRIMARY KEY (fingerprint, build)
    )
    """,
    # 4: each conversation remembers its model, by the path of its file
    """
    ALTER TABLE conversations ADD COLUMN model TEXT
    """,
    # 5: how each conversation is answered, and the presets it may begin with
    """
    ALTER TABLE conversations ADD COLUMN options TEXT NOT NULL DEFAULT '';  -- JSON, see kvchat.chat.options
    CREATE TABLE presets (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        system TEXT NOT NULL,
        model TEXT,
        options TEXT NOT NULL,
        is_default INTEGER NOT NULL
    )
    """,
)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the conversations to the newest format. Raises kvchat.migrations.DatabaseTooNew."""
    migrations.migrate(connection, path, MIGRATIONS, "Your conversations were last opened by a newer kvchat")
