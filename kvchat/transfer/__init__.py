"""Chats taken out and in, with their memory or without: export, import, backup and its restore, repair. The chats themselves are `chat`."""
