"""Chats taken out and in: export, import, backup and its restore, repair."""
