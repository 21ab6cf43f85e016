"""Chats taken out and in, with their memory or without: export, import, backup, repair. Chats themselves are `chat`."""
