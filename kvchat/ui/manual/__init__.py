"""The user manual: Markdown files for each language, and the window that shows it."""
