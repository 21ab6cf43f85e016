"""The sidebar, and the windows of deleted chats and of the library."""
