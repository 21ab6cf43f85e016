"""Text for users: sizes, times and wording, Markdown, misleading characters, redaction of secrets, search."""
