"""Chats taken out and in: export, import, backup and its restore, repair. The chats themselves are `chat`."""
