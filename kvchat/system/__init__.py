"""The computer: folders, files, keyring, SQLite schemas and blocking work. Knows no chat, model or engine."""
