"""The manual: Markdown, one file for each language, and the window that shows it."""
