"""Schema of the conversations in numbered steps (kvchat.system.migrations)."""

import sqlite3
from pathlib import Path

from kvchat.system import migrations
from kvchat.text.language import _

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE conversations (
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL,
        title_by_user INTEGER NOT NULL DEFAULT 0,
        title_due INTEGER NOT NULL DEFAULT 0,  -- the model may still find a title
        created_at REAL NOT NULL,  -- seconds since 1970, as all times
        updated_at REAL NOT NULL,
        used INTEGER NOT NULL DEFAULT 0,  -- counts the uses of all chats: their order by no clock; 0: by time
        leaf_id TEXT,
        written INTEGER NOT NULL DEFAULT 0,  -- the last place that one of its messages ever had
        model TEXT,  -- path
        options TEXT NOT NULL DEFAULT '',  -- JSON, see kvchat.chat.options
        prepared TEXT,  -- the set of documents that it began on
        folder TEXT,
        on_top INTEGER NOT NULL DEFAULT 0,
        archived INTEGER NOT NULL DEFAULT 0,
        deleted_at REAL,
        deleted_s REAL NOT NULL DEFAULT 0,  -- see kvchat.chat.deletion
        deleted_seen REAL  -- when deleted_s was last counted
    );
    CREATE INDEX conversations_by_use ON conversations (used, updated_at);
    CREATE INDEX conversations_deleted ON conversations (deleted_at) WHERE deleted_at IS NOT NULL;
    CREATE TRIGGER conversation_used AFTER UPDATE OF updated_at ON conversations BEGIN
        UPDATE conversations SET used = 1 + (SELECT max(used) FROM conversations) WHERE id = new.id;
    END;

    CREATE TABLE messages (
        id TEXT PRIMARY KEY,
        conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        parent_id TEXT REFERENCES messages (id) ON DELETE CASCADE,
        place INTEGER NOT NULL DEFAULT 0,  -- the order within a chat by no clock; what is put back keeps its own
        role TEXT NOT NULL,
        content TEXT NOT NULL,
        thinking TEXT NOT NULL DEFAULT '',
        state TEXT NOT NULL,
        created_at REAL NOT NULL,
        receipt TEXT,  -- JSON
        writer TEXT  -- NULL: imported; '': said here; 'awaits_model': a question that waits for a model
    );
    CREATE INDEX messages_of_conversation ON messages (conversation_id, place);
    CREATE INDEX messages_of_parent ON messages (parent_id);
    CREATE INDEX messages_streaming ON messages (id) WHERE state = 'streaming';
    CREATE INDEX system_prompts ON messages (id) WHERE role = 'system';
    CREATE INDEX messages_that_read ON messages (
        CASE WHEN json_valid(receipt) THEN receipt ->> '$.model' END, created_at
    ) WHERE CASE WHEN json_valid(receipt)
        THEN (receipt ->> '$.prompt_tokens') - (receipt ->> '$.cached_tokens') >= 64 END;
    CREATE TRIGGER message_placed AFTER INSERT ON messages WHEN new.place = 0 BEGIN
        UPDATE messages SET place = 1 + max(
            (SELECT max(place) FROM messages WHERE conversation_id = new.conversation_id),
            (SELECT ifnull(max(written), 0) FROM conversations WHERE id = new.conversation_id)
        ) WHERE id = new.id;
        UPDATE conversations SET written = (SELECT place FROM messages WHERE id = new.id)
            WHERE id = new.conversation_id;
    END;

    CREATE TABLE attachments (
        message_id TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        name TEXT NOT NULL,
        size INTEGER NOT NULL,  -- bytes of the original
        hash TEXT NOT NULL,  -- BLAKE3 of the original
        text TEXT NOT NULL,
        data BLOB NOT NULL DEFAULT x'',  -- a picture's file
        PRIMARY KEY (message_id, position)
    );

    -- What has been written and not sent; an id is '' for the chat that has not begun, 'queue/…' for what is sent next.
    CREATE TABLE drafts (conversation_id TEXT PRIMARY KEY, text TEXT NOT NULL);
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
    CREATE TRIGGER drafts_of_nothing AFTER DELETE ON conversations BEGIN
        DELETE FROM drafts WHERE conversation_id IN (old.id, 'queue/' || old.id);
        DELETE FROM draft_attachments WHERE conversation_id IN (old.id, 'queue/' || old.id);
    END;

    CREATE TABLE presets (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        system TEXT NOT NULL,
        model TEXT,
        options TEXT NOT NULL,
        is_default INTEGER NOT NULL
    );

    -- The words of all messages and titles, see kvchat.chat.search
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
    CREATE TRIGGER document_added AFTER INSERT ON attachments BEGIN
        UPDATE searched SET stale = 1 WHERE message_id = new.message_id AND NOT stale;
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

    -- Messages that were deleted and can be had back, see kvchat.chat.deletion
    CREATE TABLE removed (
        id TEXT PRIMARY KEY,  -- the first message's
        conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        removed_at REAL NOT NULL,
        leaf_id TEXT,  -- the conversation's before
        title TEXT NOT NULL,
        rows TEXT NOT NULL,  -- JSON: of the tables `messages` and `attachments`
        deleted_s REAL NOT NULL DEFAULT 0,  -- these two as of `conversations`
        deleted_seen REAL
    );
    CREATE INDEX removed_of_conversation ON removed (conversation_id);
    -- Messages and chats that were deleted for good and of which something may still be kept
    CREATE TABLE deleted (id TEXT PRIMARY KEY, conversation_id TEXT NOT NULL);

    -- Documents that were read once for chats to begin on, see kvchat.chat.prepared
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
    """
    ALTER TABLE messages ADD COLUMN tool TEXT;  -- JSON: calls, their time, or a system prompt's tools; NULL: none
    CREATE TRIGGER call_changed AFTER UPDATE OF tool ON messages WHEN new.tool IS NOT old.tool BEGIN
        UPDATE searched SET stale = 1 WHERE message_id = new.id AND NOT stale;
    END;
    -- Permission to execute a tool as defined at that time, in one chat or ('') in all
    CREATE TABLE tool_grants (
        digest TEXT NOT NULL,  -- kvchat.tools.tool.Tool.digest
        source TEXT NOT NULL,
        name TEXT NOT NULL,
        conversation_id TEXT NOT NULL,
        granted_at REAL NOT NULL,
        PRIMARY KEY (digest, conversation_id)
    );
    CREATE TRIGGER grants_of_nothing AFTER DELETE ON conversations BEGIN
        DELETE FROM tool_grants WHERE conversation_id = old.id;
    END
    """,
    """
    -- Documents to look things up in and passages quoted from them, see kvchat.chat.lookup
    ALTER TABLE attachments ADD COLUMN whole TEXT NOT NULL DEFAULT '';
    ALTER TABLE attachments ADD COLUMN source TEXT NOT NULL DEFAULT '';
    ALTER TABLE draft_attachments ADD COLUMN whole TEXT NOT NULL DEFAULT '';
    ALTER TABLE draft_attachments ADD COLUMN source TEXT NOT NULL DEFAULT ''
    """,
    """
    -- Vectors of the passages of looked-up documents, see kvchat.chat.lookup
    CREATE TABLE vectors (
        document TEXT NOT NULL,  -- its hash
        kind TEXT NOT NULL,  -- of the model and the passages; others cannot be compared
        first INTEGER NOT NULL,  -- number of the first passage
        data BLOB NOT NULL,  -- float16, of length 1
        PRIMARY KEY (document, kind, first)
    );
    CREATE TRIGGER vectors_of_nothing AFTER DELETE ON attachments WHEN old.whole <> '' BEGIN
        DELETE FROM vectors WHERE document = old.hash
            AND NOT EXISTS (SELECT 1 FROM attachments WHERE hash = old.hash AND whole <> '');
    END
    """,
)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Migrate the chats to the newest format. Raises kvchat.system.migrations.DatabaseTooNew."""
    migrations.migrate(connection, path, MIGRATIONS, _("Your chats were last opened by a newer version of kvchat"))
