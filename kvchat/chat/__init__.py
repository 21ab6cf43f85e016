"""Chats: stored conversations and messages, and the turns that answer them and record a receipt per reply."""
