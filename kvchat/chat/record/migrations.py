"""The conversations' schema as numbered steps, see kvchat.system.migrations."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from kvchat.system import migrations
from kvchat.words.language import _

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
    # 3: what was found out about restoring, since then in a file of its own, see kvchat.session.restore_support
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
    # 6: order among the chats, see kvchat.chat.deletion
    """
    ALTER TABLE conversations ADD COLUMN folder TEXT;
    ALTER TABLE conversations ADD COLUMN on_top INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE conversations ADD COLUMN archived INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE conversations ADD COLUMN deleted_at REAL;
    CREATE INDEX conversations_deleted ON conversations (deleted_at) WHERE deleted_at IS NOT NULL
    """,
    # 7: the words of all messages and titles, see kvchat.chat.search
    """
    CREATE TABLE searched (
        number INTEGER PRIMARY KEY,
        conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        message_id TEXT UNIQUE REFERENCES messages (id) ON DELETE CASCADE,  -- NULL: the title
        stale INTEGER NOT NULL DEFAULT 1
    );
    CREATE INDEX searched_of_conversation ON searched (conversation_id);
    CREATE INDEX searched_stale ON searched (stale) WHERE stale;
    CREATE VIRTUAL TABLE searched_words USING fts5 (title, body, tokenize = 'ascii', prefix = '2 3');
    CREATE TRIGGER message_added AFTER INSERT ON messages WHEN new.role <> 'system' BEGIN
        INSERT INTO searched (conversation_id, message_id) VALUES (new.conversation_id, new.id);
    END;
    CREATE TRIGGER message_changed AFTER UPDATE OF content ON messages WHEN new.content IS NOT old.content BEGIN
        UPDATE searched SET stale = 1 WHERE message_id = new.id AND NOT stale;
    END;
    CREATE TRIGGER conversation_added AFTER INSERT ON conversations BEGIN
        INSERT INTO searched (conversation_id) VALUES (new.id);
    END;
    CREATE TRIGGER title_changed AFTER UPDATE OF title ON conversations WHEN new.title IS NOT old.title BEGIN
        UPDATE searched SET stale = 1 WHERE conversation_id = new.id AND message_id IS NULL;
    END;
    CREATE TRIGGER words_gone AFTER DELETE ON searched BEGIN
        DELETE FROM searched_words WHERE rowid = old.number;
    END;
    INSERT INTO searched (conversation_id) SELECT id FROM conversations ORDER BY created_at;
    INSERT INTO searched (conversation_id, message_id)
        SELECT conversation_id, id FROM messages WHERE role <> 'system' ORDER BY created_at
    """,
    # 8: documents that go with messages, as kvchat.chat.record.prompt gives them to a model
    """
    CREATE TABLE attachments (
        message_id TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        name TEXT NOT NULL,
        size INTEGER NOT NULL,  -- bytes of the original
        hash TEXT NOT NULL,  -- BLAKE3 of the original
        text TEXT NOT NULL,
        PRIMARY KEY (message_id, position)
    )
    """,
    # 9: what has been written and not sent; '' stands for the conversation that has not begun
    """
    CREATE TABLE drafts (conversation_id TEXT PRIMARY KEY, text TEXT NOT NULL);
    CREATE TRIGGER drafts_of_nothing AFTER DELETE ON conversations BEGIN
        DELETE FROM drafts WHERE conversation_id = OLD.id;
    END
    """,
    # 10: documents are searched with the messages they belong to
    """
    CREATE TRIGGER document_added AFTER INSERT ON attachments BEGIN
        UPDATE searched SET stale = 1 WHERE message_id = new.message_id AND NOT stale;
    END;
    UPDATE searched SET stale = 1 WHERE message_id IN (SELECT message_id FROM attachments)
    """,
    # 11: pictures that go with messages, as their files
    """
    ALTER TABLE attachments ADD COLUMN data BLOB NOT NULL DEFAULT x''
    """,
    # 12: whether the model may still find a title; not for chats that have had theirs for long, nor for imported ones
    """
    ALTER TABLE conversations ADD COLUMN title_due INTEGER NOT NULL DEFAULT 0
    """,
    # 13: what waits with a draft
    """
    CREATE TABLE draft_attachments (
        conversation_id TEXT NOT NULL,
        position INTEGER NOT NULL,
        name TEXT NOT NULL,
        size INTEGER NOT NULL,
        hash TEXT NOT NULL,
        text TEXT NOT NULL,
        data BLOB NOT NULL,
        PRIMARY KEY (conversation_id, position)
    );
    CREATE TRIGGER attached_to_nothing AFTER DELETE ON conversations BEGIN
        DELETE FROM draft_attachments WHERE conversation_id = OLD.id;
    END
    """,
    # 14: messages and chats that were deleted and of which something may still be kept, see kvchat.chat.deletion
    """
    CREATE TABLE deleted (id TEXT PRIMARY KEY, conversation_id TEXT NOT NULL)
    """,
    # 15: messages that were deleted and can be had back, see kvchat.chat.deletion
    """
    CREATE TABLE removed (
        id TEXT PRIMARY KEY,  -- the first message's
        conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        removed_at REAL NOT NULL,
        leaf_id TEXT,  -- the conversation's before
        title TEXT NOT NULL,
        rows TEXT NOT NULL  -- JSON: of the tables `messages` and `attachments`
    );
    CREATE INDEX removed_of_conversation ON removed (conversation_id)
    """,
    # 16: how long this model took to read, which each turn asks for before it begins
    """
    CREATE INDEX messages_that_read ON messages (
        CASE WHEN json_valid(receipt) THEN receipt ->> '$.model' END, created_at
    ) WHERE CASE WHEN json_valid(receipt)
        THEN (receipt ->> '$.prompt_tokens') - (receipt ->> '$.cached_tokens') >= 64 END
    """,
    # 17: replies that are being written, which each start looks for before there is a window
    """
    CREATE INDEX messages_streaming ON messages (writer) WHERE state = 'streaming'
    """,
    # 18: documents that were read once for chats to begin on, see kvchat.chat.prepared
    """
    CREATE TABLE prepared (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        paths TEXT NOT NULL,  -- JSON: what the user named
        sources TEXT NOT NULL,  -- JSON: the files, as they were when they were read
        texts TEXT NOT NULL,  -- JSON: what the model read of them
        label TEXT NOT NULL DEFAULT '',  -- of the save points; empty: not read to the end
        fingerprint TEXT,  -- JSON
        model TEXT NOT NULL DEFAULT '',
        context_size INTEGER NOT NULL DEFAULT 0,
        tokens INTEGER NOT NULL DEFAULT 0,
        read_ms REAL NOT NULL DEFAULT 0,
        created_at REAL NOT NULL
    )
    """,
    # 19: which of them a chat began on; and what the memory of chats took on the disk, day by day
    """
    ALTER TABLE conversations ADD COLUMN prepared TEXT;
    CREATE TABLE disk_by_day (
        day TEXT PRIMARY KEY,  -- 2026-11-22, by the clock here
        used INTEGER NOT NULL,  -- bytes, as last known that day
        quota INTEGER NOT NULL
    )
    """,
    # 20: the order of chats, and how long they have been deleted, by something else than the clock alone
    """
    ALTER TABLE conversations ADD COLUMN used INTEGER NOT NULL DEFAULT 0;  -- counts the uses of all chats; 0: by time
    DROP INDEX conversations_by_update;
    CREATE INDEX conversations_by_use ON conversations (used, updated_at);
    CREATE TRIGGER conversation_used AFTER UPDATE OF updated_at ON conversations BEGIN
        UPDATE conversations SET used = 1 + (SELECT max(used) FROM conversations) WHERE id = new.id;
    END;
    ALTER TABLE conversations ADD COLUMN deleted_s REAL NOT NULL DEFAULT 0;  -- see chat/deletion/recently_deleted.py
    ALTER TABLE conversations ADD COLUMN deleted_seen REAL;  -- seconds since 1970, when deleted_s was last counted
    ALTER TABLE removed ADD COLUMN deleted_s REAL NOT NULL DEFAULT 0;
    ALTER TABLE removed ADD COLUMN deleted_seen REAL
    """,
    # 21: what is not said in chats is not kept with them
    """
    DROP TABLE restore_findings;
    DROP TABLE disk_by_day
    """,
    # 22: the order of a chat's messages, by something else than the clock; what is put back keeps its place
    """
    ALTER TABLE conversations ADD COLUMN written INTEGER NOT NULL DEFAULT 0;  -- the last place there ever was
    ALTER TABLE messages ADD COLUMN place INTEGER NOT NULL DEFAULT 0;
    UPDATE messages SET place = placed.nth FROM (
        SELECT id, row_number() OVER (PARTITION BY conversation_id ORDER BY created_at, rowid) AS nth FROM messages
    ) AS placed WHERE placed.id = messages.id;
    DROP INDEX messages_of_conversation;
    CREATE INDEX messages_of_conversation ON messages (conversation_id, place);
    UPDATE conversations SET written = (
        SELECT ifnull(max(place), 0) FROM messages WHERE conversation_id = conversations.id
    );
    CREATE TRIGGER message_placed AFTER INSERT ON messages WHEN new.place = 0 BEGIN
        UPDATE messages SET place = 1 + max(
            (SELECT max(place) FROM messages WHERE conversation_id = new.conversation_id),
            (SELECT ifnull(max(written), 0) FROM conversations WHERE id = new.conversation_id)
        ) WHERE id = new.id;
        UPDATE conversations SET written = (SELECT place FROM messages WHERE id = new.id)
            WHERE id = new.conversation_id;
    END
    """,
)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the conversations to the newest format. Raises kvchat.system.migrations.DatabaseTooNew."""
    migrations.migrate(connection, path, MIGRATIONS, _("Your chats were last opened by a newer kvchat"))
