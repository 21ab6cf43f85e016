"""System access: folders, files, keyring, SQLite schemas and threads. Knows no chat, model or engine."""
