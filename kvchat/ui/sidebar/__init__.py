"""The sidebar, and the windows of deleted chats and of the document library."""
