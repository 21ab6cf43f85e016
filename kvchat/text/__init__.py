"""Text for users: translation, sizes and times, Markdown, misleading characters, redaction of secrets, search."""
