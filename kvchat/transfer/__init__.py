"""Chats in and out, with or without memory: export, import, backup, repair. Chats themselves are in `chat`."""
