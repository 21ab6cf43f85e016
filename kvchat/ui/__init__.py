"""PySide6 and nothing else: shows state, forwards wishes, decides nothing."""
