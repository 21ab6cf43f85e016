"""What is left when the chats' file is damaged: automatic backups, and all that can still be read."""
