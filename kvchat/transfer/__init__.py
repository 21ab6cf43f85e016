"""Export, import, backup and repair of chats, with or without their KV caches ("memory")."""
