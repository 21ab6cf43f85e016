"""The list of chats, its order, and the search above it."""
